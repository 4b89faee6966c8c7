"""What is asked of an evaluation: frozen dataclasses, valid once built.

Nothing here reads data or imports TensorFlow, so that a wrong request is refused in milliseconds.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SliceValue = bytes | int | float
SliceKey = tuple[tuple[str, SliceValue], ...]
OVERALL: SliceKey = ()

CANDIDATE = "candidate"
BASELINE = "baseline"


class RequestError(ValueError):
    """The request is wrong; the message names the thing, its place, and what would be valid.

    The command line ends with exit code 2.
    """


class DataError(RuntimeError):
    """The request is right and the data are not: corrupt, unlabelled, out of range.

    The command line ends with exit code 1.
    """


class ProcessError(RuntimeError):
    """This process cannot go on, and another might: storage that fails, too little memory.

    The command line ends with exit code 1.
    """


def unknown(what: str, name: str, known: Iterable[str], *, place: str = "") -> RequestError:
    """Returns the error for a name that is not among the known ones, nearest ones first."""
    names = sorted(set(known))
    lowered = {n.lower(): n for n in names}
    near = [lowered[m] for m in difflib.get_close_matches(name.lower(), lowered, 3, 0.5)]
    hint = f"nearest: {', '.join(near)}" if near else f"known: {', '.join(names[:40]) or 'none'}"
    return RequestError(f"unknown {what} {name!r}{f' in {place}' if place else ''}; {hint}")


def slice_text(key: SliceKey) -> str:
    """Returns a slice key as people read it: `payment_type=Cash, hour=7`, or `Overall`."""
    if not key:
        return "Overall"
    return ", ".join(f"{feature}={value_text(value)}" for feature, value in key)


def value_text(value: SliceValue) -> str:
    """Returns one slice value as text; bytes that are not UTF-8 are shown escaped."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)


@dataclass(frozen=True)
class MetricKey:
    """Names one value of one model on one slice, as TFMA's MetricKey does.

    `example_weighted` is True where the model has a weight key and the metric uses it;
    `weights_apply` tells whether there was a choice, which decides the `:unweighted` suffix.
    """

    name: str
    model_name: str = ""
    example_weighted: bool = False
    weights_apply: bool = False
    is_diff: bool = False

    @property
    def label(self) -> str:
        """The name used in report.json: TFMA's metric name, and `:unweighted` where it matters."""
        return self.name + (":unweighted" if self.weights_apply and not self.example_weighted else "")

    def of(self, model_name: str) -> MetricKey:
        """Returns the same key for another model."""
        return dataclasses.replace(self, model_name=model_name)

    def diff(self) -> MetricKey:
        """Returns the key of candidate minus baseline."""
        return dataclasses.replace(self, is_diff=True)


@dataclass(frozen=True)
class ModelSpec:
    """One model and where its label, weight and prediction are found."""

    name: str = ""
    signature_name: str = ""
    label_key: str = ""
    prediction_key: str = ""
    example_weight_key: str = ""
    is_baseline: bool = False


@dataclass(frozen=True)
class SlicingSpec:
    """Which slices to make: each `feature_keys` value seen, crossed with fixed `feature_values`.

    Both empty is the overall slice.
    """

    feature_keys: tuple[str, ...] = ()
    feature_values: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        fixed = [feature for feature, _ in self.feature_values]
        twice = sorted({f for f in self.feature_keys if f in fixed or self.feature_keys.count(f) > 1})
        if twice:
            raise RequestError(
                f"feature {twice[0]!r} is named twice in one slicing spec; "
                "name it once, in feature_keys or in feature_values"
            )

    @property
    def features(self) -> tuple[str, ...]:
        """The features that a slice key of this spec holds, sorted."""
        return tuple(sorted((*self.feature_keys, *(f for f, _ in self.feature_values))))

    def matches(self, key: SliceKey) -> bool:
        """Tells whether this spec makes the given slice."""
        if tuple(f for f, _ in key) != self.features:
            return False
        values = dict(key)
        return all(same_value(values[f], text) for f, text in self.feature_values)

    @property
    def text(self) -> str:
        """The spec as people read it."""
        parts = [*self.feature_keys, *(f"{f}={v}" for f, v in self.feature_values)]
        return ", ".join(parts) or "Overall"


@dataclass(frozen=True)
class CrossSlicingSpec:
    """Compares slices: the value on a baseline slice minus the value on each comparison slice.

    No `slicing_specs` means every other slice.
    """

    baseline_spec: SlicingSpec
    slicing_specs: tuple[SlicingSpec, ...] = ()

    @property
    def text(self) -> str:
        """The spec as people read it."""
        others = " | ".join(s.text for s in self.slicing_specs) or "every other slice"
        return f"{self.baseline_spec.text} minus {others}"


def same_value(value: SliceValue, text: str) -> bool:
    """Tells whether a slice value equals a `feature_values` text.

    A text that looks like a number matches that int, or that float32, too (as in TFMA).
    """
    import numpy as np

    if isinstance(value, bytes):
        return value == text.encode()
    try:
        if isinstance(value, int):
            return value == int(text)
        return value == float(np.float32(float(text)))
    except (ValueError, OverflowError):
        return False


class Direction(enum.Enum):
    """Which way a metric gets better."""

    HIGHER_IS_BETTER = "HIGHER_IS_BETTER"
    LOWER_IS_BETTER = "LOWER_IS_BETTER"


@dataclass(frozen=True)
class ValueThreshold:
    """Bounds of a value, inclusive at both ends; None is no bound."""

    lower_bound: float | None = None
    upper_bound: float | None = None

    def __post_init__(self) -> None:
        if self.lower_bound is None and self.upper_bound is None:
            raise RequestError("value_threshold asks nothing; set lower_bound, upper_bound or both")
        _finite(self.lower_bound, "value_threshold.lower_bound")
        _finite(self.upper_bound, "value_threshold.upper_bound")
        if None not in (self.lower_bound, self.upper_bound) and self.lower_bound > self.upper_bound:  # type: ignore[operator]
            raise RequestError(
                f"value_threshold: lower_bound {self.lower_bound} is above "
                f"upper_bound {self.upper_bound}; no value can pass"
            )


@dataclass(frozen=True)
class ChangeThreshold:
    """Bounds of candidate minus baseline; where both are set, both must hold."""

    direction: Direction
    absolute: float | None = None
    relative: float | None = None

    def __post_init__(self) -> None:
        if self.absolute is None and self.relative is None:
            raise RequestError("change_threshold asks nothing; set absolute, relative or both")
        _finite(self.absolute, "change_threshold.absolute")
        _finite(self.relative, "change_threshold.relative")


def _finite(value: float | None, place: str) -> None:
    if value is not None and not math.isfinite(value):
        raise RequestError(f"{place} is {value}; a finite number is needed")


@dataclass(frozen=True)
class Threshold:
    """A demand on one metric.

    `slicing_specs` None: on every slice; otherwise on the slices that these specs make.
    `cross_slicing_specs`: on those cross slices instead.
    """

    value: ValueThreshold | None = None
    change: ChangeThreshold | None = None
    slicing_specs: tuple[SlicingSpec, ...] | None = None
    cross_slicing_specs: tuple[CrossSlicingSpec, ...] = ()


@dataclass(frozen=True)
class MetricSpec:
    """One metric class with its constructor arguments and the demands made on it."""

    class_name: str
    module: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    model_names: tuple[str, ...] = ()
    weighted: bool | None = None  # None: weighted where the model has a weight key
    thresholds: tuple[Threshold, ...] = ()


@dataclass(frozen=True)
class EvaluationSpec:
    """A whole evaluation, normalised: every name filled in, baseline told from candidate."""

    models: tuple[ModelSpec, ...]
    slices: tuple[SlicingSpec, ...]
    metrics: tuple[MetricSpec, ...]
    cross_slices: tuple[CrossSlicingSpec, ...] = ()
    min_slice_size: int = 1

    def __post_init__(self) -> None:
        if not self.metrics:
            raise RequestError("metrics_specs is empty; name at least one metric")
        if len(self.models) > 2:
            raise RequestError(
                f"model_specs names {len(self.models)} models; at most a candidate and a baseline"
            )
        if sum(m.is_baseline for m in self.models) > 1:
            raise RequestError("model_specs: more than one model has is_baseline")

    @property
    def has_baseline(self) -> bool:
        """Whether two models are compared."""
        return any(m.is_baseline for m in self.models)

    @property
    def candidate(self) -> ModelSpec:
        """The model under judgement."""
        return next(m for m in self.models if not m.is_baseline)


def unique(items: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the items without repeats, in order."""
    return tuple(dict.fromkeys(items))
