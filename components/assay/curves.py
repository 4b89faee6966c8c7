"""Curves of a binary classifier: rates from its confusion matrices, and fewer points of the same curve.

Runs on the host, on NumPy alone.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from assay.values import ConfusionMatrices

POINTS = 200
# Where Vertex AI lists a classifier's metrics: 0.00, 0.05, …, 0.95, then 0.96 to 0.99.
GRID = (*(i / 20 for i in range(20)), 0.96, 0.97, 0.98, 0.99)
CLASSES = ("negative", "positive")


def rates(curve: ConfusionMatrices) -> tuple[np.ndarray, np.ndarray]:
    """Returns recall TP / (TP + FN) and false positive rate FP / (FP + TN), float64 [T] in [0, 1].

    Both classes have to be there.
    """
    recall, fall_out = curve.tp / (curve.tp + curve.fn), curve.fp / (curve.fp + curve.tn)
    # Weighted counts are rounded, so that a rate may come out a digit above 1.
    return recall.clip(0.0, 1.0), fall_out.clip(0.0, 1.0)


def table(matrix: ConfusionMatrices) -> list[list[float]]:
    """Returns [[TN, FP], [FN, TP]] at the first threshold: a row a true class, a column a predicted one."""
    tn, fp, fn, tp = (float(a[0]) for a in (matrix.tn, matrix.fp, matrix.fn, matrix.tp))
    return [[tn, fp], [fn, tp]]


def at(curve: ConfusionMatrices, thresholds: tuple[float, ...] = GRID) -> ConfusionMatrices:
    """Returns the points of an ascending curve that lie at the thresholds named."""
    return _take(curve, np.searchsorted(curve.thresholds, np.asarray(thresholds)))


def thin(curve: ConfusionMatrices, points: int = POINTS) -> ConfusionMatrices:
    """Returns some of the points of an ascending curve: both ends, those at GRID, and `points` in between.

    They are spread evenly along the curve, so that no two neighbours are further apart, in recall and
    false positive rate together, than 2 / points and one step of the curve itself.
    """
    recall, fall_out = rates(curve)
    # From (1, 1) down to (0, 0): both rates fall as the threshold rises.
    way = 2.0 - recall - fall_out
    spread = np.searchsorted(way, np.linspace(0.0, 2.0, points))
    ends = [0, len(way) - 1]
    grid = np.searchsorted(curve.thresholds, np.asarray(GRID))
    return _take(curve, np.unique(np.concatenate([ends, spread, grid]).clip(0, len(way) - 1)))


def _take(curve: ConfusionMatrices, places: np.ndarray) -> ConfusionMatrices:
    return ConfusionMatrices(*(getattr(curve, f.name)[places] for f in dataclasses.fields(curve)))
