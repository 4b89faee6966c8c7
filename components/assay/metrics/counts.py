"""How many examples: by number and by weight."""

from __future__ import annotations

from assay.metrics.metric import Metric


def example_count(*, name: str = "example_count") -> Metric:
    """Returns the number of rows of the slice, whatever their weight."""
    return Metric(name, None, lambda totals: float(totals.rows), weighted=False)


def weighted_example_count(*, name: str = "weighted_example_count") -> Metric:
    """Returns the sum of the example weights; the number of rows where there is no weight key."""
    return Metric(name, None, lambda totals: totals.weight, weighted=True)
