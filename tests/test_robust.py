"""What was once wrong: each a small input, its right answer, and its neighbours."""

from __future__ import annotations

import json

import keras
import made
import numpy as np
import pytest
import tensorflow as tf

from assay import cli
from assay.spec import DataError, RequestError
from assay.values import Undefined

BOUND = {"valueThreshold": {"lowerBound": 0.5}}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return made.model(tmp_path_factory.mktemp("robust") / "model")


@pytest.mark.parametrize(
    "feature,values,slices",
    [
        ("country", [None, "US", "US"], {(("country", b"US"),): 14}),
        ("hour", [None, 0, 7], {(("hour", 0),): 7, (("hour", 7),): 7}),
        ("f", [float("nan"), 0.5, 0.0], {(("f", 0.0),): 7, (("f", 0.5),): 7}),
        ("f", [float("nan"), float("inf"), None], {(("f", float("inf")),): 7}),
    ],
)
@pytest.mark.parametrize("replicas", [1, 3])
def test_absent_values_make_no_slices(tmp_path, saved, feature, values, slices, replicas):
    rows = [{"label": i % 2, "score": 0.25 + 0.5 * (i % 2), feature: values[i % 3]} for i in range(21)]
    made.examples(tmp_path / "examples", rows, files=2)
    metric = {
        "className": "BinaryAccuracy",
        "perSliceThresholds": [{"slicingSpecs": [{"featureKeys": [feature]}], "threshold": BOUND}],
    }
    text = made.config(metric, slices=[{}, {"featureKeys": [feature]}])
    outcome = made.evaluate(
        tmp_path / "examples", saved, text, replicas=replicas, batch=4, output=tmp_path / "out"
    )
    assert outcome.verdict.blessed and not outcome.report.hidden
    assert {s.key: s.rows for s in outcome.report.slices} == {(): 21, **slices}
    json.loads((tmp_path / "out" / "report.json").read_text())


def test_pairs_that_no_row_has_make_no_slices(tmp_path, saved):
    rows = [
        {"label": 1, "score": 0.7, "a": a, "b": b}
        for a, b in (("p", "q"), ("p", None), (None, "q"), ("r", "s"))
    ]
    made.examples(tmp_path / "examples", rows)
    text = made.config("ExampleCount", slices=[{"featureKeys": ["a", "b"]}])
    outcome = made.evaluate(tmp_path / "examples", saved, text)
    assert {s.key: s.rows for s in outcome.report.slices} == {
        (("a", b"p"), ("b", b"q")): 1,
        (("a", b"r"), ("b", b"s")): 1,
    }


def test_the_total_weight_is_of_all_rows_whatever_the_slices(tmp_path, saved):
    made.examples(tmp_path / "examples", [{"label": 1, "score": 0.7, "w": 2.0, "c": None} for _ in range(20)])
    made.examples(
        tmp_path / "examples", [{"label": 1, "score": 0.7, "w": 2.0, "c": "x"} for _ in range(2)], split="two"
    )
    models = [{"labelKey": "label", "exampleWeightKey": "w"}]
    text = made.config("ExampleCount", models=models, slices=[{"featureKeys": ["c"]}])
    outcome = made.evaluate(tmp_path / "examples", saved, text, splits=("eval", "two"))
    assert [s.key for s in outcome.report.slices] == [(("c", b"x"),)]
    assert outcome.report.weight == 44.0 and outcome.report.rows == 22


def test_a_sequential_keras_file_is_evaluated_and_a_subclassed_one_refused(tmp_path):
    made.examples(tmp_path / "examples", [{"label": 1.0, "score": i / 10} for i in range(10)])
    built = keras.Sequential(
        [keras.Input([1], name="score"), keras.layers.Dense(1, kernel_initializer="ones")]
    )
    built.save(tmp_path / "sequential.keras")
    outcome = made.evaluate(
        tmp_path / "examples", tmp_path / "sequential.keras", made.config("MeanPrediction")
    )
    assert made.values(outcome)["mean_prediction"] == pytest.approx(0.45, rel=1e-6)

    @keras.saving.register_keras_serializable("tests")
    class Sub(keras.Model):
        def call(self, inputs):
            return inputs

    sub = Sub()
    sub(np.zeros([1, 1], np.float32))
    sub.save(tmp_path / "sub.keras")
    with pytest.raises(RequestError, match="does not say what its inputs are; export it"):
        made.evaluate(tmp_path / "examples", tmp_path / "sub.keras", made.config("MeanPrediction"))


class Open(tf.Module):
    """Takes a row of any width; its mean would depend on how far the batch is padded."""

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.float32, name="ids")])
    def serve(self, ids):
        return {"output": tf.reduce_mean(ids, 1)}


def test_inputs_of_open_width_need_a_schema(tmp_path):
    made.examples(tmp_path / "examples", [{"label": 1.0, "ids": [1.0, 3.0]} for _ in range(9)])
    saved = made.model(tmp_path / "model", Open())
    with pytest.raises(RequestError, match="'ids' has no fixed width"):
        made.evaluate(tmp_path / "examples", saved, made.config("MeanPrediction"))
    schema = 'feature { name: "ids" type: FLOAT presence { min_fraction: 1.0 } shape { dim { size: 2 } } }'
    (tmp_path / "schema.pbtxt").write_text(schema)
    outcome = made.evaluate(
        tmp_path / "examples",
        saved,
        made.config("MeanPrediction"),
        schema=tmp_path / "schema.pbtxt",
        replicas=2,
    )
    assert made.values(outcome)["mean_prediction"] == 2.0


class Whole(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None, 1], tf.int64, name="score")])
    def serve(self, score):
        return {"output": tf.cast(score, tf.float32)}


def test_fractions_are_not_fed_to_an_integer_input(tmp_path):
    made.examples(tmp_path / "examples", [{"label": 1.0, "score": 0.75}])
    saved = made.model(tmp_path / "model", Whole())
    with pytest.raises(RequestError, match="'score' takes int64, and the feature is float32"):
        made.evaluate(tmp_path / "examples", saved, made.config("MeanPrediction"))


@pytest.mark.parametrize("weight,defined", [(1e-9, True), (1e-15, False), (1e-30, False)])
def test_weights_too_small_for_exact_sums_are_said_so(tmp_path, saved, weight, defined):
    rows = [
        {"label": i % 2, "score": 0.25 + 0.5 * (i % 3 == 0), "w": weight * (1 + i % 7)} for i in range(50)
    ]
    made.examples(tmp_path / "examples", rows)
    models = [{"labelKey": "label", "exampleWeightKey": "w"}]
    outcome = made.evaluate(tmp_path / "examples", saved, made.config("BinaryAccuracy", models=models))
    found = made.values(outcome)["binary_accuracy"]
    if defined:
        w = np.array([1 + i % 7 for i in range(50)], float)
        right = np.array([(i % 3 == 0) == (i % 2) for i in range(50)])
        assert found == pytest.approx(np.average(right, weights=w), rel=1e-7)
    else:
        assert isinstance(found, Undefined)


def test_errors_too_small_for_exact_sums_are_said_so(tmp_path):
    made.examples(tmp_path / "examples", [{"label": 0.0, "score": 3e-12 * (1 + i)} for i in range(9)])
    saved = made.model(tmp_path / "model")
    found = made.values(
        made.evaluate(tmp_path / "examples", saved, made.config("MeanSquaredError", "MeanAbsoluteError"))
    )
    assert isinstance(found["mean_squared_error"], Undefined)
    assert found["mean_absolute_error"] == pytest.approx(1.5e-11, rel=1e-6)


def test_too_large_a_value_is_told_apart_from_no_number(tmp_path):
    made.examples(tmp_path / "examples", [{"label": 0.0, "score": 1.0}] * 4)
    saved = made.model(tmp_path / "model", made.Parsing(factor=1e20))
    found = made.values(made.evaluate(tmp_path / "examples", saved, made.config("MeanPrediction")))
    assert found["mean_prediction"] == Undefined("4 of 4 rows have a value too large to be summed exactly")


def test_a_cross_slice_that_is_absent_or_hidden_is_not_blessed(tmp_path, saved):
    rows = [{"label": 1, "score": 0.7, "a": "x"} for _ in range(6)] + [{"label": 1, "score": 0.7, "a": "y"}]
    made.examples(tmp_path / "examples", rows)

    def verdict(other, minimum=1):
        cross = {
            "baselineSpec": {},
            "slicingSpecs": [{"featureValues": {"a": "x"}}, {"featureValues": {"a": other}}],
        }
        threshold = {"crossSlicingSpecs": [cross], "threshold": {"valueThreshold": {"upperBound": 1.0}}}
        metric = {"className": "MeanLabel", "crossSliceThresholds": [threshold]}
        text = made.config(
            metric,
            slices=[{}, {"featureKeys": ["a"]}],
            crossSlicingSpecs=[cross],
            options={"minSliceSize": minimum},
        )
        return made.evaluate(tmp_path / "examples", saved, text).verdict

    assert verdict("y").blessed
    assert not verdict("zzz").blessed and "a=zzz has no row" in verdict("zzz").reasons[0]
    assert not verdict("y", 3).blessed and "a=y is hidden" in verdict("y", 3).reasons[0]


def test_a_fault_of_the_baseline_is_said_to_be_its(tmp_path, saved):
    made.examples(tmp_path / "examples", [{"label": i % 2, "score": 0.7} for i in range(8)])
    logits = made.model(tmp_path / "logits", made.Parsing(factor=5.0))
    with pytest.raises(DataError, match=r"record 0 has a prediction outside \[0, 1\].*\(model baseline\)"):
        made.evaluate(tmp_path / "examples", saved, made.config("AUC"), baseline=logits)


def test_a_threshold_that_is_never_checked_is_refused(tmp_path, saved):
    made.examples(tmp_path / "examples", [{"label": 1, "score": 0.7}])
    text = json.loads(
        made.config(
            {"className": "MeanPrediction", "threshold": BOUND},
            models=[
                {"name": "new", "labelKey": "label"},
                {"name": "old", "labelKey": "label", "isBaseline": True},
            ],
        )
    )
    text["metricsSpecs"][0]["modelNames"] = ["old"]
    with pytest.raises(RequestError, match="model_names leave out the candidate"):
        made.evaluate(tmp_path / "examples", saved, json.dumps(text), baseline=saved)


def test_two_weights_in_a_row_fail_the_run(tmp_path, saved):
    made.examples(
        tmp_path / "examples",
        [{"label": 1, "score": 0.7, "w": [2.0, 3.0] if i == 4 else 1.0} for i in range(6)],
    )
    models = [{"labelKey": "label", "exampleWeightKey": "w"}]
    with pytest.raises(DataError, match="record 4 has more than one example weight"):
        made.evaluate(tmp_path / "examples", saved, made.config("ExampleCount", models=models))


def test_no_file_is_read_twice_and_glob_characters_are_names_too(tmp_path, saved):
    odd = tmp_path / "a[1]" / "x?y"
    made.examples(odd / "examples", [{"label": 1, "score": 0.7}] * 5)
    (tmp_path / "link").symlink_to(odd / "examples")
    both = [odd / "examples", f"{odd}/./examples", tmp_path / "link"]
    outcome = made.evaluate(both, saved, made.config("ExampleCount"), output=odd / "out")
    assert made.values(outcome)["example_count"] == 5
    keep = odd / "out" / "evaluation" / "metrics_notes.txt"
    keep.write_text("mine")
    with pytest.raises(RequestError):
        made.evaluate(both, saved, made.config("Nonsense"), output=odd / "out")
    assert [p.name for p in (odd / "out").rglob("*") if p.is_file()] == ["metrics_notes.txt"]


def test_garbage_behind_the_first_thousand_records_is_located(tmp_path, saved):
    path = tmp_path / "data" / "part"
    made.write(path, [], "")
    with tf.io.TFRecordWriter(str(path)) as writer:
        for _ in range(1200):
            writer.write(made.example({"label": 1, "score": 0.7}))
        writer.write(b"\xffgarbage")
    with pytest.raises(DataError, match=r"part: record 1200 is not a tf.Example"):
        made.evaluate(path.parent, saved, made.config("ExampleCount"))


def test_many_reasons_are_cut_on_the_terminal_and_whole_in_the_report(tmp_path, saved, caplog):
    made.examples(tmp_path / "examples", [{"label": 1, "score": 0.2, "id": i} for i in range(30)])
    text = made.config(
        {"className": "BinaryAccuracy", "threshold": BOUND}, slices=[{}, {"featureKeys": ["id"]}]
    )
    out = str(tmp_path / "out")
    arguments = ["--examples", str(tmp_path / "examples"), "--model", str(saved), "--eval-config", text]
    with caplog.at_level("INFO", "assay"):
        assert cli.main(["evaluate", *arguments, "--output", out, "--strategy", "one_device"]) == 0
    told = [m for m in caplog.messages if m.startswith("not blessed")]
    assert len(told) == 11 and told[-1] == f"not blessed: 21 further reasons; see {out}/report.html"
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert len(report["verdict"]["reasons"]) == 31


def test_a_missing_baseline_is_called_one(tmp_path, saved):
    made.examples(tmp_path / "examples", [{"label": 1, "score": 0.7}])
    with pytest.raises(RequestError, match=r"^baseline: .*nowhere holds no model"):
        made.evaluate(tmp_path / "examples", saved, made.config("MeanLabel"), baseline=tmp_path / "nowhere")
