"""tfma.EvalConfig to spec: read, normalise, refuse by name what is not supported.

Runs on the host, before any data is read. `normalise` does what TFMA does before a run, so that
the config written beside the results is the one that its readers expect.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from assay.metrics import build
from assay.protos import config_pb2
from assay.spec import (
    BASELINE,
    CANDIDATE,
    ChangeThreshold,
    CrossSlicingSpec,
    Direction,
    EvaluationSpec,
    MetricSpec,
    ModelSpec,
    RequestError,
    SlicingSpec,
    Threshold,
    ValueThreshold,
    unique,
    unknown,
)

SUPPORTED = {
    "EvalConfig": {"model_specs", "slicing_specs", "cross_slicing_specs", "metrics_specs", "options"},
    "ModelSpec": {
        "name",
        "model_type",
        "signature_name",
        "label_key",
        "prediction_key",
        "example_weight_key",
        "is_baseline",
    },
    "SlicingSpec": {"feature_keys", "feature_values"},
    "CrossSlicingSpec": {"baseline_spec", "slicing_specs"},
    "MetricsSpec": {"metrics", "model_names", "example_weights"},
    "MetricConfig": {
        "class_name",
        "module",
        "config",
        "threshold",
        "per_slice_thresholds",
        "cross_slice_thresholds",
    },
    "Options": {"include_default_metrics", "compute_confidence_intervals", "min_slice_size"},
}
INSTEAD = {
    "preprocessing_function_names": "; give the transform graph, which serves labels, weights and slices",
    "thresholds": "; name the metric in `metrics` and set its `threshold`",
    "per_slice_thresholds": "; name the metric in `metrics` and set its `per_slice_thresholds`",
    "cross_slice_thresholds": "; name the metric in `metrics` and set its `cross_slice_thresholds`",
    "slice_keys_sql": "; use feature_keys and feature_values",
}
MODEL_TYPES = ("tf_keras", "tf_generic")
OFF_ONLY = ("include_default_metrics", "compute_confidence_intervals")
METRIC_MODULES = ("tensorflow_model_analysis", "tfma", "keras", "tf_keras", "tensorflow.keras", "tf.keras")


def read(text: str) -> Message:
    """Returns the EvalConfig in JSON text, in either spelling of its fields.

    Raises:
      RequestError: not JSON, or not an EvalConfig.
    """
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise RequestError(f"eval_config is not JSON: {error}") from error
    try:
        return json_format.Parse(text, config_pb2.EvalConfig())
    except json_format.ParseError as error:
        raise RequestError(f"eval_config is not a tfma.EvalConfig: {error}") from error


def normalise(config: Message, *, has_baseline: bool) -> Message:
    """Returns the config as TFMA completes it before a run; the given one is left alone.

    One spec and a baseline: the spec is copied and the two are named candidate and baseline. No
    baseline: baseline specs and change thresholds are dropped. One model: its name is empty. No
    model names on a metric: all models.
    """
    result = type(config)()
    result.CopyFrom(config)
    if has_baseline and len(result.model_specs) == 1 and not result.model_specs[0].name:
        result.model_specs.add().CopyFrom(result.model_specs[0])
        result.model_specs[0].name = CANDIDATE
        result.model_specs[1].name = BASELINE
        result.model_specs[1].is_baseline = True
    if not has_baseline:
        kept = [m for m in result.model_specs if not m.is_baseline]
        del result.model_specs[:]
        result.model_specs.extend(kept)
        for metrics in result.metrics_specs:
            for threshold in _threshold_messages(metrics):
                threshold.ClearField("change_threshold")
    if not result.model_specs:
        result.model_specs.add()
    if len(result.model_specs) == 1:
        result.model_specs[0].name = ""
        for metrics in result.metrics_specs:
            metrics.ClearField("model_names")
            metrics.model_names.append("")
    for metrics in result.metrics_specs:
        if not metrics.model_names:
            metrics.model_names.extend(m.name for m in result.model_specs)
    return result


def _threshold_messages(metrics: Any) -> Iterable[Any]:
    for metric in metrics.metrics:
        if metric.HasField("threshold"):
            yield metric.threshold
        yield from (t.threshold for t in metric.per_slice_thresholds)
        yield from (t.threshold for t in metric.cross_slice_thresholds)


def to_spec(config: Message, *, has_baseline: bool) -> EvaluationSpec:
    """Returns what a config, as given, asks for.

    Change thresholds stay in even without a baseline, so that the gate can say what it left out.

    Raises:
      RequestError: something is unknown, contradictory or not supported; it is named.
    """
    _refuse_unsupported(config, "eval_config")
    full: Any = normalise(config, has_baseline=has_baseline)
    models = tuple(_model(m) for m in full.model_specs)
    names = [m.name for m in models]
    if len(models) > 1 and ("" in names or len(set(names)) < len(names)):
        raise RequestError(f"model_specs: each of several needs a name of its own; these are {names}")
    if has_baseline and sum(m.is_baseline for m in models) != 1:
        raise RequestError(
            f"a baseline model is given, and of the model_specs {names} none has is_baseline; name one "
            "spec without a name, of which the baseline gets a copy, or two, one with is_baseline"
        )
    if all(m.is_baseline for m in models) or (not has_baseline and len(models) > 1):
        raise RequestError(f"model_specs name {names}; exactly one must not be the baseline")
    with _at("slicing_specs"):
        slices = tuple(_slicing(s) for s in full.slicing_specs) or (SlicingSpec(),)
    with _at("cross_slicing_specs"):
        cross = tuple(_cross(c) for c in full.cross_slicing_specs)
    given: Any = config
    metrics: list[MetricSpec] = []
    for place, (asked, done) in enumerate(zip(given.metrics_specs, full.metrics_specs, strict=True)):
        for name in done.model_names:
            if name not in names:
                raise unknown("model name", name, names, place=f"metrics_specs[{place}].model_names")
        for metric in asked.metrics:
            with _at(f"metrics_specs[{place}], metric {metric.class_name!r}"):
                for weighted in _weighting(done):
                    metrics.append(_metric(metric, tuple(done.model_names), weighted))
    spec = EvaluationSpec(
        models=models,
        slices=unique(slices),
        metrics=tuple(metrics),
        cross_slices=cross,
        min_slice_size=max(1, full.options.min_slice_size.value),
    )
    _check_thresholds(spec)
    return spec


def _refuse_unsupported(message: Any, place: str) -> None:
    """Walks the set fields; one that is not supported is refused by its path."""
    kind = message.DESCRIPTOR.name
    for field, value in message.ListFields():
        here = f"{place}.{field.name}"
        if kind in SUPPORTED and field.name not in SUPPORTED[kind]:
            raise RequestError(f"{here} is not supported yet{INSTEAD.get(field.name, '')}")
        if kind == "Options" and field.name in OFF_ONLY and value.value:
            raise RequestError(f"{here}: true is not supported yet; set it to false")
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        repeated = not isinstance(value, Message)
        for number, item in enumerate(value if repeated else [value]):
            _refuse_unsupported(item, f"{here}[{number}]" if repeated else here)


def _model(m: Any) -> ModelSpec:
    if m.model_type and m.model_type not in MODEL_TYPES:
        raise RequestError(
            f"model_specs.model_type {m.model_type!r} is not supported; leave it empty, or use "
            f"{' or '.join(MODEL_TYPES)}"
        )
    return ModelSpec(
        name=m.name,
        signature_name=m.signature_name,
        label_key=m.label_key,
        prediction_key=m.prediction_key,
        example_weight_key=m.example_weight_key,
        is_baseline=m.is_baseline,
    )


def _slicing(s: Any) -> SlicingSpec:
    return SlicingSpec(tuple(s.feature_keys), tuple(sorted(s.feature_values.items())))


def _cross(c: Any) -> CrossSlicingSpec:
    return CrossSlicingSpec(_slicing(c.baseline_spec), tuple(map(_slicing, c.slicing_specs)))


@contextlib.contextmanager
def _at(place: str) -> Iterator[None]:
    """Puts the place in front of what is refused within."""
    try:
        yield
    except RequestError as error:
        raise RequestError(f"{place}: {error}") from error


def _weighting(metrics: Any) -> list[bool | None]:
    if not metrics.HasField("example_weights"):
        return [None]
    options = metrics.example_weights
    return [flag for flag, on in ((True, options.weighted), (False, options.unweighted)) if on] or [None]


def _metric(m: Any, model_names: tuple[str, ...], weighted: bool | None) -> MetricSpec:
    if m.module and not any(f"{m.module}.".startswith(f"{known}.") for known in METRIC_MODULES):
        raise RequestError(f"module {m.module!r}: custom metric modules are not supported yet")
    thresholds = []
    if m.HasField("threshold"):
        thresholds.append(_threshold(m.threshold))
    for item in m.per_slice_thresholds:
        if not item.slicing_specs:
            raise RequestError("per_slice_thresholds without slicing_specs; name the slices")
        thresholds.append(_threshold(item.threshold, slices=tuple(map(_slicing, item.slicing_specs))))
    for item in m.cross_slice_thresholds:
        if not item.cross_slicing_specs:
            raise RequestError("cross_slice_thresholds without cross_slicing_specs; name them")
        thresholds.append(_threshold(item.threshold, cross=tuple(map(_cross, item.cross_slicing_specs))))
    metric = MetricSpec(
        class_name=m.class_name,
        module=m.module,
        config=_arguments(m.config),
        model_names=model_names,
        weighted=weighted,
        thresholds=tuple(t for t in thresholds if t.value or t.change),
    )
    build(metric)  # refuses a class or an argument that there is not
    if metric.thresholds and m.class_name.endswith("Plot"):
        raise RequestError("a threshold on a plot, which is no single number; take it away")
    return metric


def _arguments(text: str) -> dict[str, Any]:
    """The constructor arguments of a MetricConfig: JSON whose braces may be missing."""
    stripped = text.strip()
    if not stripped:
        return {}
    if not stripped.startswith("{"):
        stripped = "{" + stripped + "}"
    try:
        return dict(json.loads(stripped))
    except (json.JSONDecodeError, TypeError, ValueError) as error:
        raise RequestError(f"config is not JSON: {text!r} ({error})") from error


def _threshold(
    t: Any, *, slices: tuple[SlicingSpec, ...] | None = None, cross: tuple[CrossSlicingSpec, ...] = ()
) -> Threshold:
    value = change = None
    if t.HasField("value_threshold"):
        v = t.value_threshold
        value = ValueThreshold(_bound(v, "lower_bound"), _bound(v, "upper_bound"))
    if t.HasField("change_threshold"):
        c = t.change_threshold
        name = type(c).DESCRIPTOR.fields_by_name["direction"].enum_type.values_by_number[c.direction].name
        if name not in Direction.__members__:
            known = ", ".join(Direction.__members__)
            raise RequestError(f"change_threshold.direction is {name}; one of {known} is needed")
        change = ChangeThreshold(Direction[name], _bound(c, "absolute"), _bound(c, "relative"))
    return Threshold(value, change, slices, cross)


def _bound(message: Any, field: str) -> float | None:
    return getattr(message, field).value if message.HasField(field) else None


def _check_thresholds(spec: EvaluationSpec) -> None:
    """Refuses thresholds on slices that no row could ever fall into."""
    for metric in spec.metrics:
        for threshold in metric.thresholds:
            for cross in threshold.cross_slicing_specs:
                if cross not in spec.cross_slices:
                    known = "; ".join(c.text for c in spec.cross_slices) or "none"
                    raise RequestError(
                        f"metric {metric.class_name!r} has a threshold on the cross slice {cross.text!r}, "
                        f"which is not among cross_slicing_specs: {known}"
                    )
            parts = [s for c in threshold.cross_slicing_specs for s in (c.baseline_spec, *c.slicing_specs)]
            for wanted in (*(threshold.slicing_specs or ()), *parts):
                if not any(_overlap(wanted, made) for made in spec.slices):
                    known = "; ".join(s.text for s in spec.slices)
                    raise RequestError(
                        f"metric {metric.class_name!r} has a threshold on the slice {wanted.text!r}, which "
                        f"slicing_specs do not make; they make: {known}"
                    )


def _overlap(left: SlicingSpec, right: SlicingSpec) -> bool:
    """Whether one slice may be made by both specs."""
    fixed = dict(right.feature_values)
    return left.features == right.features and all(
        _same(text, fixed.get(feature, text)) for feature, text in left.feature_values
    )


def _same(left: str, right: str) -> bool:
    try:
        return left == right or float(left) == float(right)
    except ValueError:
        return False
