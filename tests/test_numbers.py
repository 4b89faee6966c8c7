"""The same rows give the same bytes on any number of devices and any batch size, and right ones."""

from __future__ import annotations

import json
import math

import made
import numpy as np
import pytest
import sklearn.metrics as sk

from assay.report import to_json

METRICS = (
    "ExampleCount",
    "WeightedExampleCount",
    "BinaryAccuracy",
    "BinaryCrossentropy",
    "AUC",
    "AUCPrecisionRecall",
    "Precision",
    "Recall",
    "Calibration",
    "MeanLabel",
    "MeanPrediction",
    "MeanSquaredError",
    "MeanAbsoluteError",
    "ConfusionMatrixPlot",
    "CalibrationPlot",
)
SLICES = ({}, {"featureKeys": ["pay"]}, {"featureKeys": ["hour"]}, {"featureKeys": ["pay", "hour"]})
SIZE = 1003


@pytest.fixture(scope="module")
def rows():
    random = np.random.default_rng(8)
    labels = random.integers(0, 2, SIZE)
    scores = np.clip(random.normal(0.4 + 0.2 * labels, 0.25), 0.001, 0.999).astype(np.float32)
    return [
        {
            "label": int(labels[i]),
            "score": float(scores[i]),
            "weight": float(random.choice([0.0, 0.5, 1.0, 3.0])),
            "pay": ["Cash", "Card", "Other"][int(random.integers(3))],
            "hour": int(random.integers(4)),
        }
        for i in range(SIZE)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, rows):
    root = tmp_path_factory.mktemp("numbers")
    made.examples(root / "examples", rows, files=3)
    made.model(root / "model", made.Parsing())
    return root


def config(slices=SLICES):
    return made.config(*METRICS, slices=slices, models=[{"labelKey": "label", "exampleWeightKey": "weight"}])


def slices_text(outcome) -> str:
    return json.dumps(json.loads(to_json(outcome.report, outcome.verdict))["slices"])


@pytest.fixture(scope="module")
def reference(folder):
    return made.evaluate(folder / "examples", folder / "model", config())


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
@pytest.mark.parametrize("batch", [1, 7, 64, 1000])
def test_bytes_do_not_depend_on_devices_or_batches(folder, reference, replicas, batch):
    if batch == 1 and replicas in (2, 3):
        replicas = 5 - replicas  # batch 1 is slow; 1 and 4 replicas bound the others
    outcome = made.evaluate(folder / "examples", folder / "model", config(), replicas=replicas, batch=batch)
    assert outcome.report.execution["replicas"] == replicas
    assert slices_text(outcome) == slices_text(reference)
    assert outcome.report.fingerprint == reference.report.fingerprint
    assert outcome.report.rows == SIZE


def test_the_order_of_files_and_rows_does_not_matter(tmp_path, folder, rows, reference):
    shuffled = [rows[i] for i in np.random.default_rng(1).permutation(SIZE)]
    made.examples(tmp_path / "examples", shuffled, files=7)
    outcome = made.evaluate(tmp_path / "examples", folder / "model", config(), replicas=3)
    assert slices_text(outcome) == slices_text(reference)
    assert outcome.report.fingerprint == reference.report.fingerprint


ORACLES = {
    "example_count": lambda y, p, w: len(y),
    "weighted_example_count": lambda y, p, w: math.fsum(w),
    "binary_accuracy": lambda y, p, w: sk.accuracy_score(y, p > 0.5, sample_weight=w),
    "binary_crossentropy": lambda y, p, w: sk.log_loss(y, p, sample_weight=w),
    "precision": lambda y, p, w: sk.precision_score(y, p > 0.5, sample_weight=w),
    "recall": lambda y, p, w: sk.recall_score(y, p > 0.5, sample_weight=w),
    "calibration": lambda y, p, w: math.fsum(w * p) / math.fsum(w * y),
    "mean_label": lambda y, p, w: np.average(y, weights=w),
    "mean_prediction": lambda y, p, w: np.average(p, weights=w),
    "mean_squared_error": lambda y, p, w: sk.mean_squared_error(y, p, sample_weight=w),
    "mean_absolute_error": lambda y, p, w: sk.mean_absolute_error(y, p, sample_weight=w),
}


def test_every_slice_equals_the_oracles(rows, reference):
    assert len(reference.report.slices) == 1 + 3 + 4 + 12
    for found in reference.report.slices:
        picked = [
            r for r in rows if all(r[f] == (v.decode() if isinstance(v, bytes) else v) for f, v in found.key)
        ]
        y, p, w = (np.array([r[f] for r in picked], float) for f in ("label", "score", "weight"))
        assert found.rows == len(picked) > 0
        assert found.weight == pytest.approx(w.sum(), rel=1e-15)
        named = made.values(reference, found.key)
        for name, oracle in ORACLES.items():
            assert named[name] == pytest.approx(oracle(y, p, w), rel=1e-9), (found.key, name)
        assert named["auc"] == pytest.approx(sk.roc_auc_score(y, p, sample_weight=w), abs=2e-3)


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
@pytest.mark.parametrize("batch", [1, 3, 4, 16])
def test_no_mean_of_means(tmp_path, replicas, batch):
    # Case 1: losses 1 … 10 in batches of 4, 4, 2; the mean of the batches' means is 6.1667.
    rows = [{"label": 0.0, "score": float(loss)} for loss in range(1, 11)]
    made.examples(tmp_path / "examples", rows)
    made.model(tmp_path / "model")
    outcome = made.evaluate(
        tmp_path / "examples",
        tmp_path / "model",
        made.config("MeanAbsoluteError", "ExampleCount"),
        replicas=replicas,
        batch=batch,
    )
    assert made.values(outcome) == {"mean_absolute_error": 5.5, "example_count": 10.0}


@pytest.mark.parametrize("size,replicas,batch", [(4, 4, 64), (5, 4, 1), (5, 4, 2), (8, 3, 4), (1, 4, 1)])
def test_replicas_without_rows_add_zeros(tmp_path, size, replicas, batch):
    # Cases 11 and 13: an empty replica, on a signature fed with strings.
    made.examples(tmp_path / "examples", [{"label": i % 2, "score": i / 10} for i in range(size)])
    made.model(tmp_path / "model")
    text = made.config("MeanLabel", "MeanPrediction", "ExampleCount")
    outcome = made.evaluate(tmp_path / "examples", tmp_path / "model", text, replicas=replicas, batch=batch)
    found = made.values(outcome)
    assert found["example_count"] == size
    assert found["mean_label"] == pytest.approx(np.mean([i % 2 for i in range(size)]), rel=1e-15)
    assert found["mean_prediction"] == pytest.approx(
        np.mean([float(np.float32(i / 10)) for i in range(size)]), rel=1e-15
    )


@pytest.mark.parametrize("weighted", [True, False])
def test_weights_are_used_and_said(tmp_path, weighted):
    # Case 10.
    rows = [{"label": 1, "score": 0.9 if i == 0 else 0.1, "w": float(i == 0)} for i in range(4)]
    made.examples(tmp_path / "examples", rows)
    made.model(tmp_path / "model")
    models = [{"labelKey": "label", **({"exampleWeightKey": "w"} if weighted else {})}]
    outcome = made.evaluate(
        tmp_path / "examples",
        tmp_path / "model",
        made.config("BinaryAccuracy", "ExampleCount", "WeightedExampleCount", models=models),
    )
    assert made.values(outcome) == {
        "binary_accuracy": 1.0 if weighted else 0.25,
        "example_count": 4.0,
        "weighted_example_count": 1.0 if weighted else 4.0,
    }


def test_weighted_and_unweighted_side_by_side(tmp_path):
    rows = [{"label": 1, "score": 0.9 if i == 0 else 0.1, "w": float(i == 0)} for i in range(4)]
    made.examples(tmp_path / "examples", rows)
    made.model(tmp_path / "model")
    text = json.loads(made.config("BinaryAccuracy", models=[{"labelKey": "label", "exampleWeightKey": "w"}]))
    text["metricsSpecs"][0]["exampleWeights"] = {"weighted": True, "unweighted": True}
    outcome = made.evaluate(tmp_path / "examples", tmp_path / "model", json.dumps(text))
    assert made.values(outcome) == {"binary_accuracy": 1.0, "binary_accuracy:unweighted": 0.25}


def test_counts_pass_two_to_the_24():
    # Case 33: a float32 counter sticks at 16,777,216.
    from assay.spec import OVERALL
    from assay.state import COUNT, Column, Leaf, State, merge, totals

    leaf = Leaf("examples", 1, (Column("rows", COUNT),))
    seeded = State((leaf,), {OVERALL: (np.array([[2**24]], np.int64),)})
    one = State((leaf,), {OVERALL: (np.array([[1]], np.int64),)})
    assert totals(leaf, merge(seeded, one).slices[OVERALL][0]).tolist() == [[16_777_217.0]]


def test_a_global_batch_larger_than_the_data_works(folder, reference):
    outcome = made.evaluate(folder / "examples", folder / "model", config(), replicas=2, batch=5000)
    assert slices_text(outcome) == slices_text(reference)
    assert outcome.report.execution["global_batch_size"] == 10_000
