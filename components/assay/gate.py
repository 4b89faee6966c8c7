"""The gate: finished values and demands in, a verdict with its reasons out. It fails closed.

A pure function on the host. It reads nothing and writes nothing; artifacts/blessing.py acts on it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from assay.spec import (
    OVERALL,
    ChangeThreshold,
    CrossSlicingSpec,
    Direction,
    MetricKey,
    Policy,
    SliceKey,
    SlicingSpec,
    Threshold,
    ValueThreshold,
    slice_text,
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
    def failures(self) -> tuple[Finding, ...]:
        """The findings that forbid promotion."""
        return tuple(f for f in self.findings if not f.ok)


@dataclass(frozen=True)
class Evidence:
    """What the gate looks at: every slice's values, and what is known to be missing."""

    slices: Sequence[SliceValues]
    cross_slices: Sequence[CrossSliceValues] = ()
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
    findings = list(dict.fromkeys(findings))
    reasons.extend(f.sentence for f in findings if not f.ok)
    return Verdict(
        blessed=not reasons,
        findings=tuple(findings),
        reasons=tuple(reasons),
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
            yield from _absent(
                check, SlicingSpec(), "the overall slice is not evaluated; add {} to slicing_specs"
            )
        for values in evidence.slices:
            yield from _hold(check, values.key, values.values, None, evidence.baseline_name)
        return
    for spec in threshold.slicing_specs:
        matched = [s for s in evidence.slices if spec.matches(s.key)]
        for values in matched:
            yield from _hold(check, values.key, values.values, spec, evidence.baseline_name)
        small = [(key, rows) for key, rows in evidence.hidden if spec.matches(key)]
        for key, rows in small:
            reason = f"the slice has {rows} rows and is hidden by min_slice_size {evidence.min_slice_size}"
            yield from (dataclasses.replace(f, slice_key=key) for f in _absent(check, spec, reason))
        if not matched and not small:
            yield from _absent(check, spec, "no row falls into such a slice")


def _examine_cross(check: Check, cross: CrossSlicingSpec, evidence: Evidence) -> Iterator[Finding]:
    pairs = evidence.cross_specs.get(cross, ())
    for pair in pairs:
        keys = (pair.baseline_key, pair.comparison_key)
        yield from _hold(check, keys, pair.values, cross, evidence.baseline_name)
    if not pairs:
        yield from _absent(check, cross, "no pair of slices matches")


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
    candidate = values.get(key)
    baseline = values.get(key.of(baseline_name)) if baseline_name else None
    common = {
        "key": key,
        "threshold": threshold,
        "slice_key": slice_key,
        "spec": spec,
        "candidate": candidate if isinstance(candidate, float) else None,
        "baseline": baseline if isinstance(baseline, float) else None,
    }
    if threshold.value:
        ok, reason = _within(candidate, threshold.value)
        yield Finding(
            bound=value_bound(threshold.value), observed=common["candidate"], ok=ok, reason=reason, **common
        )
    if threshold.change:
        diff = values.get(key.diff())
        ok, reason = _improved(diff, baseline, threshold.change)
        yield Finding(
            bound=change_bound(threshold.change),
            observed=diff if isinstance(diff, float) else None,
            ok=ok,
            reason=reason,
            is_change=True,
            **common,
        )


def _within(value: float | Undefined | None, bound: ValueThreshold) -> tuple[bool, str]:
    if value is None:
        return False, "the metric was not computed on this slice"
    if isinstance(value, Undefined):
        return False, f"undefined: {value.reason}"
    low = bound.lower_bound is None or value >= bound.lower_bound
    high = bound.upper_bound is None or value <= bound.upper_bound
    return low and high, "" if low and high else ("below the bound" if not low else "above the bound")


def _improved(
    diff: float | Undefined | None, baseline: float | Undefined | None, bound: ChangeThreshold
) -> tuple[bool, str]:
    if diff is None:
        return False, "the change was not computed on this slice"
    if isinstance(diff, Undefined):
        return False, f"undefined: {diff.reason}"
    sign = 1.0 if bound.direction is Direction.HIGHER_IS_BETTER else -1.0
    if bound.absolute is not None and sign * diff < sign * bound.absolute:
        return False, "the absolute change is on the wrong side of the bound"
    if bound.relative is not None:
        if not isinstance(baseline, float) or baseline == 0.0:
            return False, "baseline is zero"
        # |baseline|, so that the sign of the ratio is the sign of the change.
        if sign * diff / abs(baseline) < sign * bound.relative:
            return False, f"the relative change, {diff / abs(baseline):.6g}, is on the wrong side of the bound"
    return True, ""


def value_bound(bound: ValueThreshold) -> str:
    """Returns a value threshold as text: `>= 0.6`, `<= 0.7`, or both."""
    parts = []
    if bound.lower_bound is not None:
        parts.append(f">= {bound.lower_bound:g}")
    if bound.upper_bound is not None:
        parts.append(f"<= {bound.upper_bound:g}")
    return " and ".join(parts) or "any number"


def change_bound(bound: ChangeThreshold) -> str:
    """Returns a change threshold as text: `change >= -0.01`, `relative change <= 0.02`."""
    sign = ">=" if bound.direction is Direction.HIGHER_IS_BETTER else "<="
    parts = []
    if bound.absolute is not None:
        parts.append(f"change {sign} {bound.absolute:g}")
    if bound.relative is not None:
        parts.append(f"relative change {sign} {bound.relative:g}")
    return " and ".join(parts) or "any change"
