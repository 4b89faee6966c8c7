"""Binary classification at thresholds: confusion matrices, what follows from them, and curves.

A row is predicted positive where its score is above the threshold. A label y in [0, 1] counts as
weight * y positive and weight * (1 - y) negative, as in TFMA. Forty metrics cost one histogram.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.metrics.metric import Metric, Statistics, Totals, one_each, ratio
from assay.spec import RequestError, unknown
from assay.state import WEIGHT, Column
from assay.values import ConfusionMatrices, Undefined

POSITIVE, NEGATIVE = 0, 1
CURVE_BUCKETS = 10_000
PLOT_THRESHOLDS = 1_000
EPSILON = 1e-7

_COLUMNS = (Column("positive", WEIGHT), Column("negative", WEIGHT))


def _label_split(labels: Any, score: Any) -> Any:
    """A row's positive and negative part [B, 2]; NaN where its score is."""
    import tensorflow as tf

    values = tf.stack([labels, 1.0 - labels], 1)
    return tf.where(tf.math.is_nan(score)[:, None], tf.constant(np.nan, tf.float64), values)


@dataclass(frozen=True)
class AtThresholds:
    """Positives and negatives between consecutive thresholds: bin i holds rows above i of them."""

    thresholds: tuple[float, ...]
    unit_labels: bool = True
    unit_predictions: bool = False
    columns: tuple[Column, ...] = _COLUMNS

    @property
    def name(self) -> str:
        return f"confusion_at({', '.join(map(repr, self.thresholds))})"

    @property
    def bins(self) -> int:
        return len(self.thresholds) + 1

    def rows(self, labels: Any, predictions: Any) -> tuple[Any, Any]:
        import tensorflow as tf

        labels, score = one_each(labels, predictions, "a confusion matrix")
        above = score[:, None] > tf.constant(sorted(self.thresholds), tf.float64)[None]
        return tf.reduce_sum(tf.cast(above, tf.int32), 1), _label_split(labels, score)

    def matrices(self, totals: Totals) -> ConfusionMatrices:
        """Returns the confusion matrix at each threshold, in the order they were given."""
        order = np.argsort(self.thresholds, kind="stable")
        result = _matrices(np.asarray(sorted(self.thresholds)), totals.sums)
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return ConfusionMatrices(*(getattr(result, f)[back] for f in ("thresholds", "tp", "tn", "fp", "fn")))


def _matrices(thresholds: np.ndarray, sums: np.ndarray) -> ConfusionMatrices:
    """Confusion matrices at thresholds from sums [T + 1, 2] of the intervals between them."""
    above = np.cumsum(sums[::-1], 0)[::-1][1:]
    below = np.cumsum(sums, 0)[:-1]
    return ConfusionMatrices(
        thresholds,
        tp=above[:, POSITIVE],
        tn=below[:, NEGATIVE],
        fp=above[:, NEGATIVE],
        fn=below[:, POSITIVE],
    )


@dataclass(frozen=True)
class ScoreHistogram:
    """Positives and negatives by score, in equal buckets of [0, 1]: bucket i is [i/N, (i+1)/N).

    TFMA's layout, so that curves agree with it: one bucket in front for scores below 0, one behind
    for a score of 1.
    """

    buckets: int = CURVE_BUCKETS
    unit_labels: bool = True
    unit_predictions: bool = True
    columns: tuple[Column, ...] = _COLUMNS

    @property
    def name(self) -> str:
        return f"score_histogram({self.buckets})"

    @property
    def bins(self) -> int:
        return self.buckets + 2

    def rows(self, labels: Any, predictions: Any) -> tuple[Any, Any]:
        import tensorflow as tf

        labels, score = one_each(labels, predictions, "AUC")
        safe = tf.where(tf.math.is_nan(score), tf.zeros_like(score), score)
        bucket = tf.floor(safe * self.buckets) + 1.0
        bins = tf.cast(tf.clip_by_value(bucket, 0.0, self.buckets + 1.0), tf.int32)
        return bins, _label_split(labels, score)

    def matrices(self, totals: Totals, thresholds: np.ndarray) -> ConfusionMatrices:
        """Returns the confusion matrices at ascending thresholds, buckets taken at their lower edge."""
        edges = np.concatenate([[-np.inf], np.arange(self.buckets + 1) / self.buckets])
        # TFMA moves every threshold but 0 up by epsilon, and takes edges at or above it.
        shifted = np.where(thresholds != 0, thresholds + EPSILON, thresholds)
        interval = np.searchsorted(shifted, edges, side="right")
        sums = np.zeros([len(thresholds) + 1, 2])
        np.add.at(sums, interval, totals.sums)
        return _matrices(thresholds, sums)

    def curve(self, totals: Totals) -> ConfusionMatrices | Undefined:
        """Returns the confusion matrices of scores at or above 0, 1/N, …, 1, and of none at all.

        The last one, which a curve needs to end at (0, 0), has no threshold in [0, 1]; it is given as 1.
        """
        one_class = _one_class(totals)
        if one_class:
            return one_class
        thresholds = np.append(np.arange(self.buckets + 1) / self.buckets, 1.0)
        return _matrices(thresholds, np.concatenate([totals.sums, np.zeros([1, 2])]))


def _one_class(totals: Totals) -> Undefined | None:
    positive, negative = totals.sums[:, POSITIVE].sum(), totals.sums[:, NEGATIVE].sum()
    if positive and negative:
        return None
    return Undefined(f"no {'positive' if not positive else 'negative'} example")


def interpolated(count: int) -> np.ndarray:
    """Returns `count` thresholds spread evenly over [0, 1], the ends moved out by 1e-7 (as Keras)."""
    inner = np.arange(1, count - 1) / (count - 1)
    return np.concatenate([[-EPSILON], inner, [1.0 + EPSILON]])


def _at(thresholds: float | Sequence[float] | None, default: float) -> AtThresholds:
    if thresholds is None:
        thresholds = default
    values = (thresholds,) if isinstance(thresholds, (int, float)) else tuple(thresholds)
    if not values:
        raise RequestError(f"thresholds is {thresholds!r}; a number or a list of numbers is needed")
    return AtThresholds(tuple(float(t) for t in values))


Cell = Callable[[float, float, float, float], "float | Undefined"]


def _from_matrix(name: str, statistics: AtThresholds, cell: Cell) -> Metric:
    if len(statistics.thresholds) != 1:
        raise RequestError(
            f"{name}: {len(statistics.thresholds)} thresholds give an array, which is not supported "
            "yet; name one threshold a metric"
        )

    def formula(totals: Totals) -> float | Undefined:
        m = statistics.matrices(totals)
        return cell(float(m.tp[0]), float(m.tn[0]), float(m.fp[0]), float(m.fn[0]))

    return Metric(name, statistics, formula)


def binary_accuracy(*, name: str = "binary_accuracy", threshold: float | None = None) -> Metric:
    """Returns (TP + TN) / (TP + TN + FP + FN) at a threshold, 0.5 by default."""
    return _from_matrix(
        name,
        _at(threshold, 0.5),
        lambda tp, tn, fp, fn: ratio(tp + tn, tp + tn + fp + fn, "no example has a weight above 0"),
    )


def precision(*, name: str = "precision", thresholds: float | Sequence[float] | None = None) -> Metric:
    """Returns TP / (TP + FP) at a threshold, 0.5 by default."""
    return _from_matrix(
        name,
        _at(thresholds, 0.5),
        lambda tp, tn, fp, fn: ratio(tp, tp + fp, "no example is predicted positive"),
    )


def recall(*, name: str = "recall", thresholds: float | Sequence[float] | None = None) -> Metric:
    """Returns TP / (TP + FN) at a threshold, 0.5 by default."""
    return _from_matrix(
        name, _at(thresholds, 0.5), lambda tp, tn, fp, fn: ratio(tp, tp + fn, "no example is positive")
    )


CURVES = ("ROC", "PR")
SUMMATIONS = ("interpolation", "minoring", "majoring")


def auc(
    *,
    name: str = "auc",
    num_thresholds: int | None = None,
    curve: str = "ROC",
    summation_method: str = "interpolation",
) -> Metric:
    """Returns the area under the ROC or precision-recall curve at `num_thresholds` points.

    10,000 points by default, over a histogram of 10,000 buckets of [0, 1]. ROC: trapezoids over
    (FP rate, TP rate). PR: the interpolation of J. Davis and M. Goadrich, "The relationship between
    precision-recall and ROC curves", 2006, integrated in closed form. One class only: undefined.
    """
    count = CURVE_BUCKETS if num_thresholds is None else num_thresholds
    if count < 2:
        raise RequestError(f"{name}: num_thresholds is {count!r}; a whole number above 1 is needed")
    if curve.upper() not in CURVES:
        raise unknown("curve", curve, CURVES, place=name)
    if summation_method.lower() not in SUMMATIONS:
        raise unknown("summation_method", summation_method, SUMMATIONS, place=name)
    statistics = ScoreHistogram()
    thresholds = interpolated(count)

    def formula(totals: Totals) -> float | Undefined:
        one_class = _one_class(totals)
        if one_class:
            return one_class
        m = statistics.matrices(totals, thresholds)
        if curve.upper() == "PR" and summation_method.lower() == "interpolation":
            return _pr_interpolated(m)
        with np.errstate(divide="ignore", invalid="ignore"):
            tpr = m.tp / (m.tp + m.fn)
            x, y = (m.fp / (m.fp + m.tn), tpr) if curve.upper() == "ROC" else (tpr, m.tp / (m.tp + m.fp))
            low, high = y[:-1], y[1:]
            heights = {
                "interpolation": (low + high) / 2,
                "minoring": np.minimum(low, high),
                "majoring": np.maximum(low, high),
            }[summation_method.lower()]
            return float(np.nansum((x[:-1] - x[1:]) * heights))

    return Metric(name, statistics, formula)


def _pr_interpolated(m: ConfusionMatrices) -> float:
    """Area between neighbours where TP grows linearly with FP: integral of precision over recall.

    With P = TP + FP and TP = a + s * P between two points, the area is
    s * (dTP + a * log(P1 / P0)) / positives.
    """
    predicted = m.tp + m.fp
    grown_tp, grown = m.tp[:-1] - m.tp[1:], predicted[:-1] - predicted[1:]
    slope = np.divide(grown_tp, grown, out=np.zeros_like(grown_tp), where=grown > 0)
    intercept = m.tp[1:] - slope * predicted[1:]
    both = (predicted[:-1] > 0) & (predicted[1:] > 0)
    growth = np.divide(predicted[:-1], predicted[1:], out=np.ones_like(grown_tp), where=both)
    return float(np.sum(slope * (grown_tp + intercept * np.log(growth)) / (m.tp[1:] + m.fn[1:])))


def auc_precision_recall(
    *,
    name: str = "auc_precision_recall",
    num_thresholds: int | None = None,
    summation_method: str = "interpolation",
) -> Metric:
    """Returns `auc` of the precision-recall curve."""
    return auc(name=name, num_thresholds=num_thresholds, curve="PR", summation_method=summation_method)


def confusion_matrix_plot(
    *, name: str = "confusion_matrix_plot", num_thresholds: int = PLOT_THRESHOLDS
) -> Metric:
    """Returns the confusion matrices at -1e-6, 0, 1/N, …, 1 (TFMA's choice), from the curves' histogram."""
    if num_thresholds < 2:
        raise RequestError(f"{name}: num_thresholds is {num_thresholds!r}; a whole number above 1 is needed")
    statistics = ScoreHistogram()
    thresholds = np.concatenate([[-1e-6], np.arange(num_thresholds + 1) / num_thresholds])
    return Metric(name, statistics, lambda totals: statistics.matrices(totals, thresholds))


def shown(statistics: Statistics) -> list[Metric]:
    """Returns `matrix` (of scores above 0.5), and of a histogram of scores `curve` and both areas."""
    if not isinstance(statistics, (AtThresholds, ScoreHistogram)):
        return []
    half = AtThresholds((0.5,))
    matrix = Metric("matrix", half, lambda totals: _one_class(totals) or half.matrices(totals))
    if isinstance(statistics, AtThresholds):
        return [matrix]
    return [matrix, Metric("curve", statistics, statistics.curve), auc(), auc_precision_recall()]
