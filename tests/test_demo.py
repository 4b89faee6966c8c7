"""The demo run as a user runs it, and its artifacts evaluated again in every other way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import made
import numpy as np
import pytest
import sklearn.metrics as sk
import tensorflow as tf
import tensorflow_model_analysis as tfma
from google.protobuf import json_format, text_format
from tensorflow_model_analysis.proto import config_pb2

from assay.report import to_json

REPO = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


def demo(command, root):
    """Runs one command of the demo in a fresh process."""
    return subprocess.run(
        [sys.executable, "-m", "pipelines.taxi_demo", command, "--root", str(root)],
        cwd=REPO,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPO / "components")},
        check=False,
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    root = tmp_path_factory.mktemp("demo") / "root"
    return root, demo("run", root)


def folder(root, component, key, run=-1):
    """The folder of an output artifact; -1 is the last run's, 0 the first's."""
    parent = root / "artifacts" / component / key
    return sorted(parent.iterdir(), key=lambda p: int(p.name))[run]


def test_the_first_model_is_pushed_and_the_worse_one_is_not(ran):
    root, result = ran
    assert result.returncode == 0, result.stderr
    verdicts = result.stdout[result.stdout.index("Verdicts") :]
    assert verdicts.index("first   BLESSED") < verdicts.index("second  NOT BLESSED  nowhere")
    pushed = list((root / "serving").iterdir())
    assert len(pushed) == 1 and (pushed[0] / "saved_model.pb").exists()
    assert (folder(root, "DistributedEvaluator", "blessing", 0) / "BLESSED").stat().st_size == 0
    assert [p.name for p in folder(root, "DistributedEvaluator", "blessing").iterdir()] == ["NOT_BLESSED"]


def test_each_failure_is_told_with_metric_slice_observed_bound_and_baseline(ran):
    root, result = ran
    report = json.loads((folder(root, "DistributedEvaluator", "report") / "report.json").read_text())
    failed = [f for f in report["verdict"]["findings"] if not f["ok"]]
    assert len(failed) == len(report["verdict"]["reasons"]) >= 5
    told = result.stdout[result.stdout.index("What the second model failed") :]
    change = next(f for f in failed if f["kind"] == "change")
    assert change["metric"] == "auc" and change["observed"] < -0.2
    for finding in failed:
        line = next(
            line for line in told.splitlines() if finding["metric"] in line and finding["bound"] in line
        )
        assert f"{finding['observed']:.4f}" in line and f"{finding['baseline']:.4f}" in line
    assert str(folder(root, "DistributedEvaluator", "report") / "report.html") in result.stdout


def test_the_second_run_used_two_replicas_and_the_first_model_as_baseline(ran):
    root, _ = ran
    report = json.loads((folder(root, "DistributedEvaluator", "report") / "report.json").read_text())
    assert report["execution"]["replicas"] == 2
    assert report["execution"]["strategy"] == "MirroredStrategy"
    first, second = (folder(root, "Trainer", "model", run) for run in (0, -1))
    assert report["models"]["baseline"]["uri"].startswith(str(first))
    assert report["models"]["candidate"]["uri"].startswith(str(second))


def test_what_is_printed_is_read_from_the_artifacts(ran, tmp_path):
    root, _ = ran
    assert demo("show", root).returncode == 0
    report = folder(root, "DistributedEvaluator", "report")
    shutil.move(report, tmp_path / "kept")
    try:
        result = demo("show", root)
    finally:
        shutil.move(tmp_path / "kept", report)
    assert result.returncode == 1 and str(report) in result.stderr
    assert "NOT BLESSED" not in result.stdout


@pytest.fixture(scope="module")
def taxi(ran):
    """The inputs of an evaluation of the first model on the demo's artifacts."""
    root, _ = ran
    from pipelines.taxi_tfx import EVAL_CONFIG

    config = text_format.Parse(EVAL_CONFIG, config_pb2.EvalConfig())
    return {
        "examples": folder(root, "CsvExampleGen", "examples"),
        "transformed": folder(root, "Transform", "transformed_examples"),
        "transform_graph": folder(root, "Transform", "transform_graph"),
        "schema": folder(root, "SchemaGen", "schema"),
        "model": folder(root, "Trainer", "model", 0),
        "config": json_format.MessageToJson(config),
    }


def evaluate(taxi, route="a", **more):
    config = json.loads(taxi["config"])
    if route == "c":
        config["modelSpecs"][0]["signatureName"] = "serving_default"
    if route == "b":  # transformed examples hold no raw payment type and hour to slice by
        config["slicingSpecs"] = [{}]
        for metric in config["metricsSpecs"][0]["metrics"]:
            metric.pop("perSliceThresholds", None)
    return made.evaluate(
        taxi["transformed" if route == "b" else "examples"],
        taxi["model"],
        json.dumps(config),
        transform_graph=taxi["transform_graph"],
        **({} if route == "b" else {"schema": taxi["schema"]}),
        **more,
    )


@pytest.fixture(scope="module")
def reference(taxi):
    return evaluate(taxi, batch=64)


def slices_text(outcome):
    return json.dumps(json.loads(to_json(outcome.report, outcome.verdict))["slices"])


@pytest.mark.parametrize("replicas,batch", [(1, 7), (2, 64), (3, 1000), (4, 7), (4, 1000)])
def test_taxi_bytes_do_not_depend_on_devices_or_batches(taxi, reference, replicas, batch):
    outcome = evaluate(taxi, replicas=replicas, batch=batch)
    assert slices_text(outcome) == slices_text(reference)
    assert outcome.report.fingerprint == reference.report.fingerprint


@pytest.mark.parametrize("route", ["b", "c"])
def test_taxi_routes_agree(taxi, reference, route):
    outcome = evaluate(taxi, route, replicas=2)
    assert len(outcome.report.slices) == (1 if route == "b" else len(reference.report.slices))
    for one in outcome.report.slices:
        for name, value in made.values(reference, one.key).items():
            if isinstance(value, float):
                assert made.values(outcome, one.key)[name] == pytest.approx(value, abs=1e-6)


def test_taxi_equals_the_oracles(taxi, reference):
    loaded = tf.saved_model.load(str(taxi["model"] / "Format-Serving"))
    files = tf.io.gfile.glob(str(taxi["examples"] / "Split-eval" / "*"))
    records = list(tf.data.TFRecordDataset(files, "GZIP").as_numpy_iterator())
    # Padded as the evaluation pads: kernels for ragged tails round differently.
    batch = records + records[-1:] * (-len(records) % 64)
    scores = loaded.signatures["serving_default"](examples=tf.constant(batch))
    (p,) = (np.asarray(v, np.float64).reshape(-1)[: len(records)] for v in scores.values())
    transformed = loaded.signatures["transform_features"](examples=tf.constant(records))
    y = np.asarray(transformed["big_tipper"], np.float64).reshape(-1)
    found = made.values(reference)
    assert found["example_count"] == len(records) > 4000
    for name, value in {
        "binary_accuracy": sk.accuracy_score(y, p > 0.5),
        "precision": sk.precision_score(y, p > 0.5),
        "recall": sk.recall_score(y, p > 0.5),
        "binary_crossentropy": sk.log_loss(y, np.clip(p, 1e-7, 1 - 1e-7)),
        "calibration": p.sum() / y.sum(),
        "mean_label": y.mean(),
        "mean_prediction": p.mean(),
    }.items():
        assert found[name] == pytest.approx(value, rel=1e-9), name
    # Binned as TFMA bins: buckets of 1/10,000 seen from 10,000 thresholds, 1/9,999 apart.
    thresholds = np.concatenate([[0.0], np.arange(1, 9999) / 9999 + 1e-7, [1 + 2e-7]])
    binned = np.searchsorted(thresholds, np.floor(p * 10_000) / 10_000, side="right")
    assert found["auc"] == pytest.approx(sk.roc_auc_score(y, binned), rel=1e-9)
    assert found["auc"] == pytest.approx(sk.roc_auc_score(y, p), abs=1e-3)


def test_taxi_equals_the_stock_evaluator(taxi, reference, tmp_path):
    from tfx.components.evaluator import executor as stock
    from tfx.types import standard_artifacts

    config = json.loads(taxi["config"])
    config["modelSpecs"][0]["signatureName"] = "serving_default"
    config["modelSpecs"][0]["preprocessingFunctionNames"] = ["transform_features"]
    config["options"] = {"includeDefaultMetrics": False}

    def artifact(kind, uri):
        made_artifact = kind()
        made_artifact.uri = str(uri)
        return made_artifact

    examples = artifact(standard_artifacts.Examples, taxi["examples"])
    examples.split_names = '["train", "eval"]'
    stock.Executor(stock.Executor.Context(beam_pipeline_args=["--direct_running_mode=in_memory"])).Do(
        {
            "examples": [examples],
            "model": [artifact(standard_artifacts.Model, taxi["model"])],
            "schema": [artifact(standard_artifacts.Schema, taxi["schema"])],
        },
        {
            "evaluation": [artifact(standard_artifacts.ModelEvaluation, tmp_path / "evaluation")],
            "blessing": [artifact(standard_artifacts.ModelBlessing, tmp_path / "blessing")],
        },
        {"eval_config": json.dumps(config), "example_splits": '["eval"]'},
    )
    assert (tmp_path / "blessing" / "BLESSED").exists() and reference.verdict.blessed
    theirs = tfma.load_eval_result(str(tmp_path / "evaluation"))
    compared = 0
    for key, outputs in theirs.slicing_metrics:
        ours = made.values(reference, tuple((f, v.encode() if isinstance(v, str) else v) for f, v in key))
        for name, value in outputs[""][""].items():
            if not isinstance(ours[name], float):
                continue  # undefined here: 0/0, or a curve on one class, which stock calls 0.0 or NaN
            # BinaryCrossEntropy merges accumulators twice there, and does not clip.
            if name != "binary_crossentropy":
                assert ours[name] == pytest.approx(value["doubleValue"], abs=1e-6), (key, name)
                compared += 1
    assert compared > 500
