"""Do the predictions mean what they say: means of label and prediction, their ratio, and by bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.metrics.metric import Metric, Totals, one_each, ratio
from assay.spec import RequestError
from assay.state import REAL, WEIGHT, Column
from assay.values import CalibrationBuckets, Undefined

LABEL, PREDICTION = 0, 1


@dataclass(frozen=True)
class LabelAndPrediction:
    """Sums of label and prediction: what calibration, mean_label and mean_prediction share."""

    name: str = "label_and_prediction"
    bins: int = 1
    columns: tuple[Column, ...] = (Column("label", REAL), Column("prediction", REAL))
    unit_labels: bool = False
    unit_predictions: bool = False

    def rows(self, labels: Any, predictions: Any) -> tuple[Any, Any]:
        import tensorflow as tf

        return None, tf.stack(one_each(labels, predictions, "calibration"), 1)


def mean_label(*, name: str = "mean_label") -> Metric:
    """Returns sum(w * y) / sum(w)."""
    return Metric(name, LabelAndPrediction(), lambda totals: totals.mean(LABEL))


def mean_prediction(*, name: str = "mean_prediction") -> Metric:
    """Returns sum(w * p) / sum(w)."""
    return Metric(name, LabelAndPrediction(), lambda totals: totals.mean(PREDICTION))


def calibration(*, name: str = "calibration") -> Metric:
    """Returns sum(w * p) / sum(w * y): above 1, the model predicts too much."""

    def formula(totals: Totals) -> float | Undefined:
        label, prediction = map(float, totals.sums[0])
        return ratio(prediction, label, "the labels sum to 0")

    return Metric(name, LabelAndPrediction(), formula)


@dataclass(frozen=True)
class Buckets:
    """Sums of weight, label and prediction by bucket of prediction, with one more at either end."""

    left: float
    right: float
    buckets: int
    columns: tuple[Column, ...] = (
        Column("weight", WEIGHT),
        Column("label", REAL),
        Column("prediction", REAL),
    )
    unit_labels: bool = False
    unit_predictions: bool = False

    @property
    def name(self) -> str:
        return f"calibration_buckets({self.left!r}, {self.right!r}, {self.buckets})"

    @property
    def bins(self) -> int:
        return self.buckets + 2

    def rows(self, labels: Any, predictions: Any) -> tuple[Any, Any]:
        import tensorflow as tf

        labels, score = one_each(labels, predictions, "a calibration plot")
        values = tf.stack([tf.ones_like(score), labels, score], 1)
        safe = tf.where(tf.math.is_finite(score), score, tf.zeros_like(score))
        place = tf.floor((safe - self.left) / (self.right - self.left) * self.buckets) + 1.0
        return tf.cast(tf.clip_by_value(place, 0.0, self.buckets + 1.0), tf.int32), values


def calibration_plot(
    *,
    name: str = "calibration_plot",
    num_buckets: int = 1000,
    left: float = 0.0,
    right: float = 1.0,
) -> Metric:
    """Returns weight, weighted label and weighted prediction by bucket of prediction."""
    if num_buckets < 1 or not left < right:
        raise RequestError(
            f"{name}: num_buckets {num_buckets!r} over [{left}, {right}); at least one bucket and "
            "left below right are needed"
        )
    statistics = Buckets(float(left), float(right), num_buckets)
    inner = np.arange(num_buckets + 1) * (right - left) / num_buckets + left
    edges = np.concatenate([[-np.inf], inner, [np.inf]])
    return Metric(
        name, statistics, lambda totals: CalibrationBuckets(edges, *np.ascontiguousarray(totals.sums.T))
    )
