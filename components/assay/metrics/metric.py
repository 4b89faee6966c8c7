"""What a metric is: per-row statistics on the replica, and a formula over their sums on the host.

A custom metric is one `Statistics` (a frozen dataclass with `rows`) and one `Metric` (a formula).
Weighting, padding, slicing, exact summation and merging happen once, elsewhere, for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from assay.spec import RequestError
from assay.state import REAL, Column
from assay.values import Plot, Undefined

RESOLUTION = 2.0 ** (32 * REAL[-1]) * 1e9  # below it a REAL column has fewer than nine digits a row


class Statistics(Protocol):
    """What a family of metrics sums over the rows; equal ones are summed once.

    name: identifies it in the layout, arguments included.
    bins, columns: the shape [bins, columns] of the sums; a row adds to one bin.
    unit_labels, unit_predictions: these must lie in [0, 1], else the run fails.
    """

    @property
    def name(self) -> str: ...

    @property
    def bins(self) -> int: ...

    @property
    def columns(self) -> tuple[Column, ...]: ...

    @property
    def unit_labels(self) -> bool: ...

    @property
    def unit_predictions(self) -> bool: ...

    def rows(self, labels: Any, predictions: Any) -> tuple[Any, Any]:
        """Returns (bins [B] int32 or None, values [B, columns] float64), unweighted.

        labels: float64 [B], or [B, L] where a row has L of them; predictions: float64 [B, ...].
        Replica context, in graph. A value that is not finite marks its row as one on which the
        metric is undefined.
        """


@dataclass(frozen=True)
class Totals:
    """The sums of one statistics over one slice, weighted.

    rows: examples, whatever their weight; weight: their summed weight; sums: float64
    [bins, columns].
    """

    rows: int
    weight: float
    sums: np.ndarray

    def mean(self, column: int = 0) -> float | Undefined:
        """Returns sum / weight of a one-bin column: one division, at the very end."""
        total = float(self.sums[0, column])
        if 0 < abs(total) < self.rows * RESOLUTION:
            return Undefined("the values are too small to be summed to nine digits; scale them up")
        return ratio(total, self.weight, "no example has a weight above 0")


@dataclass(frozen=True)
class Metric:
    """One metric: its name, the sums it needs (None: rows and weight alone), and its formula."""

    name: str
    statistics: Statistics | None
    formula: Callable[[Totals], float | Undefined | Plot]
    weighted: bool | None = None  # True or False where the class says so by itself


def ratio(numerator: float, denominator: float, otherwise: str) -> float | Undefined:
    """Returns numerator / denominator; undefined, for the reason given, where that is x/0."""
    return numerator / denominator if denominator else Undefined(otherwise)


def one_each(labels: Any, predictions: Any, name: str) -> tuple[Any, Any]:
    """Returns labels [B] and predictions [B] of a model with one score a row.

    Raises:
      RequestError: a row has several labels or scores; [B] and [B, C] never broadcast against each
        other.
    """
    one_label(labels, name)
    return labels, scores(predictions, name)


def one_label(labels: Any, name: str) -> None:
    """Checks that a row has one label.

    Raises:
      RequestError: it has several.
    """
    if labels.shape.rank != 1:
        raise RequestError(f"{name} needs one label a row; the label has {labels.shape[1]} values a row")


def scores(predictions: Any, name: str) -> Any:
    """Returns the predictions [B] of a model with one score a row, from [B] or [B, 1].

    Raises:
      RequestError: a row has several scores.
    """
    import tensorflow as tf

    shape = predictions.shape
    if shape.rank == 1:
        return predictions
    if shape.rank is not None and all(d == 1 for d in shape[1:]):
        return tf.reshape(predictions, [-1])
    sizes = "of unknown rank"
    if shape.rank is not None:
        sizes = f"[B, {', '.join('?' if d is None else str(d) for d in shape[1:])}]"
    raise RequestError(f"{name} needs one prediction a row, [B] or [B, 1]; the model gives shape {sizes}")
