"""Rows to slices: slice keys made in graph, and the vocabulary that grows as they appear.

Runs on the host, inside the tf.data pipeline; no Python per row or batch. A slice key travels as
one string: for each feature, sorted by name, its place, a type letter and a netstring of the value
(`0b4:Cash1i2:17`), so that a string "5" and an int 5 stay apart and any byte may occur.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from assay.spec import SliceKey, SliceValue, SlicingSpec, same_value


@dataclass(frozen=True)
class Column:
    """One feature of a batch, padded: values [B, K] and how many of them each row has, [B]."""

    values: tf.Tensor
    lengths: tf.Tensor


@dataclass(frozen=True)
class Group:
    """The slicing specs that share a set of features: a row's combination of values is a slice if
    any of them accepts it, and counts once however many do."""

    features: tuple[str, ...]
    specs: tuple[SlicingSpec, ...]


def groups(specs: Sequence[SlicingSpec]) -> tuple[Group, ...]:
    """Returns the specs grouped by the features that their slice keys hold."""
    by_features: dict[tuple[str, ...], list[SlicingSpec]] = {}
    for spec in specs:
        by_features.setdefault(spec.features, []).append(spec)
    return tuple(Group(features, tuple(members)) for features, members in by_features.items())


def features(specs: Sequence[SlicingSpec]) -> tuple[str, ...]:
    """Returns every feature that the specs look at, sorted."""
    return tuple(sorted({f for spec in specs for f in spec.features}))


def slice_texts(specs: Sequence[SlicingSpec], columns: Mapping[str, Column], rows: tf.Tensor) -> tf.Tensor:
    """Returns the slice keys of each row as strings [B, S], "-" where there is none.

    A row belongs to a slice for each combination of its features' values; a row that lacks one of
    the features belongs to none. `rows` is B. Graph, host.
    """
    names = features(specs)
    places = {name: place for place, name in enumerate(names)}
    parts = {name: _parts(places[name], columns[name]) for name in names}
    found = []
    for group in groups(specs):
        keys = tf.fill([rows, 1], "")
        valid = tf.fill([rows, 1], True)
        accepted = [valid] * len(group.specs)
        for name in group.features:
            texts, present = parts[name]
            keys = _cross(keys, texts, lambda a, b: tf.strings.join([a, b]))
            valid = _cross(valid, present, tf.logical_and)
            fits = [
                _fits(spec, name, places[name], columns[name].values.dtype, texts) for spec in group.specs
            ]
            accepted = [_cross(a, f, tf.logical_and) for a, f in zip(accepted, fits, strict=True)]
        anyone = accepted[0]
        for other in accepted[1:]:
            anyone = tf.logical_or(anyone, other)
        found.append(tf.where(tf.logical_and(valid, anyone), keys, "-"))
    return tf.concat(found, 1)


def _cross(left: tf.Tensor, right: tf.Tensor, combine) -> tf.Tensor:  # type: ignore[no-untyped-def]
    shape = [tf.shape(left)[0], tf.shape(left)[1], tf.shape(right)[1]]
    joined = combine(tf.broadcast_to(left[:, :, None], shape), tf.broadcast_to(right[:, None, :], shape))
    return tf.reshape(joined, [shape[0], -1])


def _parts(place: int, column: Column) -> tuple[tf.Tensor, tf.Tensor]:
    """Key parts [B, K] of one feature, and which of them exist; a repeated value exists once."""
    values = column.values
    if values.dtype == tf.string:
        tag, texts = "b", values
    elif values.dtype.is_integer:
        tag, texts = "i", tf.strings.as_string(values)
    else:
        # Nine digits name a float32 uniquely; +0.0 turns -0.0 into 0.0.
        tag, texts = "f", tf.strings.as_string(values + 0.0, precision=8, scientific=True)
    size = tf.strings.as_string(tf.strings.length(texts))
    parts = tf.strings.join([tf.constant(f"{place}{tag}"), size, tf.constant(":"), texts])
    width = tf.shape(values)[1]
    present = tf.sequence_mask(column.lengths, width)
    same = tf.equal(parts[:, :, None], parts[:, None, :])
    earlier = tf.linalg.band_part(tf.ones([width, width], tf.int32), -1, 0) - tf.eye(width, dtype=tf.int32)
    repeated = tf.reduce_any(tf.logical_and(same, tf.cast(earlier, tf.bool)[None]), 2)
    return parts, tf.logical_and(present, tf.logical_not(repeated))


def _fits(spec: SlicingSpec, name: str, place: int, dtype: tf.DType, parts: tf.Tensor) -> tf.Tensor:
    """Whether each value [B, K] is the one that the spec fixes; True where it fixes none."""
    fixed = dict(spec.feature_values)
    if name not in fixed:
        return tf.ones_like(parts, tf.bool)
    wanted = _typed(fixed[name], dtype)
    if wanted is None:
        return tf.zeros_like(parts, tf.bool)
    return tf.equal(parts, part_text(place, wanted))


def _typed(text: str, dtype: tf.DType) -> SliceValue | None:
    """The value that a `feature_values` text stands for in a feature of this type, if any."""
    if dtype == tf.string:
        return text.encode()
    try:
        value = int(text) if dtype.is_integer else float(np.float32(float(text)))
    except ValueError:
        return None
    return value if same_value(value, text) else None


def part_text(place: int, value: SliceValue) -> bytes:
    """Returns one feature's part of a slice key, the host's twin of the graph's."""
    if isinstance(value, bytes):
        tag, text = b"b", value
    elif isinstance(value, int):
        tag, text = b"i", str(value).encode()
    else:
        tag, text = b"f", f"{value + 0.0:.8e}".encode()
    return b"%d%s%d:%s" % (place, tag, len(text), text)


def parse(text: bytes, names: Sequence[str]) -> SliceKey:
    """Returns the slice key of a string made by `slice_texts` over features `names`."""
    key, rest = [], text
    while rest:
        digits = 0
        while rest[digits : digits + 1].isdigit():
            digits += 1
        place, tag = int(rest[:digits]), rest[digits : digits + 1]
        colon = rest.index(b":", digits)
        size = int(rest[digits + 1 : colon])
        raw, rest = rest[colon + 1 : colon + 1 + size], rest[colon + 1 + size :]
        value: SliceValue = raw
        if tag == b"i":
            value = int(raw)
        elif tag == b"f":
            value = float(np.float32(raw.decode()))
        key.append((names[place], value))
    return tuple(key)


class Vocabulary:
    """Slice keys seen so far, numbered in order of appearance; lives in a TensorFlow hash table.

    The one object here with identity: the tf.data pipeline writes it, the host reads it at the end.
    """

    def __init__(self) -> None:
        with tf.device("CPU:0"):
            self._table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)

    def slots(self, texts: tf.Tensor) -> tf.Tensor:
        """Returns the numbers [B, S] int64 of slice keys [B, S]; -1 for "-"; new keys get the next.

        Graph, host; not reentrant: call it in a sequential `map`.
        """
        flat = tf.reshape(texts, [-1])
        names, places = tf.unique(flat)
        known = tf.ensure_shape(self._table.lookup(names), [None])
        is_new = tf.logical_and(known < 0, tf.not_equal(names, "-"))
        fresh = tf.boolean_mask(names, is_new)
        start = self._table.size()
        numbers = start + tf.range(tf.size(fresh, tf.int64))
        with tf.control_dependencies([self._table.insert(fresh, numbers)]):
            assigned = tf.tensor_scatter_nd_update(known, tf.where(is_new), numbers)
        return tf.reshape(tf.gather(assigned, places), tf.shape(texts))

    def keys(self, names: Sequence[str]) -> list[SliceKey]:
        """Returns the slice keys by number. Host."""
        texts, numbers = self._table.export()
        by_number = dict(zip(numbers.numpy().tolist(), texts.numpy().tolist(), strict=True))
        return [parse(by_number[number], names) for number in range(len(by_number))]
