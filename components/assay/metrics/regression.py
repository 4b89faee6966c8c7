"""Means of what a prediction is off by, and of a loss: sum(w * e) / sum(w)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.metrics.metric import Metric, Statistics, one_each, scores
from assay.spec import RequestError
from assay.state import REAL, Column


@dataclass(frozen=True)
class Error:
    """The sum of |y - p| ** power, its mean over the outputs where a row has several."""

    power: int
    bins: int = 1
    unit_labels: bool = False
    unit_predictions: bool = False

    @property
    def name(self) -> str:
        return f"error({self.power})"

    @property
    def columns(self) -> tuple[Column, ...]:
        return (Column("error", REAL),)

    def rows(self, labels: Any, predictions: Any) -> tuple[Any, Any]:
        import tensorflow as tf

        if labels.shape.rank == 1:
            difference = (labels - scores(predictions, "a regression error"))[:, None]
        elif predictions.shape[1:].num_elements() == labels.shape[1]:
            difference = labels - tf.reshape(predictions, tf.shape(labels))
        else:
            raise RequestError(
                f"a regression error needs a prediction for each label; labels are {labels.shape}, "
                f"predictions {predictions.shape}"
            )
        error = tf.abs(difference) if self.power == 1 else tf.square(difference)
        return None, tf.reduce_mean(error, 1, keepdims=True)


def mean_squared_error(*, name: str = "mean_squared_error") -> Metric:
    """Returns sum(w * (y - p)**2) / sum(w)."""
    return Metric(name, Error(2), lambda totals: totals.mean())


def mean_absolute_error(*, name: str = "mean_absolute_error") -> Metric:
    """Returns sum(w * |y - p|) / sum(w)."""
    return Metric(name, Error(1), lambda totals: totals.mean())


CLIP = 1e-7


@dataclass(frozen=True)
class CrossEntropy:
    """The sum of -(y * log(p) + (1 - y) * log(1 - p)), p kept within [1e-7, 1 - 1e-7] as Keras does."""

    from_logits: bool
    label_smoothing: float
    bins: int = 1
    columns: tuple[Column, ...] = (Column("loss", REAL),)
    unit_labels: bool = True

    @property
    def unit_predictions(self) -> bool:
        return not self.from_logits

    @property
    def name(self) -> str:
        return f"cross_entropy({self.from_logits}, {self.label_smoothing!r})"

    def rows(self, labels: Any, predictions: Any) -> tuple[Any, Any]:
        import tensorflow as tf

        labels, score = one_each(labels, predictions, "BinaryCrossEntropy")
        target = labels * (1.0 - self.label_smoothing) + 0.5 * self.label_smoothing
        if self.from_logits:
            loss = tf.maximum(score, 0.0) - score * target + tf.math.log1p(tf.exp(-tf.abs(score)))
        else:
            inside = tf.clip_by_value(score, CLIP, 1.0 - CLIP)
            loss = -(target * tf.math.log(inside) + (1.0 - target) * tf.math.log(1.0 - inside))
        loss = tf.where(tf.math.is_nan(score), tf.constant(np.nan, tf.float64), loss)
        return None, loss[:, None]


def binary_crossentropy(
    *, name: str = "binary_crossentropy", from_logits: bool = False, label_smoothing: float = 0.0
) -> Metric:
    """Returns the mean binary cross-entropy (log loss, natural logarithm)."""
    if not 0.0 <= label_smoothing <= 1.0:
        raise RequestError(f"{name}: label_smoothing is {label_smoothing}; a number in [0, 1] is needed")
    return Metric(name, CrossEntropy(from_logits, float(label_smoothing)), lambda totals: totals.mean())


def shown(statistics: Statistics) -> list[Metric]:
    """Returns `mean_squared_error`, `mean_absolute_error` or `log_loss`, as the sums are."""
    if isinstance(statistics, Error):
        return [mean_squared_error() if statistics.power == 2 else mean_absolute_error()]
    if isinstance(statistics, CrossEntropy) and not statistics.label_smoothing:
        return [binary_crossentropy(name="log_loss", from_logits=statistics.from_logits)]
    return []
