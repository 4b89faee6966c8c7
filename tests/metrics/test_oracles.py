"""Every metric against an independent computation: scikit-learn, or NumPy written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sklearn.metrics as sk
import sums

from assay.metrics import CLASSES
from assay.values import Undefined

SIZE = 1500


def clipped(p):
    return np.clip(p, 1e-7, 1 - 1e-7)


ORACLES = {
    "ExampleCount": lambda y, p, w: len(y),
    "WeightedExampleCount": lambda y, p, w: math.fsum(w),
    "BinaryAccuracy": lambda y, p, w: sk.accuracy_score(y, p > 0.5, sample_weight=w),
    "Precision": lambda y, p, w: sk.precision_score(y, p > 0.5, sample_weight=w),
    "Recall": lambda y, p, w: sk.recall_score(y, p > 0.5, sample_weight=w),
    "BinaryCrossEntropy": lambda y, p, w: np.average(
        -(y * np.log(clipped(p)) + (1 - y) * np.log(1 - clipped(p))), weights=w
    ),
    "BinaryCrossentropy": lambda y, p, w: sk.log_loss(y, clipped(p), sample_weight=w),
    "MeanLabel": lambda y, p, w: np.average(y, weights=w),
    "MeanPrediction": lambda y, p, w: np.average(p, weights=w),
    "Calibration": lambda y, p, w: math.fsum(w * p) / math.fsum(w * y),
    "MeanSquaredError": lambda y, p, w: sk.mean_squared_error(y, p, sample_weight=w),
    "MeanAbsoluteError": lambda y, p, w: sk.mean_absolute_error(y, p, sample_weight=w),
    "SparseCategoricalAccuracy": lambda y, p, w: sk.accuracy_score(y, p.argmax(1), sample_weight=w),
}


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("name", sorted(ORACLES))
def test_equals_the_oracle(name, weighted):
    labels, predictions, weights = sums.rows(sums.kind(name), SIZE, 11)
    metric = sums.metric(name)
    w = weights if weighted else None
    found = sums.value(metric, sums.state(metric, labels, predictions, w))
    expected = ORACLES[name](labels, predictions, weights if weighted else np.ones(SIZE))
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", sorted(ORACLES))
def test_counts_of_whole_labels_give_the_same_value_in_a_third_of_the_width(name):
    labels, predictions, _ = sums.rows(sums.kind(name), 300, 11)
    metric = sums.metric(name)
    narrow = sums.state(metric, labels, predictions, whole=True)
    wide = sums.state(metric, labels, predictions)
    assert sums.value(metric, narrow) == sums.value(metric, wide)


CURVES = {
    ("AUC", ()): lambda y, p, w: sk.roc_auc_score(y, p, sample_weight=w),
    ("AUC", (("curve", "PR"),)): None,
    ("AUCPrecisionRecall", ()): None,
}


def davis_goadrich(y, p, w):
    """Area under the PR curve, TP linear in FP between the points of distinct scores; quadrature."""
    order = np.argsort(-p, kind="stable")
    scores, y, w = p[order], y[order], w[order]
    ends = np.append(np.nonzero(np.diff(scores))[0], len(scores) - 1)
    tp = np.concatenate([[0], np.cumsum(w * y)[ends]])
    fp = np.concatenate([[0], np.cumsum(w * (1 - y))[ends]])
    area, steps = 0.0, 2000
    for t0, t1, f0, f1 in zip(tp[:-1], tp[1:], fp[:-1], fp[1:], strict=True):
        grid = (np.arange(steps) + 0.5) / steps
        t, f = t0 + grid * (t1 - t0), f0 + grid * (f1 - f0)
        if t1 > t0:
            area += (t1 - t0) / tp[-1] * np.mean(t / (t + f))
    return area


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("curve", sorted(CURVES))
def test_curves_equal_the_exact_area_on_scores_that_fall_apart_into_buckets(curve, weighted):
    # Scores in the middle of distinct buckets: binning loses nothing, so the area is exact.
    name, config = curve
    random = np.random.default_rng(4)
    labels = random.integers(0, 2, 400).astype(float)
    predictions = (random.integers(0, 60, 400) * 160 + 3.5 + 100 * labels // 7) / 10_000
    weights = random.choice([0.0, 0.5, 2.0], 400) if weighted else np.ones(400)
    metric = sums.metric(name, **dict(config))
    found = sums.value(metric, sums.state(metric, labels, predictions, weights if weighted else None))
    oracle = CURVES[curve] or davis_goadrich
    assert found == pytest.approx(
        oracle(labels, predictions, weights), abs=2e-6 if oracle is davis_goadrich else 1e-9
    )


def test_roc_is_within_its_bin_bound_on_arbitrary_scores():
    labels, predictions, _ = sums.rows("binary", SIZE, 3)
    metric = sums.metric("AUC")
    found = sums.value(metric, sums.state(metric, labels, predictions))
    assert found == pytest.approx(sk.roc_auc_score(labels, predictions), abs=1e-4)


@pytest.mark.parametrize("method,bound", [("minoring", "below"), ("majoring", "above")])
def test_summation_methods_bracket_the_area(method, bound):
    labels, predictions, _ = sums.rows("binary", SIZE, 3)
    middle = sums.metric("AUC")
    other = sums.metric("AUC", summation_method=method)
    exact = sums.value(middle, sums.state(middle, labels, predictions))
    found = sums.value(other, sums.state(other, labels, predictions))
    assert found < exact if bound == "below" else found > exact


@pytest.mark.parametrize("name", ["AUC", "AUCPrecisionRecall"])
@pytest.mark.parametrize("label,missing", [(1.0, "negative"), (0.0, "positive")])
def test_one_class_only_is_undefined_with_the_reason(name, label, missing):
    # Case 5: 0.0 would look like a terrible model.
    metric = sums.metric(name)
    found = sums.value(metric, sums.state(metric, np.full(3, label), np.array([1.0, 0.5, 0.3])))
    assert isinstance(found, Undefined) and missing in found.reason


@pytest.mark.parametrize(
    "name,labels,predictions,reason",
    [
        ("Precision", [1.0, 0.0], [0.1, 0.2], "no example is predicted positive"),
        ("Recall", [0.0, 0.0], [0.1, 0.9], "no example is positive"),
        ("Calibration", [0.0, 0.0], [0.1, 0.9], "the labels sum to 0"),
    ],
)
def test_zero_by_zero_is_undefined(name, labels, predictions, reason):
    metric = sums.metric(name)
    found = sums.value(metric, sums.state(metric, np.array(labels), np.array(predictions)))
    assert found == Undefined(reason)


@pytest.mark.parametrize("name", sorted(set(CLASSES) - {"ExampleCount", "WeightedExampleCount"}))
def test_a_nan_prediction_makes_the_metric_undefined_not_wrong(name):
    labels, predictions, _ = sums.rows(sums.kind(name), 20)
    predictions[3] = np.nan
    metric = sums.metric(name)
    found = sums.value(metric, sums.state(metric, labels, predictions))
    assert isinstance(found, Undefined) and "1 of 20 rows" in found.reason


def test_confusion_plot_by_hand():
    metric = sums.metric("ConfusionMatrixPlot", num_thresholds=2)
    plot = sums.value(metric, sums.state(metric, np.array([1.0, 0, 1, 0]), np.array([0.9, 0.8, 0.2, 0.1])))
    assert plot.thresholds.tolist() == [-1e-6, 0.0, 0.5, 1.0]
    assert plot.tp.tolist() == [2, 2, 1, 0] and plot.fp.tolist() == [2, 2, 1, 0]
    assert plot.fn.tolist() == [0, 0, 1, 2] and plot.tn.tolist() == [0, 0, 1, 2]


def test_calibration_plot_by_hand():
    metric = sums.metric("CalibrationPlot", num_buckets=4)
    labels, scores = np.array([1.0, 0, 1, 0]), np.array([0.9, 0.26, 0.2, 1.5])
    plot = sums.value(metric, sums.state(metric, labels, scores, np.array([1.0, 2, 3, 4])))
    assert plot.edges.tolist() == [-np.inf, 0, 0.25, 0.5, 0.75, 1.0, np.inf]
    assert plot.weights.tolist() == [0, 3, 2, 0, 1, 4]
    assert plot.labels.tolist() == [0, 3, 0, 0, 1, 0]
    assert plot.predictions == pytest.approx([0, 0.6, 0.52, 0, 0.9, 6.0])


@pytest.mark.parametrize("thresholds,expected", [(0.3, 2 / 3), (0.85, 1.0), ([0.3], 2 / 3)])
def test_thresholds_are_strict(thresholds, expected):
    metric = sums.metric("Precision", thresholds=thresholds)
    labels, scores = np.array([1.0, 0, 1, 0]), np.array([0.9, 0.8, 0.4, 0.3])
    assert sums.value(metric, sums.state(metric, labels, scores)) == expected


def test_logits_and_smoothing():
    labels, scores, _ = sums.rows("binary", 300)
    logits = 4 * scores - 2
    metric = sums.metric("BinaryCrossEntropy", from_logits=True, label_smoothing=0.1)
    found = sums.value(metric, sums.state(metric, labels, logits))
    p, y = 1 / (1 + np.exp(-logits)), labels * 0.9 + 0.05
    assert found == pytest.approx(np.mean(-(y * np.log(p) + (1 - y) * np.log(1 - p))), rel=1e-12)
