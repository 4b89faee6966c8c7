"""Where everything in a batch comes from: model inputs, labels, weights and slice features.

Found out on the host from signatures, schema and the first records, before the data is read.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from assay import slicing
from assay.examples import FeatureType, Records
from assay.model import Model
from assay.request import Policy
from assay.spec import RequestError, SlicingSpec, unknown
from assay.transform import Transform

log = logging.getLogger("assay")


def input_name(space: str, feature: str) -> str:
    """Returns the key under which a batch's inputs hold a feature of a space."""
    return f"{space}/{feature}"


@dataclass(frozen=True)
class Plan:
    """Where everything in a batch comes from, found out from signatures, schema and records.

    feeds: per model, input name to (space, feature); the space is "serialized", "raw" or
    "transformed". labels, weights: per model a (space, feature) or None. slices: feature to space.
    label_sizes, whole: per model, how many values a label has, and whether they are whole.
    route: the sentence that is logged.
    """

    transform: Transform | None
    feeds: tuple[Mapping[str, tuple[str, str]], ...]
    labels: tuple[tuple[str, str] | None, ...]
    weights: tuple[tuple[str, str] | None, ...]
    slices: Mapping[str, str]
    label_sizes: tuple[int, ...] = ()
    whole: tuple[bool, ...] = ()
    types: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    route: str = ""

    @property
    def uses_transform(self) -> bool:
        """Whether anything is taken from the transformed features."""
        places = [*self.labels, *self.weights, *(p for feed in self.feeds for p in feed.values())]
        return "transformed" in {*(p[0] for p in places if p), *self.slices.values()}

    def parsing_spec(self) -> dict[str, Any]:
        """Returns how to parse, once, every feature of the records that anything needs."""
        wanted = [p[1] for p in (*self.labels, *self.weights) if p is not None and p[0] == "raw"]
        wanted += [feature for feature, space in self.slices.items() if space == "raw"]
        spec: dict[str, Any] = {name: tf.io.VarLenFeature(self.types[name].dtype) for name in wanted}
        for name, shape in self.fixed.items():
            spec[name] = tf.io.FixedLenFeature(shape, self.types[name].dtype)
        if self.transform and self.uses_transform:
            spec.update(self.transform.parsing_spec())
        return spec


def plan(
    records: Records,
    transform: Transform | None,
    models: Sequence[Model],
    slices: Sequence[SlicingSpec],
    policy: Policy,
) -> Plan:
    """Returns where each model input, label, weight and slice feature comes from.

    Model inputs and labels are looked up in the transformed features first, then in the records;
    slice features in the records first, unless the policy says otherwise.

    Raises:
      RequestError: a feature is in neither place.
    """
    if transform is not None and _is_transformed(records, transform):
        log.info("the examples are Transform's output already; the transform graph is left aside")
        transform = None
    transformed = transform.outputs if transform else {}
    raw = records.types

    def find(name: str, what: str, spaces: Sequence[str], *, number: bool = False) -> tuple[str, str]:
        for space in spaces:
            known = raw if space == "raw" else transformed
            if name in known:
                if number and known[name].dtype == tf.string:
                    raise RequestError(
                        f"{what} {name!r} is a string feature; name a numeric one, such as the id that "
                        "Transform makes of it (tft.compute_and_apply_vocabulary)"
                    )
                return space, name
        places = "the records and the transformed features" if transform else "the records"
        raise unknown(what, name, {*raw, *transformed}, place=places)

    label_order = ("transformed", "raw")
    slice_order = ("raw", "transformed") if policy.slice_features == "raw" else label_order
    feeds, routes = [], []
    fixed: dict[str, tuple[int, ...]] = {}
    for model in models:
        feed, route = _feed(model, raw, transformed)
        feeds.append(feed)
        routes.append(f"{model.spec.name or 'model'}: signature {model.signature!r} {route}")
        for name, (space, feature) in feed.items():
            if space != "serialized":
                shape = _fixed(model, name, (raw if space == "raw" else transformed)[feature])
                if space == "raw" and math.prod(fixed.setdefault(feature, shape)) != math.prod(shape):
                    raise RequestError(
                        f"feature {feature!r}: one model takes shape {fixed[feature]} and another {shape}"
                    )
    labels = tuple(
        find(m.spec.label_key, "label_key", label_order, number=True) if m.spec.label_key else None
        for m in models
    )
    spaces = {"raw": raw, "transformed": transformed}
    return Plan(
        transform=transform,
        feeds=tuple(feeds),
        labels=labels,
        label_sizes=tuple(
            1
            if p is None
            else _size(p[1], spaces[p[0]][p[1]], {} if p[0] == "transformed" else records.lengths)
            for p in labels
        ),
        whole=tuple(p is not None and spaces[p[0]][p[1]].dtype.is_integer for p in labels),
        weights=tuple(
            find(m.spec.example_weight_key, "example_weight_key", label_order, number=True)
            if m.spec.example_weight_key
            else None
            for m in models
        ),
        slices={f: find(f, "slice feature", slice_order)[0] for f in slicing.features(slices)},
        types=raw,
        fixed=fixed,
        route="; ".join(routes),
    )


def _fixed(model: Model, name: str, kind: FeatureType) -> tuple[int, ...]:
    """The shape of an input in one row.

    Raises:
      RequestError: it is open, so that padding would make a row's prediction depend on its batch; or
        the model takes whole numbers and the feature holds others.
    """
    spec = model.inputs[name]
    place = f"model {model.uri}, signature {model.signature!r}: input {name!r}"
    if spec.dtype.is_integer and kind.dtype.is_floating:
        raise RequestError(f"{place} takes {spec.dtype.name}, and the feature is {kind.dtype.name}")
    shape = kind.shape if spec.shape.rank is None or None in spec.shape[1:] else tuple(spec.shape[1:])
    if shape is None:
        raise RequestError(
            f"{place} has no fixed width ({spec.shape}), and padding to the longest row of a batch would "
            "change what the others give; give a schema with the feature's shape, or a signature that "
            "takes serialized examples"
        )
    return shape


def _size(name: str, kind: FeatureType, lengths: Mapping[str, int]) -> int:
    """How many values a feature has in each row: as the first record shows, or the schema says."""
    return max(1, lengths.get(name, math.prod(kind.shape or ())))


def _is_transformed(records: Records, transform: Transform) -> bool:
    """Whether the records fit the transformed features, and do not fit the raw ones."""
    raw = {name: spec.dtype for name, spec in transform.inputs.items()}
    out = {name: kind.dtype for name, kind in transform.outputs.items()}

    def misfits(types: Mapping[str, tf.DType]) -> int:
        return sum(types.get(name) != dtype for name, dtype in records.seen.items())

    return misfits(out) == 0 and misfits(raw) > 0


def _feed(
    model: Model, raw: Mapping[str, Any], transformed: Mapping[str, Any]
) -> tuple[dict[str, tuple[str, str]], str]:
    if model.serialized and model.serialized not in {*raw, *transformed}:
        return {model.serialized: ("serialized", "")}, "parses the serialized examples by itself"
    feed = {}
    only_raw = all(name in raw for name in model.inputs)
    for name in model.inputs:
        if name in transformed and not (only_raw and not all(n in transformed for n in model.inputs)):
            feed[name] = ("transformed", name)
        elif name in raw:
            feed[name] = ("raw", name)
        else:
            place = "the records and the transformed features" if transformed else "the records"
            hint = "" if transformed else " (is the transform graph missing?)"
            raise unknown(
                f"input of model {model.uri}, signature {model.signature!r}:",
                name,
                {*raw, *transformed},
                place=place + hint,
            )
    spaces = {space for space, _ in feed.values()}
    if spaces == {"transformed"}:
        return feed, "takes transformed features; Transform runs in the input pipeline, once per row"
    return feed, f"takes {' and '.join(sorted(spaces))} features by name"
