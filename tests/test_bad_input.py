"""Every wrong request and every bad row: one message that says what, where, and what would be valid.

A failed run leaves nothing that looks finished, even where an earlier one had finished.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys

import made
import pytest

from assay import cli

NAN = float("nan")
BOUND = {"valueThreshold": {"lowerBound": 0.1}}
FINISHED = {"blessing", "report.json", "report.html", "metrics", "plots", "validations", "eval_config.json"}


def rows(size=24, **changed):
    """Rows as they should be; `at_5={...}` changes one."""
    found = [
        {
            "label": i % 2,
            "score": 0.25 + 0.5 * (i % 2),
            "w": 1.0,
            "pay": ["Cash", "Card"][i % 2],
            "hour": i % 3,
        }
        for i in range(size)
    ]
    for place, change in changed.items():
        found[int(place.removeprefix("at_"))].update(change)
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad_input")
    made.examples(folder / "examples", rows(), files=2)
    made.model(folder / "model")
    made.model(folder / "named", made.Named())
    made.evaluate(folder / "examples", folder / "model", made.config("AUC"), output=str(folder / "finished"))
    assert looks_finished(folder / "finished") == sorted(FINISHED)
    return folder


def looks_finished(folder):
    """What an earlier run's reader would take for results."""
    found = {p.name.split("-")[0].split(".tfrecord")[0] for p in folder.rglob("*") if p.is_file()}
    found = {"blessing" if name.endswith("BLESSED") else name for name in found}
    return sorted(found & FINISHED)


@pytest.fixture
def run(root, tmp_path, capsys):
    """Returns a function that runs the command over an earlier finished run: → (exit code, message)."""

    def command(config=None, *more, examples=None, model=None):
        output = tmp_path / "output"
        shutil.copytree(root / "finished", output, dirs_exist_ok=True)
        arguments = ["--examples", examples or root / "examples", "--model", model or root / "model"]
        arguments += ["--eval-config", config or made.config("AUC", "ExampleCount"), "--output", output]
        capsys.readouterr()
        code = cli.main(["evaluate", *map(str, [*arguments, "--strategy", "one_device", *more])])
        told = capsys.readouterr().err
        lines = [line for line in told.splitlines() if line.startswith("assay: error: ")]
        assert len(lines) == (1 if code in (1, 2) else 0), told
        assert "Traceback" not in told
        if code in (1, 2):
            assert looks_finished(output) == []
            assert not re.search(r"function_node|\[Op:|<stack", lines[0]), "TensorFlow's own noise"
        return code, lines[0] if lines else ""

    command.output = tmp_path / "output"
    return command


def says(outcome, code, *parts):
    found, message = outcome
    assert found == code, message
    for part in parts:
        assert str(part) in message, message


def write(folder, found, name="data.gz", compression="GZIP", split="eval"):
    made.write(folder / f"Split-{split}" / name, found, compression)
    return folder


def put(folder, data, name="data"):
    path = folder / "Split-eval" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return folder


def packed(root):
    return (root / "examples" / "Split-eval" / "data_tfrecord-00000-of-00002.gz").read_bytes()


def test_the_request_that_the_others_spoil_is_fine(run):
    assert run() == (0, "")


# ── which examples ────────────────────────────────────────────────────────────────────────────


def test_no_such_split(run, root):
    says(run(None, "--split", "evl"), 2, "split 'evl'", root / "examples", "eval")
    says(run(None, "--split", "eval", "test"), 2, "split 'test'", root / "examples", "eval")


def test_no_such_folder(run, tmp_path):
    says(run(examples=tmp_path / "gone"), 2, tmp_path / "gone", "does not exist")
    says(run(examples=tmp_path / "g*ne"), 2, tmp_path / "g*ne", "no file matches")


@pytest.mark.parametrize("inner", ["Split-eval", "."])
def test_a_folder_without_files(run, tmp_path, inner):
    (tmp_path / "none" / inner).mkdir(parents=True)
    says(run(examples=tmp_path / "none"), 2, tmp_path / "none", "holds no files")


@pytest.mark.parametrize("compression", ["GZIP", ""])
def test_not_one_record(run, tmp_path, compression):
    # Case 47. Without compression the file has not one byte.
    folder = write(tmp_path / "none", [], "data", compression)
    says(run(examples=folder), 1, "no examples", folder / "Split-eval" / "data")


def test_an_empty_file_beside_a_full_one_is_fine(run, tmp_path):
    folder = write(tmp_path / "some", [], "a", "")
    write(folder, rows(), "b.gz")
    assert run(examples=folder)[0] == 0


# ── files that are not what they seem ─────────────────────────────────────────────────────────


@pytest.mark.parametrize("cut", [1, 8, 9, 20, 30, 60, 90])
def test_gzip_cut_short(run, root, tmp_path, cut):
    # TensorFlow reads several of these without complaint, and without the last rows.
    folder = put(tmp_path / "cut", packed(root)[:-cut], "data.gz")
    says(run(examples=folder), 1, folder / "Split-eval" / "data.gz")


@pytest.mark.parametrize("cut", [1, 5, 20, 90, 98])
def test_plain_cut_short(run, root, tmp_path, cut):
    folder = put(tmp_path / "cut", gzip.decompress(packed(root))[:-cut])
    says(run(examples=folder), 1, folder / "Split-eval" / "data")


@pytest.mark.parametrize("more", [[], ["--strategy", "mirrored", "--logical-devices", "3"]])
@pytest.mark.parametrize("share", [0.5, 0.95])
def test_cut_short_beyond_the_first_records(run, tmp_path, share, more):
    found = write(tmp_path / "long", rows(3000)) / "Split-eval" / "data.gz"
    found.write_bytes(found.read_bytes()[: int(share * found.stat().st_size)])
    says(run(None, *more, examples=tmp_path / "long"), 1, found)


def test_every_cut_of_a_file_is_seen(tmp_path):
    from assay.examples import locate, peek
    from assay.spec import DataError

    path = made.write(tmp_path / "data.gz", rows(300))
    data = path.read_bytes()
    for size in range(len(data) - 1, 0, -7):
        path.write_bytes(data[:size])
        with pytest.raises(DataError, match=r"data\.gz"):
            peek(locate([str(path)], ["eval"]), {})


def test_joined_gzip_files_are_whole(run, root, tmp_path):
    folder = put(tmp_path / "two", packed(root) + packed(root), "data.gz")
    assert run(examples=folder)[0] == 0
    assert json.loads((run.output / "report.json").read_text())["examples"]["rows"] == 24


@pytest.mark.parametrize(
    "data", [b"hello", b"hello world, no TFRecord" * 9, b"\x1f\x8bno gzip" * 9, b"\x1f\x8b\x08no gzip" * 9]
)
@pytest.mark.parametrize("name", ["data", "data.gz"])
def test_no_tfrecord_at_all(run, tmp_path, data, name):
    folder = put(tmp_path / "garbage", data, name)
    says(run(examples=folder), 1, folder / "Split-eval" / name)


def test_a_flipped_bit(run, root, tmp_path):
    data = bytearray(gzip.decompress(packed(root)))
    data[len(data) // 2] ^= 1
    folder = put(tmp_path / "flipped", bytes(data))
    says(run(examples=folder), 1, folder / "Split-eval" / "data", "corrupted record")


def test_a_bad_file_after_good_ones_is_named(run, tmp_path):
    folder = write(tmp_path / "some", rows(1200), "a.gz")
    put(folder, b"hello world, no TFRecord" * 9, "b.gz")
    says(run(examples=folder), 1, folder / "Split-eval" / "b.gz")


def test_no_tf_example(run, tmp_path):
    import tensorflow as tf

    path = tmp_path / "records"
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(made.example(rows(1)[0]))
        writer.write(b"\xff\xff no message")
    says(run(examples=path), 1, path, "record 1 is not a tf.Example")


@pytest.mark.parametrize("name,compression", [("data.gz", ""), ("data", "GZIP")])
def test_the_name_of_a_file_does_not_matter(run, tmp_path, name, compression):
    assert run(examples=write(tmp_path / "named", rows(), name, compression))[0] == 0


def test_a_record_whose_length_begins_like_gzip(tmp_path):
    from assay.examples import locate

    # 0x8b1f bytes; the length stands first in a TFRecord, the low byte before the high one.
    empty = len(made.example({"text": b"x" * 30_000})) - 30_000
    path = made.write(tmp_path / "data", [{"text": b"x" * (0x8B1F - empty)}], "")
    assert path.read_bytes()[:2] == b"\x1f\x8b"
    assert [f.compression for f in locate([str(path)], ["eval"])] == [""]


# ── rows ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_row_without_a_label(run, tmp_path, replicas):
    folder = tmp_path / "unlabelled"
    write(folder, rows(), "a.gz")
    write(folder, rows(at_7={"label": None}), "b.gz")
    write(folder, rows(at_3={"label": None}), "c.gz")
    more = ["--strategy", "mirrored", "--logical-devices", "3", "--batch-size", "4"] if replicas > 1 else []
    says(run(None, *more, examples=folder), 1, folder / "Split-eval" / "b.gz", "record 7 has no label")


def test_the_first_bad_row_is_named_whatever_is_wrong_with_it(run, tmp_path):
    models = [{"labelKey": "label", "exampleWeightKey": "w"}]
    folder = write(tmp_path / "bad", rows(at_9={"label": None}, at_4={"w": -1.0}))
    says(run(made.config("AUC", models=models), examples=folder), 1, "record 4 has an example weight")


@pytest.mark.parametrize("value", [2, -1])
def test_a_label_outside_0_and_1(run, tmp_path, value):
    folder = write(tmp_path / "bad", rows(at_5={"label": value}))
    says(run(examples=folder), 1, folder / "Split-eval" / "data.gz", "record 5 has a label outside [0, 1]")
    assert run(made.config("MeanSquaredError"), examples=folder)[0] == 0


@pytest.mark.parametrize("value", [NAN, float("inf")])
def test_a_label_that_is_no_number(run, tmp_path, value):
    labels = {f"at_{i}": {"label": float(i % 2)} for i in range(24)}
    folder = write(tmp_path / "bad", rows(**{**labels, "at_5": {"label": value}}))
    says(run(examples=folder), 1, folder / "Split-eval" / "data.gz", "record 5", "no finite number")


def test_several_labels_in_a_row(run, tmp_path):
    folder = write(tmp_path / "bad", rows(at_5={"label": [0, 1]}))
    says(run(examples=folder), 1, folder / "Split-eval" / "data.gz", "record 5 has another number of label")


@pytest.mark.parametrize("value", [-1.0, NAN, float("inf"), 2.0**31, None])
def test_a_weight_that_is_none(run, tmp_path, value):
    folder = write(tmp_path / "bad", rows(at_5={"w": value}))
    config = made.config("AUC", models=[{"labelKey": "label", "exampleWeightKey": "w"}])
    what = "record 5 has no example weight" if value is None else "record 5 has an example weight that is"
    says(run(config, examples=folder), 1, folder / "Split-eval" / "data.gz", what)
    assert run(examples=folder)[0] == 0, "nobody asked for that weight"


@pytest.mark.parametrize(
    "metric,value,replicas",
    [
        ("AUC", 1.5, 1),
        ("AUC", -0.01, 3),
        ("AUCPrecisionRecall", float("inf"), 1),
        ("BinaryCrossEntropy", -0.01, 1),
        ("ConfusionMatrixPlot", 1.001, 1),
    ],
)
def test_a_prediction_outside_0_and_1(run, tmp_path, metric, value, replicas):
    folder = write(tmp_path / "bad", rows(at_5={"score": value}, at_11={"score": value}))
    more = ["--strategy", "mirrored", "--logical-devices", "3", "--batch-size", "2"] if replicas > 1 else []
    told = run(made.config(metric), *more, examples=folder)
    says(told, 1, folder / "Split-eval" / "data.gz", "record 5 has a prediction outside [0, 1]", "logits")


def test_a_metric_of_any_number_takes_such_predictions(run, tmp_path):
    folder = write(tmp_path / "fine", rows(at_5={"score": 1.5}))
    assert run(made.config("MeanSquaredError", "BinaryAccuracy", "CalibrationPlot"), examples=folder)[0] == 0


@pytest.mark.parametrize("replicas", [1, 3])
def test_nan_predictions_leave_the_metric_undefined_and_the_model_unblessed(run, tmp_path, replicas):
    folder = write(tmp_path / "nan", rows(at_9={"score": NAN}, at_5={"score": NAN}))
    metrics = [{"className": m, "threshold": BOUND} for m in ("AUC", "Precision", "ExampleCount")]
    more = ["--strategy", "mirrored", "--logical-devices", "3", "--batch-size", "2"] if replicas > 1 else []
    slices = [{}, {"featureKeys": ["hour"]}]
    code, _ = run(made.config(*metrics, "MeanLabel", slices=slices), *more, examples=folder)
    assert code == 0
    report = json.loads((run.output / "report.json").read_text())
    overall, *hours = report["slices"]
    first = f"{folder / 'Split-eval' / 'data.gz'}, record 5"
    assert overall["metrics"]["example_count"] == {"candidate": 24.0}
    assert set(overall["undefined"]) >= {"auc", "precision"}
    assert overall["undefined"]["auc"].startswith("2 of 24 rows have a prediction that is no finite number")
    assert first in overall["undefined"]["auc"]
    # Rows 5 and 9 are of hours 2 and 0; hour 1 is as good as ever.
    assert ["auc" in hour["metrics"] for hour in hours] == [False, True, False]
    assert report["verdict"]["blessed"] is False
    failed = {(f["metric"], f["place"]) for f in report["verdict"]["findings"] if not f["ok"]}
    assert failed == {(m, p) for m in ("auc", "precision") for p in ("Overall", "hour=0", "hour=2")}
    assert (run.output / "blessing" / "NOT_BLESSED").exists()


def test_nan_predictions_of_rows_without_weight_do_not_matter(run, tmp_path):
    folder = write(tmp_path / "nan", rows(at_5={"score": NAN, "w": 0.0}))
    config = made.config("AUC", models=[{"labelKey": "label", "exampleWeightKey": "w"}])
    assert run(config, examples=folder)[0] == 0
    assert json.loads((run.output / "report.json").read_text())["slices"][0]["undefined"] == {}


SLICED = made.config("AUC", slices=[{}, {"featureKeys": ["hour"]}])


@pytest.mark.parametrize(
    "model,config,change,what",
    [
        ("model", None, {"label": 1.0}, "label"),
        ("model", SLICED, {"hour": "late"}, "hour"),
        ("named", None, {"score": None}, "score"),
        ("named", None, {"score": [0.5, 0.5]}, "score"),
        ("model", None, {"score": 1}, "score"),
        ("model", None, {"score": None}, "score"),
    ],
)
def test_a_feature_that_changes_after_the_first_records(run, root, tmp_path, model, config, change, what):
    folder = write(tmp_path / "mixed", rows(), "a.gz")
    write(folder, rows(1500, at_1300=change), "b.gz")
    told = run(config, examples=folder, model=root / model)
    says(told, 1, folder / "Split-eval" / "b.gz", "record 1300 cannot be", what)


# ── names in the config ───────────────────────────────────────────────────────────────────────


def metric(**more):
    return made.config({"className": "AUC", **more})


def spec(**more):
    return made.config("AUC", models=[{"labelKey": "label", **more}])


@pytest.mark.parametrize(
    "config,parts",
    [
        (spec(labelKey="lable"), ["label_key 'lable'", "nearest: label"]),
        (spec(labelKey="pay"), ["label_key 'pay'", "string", "numeric"]),
        (spec(exampleWeightKey="weights"), ["example_weight_key 'weights'", "known: ", "w"]),
        (spec(exampleWeightKey="pay"), ["example_weight_key 'pay'", "string", "numeric"]),
        (spec(signatureName="serving"), ["signature 'serving'", "model", "nearest: serving_default"]),
        (spec(predictionKey="outputs"), ["prediction_key 'outputs'", "serving_default", "nearest: output"]),
        (made.config("AUC", models=[{}]), ["'AUC' needs a label", "label_key"]),
        (made.config("AUC", slices=[{}, {"featureKeys": ["pya"]}]), ["slice feature 'pya'", "nearest: pay"]),
        (
            made.config("AUC", slices=[{"featureValues": {"hoor": "1"}}]),
            ["slice feature 'hoor'", "nearest: hour"],
        ),
        (
            made.config("AUC", slices=[{"featureKeys": ["pay"], "featureValues": {"pay": "Cash"}}]),
            ["slicing_specs: feature 'pay' is named twice", "once"],
        ),
        (made.config("AOC"), ["metrics_specs[0]", "metric class 'AOC'", "nearest: AUC"]),
        (made.config("Zzzzzz"), ["metric class 'Zzzzzz'", "known: AUC, "]),
        (made.config({"className": "AUC", "module": "my.own"}), ["metrics_specs[0]", "module 'my.own'"]),
        (metric(config='"treshold": 3'), ["metrics_specs[0]", "argument 'treshold'", "num_thresholds"]),
        (metric(config='"curve": "ROCK"'), ["curve 'ROCK'", "nearest: ROC"]),
        (metric(config='"num_thresholds": 1.5'), ["num_thresholds is 1.5", "a whole number"]),
        (metric(config='"name": 5'), ["name is 5", "a text"]),
        (metric(config='"num_thresholds" 5'), ["metrics_specs[0], metric 'AUC'", "config is not JSON"]),
        (metric(config="[1]"), ["metrics_specs[0], metric 'AUC'", "config is not JSON"]),
        (
            metric(threshold={"valueThreshold": {"lowerBound": 0.9, "upperBound": 0.1}}),
            ["metrics_specs[0], metric 'AUC'", "lower_bound 0.9 is above upper_bound 0.1"],
        ),
        (metric(threshold={"valueThreshold": {}}), ["metric 'AUC'", "lower_bound, upper_bound or both"]),
        (metric(threshold={"valueThreshold": {"lowerBound": "NaN"}}), ["metric 'AUC'", "lower_bound is nan"]),
        (
            metric(threshold={"changeThreshold": {"absolute": 0.1}}),
            ["metric 'AUC'", "direction is UNKNOWN", "HIGHER_IS_BETTER, LOWER_IS_BETTER"],
        ),
        (
            made.config({"className": "CalibrationPlot", "threshold": BOUND}),
            ["metric 'CalibrationPlot'", "threshold", "plot"],
        ),
        (
            metric(perSliceThresholds=[{"slicingSpecs": [{"featureKeys": ["hour"]}], "threshold": BOUND}]),
            ["metric 'AUC'", "slice 'hour'", "they make: Overall"],
        ),
        (metric(perSliceThresholds=[{"threshold": BOUND}]), ["metric 'AUC'", "without slicing_specs"]),
        (
            metric(
                crossSliceThresholds=[
                    {"crossSlicingSpecs": [{"baselineSpec": {}, "slicingSpecs": []}], "threshold": BOUND}
                ]
            ),
            ["metric 'AUC'", "cross slice 'Overall minus every other slice'", "none"],
        ),
        (
            made.config("Precision", {"className": "Precision", "config": '"thresholds": 0.3'}),
            ["two metrics are named 'precision'", "name"],
        ),
        (
            made.config("Precision", {"className": "Recall", "config": '"name": "precision"'}),
            ["two metrics are named 'precision'", "name"],
        ),
        (made.config(), ["metrics_specs is empty", "at least one"]),
    ],
)
def test_what_is_wrong_in_the_config_is_named(run, config, parts):
    says(run(config), 2, *parts)


def changed(**more):
    config = json.loads(made.config("AUC"))
    config["metricsSpecs"][0].update(more)
    return json.dumps(config)


@pytest.mark.parametrize(
    "config,path",
    [
        (changed(binarize={"classIds": {"values": [1]}}), "metrics_specs[0].binarize"),
        (changed(aggregate={"microAverage": True}), "metrics_specs[0].aggregate"),
        (changed(queryKey="q"), "metrics_specs[0].query_key"),
        (changed(outputNames=["a"]), "metrics_specs[0].output_names"),
        (changed(thresholds={"auc": BOUND}), "metrics_specs[0].thresholds"),
        (
            changed(perSliceThresholds={"auc": {"thresholds": [{"slicingSpecs": [{}], "threshold": BOUND}]}}),
            "metrics_specs[0].per_slice_thresholds",
        ),
        (spec(preprocessingFunctionNames=["tft"]), "model_specs[0].preprocessing_function_names"),
        (spec(labelKeys={"a": "label"}), "model_specs[0].label_keys"),
        (spec(inferenceBatchSize=8), "model_specs[0].inference_batch_size"),
        (spec(paddingOptions={"labelIntPadding": 0}), "model_specs[0].padding_options"),
        (made.config("AUC", slices=[{}, {"sliceKeysSql": "SELECT"}]), "slicing_specs[1].slice_keys_sql"),
        (
            made.config("AUC", options={"computeConfidenceIntervals": True}),
            "options.compute_confidence_intervals",
        ),
        (
            made.config("AUC", options={"includeDefaultMetrics": True}),
            "options.include_default_metrics",
        ),
        (
            made.config("AUC", options={"disabledOutputs": {"values": ["eval_config"]}}),
            "options.disabled_outputs",
        ),
        (
            made.config("AUC", crossSlicingSpecs=[{"baselineSpec": {"sliceKeysSql": "SELECT"}}]),
            "cross_slicing_specs[0].baseline_spec.slice_keys_sql",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_its_path(run, config, path):
    says(run(config), 2, f"eval_config.{path}", "not supported")


def test_switched_off_options_are_fine(run):
    off = {"computeConfidenceIntervals": False, "includeDefaultMetrics": False}
    assert run(made.config("AUC", options=off))[0] == 0


@pytest.mark.parametrize(
    "text,parts",
    [
        ('{"modelSpecs": }', ["eval_config is not JSON", "column 16"]),
        ('{"modelSpec": []}', ["not a tfma.EvalConfig", "modelSpec", "modelSpecs"]),
        ('{"modelSpecs": 3}', ["not a tfma.EvalConfig", "modelSpecs", "repeated"]),
        ("no_such_file.json", ["--eval-config: no_such_file.json cannot be read"]),
    ],
)
def test_no_eval_config(root, tmp_path, capsys, text, parts):
    arguments = ["--examples", root / "examples", "--model", root / "model", "--eval-config", text]
    code = cli.main(["evaluate", *map(str, [*arguments, "--output", tmp_path / "out"])])
    says((code, capsys.readouterr().err), 2, *parts)
    assert not (tmp_path / "out").exists()


# ── models ────────────────────────────────────────────────────────────────────────────────────


def several(outputs, rank=2):
    """A model that parses `score` and gives it under some names, C times a row where rank is 2."""
    import tensorflow as tf

    class Several(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
        def serve(self, serialized):
            found = tf.io.parse_example(serialized, {"score": tf.io.FixedLenFeature([], tf.float32)})["score"]
            return {n: tf.repeat(found[:, None], c, 1) if rank == 2 else found for n, c in outputs.items()}

    return Several()


def test_no_model(run, root, tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "gone", tmp_path / "empty", root / "examples", tmp_path / "gone.keras"):
        says(run(model=path), 2, f"model: {path} holds no model", "saved_model.pb", ".keras")


def test_a_model_that_cannot_be_loaded(run, root, tmp_path):
    shutil.copytree(root / "model", tmp_path / "garbage")
    (tmp_path / "garbage" / "saved_model.pb").write_bytes(b"garbage")
    shutil.copytree(root / "model", tmp_path / "half", ignore=shutil.ignore_patterns("variables"))
    (tmp_path / "garbage.keras").write_bytes(b"garbage")
    for name in ("garbage", "half", "garbage.keras"):
        says(run(model=tmp_path / name), 2, f"model {tmp_path / name} cannot be loaded")


def test_several_outputs_and_none_chosen(run, tmp_path):
    # Case 56.
    path = made.model(tmp_path / "two", several({"mu": 1, "sigma": 1}))
    says(run(model=path), 2, path, "serving_default", "prediction_key", "mu, sigma")
    says(run(spec(predictionKey="my"), model=path), 2, "prediction_key 'my'", "mu")
    assert run(spec(predictionKey="mu"), model=path)[0] == 0


@pytest.mark.parametrize(
    "name", ["BinaryAccuracy", "AUC", "MeanSquaredError", "Calibration", "CalibrationPlot"]
)
def test_one_prediction_a_row_is_needed(run, tmp_path, name):
    path = made.model(tmp_path / "three", several({"output": 3}))
    says(run(made.config(name), model=path), 2, "[B] or [B, 1]", "[B, 3]")


def test_several_predictions_a_row_are_needed(run, tmp_path):
    path = made.model(tmp_path / "flat", several({"output": 1}, rank=1))
    says(run(made.config("SparseCategoricalAccuracy"), model=path), 2, "SparseCategoricalAccuracy", "[B, C]")


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("labels", [[1, 0, 1, 0], [1.0, 0.0, 1.0, 0.0]])
def test_labels_never_broadcast_against_predictions(tmp_path, rank, labels):
    # Case 7: [4] against [4, 1], and the other way round; N by N comparisons would give 0.5.
    scores = [0.9, 0.1, 0.8, 0.2]
    found = [{"label": y, "score": p} for y, p in zip(labels, scores, strict=True)]
    made.examples(tmp_path / "examples", found)
    made.model(tmp_path / "model", several({"output": 1}, rank=rank))
    config = made.config("BinaryAccuracy", "BinaryCrossEntropy", "MeanSquaredError")
    values = made.values(made.evaluate(tmp_path / "examples", tmp_path / "model", config))
    assert values["binary_accuracy"] == 1.0
    assert values["mean_squared_error"] == pytest.approx(0.025, rel=1e-6)
    assert values["binary_crossentropy"] == pytest.approx(0.1642520, rel=1e-6)


def test_an_input_that_is_nowhere(run, root, tmp_path):
    folder = write(tmp_path / "other", [{"label": 1, "skore": 0.5}, {"label": 0, "skore": 0.2}])
    says(
        run(examples=folder, model=root / "named"),
        2,
        root / "named",
        "'score'",
        "nearest: skore",
        "transform",
    )


# ── the other paths and options ───────────────────────────────────────────────────────────────


def test_schema_and_transform_graph(run, tmp_path):
    text, binary = tmp_path / "text.pbtxt", tmp_path / "binary.pbtxt"
    text.write_text("garbage {")
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (text, binary):
        says(run(None, "--schema", path), 2, f"schema: {path} is not a schema")
    says(run(None, "--schema", tmp_path / "gone"), 2, f"schema: {tmp_path / 'gone'} does not exist")
    says(run(None, "--schema", tmp_path), 2, f"schema: {tmp_path / 'schema.pbtxt'} does not exist")
    says(run(None, "--transform-graph", tmp_path / "gone"), 2, "transform_graph: ", tmp_path / "gone")


def test_the_output_is_a_file(root, tmp_path, capsys):
    path = tmp_path / "file"
    path.write_text("mine")
    arguments = ["--examples", root / "examples", "--model", root / "model"]
    arguments += ["--eval-config", made.config("AUC"), "--output", path]
    code = cli.main(["evaluate", *map(str, arguments)])
    says((code, capsys.readouterr().err), 2, f"output: {path}", "not a directory")
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    "more,parts",
    [
        (["--strategy", "tpu_pod"], ["--strategy", "'tpu_pod'", "mirrored"]),
        (["--first-model", "maybe"], ["--first-model", "'maybe'", "bless"]),
        (["--batch-size", "many"], ["--batch-size", "'many'"]),
        (["--batch-size", "0"], ["batch_size is 0", "at least 1"]),
        (["--logical-devices", "-1"], ["logical_devices is -1", "at least 0"]),
        (["--model", ""], ["--model is missing"]),
        (["--examples"], ["--examples"]),
    ],
)
def test_arguments(root, tmp_path, capsys, more, parts):
    arguments = ["--examples", root / "examples", "--model", root / "model"]
    arguments += ["--eval-config", made.config("AUC"), "--output", tmp_path / "out", *more]
    try:
        code = cli.main(["evaluate", *map(str, arguments)])
    except SystemExit as end:  # argparse's own way out
        code = end.code
    says((code, capsys.readouterr().err), 2, *parts)
    assert not (tmp_path / "out").exists()


def test_a_baseline_needs_a_spec(run, root):
    models = [{"name": "mine", "labelKey": "label"}]
    told = run(made.config("AUC", models=models), "--baseline", root / "model")
    says(told, 2, "a baseline model is given", "is_baseline", "without a name")
    models = [{"name": n, "labelKey": "label"} for n in ("a", "a")]
    says(
        run(made.config("AUC", models=models), "--baseline", root / "model"),
        2,
        "['a', 'a']",
        "name of its own",
    )
    assert run(made.config("AUC"), "--baseline", root / "model")[0] == 0


@pytest.mark.parametrize("policy,code", [("fail", 3), ("ignore", 0)])
def test_a_stale_baseline_is_a_finding_not_a_failure(run, root, tmp_path, policy, code):
    # Case 70.
    old = made.model(tmp_path / "old", several({"probs": 1}))
    models = [{"labelKey": "label", "predictionKey": "output"}]
    config = made.config({"className": "AUC", "threshold": BOUND}, models=models)
    more = ["--stale-baseline", policy, "--fail-on-not-blessed"]
    assert run(config, "--baseline", old, *more)[0] == code
    report = json.loads((run.output / "report.json").read_text())
    assert "auc" in report["slices"][0]["metrics"]
    told = report["verdict"]["reasons" if policy == "fail" else "notes"]
    assert "could not be evaluated: unknown prediction_key 'output'" in told[0]
    says(run(config, "--baseline", tmp_path / "gone", *more), 2, f"{tmp_path / 'gone'} holds no model")


# ── a fresh process ───────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_the_command_fails_as_its_function_does(root, tmp_path):
    folder = write(tmp_path / "bad", rows(at_5={"label": None}))
    shutil.copytree(root / "finished", tmp_path / "out")
    arguments = ["--examples", folder, "--model", root / "model", "--eval-config", made.config("AUC")]
    done = subprocess.run(
        [sys.executable, "-m", "assay", "evaluate", *map(str, [*arguments, "--output", tmp_path / "out"])],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (1, "")
    told = f"assay: error: {folder / 'Split-eval' / 'data.gz'}: record 5 has no label"
    assert done.stderr.splitlines()[-1] == told
    assert looks_finished(tmp_path / "out") == []
