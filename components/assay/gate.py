"""The gate: finished values and demands in, a verdict with its reasons out. It fails closed.

A pure function on the host. It reads nothing and writes nothing; artifacts/blessing.py acts on it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.request import Policy
from assay.spec import (
    OVERALL,
    ChangeThreshold,
    CrossSlicingSpec,
    Direction,
    MetricKey,
    SliceKey,
    SlicingSpec,
    Threshold,
    ValueThreshold,
    slice_text,
    unique,
)
from assay.values import CrossSliceValues, SliceValues, Undefined

NO_THRESHOLDS = "no thresholds"
NO_EXAMPLES = "no examples"


@dataclass(frozen=True)
class Check:
    """One demand: a threshold on one metric of the candidate."""

    key: MetricKey
    threshold: Threshold


@dataclass(frozen=True)
class Finding:
    """What became of one bound on one slice.

    slice_key: the slice, a pair of them for a cross slice, None where no slice matched.
    observed: the value held against the bound (a change threshold's is the change).
    """

    key: MetricKey
    threshold: Threshold
    bound: str
    ok: bool
    reason: str
    slice_key: SliceKey | tuple[SliceKey, SliceKey] | None = None
    spec: SlicingSpec | CrossSlicingSpec | None = None
    observed: float | None = None
    candidate: float | None = None
    baseline: float | None = None
    is_change: bool = False

    @property
    def place(self) -> str:
        """The slice as people read it."""
        if self.slice_key is None:
            return self.spec.text if self.spec is not None else "every slice"
        if self.is_cross:
            return " minus ".join(slice_text(k) for k in self.slice_key)  # type: ignore[arg-type]
        return slice_text(self.slice_key)  # type: ignore[arg-type]

    @property
    def is_cross(self) -> bool:
        """Whether the finding is about two slices held against each other."""
        return isinstance(self.spec, CrossSlicingSpec)

    @property
    def sentence(self) -> str:
        """The finding in one line: metric, slice, observed value, bound, baseline."""
        value = "undefined" if self.observed is None else f"{self.observed:.6g}"
        if not self.ok and self.observed is not None and value in self.bound.split():
            value = repr(self.observed)  # six digits would read as if the bound were met
        baseline = "" if self.baseline is None else f"; baseline {self.baseline:.6g}"
        why = f" ({self.reason})" if self.reason else ""
        kind = "change of " if self.is_change else ""
        return f"{kind}{self.key.label} on {self.place}: {value}, asked {self.bound}{baseline}{why}"


@dataclass(frozen=True)
class Verdict:
    """Whether the candidate may be promoted, and everything that was held against it."""

    blessed: bool
    findings: tuple[Finding, ...] = ()
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    missing_thresholds: bool = False
    rubber_stamp: bool = False  # change thresholds were dropped for want of a baseline

    @property
    def told(self) -> tuple[Finding, ...]:
        """The findings as they are shown: once a slice, though several specs of a threshold make it."""
        once = {(f.key, f.slice_key, f.place, f.bound, f.is_change, f.ok, f.reason): f for f in self.findings}
        return tuple(once.values())

    @property
    def failures(self) -> tuple[Finding, ...]:
        """The findings that forbid promotion, as they are shown."""
        return tuple(f for f in self.told if not f.ok)


@dataclass(frozen=True)
class Evidence:
    """What the gate looks at: every slice's values, and what is known to be missing."""

    slices: Sequence[SliceValues]
    cross_specs: Mapping[CrossSlicingSpec, Sequence[CrossSliceValues]] = field(default_factory=dict)
    hidden: Sequence[tuple[SliceKey, int]] = ()
    min_slice_size: int = 1
    baseline_name: str = ""  # the baseline's model name; empty where there is none
    stale_baseline: str = ""  # why the baseline could not be evaluated, if so


def judge(evidence: Evidence, checks: Sequence[Check], policy: Policy) -> Verdict:
    """Returns the verdict on the candidate.

    Blessed only if at least one threshold is left to check and every finding is ok. NaN, a missing
    metric or slice, an empty input and no threshold at all are each refused with a reason.
    """
    notes: list[str] = []
    reasons: list[str] = []
    comparable = bool(evidence.baseline_name) and not evidence.stale_baseline
    if evidence.stale_baseline:
        text = f"the baseline could not be evaluated: {evidence.stale_baseline}"
        (reasons if policy.stale_baseline == "fail" else notes).append(text)
    dropped = 0
    findings: list[Finding] = []
    live: list[Check] = []
    for check in checks:
        threshold = check.threshold
        if threshold.change and not comparable:
            dropped += 1
            threshold = dataclasses.replace(threshold, change=None)
        if threshold.value or threshold.change:
            live.append(Check(check.key, threshold))
            findings.extend(_examine(Check(check.key, threshold), evidence))
    if dropped:
        notes.append(f"{dropped} change threshold(s) not checked: there is no baseline to compare with")
    if evidence.hidden:
        names = "; ".join(f"{slice_text(k)} ({n} rows)" for k, n in evidence.hidden[:5])
        more = f" and {len(evidence.hidden) - 5} more" if len(evidence.hidden) > 5 else ""
        notes.append(f"hidden by min_slice_size {evidence.min_slice_size}: {names}{more}")

    overall_rows = max((s.rows for s in evidence.slices), default=0)
    if not overall_rows and not evidence.hidden:
        reasons.append(NO_EXAMPLES)
    if not checks:
        reasons.append(NO_THRESHOLDS)
    elif not live:
        text = 'only change thresholds, and no baseline; policy first_model="bless" blesses a first model'
        (notes if policy.first_model == "bless" else reasons).append(text)
    reasons.extend(f.sentence for f in findings if not f.ok)
    return Verdict(
        blessed=not reasons,
        findings=unique(findings),
        reasons=unique(reasons),
        notes=tuple(notes),
        missing_thresholds=not live,
        rubber_stamp=bool(dropped),
    )


def _examine(check: Check, evidence: Evidence) -> Iterator[Finding]:
    threshold = check.threshold
    if threshold.cross_slicing_specs:
        for cross in threshold.cross_slicing_specs:
            yield from _examine_cross(check, cross, evidence)
        return
    if threshold.slicing_specs is None:
        if not any(s.key == OVERALL for s in evidence.slices):
            reason = "the overall slice is not evaluated; add {} to slicing_specs"
            for rows in [rows for key, rows in evidence.hidden if key == OVERALL]:
                reason = _hidden(rows, evidence)
            yield from _absent(check, SlicingSpec(), reason)
        for values in evidence.slices:
            yield from _hold(check, values.key, values.values, None, evidence.baseline_name)
        return
    for spec in threshold.slicing_specs:
        matched = [s for s in evidence.slices if spec.matches(s.key)]
        for values in matched:
            yield from _hold(check, values.key, values.values, spec, evidence.baseline_name)
        small = [(key, rows) for key, rows in evidence.hidden if spec.matches(key)]
        for key, rows in small:
            absent = _absent(check, spec, _hidden(rows, evidence))
            yield from (dataclasses.replace(f, slice_key=key) for f in absent)
        if not matched and not small:
            yield from _absent(check, spec, "no row falls into such a slice")


def _hidden(rows: int, evidence: Evidence) -> str:
    return f"the slice has {rows} rows and is hidden by min_slice_size {evidence.min_slice_size}"


def _examine_cross(check: Check, cross: CrossSlicingSpec, evidence: Evidence) -> Iterator[Finding]:
    pairs = evidence.cross_specs.get(cross, ())
    for pair in pairs:
        keys = (pair.baseline_key, pair.comparison_key)
        yield from _hold(check, keys, pair.values, cross, evidence.baseline_name)
    if not pairs:
        yield from _absent(check, cross, "no pair of slices matches")
        return
    small = [key for key, _ in evidence.hidden]
    for spec in cross.slicing_specs:
        if not any(spec.matches(pair.comparison_key) for pair in pairs):
            why = "is hidden by min_slice_size" if any(map(spec.matches, small)) else "has no row"
            yield from _absent(check, cross, f"the slice {spec.text} {why}")


def _absent(check: Check, spec: SlicingSpec | CrossSlicingSpec, reason: str) -> Iterator[Finding]:
    for bound, is_change in _bounds(check.threshold):
        yield Finding(
            check.key, check.threshold, bound, ok=False, reason=reason, spec=spec, is_change=is_change
        )


def _bounds(threshold: Threshold) -> Iterator[tuple[str, bool]]:
    if threshold.value:
        yield value_bound(threshold.value), False
    if threshold.change:
        yield change_bound(threshold.change), True


def _hold(
    check: Check,
    slice_key: SliceKey | tuple[SliceKey, SliceKey],
    values: Mapping[MetricKey, float | Undefined],
    spec: SlicingSpec | CrossSlicingSpec | None,
    baseline_name: str,
) -> Iterator[Finding]:
    key, threshold = check.key, check.threshold
    candidate, lacking = _number(values.get(key), "the metric")
    baseline, _ = _number(values.get(key.of(baseline_name)) if baseline_name else None, "the baseline")
    common: dict[str, Any] = {
        "key": key,
        "threshold": threshold,
        "slice_key": slice_key,
        "spec": spec,
        "candidate": candidate,
        "baseline": baseline,
    }
    if threshold.value:
        ok, reason = (False, lacking) if candidate is None else _within(candidate, threshold.value)
        yield Finding(bound=value_bound(threshold.value), observed=candidate, ok=ok, reason=reason, **common)
    if threshold.change:
        diff, lacking = _number(values.get(key.diff()), "the change")
        ok, reason = (False, lacking) if diff is None else _improved(diff, baseline, threshold.change)
        yield Finding(
            bound=change_bound(threshold.change),
            observed=diff,
            ok=ok,
            reason=reason,
            is_change=True,
            **common,
        )


def _number(value: float | Undefined | None, what: str) -> tuple[float | None, str]:
    """The value where it is a finite number, else None and why it is not."""
    if value is None:
        return None, f"{what} was not computed on this slice"
    if isinstance(value, Undefined):
        return None, f"undefined: {value.reason}"
    return (value, "") if math.isfinite(value) else (None, f"undefined: {what} is {value}")


def _within(value: float, bound: ValueThreshold) -> tuple[bool, str]:
    if bound.lower_bound is not None and value < bound.lower_bound:
        return False, "below the bound"
    if bound.upper_bound is not None and value > bound.upper_bound:
        return False, "above the bound"
    return True, ""


def _improved(diff: float, baseline: float | None, bound: ChangeThreshold) -> tuple[bool, str]:
    sign = 1.0 if bound.direction is Direction.HIGHER_IS_BETTER else -1.0
    if bound.absolute is not None and sign * diff < sign * bound.absolute:
        return False, "the absolute change is on the wrong side of the bound"
    if bound.relative is not None:
        if not baseline:
            return False, "baseline is zero" if baseline == 0.0 else "the baseline has no value on this slice"
        # |baseline|, so that the sign of the ratio is the sign of the change.
        if sign * diff / abs(baseline) < sign * bound.relative:
            change = f"{diff / abs(baseline):.6g}"
            return False, f"the relative change, {change}, is on the wrong side of the bound"
    return True, ""


def value_bound(bound: ValueThreshold) -> str:
    """Returns a value threshold as text: `>= 0.6`, `<= 0.7`, or both."""
    parts = []
    if bound.lower_bound is not None:
        parts.append(f">= {_exact(bound.lower_bound)}")
    if bound.upper_bound is not None:
        parts.append(f"<= {_exact(bound.upper_bound)}")
    return " and ".join(parts)


def change_bound(bound: ChangeThreshold) -> str:
    """Returns a change threshold as text: `change >= -0.01`, `relative change <= 0.02`."""
    sign = ">=" if bound.direction is Direction.HIGHER_IS_BETTER else "<="
    parts = []
    if bound.absolute is not None:
        parts.append(f"change {sign} {_exact(bound.absolute)}")
    if bound.relative is not None:
        parts.append(f"relative change {sign} {_exact(bound.relative)}")
    return " and ".join(parts)


def _exact(value: float) -> str:
    """Every digit of a bound, as in the config: 0.85, not 0.8500000."""
    return repr(float(value)).removesuffix(".0")
