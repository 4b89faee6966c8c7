"""Public reports of faults that come with several replicas, workers or Beam, as inputs with right answers."""

from __future__ import annotations

import keras
import made
import numpy as np
import processes
import pytest
import tensorflow as tf
import tf_keras
from fleets import MULTI

import assay
from assay import loop
from assay.request import Execution
from assay.spec import RequestError

BOUNDED = (
    "BinaryAccuracy",
    "Precision",
    "Recall",
    "AUC",
    "AUCPrecisionRecall",
    "MeanLabel",
    "MeanPrediction",
)


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
@pytest.mark.parametrize("right,expected", [(True, 1.0), (False, 0.0)])
def test_accuracy_is_not_summed_over_replicas(tmp_path, replicas, right, expected):
    # Case 3: accuracy came out as 3.57 on four GPUs, 1.6 on two. 64 rows, global batch 16.
    rows = [{"label": i % 2, "score": 0.9 if (i % 2 == 1) == right else 0.1} for i in range(64)]
    made.examples(tmp_path / "examples", rows)
    made.model(tmp_path / "model")
    text = made.config("ExampleCount", *BOUNDED)
    outcome = made.evaluate(
        tmp_path / "examples", tmp_path / "model", text, replicas=replicas, batch=16 // replicas
    )
    found = made.values(outcome)
    assert found.pop("example_count") == 64.0
    assert found["binary_accuracy"] == found["precision"] == found["recall"] == expected
    assert found["auc"] == pytest.approx(expected, abs=1e-9)
    for name, value in found.items():
        assert 0.0 <= value <= 1.0, name


@pytest.mark.parametrize("files", [1, 2, 3])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_every_row_is_seen_once_whatever_the_number_of_files(tmp_path, files, workers):
    # Case 16: with one policy each worker sees all rows, with another they are thrown away; means hide
    # both. A row weighs a power of 4, so that the sum of the weights tells how often each was seen.
    rows = [{"label": 1, "score": 0.5, "weight": float(4**i)} for i in range(12)]
    made.examples(tmp_path / "examples", rows, files=files)
    made.model(tmp_path / "model")
    models = [{"labelKey": "label", "exampleWeightKey": "weight"}]
    text = made.config("ExampleCount", "WeightedExampleCount", models=models)
    cluster = processes.tf_config(workers, 0) if workers > 1 else {}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in cluster.items():
            patch.setenv(name, value)
        # The chief of a cluster whose other workers never come does it all.
        outcome = made.evaluate(tmp_path / "examples", tmp_path / "model", text, output=tmp_path / "output")
    found = made.values(outcome)
    assert found == {"example_count": 12.0, "weighted_example_count": float((4**12 - 1) // 3)}
    assert outcome.report.execution["shards"] >= workers


@pytest.mark.parametrize("kind", ["Keras 3", "tf_keras"])
def test_both_kinds_of_keras_are_evaluated_by_several_workers(tmp_path, kind):
    # Case 38: a scalar reduced over workers failed with Keras 3.
    module = keras if kind == "Keras 3" else tf_keras
    inputs = module.Input([1], name="x")
    built = module.Model(inputs, module.layers.Dense(1, "sigmoid", kernel_initializer="ones")(inputs))
    if kind == "Keras 3":
        built.export(str(tmp_path / "model"), verbose=False)
    else:
        tf.saved_model.save(built, str(tmp_path / "model"))
    random = np.random.default_rng(3)
    rows = [{"x": float(v), "label": int(v > 0)} for v in random.normal(size=50)]
    made.examples(tmp_path / "examples", rows, files=3)
    text = made.config("ExampleCount", "MeanSquaredError", "BinaryAccuracy")
    command = [
        "--examples", tmp_path / "examples", "--model", tmp_path / "model", "--eval-config", text, "--output",
        tmp_path / "output", "--batch-size", 2, "--strategy", "mirrored", "--logical-devices", 2,
    ]  # fmt: skip
    for process in [processes.start(command, **processes.tf_config(2, i)) for i in range(2)]:
        processes.end(process)
    (overall,) = processes.record(tmp_path / "output")["slices"]
    x = np.float32([r["x"] for r in rows]).astype(float)
    squared = np.mean((1 / (1 + np.exp(-x)) - (x > 0)) ** 2)
    assert overall["rows"] == 50
    assert overall["metrics"]["binary_accuracy"]["candidate"] == 1.0
    assert overall["metrics"]["mean_squared_error"]["candidate"] == pytest.approx(squared, rel=1e-6)


def test_adding_up_outside_of_run_is_refused_in_one_line():
    # Case 41: a metric updated in cross-replica context raised something that nobody could read.
    with (
        tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope(),
        pytest.raises(RuntimeError, match=r"^sums are added up in replica context: call the step inside"),
    ):
        loop._replica()


def spread(folder, text, **execution):
    return assay.evaluate(
        examples=str(folder / "examples"),
        model=str(folder / "model"),
        eval_config=text,
        output=str(folder / "output"),
        execution=Execution(**execution),
    )


def test_the_batch_size_does_not_matter_with_beam_or_devices(tmp_path):
    # Case 69: passes on a laptop and fails on Dataflow, where batches have other sizes.
    random = np.random.default_rng(9)
    rows = [{"label": int(i % 3 == 0), "score": float(np.float32(random.uniform()))} for i in range(10)]
    made.examples(tmp_path / "examples", rows, files=2)
    made.model(tmp_path / "model")
    text = made.config("ExampleCount", "BinaryCrossentropy", "AUC", "MeanSquaredError")
    found = []
    for batch in (1, 3, 10, 1000):
        ways = (
            {"runner": "beam"},
            {"strategy": "one_device"},
            {"strategy": "mirrored", "logical_devices": 3},
        )
        for way in ways:
            found.append(made.values(spread(tmp_path, text, batch_size=batch, **way)))
    assert found == [found[0]] * 12
    score, label = (np.array([r[name] for r in rows], float) for name in ("score", "label"))
    assert found[0]["mean_squared_error"] == pytest.approx(np.mean((score - label) ** 2), rel=1e-9)


def test_metrics_under_a_keras_module_are_found_on_every_beam_worker(tmp_path):
    # Case 63: a class in a module that ends in keras.metrics was not found on Beam's workers.
    made.examples(tmp_path / "examples", [{"label": i % 2, "score": i / 20} for i in range(20)], files=4)
    made.model(tmp_path / "model")
    wanted = {"className": "MeanSquaredError", "module": "tensorflow.keras.metrics"}
    outcome = spread(tmp_path, made.config(wanted), runner="beam", beam_options=MULTI)
    score, label = np.arange(20) / 20, np.arange(20) % 2
    assert made.values(outcome)["mean_squared_error"] == pytest.approx(
        np.mean((score - label) ** 2), rel=1e-6
    )
    # One of the user's own is refused by name before a worker starts, not missed by one of them.
    own = {"className": "Mine", "module": "my_pkg.tf.keras.metrics"}
    with pytest.raises(RequestError, match=r"my_pkg\.tf\.keras\.metrics"):
        spread(tmp_path, made.config(own), runner="beam", beam_options=MULTI)
