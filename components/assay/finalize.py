"""Sums to values: each metric's formula on each slice, differences, cross slices.

Runs on the host, once, after the last merge: the only place where anything is divided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from assay.curves import thin
from assay.metrics import Metric, Totals
from assay.spec import OVERALL, CrossSlicingSpec, MetricKey, SliceKey
from assay.state import WEIGHT, State, totals
from assay.values import (
    CalibrationBuckets,
    ConfusionMatrices,
    CrossSliceValues,
    Plot,
    SliceValues,
    Undefined,
)

LEAST_WEIGHT = 2.0 ** (32 * WEIGHT[-1]) * 1e9  # below it a WEIGHT column has fewer than nine digits a row


@dataclass(frozen=True)
class Bound:
    """A metric of one model: its key, its formula, and where its sums lie.

    leaf: the index of its leaf in the layout, or None for rows and weight alone; weight: the
    column of the examples leaf that holds its weight (0: every row weighs 1); invalid: the column
    that counts rows without finite statistics; model: the model's place.
    """

    key: MetricKey
    metric: Metric
    leaf: int | None
    weight: int
    invalid: int | None
    model: int = 0


def slice_values(
    state: State, bound: Sequence[Bound], baseline_name: str, weight_column: int, shown: Sequence[Bound] = ()
) -> list[SliceValues]:
    """Returns the values of every slice, overall first, then by key.

    weight_column: the column of the examples leaf that holds the candidate's weight (0 for none);
    shown: what else is shown of the candidate.
    """
    return [
        _one(state, key, bound, baseline_name, weight_column, shown)
        for key in sorted(state.slices, key=lambda k: (k != OVERALL, len(k), [_order(p) for p in k]))
    ]


def _order(part: tuple[str, bytes | int | float]) -> tuple[str, str, float, bytes]:
    feature, value = part
    if isinstance(value, bytes):
        return feature, "bytes", 0.0, value
    return feature, "number", float(value), b""


def _one(
    state: State,
    key: SliceKey,
    bound: Sequence[Bound],
    baseline_name: str,
    weight_column: int,
    shown: Sequence[Bound],
) -> SliceValues:
    arrays = state.slices[key]
    examples = totals(state.layout[0], arrays[0])[0]
    rows = int(examples[0])
    sums: dict[int, np.ndarray] = {}

    def value_of(item: Bound) -> float | Undefined | Plot:
        if item.leaf is not None and item.leaf not in sums:
            sums[item.leaf] = totals(state.layout[item.leaf], arrays[item.leaf])
        found = np.zeros([0, 0]) if item.leaf is None else sums[item.leaf]
        invalid = 0 if item.invalid is None else int(examples[item.invalid])
        if invalid:
            return Undefined(_invalid_reason(state, invalid, rows, item.model))
        if item.weight and 0 < examples[item.weight] < rows * LEAST_WEIGHT:
            return Undefined("the example weights are too small to be summed to nine digits; scale them up")
        return item.metric.formula(Totals(rows, float(examples[item.weight]), found))

    values: dict[MetricKey, float | Undefined] = {}
    plots: dict[MetricKey, Plot] = {}
    for item in bound:
        value = value_of(item)
        if isinstance(value, (ConfusionMatrices, CalibrationBuckets)):
            plots[item.key] = value
        elif isinstance(value, Undefined):
            values[item.key] = value
        else:
            number = float(value)
            values[item.key] = number if math.isfinite(number) else Undefined(f"the formula gives {number}")
    return SliceValues(
        key=key,
        rows=rows,
        weight=float(examples[weight_column]),
        values=with_diffs(values, baseline_name),
        plots=plots,
        shown={item.metric.name: _few(key, value_of(item)) for item in shown},
    )


def _few(key: SliceKey, value: float | Undefined | Plot) -> float | Undefined | Plot:
    # A thousand slices of ten thousand points each are more than a host should hold.
    return thin(value) if key != OVERALL and isinstance(value, ConfusionMatrices) else value


def _invalid_reason(state: State, invalid: int, rows: int, model: int) -> str:
    first = state.first.get(f"PREDICTION_NAN/{model}")
    if first is None:
        return f"{invalid} of {rows} rows have a value too large to be summed exactly"
    text = f"{invalid} of {rows} rows have a prediction that is no finite number"
    return f"{text}; the first of all is {first[0]}, record {first[1]}"


def with_diffs(
    values: Mapping[MetricKey, float | Undefined], baseline_name: str
) -> dict[MetricKey, float | Undefined]:
    """Returns the values with candidate minus baseline for each that both models have."""
    result = dict(values)
    if not baseline_name:
        return result
    for key, candidate in values.items():
        baseline = values.get(key.of(baseline_name))
        if key.model_name == baseline_name or baseline is None:
            continue
        result[key.diff()] = _difference(candidate, baseline, "", "baseline: ")
    return result


def _difference(
    left: float | Undefined, right: float | Undefined, of_left: str, of_right: str
) -> float | Undefined:
    """left minus right; where one is undefined, why, with a word on which."""
    if isinstance(left, Undefined):
        return Undefined(of_left + left.reason)
    if isinstance(right, Undefined):
        return Undefined(of_right + right.reason)
    return left - right


def cross_values(
    slices: Sequence[SliceValues], specs: Sequence[CrossSlicingSpec]
) -> dict[CrossSlicingSpec, list[CrossSliceValues]]:
    """Returns, for each spec, the values on a baseline slice minus those on a comparison slice."""
    return {spec: _cross(slices, spec) for spec in specs}


def _cross(slices: Sequence[SliceValues], spec: CrossSlicingSpec) -> list[CrossSliceValues]:
    pairs = []
    for left in slices:
        if not spec.baseline_spec.matches(left.key):
            continue
        for right in slices:
            wanted = not spec.slicing_specs or any(s.matches(right.key) for s in spec.slicing_specs)
            if wanted and right.key != left.key:
                pairs.append(CrossSliceValues(left.key, right.key, _minus(left.values, right.values)))
    return pairs


def _minus(
    left: Mapping[MetricKey, float | Undefined], right: Mapping[MetricKey, float | Undefined]
) -> dict[MetricKey, float | Undefined]:
    return {
        key: _difference(value, right[key], "baseline slice: ", "comparison slice: ")
        for key, value in left.items()
        if key in right
    }


def hide_small(
    slices: Sequence[SliceValues], minimum: int
) -> tuple[list[SliceValues], list[tuple[SliceKey, int]]]:
    """Returns the slices with at least `minimum` rows, and the key and rows of the others."""
    kept = [s for s in slices if s.rows >= minimum]
    return kept, [(s.key, s.rows) for s in slices if s.rows < minimum]
