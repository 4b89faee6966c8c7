"""What a metric can come to: a number, no number for a reason, or a plot.

Runs on the host, on NumPy alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from assay.spec import MetricKey, SliceKey


@dataclass(frozen=True)
class Undefined:
    """No value, and why: 0/0, one class only, a prediction that is no number."""

    reason: str


@dataclass(frozen=True)
class ConfusionMatrices:
    """Weighted counts of a binary classifier at each threshold; a row is positive above it.

    All arrays are float64 [T].
    """

    thresholds: np.ndarray
    tp: np.ndarray
    tn: np.ndarray
    fp: np.ndarray
    fn: np.ndarray


@dataclass(frozen=True)
class CalibrationBuckets:
    """Weighted sums by bucket of prediction: bucket i is [edges[i], edges[i + 1]).

    edges: float64 [N + 1], the first -inf and the last inf; the sums: float64 [N].
    """

    edges: np.ndarray
    weights: np.ndarray
    labels: np.ndarray
    predictions: np.ndarray


Plot = ConfusionMatrices | CalibrationBuckets
Value = float | Undefined | Plot


@dataclass(frozen=True)
class SliceValues:
    """The finished values of one slice.

    rows: examples in it, whatever their weight; weight: their summed weight, in the candidate's
    weight key. values: numbers, or why there is none, by key; diffs are candidate minus baseline.
    shown: of the candidate, what Kubeflow and Vertex show, by the fixed names of `assay.metrics.shown`;
    only as much as the artifacts asked for need.
    """

    key: SliceKey
    rows: int
    weight: float
    values: Mapping[MetricKey, float | Undefined]
    plots: Mapping[MetricKey, Plot]
    shown: Mapping[str, float | Undefined | Plot] = field(default_factory=dict)


@dataclass(frozen=True)
class CrossSliceValues:
    """Values on a baseline slice minus values on a comparison slice."""

    baseline_key: SliceKey
    comparison_key: SliceKey
    values: Mapping[MetricKey, float | Undefined]
