"""The container's entry: executor input in, artifacts, parameters and the launcher's output file out."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import made
import numpy as np
import processes
import pytest
import tensorflow as tf
from sklearn import metrics as sk

from assay import cli
from assay.kfp import entrypoint, paths

from . import tasks

ROWS = [
    {"label": float(i % 2), "score": (i % 2) * 0.25 + (i % 16) / 32 + 1 / 64, "country": "ab"[i % 3 == 0]}
    for i in range(240)
]
LABELS, SCORES = (np.array([r[n] for r in ROWS]) for n in ("label", "score"))
METRICS = (
    {"className": "BinaryAccuracy", "threshold": {"valueThreshold": {"lowerBound": 0.5}}},
    "AUC",
    {"className": "Precision", "config": json.dumps({"name": "never", "thresholds": 2.0})},
)
CONFIG = made.config(*METRICS, slices=[{}, {"featureKeys": ["country"]}])
TOO_HIGH = CONFIG.replace('"lowerBound": 0.5', '"lowerBound": 0.99')


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("given")
    return {"examples": made.examples(root / "examples", ROWS, files=2), "model": made.model(root / "model")}


def run(record) -> int:
    return entrypoint.main(["--executor_input", json.dumps(record)])


def listing(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []


def verdicts(root: Path) -> list[str]:
    """Everything that a later step could take for a verdict."""
    names = {
        "BLESSED",
        "NOT_BLESSED",
        "blessed",
        "reason",
        "executor_output.json",
        "report.json",
        "metrics.json",
    }
    names |= {"report", "report.html", "classification_metrics.json", "vertex_metrics"}
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() and p.name in names)


def test_a_good_model_is_blessed_and_everything_is_there(tmp_path, given):
    assert run(tasks.executor_input(tmp_path, inputs=given, values={"eval_config": CONFIG})) == 0
    output = tasks.launched(tmp_path / "task" / "executor_output.json")
    assert dict(output.parameter_values.items())["blessed"].string_value == "true"
    assert output.parameter_values["reason"].string_value == ""
    assert set(output.artifacts) == set(tasks.OUTPUTS)
    assert {n: a.artifacts[0].uri for n, a in output.artifacts.items()} == {
        n: f"{tmp_path}/{n}" for n in tasks.OUTPUTS
    }
    assert (tmp_path / "parameters" / "blessed").read_text() == "true"
    assert (tmp_path / "parameters" / "reason").read_text() == ""
    assert listing(tmp_path / "blessing") == ["BLESSED"]
    assert {"metrics-00000-of-00001.tfrecord", "eval_config.json", "report.json"} <= set(
        listing(tmp_path / "evaluation")
    )
    # kubeflow/pipelines#8230, #2593, #5302: nothing of KFP 1, and nothing beside what a cache keeps.
    assert not list(tmp_path.rglob("mlpipeline-*"))
    assert set(listing(tmp_path)) == {*tasks.OUTPUTS, "parameters", "task"}
    # kubeflow/kubeflow#7312: a link to a folder shows nothing.
    page = tmp_path / "report"
    assert page.is_file() and page.read_text().startswith("<!")
    assert page.read_text() == (tmp_path / "evaluation" / "report.html").read_text()


def test_metrics_are_those_of_scikit_learn_and_the_undefined_one_is_left_out(tmp_path, given):
    """kubeflow/pipelines#12227: one NaN failed the step; #6116: how a container emits metrics."""
    assert run(tasks.executor_input(tmp_path, inputs=given, values={"eval_config": CONFIG})) == 0
    output = tasks.launched(tmp_path / "task" / "executor_output.json")
    shown = tasks.metadata(output, "metrics")
    assert shown == pytest.approx(
        {
            "rows": 240,
            "blessed": 1,
            "binary_accuracy": sk.accuracy_score(LABELS, SCORES > 0.5),
            "auc": sk.roc_auc_score(LABELS, SCORES),
        },
        abs=1e-7,
    )
    assert json.loads((tmp_path / "metrics" / "metrics.json").read_text()) == shown
    report = json.loads((tmp_path / "evaluation" / "report.json").read_text())
    assert list(report["slices"][0]["undefined"]) == ["never"]
    curve = tasks.metadata(output, "classification_metrics")
    assert [r["row"] for r in curve["confusionMatrix"]["rows"]] == sk.confusion_matrix(
        LABELS, SCORES > 0.5
    ).tolist()
    points = {(p["falsePositiveRate"], p["recall"]) for p in curve["confidenceMetrics"]}
    fall_out, recall, _ = sk.roc_curve(LABELS, SCORES, drop_intermediate=False)
    assert points == set(zip(fall_out, recall, strict=True))
    whole = json.loads((tmp_path / "classification_metrics" / "classification_metrics.json").read_text())
    assert [s["key"] for s in whole["slices"]] == [[], [["country", "a"]], [["country", "b"]]]


def test_a_bad_model_is_not_blessed_the_step_passes_and_says_why(tmp_path, given):
    record = tasks.executor_input(tmp_path, inputs=given, values={"eval_config": TOO_HIGH})
    assert run(record) == 0
    output = tasks.launched(tmp_path / "task" / "executor_output.json")
    assert output.parameter_values["blessed"].string_value == "false"
    reason = output.parameter_values["reason"].string_value
    assert "binary_accuracy" in reason and "0.99" in reason and len(reason.encode()) <= 400
    assert (tmp_path / "parameters" / "reason").read_text() == reason
    assert listing(tmp_path / "blessing") == ["NOT_BLESSED"]
    blessing = tasks.metadata(output, "blessing")
    assert blessing == {
        "blessed": 0,
        "current_model": str(given["model"]),
        "current_model_id": "artifacts/model",
        "blessing_message": reason,
    }


def test_every_input_reaches_the_request(given):
    inputs = {**given, "baseline_model": "/b", "transform_graph": "/t", "schema": "/s"}
    values = {
        "eval_config": CONFIG,
        "example_splits": ["eval", "test"],
        "strategy": "mirrored",
        "batch_size": 256.0,  # as the backend's protobuf Value prints it
        "state_dir": "/state",
        "first_model": "bless",
        "stale_baseline": "ignore",
        "slice_features": "transformed",
    }
    task = entrypoint.read(json.dumps(tasks.executor_input("/out", inputs=inputs, values=values)))
    found = entrypoint.request(task)
    assert (found.examples, found.model, found.baseline) == (
        (str(given["examples"]),),
        str(given["model"]),
        "/b",
    )
    assert (found.transform_graph, found.schema, found.splits) == ("/t", "/s", ("eval", "test"))
    execution = found.execution
    assert (execution.strategy, execution.batch_size, execution.state_dir) == ("mirrored", 256, "/state")
    assert (found.policy.first_model, found.policy.stale_baseline) == ("bless", "ignore")
    assert found.policy.slice_features == "transformed"
    assert (found.page, found.vertex) == ("/out/report", "")


def test_what_is_left_out_has_its_default(given):
    record = tasks.executor_input("/out", inputs=given, values={"eval_config": CONFIG})
    del record["inputs"]["parameterValues"]
    record["inputs"]["artifacts"]["schema"] = {"artifacts": []}
    found = entrypoint.request(entrypoint.read(json.dumps(record)))
    assert (found.baseline, found.schema, found.splits, found.eval_config) == ("", "", ("eval",), "")
    assert found.execution.batch_size == 1024 and found.execution.resume


def test_what_is_null_is_not_given_and_a_type_may_be_a_schema(given):
    record = tasks.executor_input("/out", inputs=given, values={"eval_config": CONFIG, "state_dir": None})
    record["inputs"]["artifacts"]["model"]["artifacts"][0].update(type=None, name=None)
    schema = {"instanceSchema": "title: google.RegressionMetrics\ntype: object\n"}
    record["outputs"]["artifacts"]["vertex_metrics"] = {"artifacts": [{"uri": "/v", "type": schema}]}
    found = entrypoint.request(entrypoint.read(json.dumps(record)))
    assert (found.execution.state_dir, found.vertex_kind) == ("", "regression")


def test_a_baseline_is_compared_and_named(tmp_path, given):
    baseline = made.model(tmp_path / "b", made.Parsing(factor=0.5))
    config = made.config(
        {
            "className": "AUC",
            "threshold": {"changeThreshold": {"direction": "HIGHER_IS_BETTER", "absolute": {"value": -0.5}}},
        },
        models=[
            {"name": "new", "labelKey": "label"},
            {"name": "old", "labelKey": "label", "isBaseline": True},
        ],
    ).replace('"absolute": {"value": -0.5}', '"absolute": -0.5')
    record = tasks.executor_input(
        tmp_path / "o", inputs={**given, "baseline_model": baseline}, values={"eval_config": config}
    )
    assert run(record) == 0
    output = tasks.launched(tmp_path / "o" / "task" / "executor_output.json")
    assert set(tasks.metadata(output, "metrics")) == {"rows", "blessed", "auc", "auc_baseline", "auc_diff"}
    blessing = tasks.metadata(output, "blessing")
    assert (blessing["baseline_model"], blessing["baseline_model_id"]) == (
        str(baseline),
        "artifacts/baseline_model",
    )


@pytest.mark.parametrize(
    ("title", "kind", "field"),
    [
        ("google.ClassificationMetrics", "classification", "auRoc"),
        ("google.RegressionMetrics", "regression", "rootMeanSquaredError"),
    ],
)
def test_vertex_metrics_come_by_the_type_of_the_output(tmp_path, given, title, kind, field):
    config = made.config("AUC", "MeanSquaredError", slices=[{}, {"featureKeys": ["country"]}])
    record = tasks.executor_input(
        tmp_path,
        inputs=given,
        values={"eval_config": config},
        outputs={**tasks.OUTPUTS, "vertex_metrics": title},
    )
    assert run(record) == 0
    imported = json.loads((tmp_path / "vertex_metrics").read_text())["slicedMetrics"]
    assert [list(one["metrics"]) for one in imported] == [[kind]] * 3
    shown = tasks.metadata(tasks.launched(tmp_path / "task" / "executor_output.json"), "vertex_metrics")
    assert shown == imported[0]["metrics"][kind] and field in shown


@pytest.mark.parametrize("scheme", ["gs", "s3", "minio"])
def test_buckets_are_written_where_they_are_mounted(tmp_path, given, monkeypatch, scheme):
    """kubeflow/pipelines#5489, #5560, #8868: folders that are not there yet."""
    monkeypatch.setitem(paths.MOUNTS, f"{scheme}://", str(tmp_path / "mount"))
    (tmp_path / "mount" / "bucket").mkdir(parents=True)
    record = tasks.executor_input(f"{scheme}://bucket/run/x", inputs=given, values={"eval_config": CONFIG})
    record["outputs"]["outputFile"] = f"{tmp_path}/deep/er/output.json"
    record["outputs"]["parameters"]["blessed"]["outputFile"] = f"{scheme}://bucket/run/x/blessed"
    assert run(record) == 0
    below = tmp_path / "mount" / "bucket" / "run" / "x"
    assert listing(below / "blessing") == ["BLESSED"] and (below / "report").is_file()
    assert (below / "blessed").read_text() == "true"
    output = tasks.launched(tmp_path / "deep" / "er" / "output.json")
    assert output.artifacts["report"].artifacts[0].uri == f"{scheme}://bucket/run/x/report"


def test_paths_of_uris(tmp_path, monkeypatch):
    for scheme in ("gs", "s3", "minio", "oci"):
        monkeypatch.setitem(paths.MOUNTS, f"{scheme}://", str(tmp_path / scheme))
    for folder in ("gs/b", "minio/b", "oci/registry_team_model:1"):
        (tmp_path / folder).mkdir(parents=True)
    assert paths.local("gs://b/x/y") == f"{tmp_path}/gs/b/x/y"
    assert paths.local("gs://other/x") == "gs://other/x"
    assert paths.local("minio://b/x") == f"{tmp_path}/minio/b/x"
    assert paths.local("oci://registry/team/model:1") == f"{tmp_path}/oci/registry_team_model:1/models"
    assert paths.local("/gcs/b/x") == "/gcs/b/x"
    assert paths.local("") == ""
    for uri in ("s3://b/x", "minio://other/x", "oci://registry/other"):
        with pytest.raises(paths.RequestError, match=f"{uri}: {tmp_path}/.* is not there"):
            paths.local(uri)


def drop(*names):
    def change(record):
        for name in names[:-1]:
            record = record[name]
        del record[names[-1]]

    return change


def put(value, *names):
    def change(record):
        for name in names[:-1]:
            record = record[name]
        record[names[-1]] = value

    return change


def missing(name, path):
    return put(tasks.artifact(path), "inputs", "artifacts", name), path


VALUES = ("inputs", "parameterValues")
WRONG = {
    "no inputs": (drop("inputs"), "has no inputs"),
    "no outputs": (drop("outputs"), "has no outputs"),
    "no model": (drop("inputs", "artifacts", "model"), "no input artifact 'model'"),
    "two models": (
        lambda r: r["inputs"]["artifacts"]["model"]["artifacts"].append({"uri": "/m2"}),
        "model has 2 artifacts",
    ),
    "a model without a URI": (
        put({"artifacts": [{"name": "m"}]}, "inputs", "artifacts", "model"),
        "no URI for artifact 'model'",
    ),
    "no blessing": (drop("outputs", "artifacts", "blessing"), "no output artifact 'blessing'"),
    "no reason": (drop("outputs", "parameters", "reason"), "no output parameter 'reason'"),
    "a model that is a list": (put([1], "inputs", "artifacts", "model"), "has no model"),
    "artifacts that are no list": (
        put({"artifacts": {"uri": "/m"}}, "inputs", "artifacts", "model"),
        "no list of artifacts for 'model'",
    ),
    "a URI that is a number": (
        put({"artifacts": [{"uri": 7}]}, "inputs", "artifacts", "model"),
        "no URI for artifact 'model'",
    ),
    "a parameter without a file": (
        put({"outputFile": None}, "outputs", "parameters", "blessed"),
        "no output parameter 'blessed'",
    ),
    "no overall slice for Vertex": (
        lambda r: (
            put(
                tasks.artifact("/v", "google.ClassificationMetrics"), "outputs", "artifacts", "vertex_metrics"
            )(r),
            put(made.config("AUC", slices=[{"featureKeys": ["country"]}]), *VALUES, "eval_config")(r),
        ),
        "slicing_specs leave out the overall slice",
    ),
    "no output file": (drop("outputs", "outputFile"), "no outputs.outputFile"),
    "another component's": (
        lambda r: (
            r.clear(),
            r.update(inputs={"parameterValues": {"text": "hello"}}, outputs={"outputFile": "/o"}),
        ),
        "no input artifact 'examples'",
    ),
    "a config that is no JSON": (put("{not json", "inputs", "parameterValues", "eval_config"), "eval_config"),
    "a config that is no text": (
        put({"metricsSpecs": []}, "inputs", "parameterValues", "eval_config"),
        "eval_config is .*; a text is needed",
    ),
    "no config": (drop("inputs", "parameterValues", "eval_config"), "eval_config"),
    "a metric that is not known": (
        put(made.config("AUCC"), "inputs", "parameterValues", "eval_config"),
        "AUCC",
    ),
    "a batch size of 0": (put(0, "inputs", "parameterValues", "batch_size"), "batch_size is 0"),
    "a batch size of 1.5": (put(1.5, "inputs", "parameterValues", "batch_size"), "batch_size is 1.5"),
    "splits that are no list": (put("eval", "inputs", "parameterValues", "example_splits"), "example_splits"),
    "an unknown strategy": (put("tpus", "inputs", "parameterValues", "strategy"), "tpus"),
    "a bucket that is not mounted": (
        put(tasks.artifact("s3://nowhere/model"), "inputs", "artifacts", "model"),
        "s3://nowhere/model: /s3/nowhere is not there",
    ),
    "a model that is not there": missing("model", "/no/model"),
    "examples that are not there": missing("examples", "/no/rows"),
    "a baseline that is not there": missing("baseline_model", "/no/b"),
    "a schema that is not there": missing("schema", "/no/s"),
    "a Transform graph that is not there": missing("transform_graph", "/no/t"),
    "Vertex metrics of another kind": (
        put(tasks.artifact("/v", "google.RegressionMetrics"), "outputs", "artifacts", "vertex_metrics"),
        "no regression metric for Vertex AI",
    ),
    "Vertex metrics of no kind": (
        put(tasks.artifact("/v", "google.ForecastingMetrics"), "outputs", "artifacts", "vertex_metrics"),
        "google.ForecastingMetrics",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_request_is_one_line_exit_code_2_and_no_verdict(tmp_path, given, capfd, what):
    change, message = WRONG[what]
    record = tasks.executor_input(tmp_path, inputs=given, values={"eval_config": CONFIG})
    # What an earlier try of the same task left.
    for file in ("blessing/BLESSED", "parameters/blessed", "task/executor_output.json"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("true")
    change(record)
    assert run(record) == cli.REQUEST_WRONG
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("assay: error: ")
    assert re.search(message, line), line
    # A foreign executor input does not say where this task's outputs are.
    if "executor_input has" not in line and "two models" not in what:
        assert verdicts(tmp_path) == []


def test_executor_input_that_is_no_json_or_not_there(capfd):
    assert entrypoint.main(["--executor_input", "{{$}}"]) == cli.REQUEST_WRONG
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("assay: error: --executor_input is no JSON") and "{{$}}" in line
    assert entrypoint.main(["--executor_input", '"text"']) == cli.REQUEST_WRONG
    with pytest.raises(SystemExit) as left:
        entrypoint.main([])
    assert left.value.code == cli.REQUEST_WRONG


def test_data_that_cannot_be_read_leaves_no_verdict(tmp_path, given, capfd):
    broken_file = tmp_path / "e" / "Split-eval" / "data_tfrecord-00000-of-00001.gz"
    broken_file.parent.mkdir(parents=True)
    whole = sorted(Path(given["examples"]).rglob("*.gz"))[0].read_bytes()
    broken_file.write_bytes(whole[: len(whole) // 2])
    record = tasks.executor_input(
        tmp_path / "o", inputs={**given, "examples": tmp_path / "e"}, values={"eval_config": CONFIG}
    )
    assert run(record) == cli.RUN_FAILED
    assert verdicts(tmp_path / "o") == []
    assert "data_tfrecord-00000" in capfd.readouterr().err


def test_an_output_that_cannot_be_written_leaves_no_verdict(tmp_path, given):
    record = tasks.executor_input(tmp_path, inputs=given, values={"eval_config": CONFIG})
    (tmp_path / "task" / "executor_output.json").mkdir(parents=True)
    assert run(record) == cli.RUN_FAILED
    assert verdicts(tmp_path) == []


def test_of_several_workers_the_chief_alone_writes(tmp_path, given):
    """kubeflow/pipelines#8543, #8544: workers that write the same file."""
    record = tasks.executor_input(
        tmp_path, inputs=given, values={"eval_config": CONFIG, "state_dir": str(tmp_path / "state")}
    )
    helper = processes.start_task(record, **processes.cluster_spec(2, 1))
    chief = processes.start_task(record, **processes.cluster_spec(2, 0))
    processes.end(chief)
    processes.end(helper)
    output = tasks.launched(tmp_path / "task" / "executor_output.json")
    assert tasks.metadata(output, "metrics")["rows"] == 240
    assert listing(tmp_path / "parameters") == ["blessed", "reason"]


def test_a_retry_in_a_new_folder_finds_finished_shards(tmp_path, given):
    values = {"eval_config": CONFIG, "state_dir": str(tmp_path / "state")}
    for attempt, found in (("1", 0), ("2", None)):
        root = tmp_path / attempt
        assert run(tasks.executor_input(root, inputs=given, values=values)) == 0
        execution = json.loads((root / "evaluation" / "report.json").read_text())["execution"]
        assert execution["shards_found"] == (execution["shards"] if found is None else found)
    first, second = (
        json.loads((tmp_path / n / "evaluation" / "report.json").read_text())["slices"] for n in ("1", "2")
    )
    assert first == second


def test_the_entry_never_loads_kfp(tmp_path, given):
    record = tasks.executor_input(tmp_path, inputs=given, values={"eval_config": CONFIG})
    code = (
        "import sys; sys.modules['kfp'] = None; from assay.kfp import entrypoint; "
        "code = entrypoint.main(sys.argv[1:]); assert not [m for m in sys.modules if m.startswith('kfp.')]; "
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--executor_input", json.dumps(record)], capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "task" / "executor_output.json").is_file()


def test_gs_buckets_that_are_not_mounted_are_left_to_tensorflow(tmp_path, given, monkeypatch):
    """The same way as gs://, with the one remote file system that every TensorFlow has: ram://."""
    record = tasks.executor_input("ram://bucket/run", inputs=given, values={"eval_config": CONFIG})
    record["outputs"]["outputFile"] = str(tmp_path / "o.json")
    for name in ("blessed", "reason"):
        record["outputs"]["parameters"][name]["outputFile"] = str(tmp_path / name)
    assert run(record) == 0
    assert tf.io.gfile.exists("ram://bucket/run/blessing/BLESSED")
    with tf.io.gfile.GFile("ram://bucket/run/report") as page:
        assert page.read(2) == "<!"
