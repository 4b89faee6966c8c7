"""Classification with one of C classes a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.metrics.metric import Metric, one_label
from assay.spec import RequestError
from assay.state import WEIGHT, Column


@dataclass(frozen=True)
class Hit:
    """The weight of rows whose largest score is at the label's place; the first of equal ones."""

    name: str = "sparse_hit"
    bins: int = 1
    columns: tuple[Column, ...] = (Column("hit", WEIGHT),)
    unit_labels: bool = False
    unit_predictions: bool = False

    def rows(self, labels: Any, predictions: Any) -> tuple[Any, Any]:
        import tensorflow as tf

        one_label(labels, "SparseCategoricalAccuracy")
        if predictions.shape.rank != 2 or predictions.shape[1] == 1:
            raise RequestError(
                "SparseCategoricalAccuracy needs a score for each class, [B, C]; the model gives "
                f"shape {predictions.shape}"
            )
        guess = tf.cast(tf.argmax(predictions, 1), tf.float64)
        hit = tf.cast(tf.equal(guess, labels), tf.float64)
        bad = tf.reduce_any(tf.math.is_nan(predictions), 1)
        return None, tf.where(bad, tf.constant(np.nan, tf.float64), hit)[:, None]


def sparse_categorical_accuracy(*, name: str = "sparse_categorical_accuracy") -> Metric:
    """Returns the share of weight whose class with the largest score is the label's."""
    return Metric(name, Hit(), lambda totals: totals.mean())
