"""Rows to slices: slice keys made in graph, and the vocabulary that grows as they appear.

Runs on the host, inside the tf.data pipeline; no Python per row or batch. A slice key is one
string: for each feature, sorted by name, its place, a type letter and a netstring of the value
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


@dataclass(frozen=True)
class Keys:
    """Slice keys of a batch, each text once.

    texts: [C] strings, "-" for none; places: which of them each row is in, [B, S] int64, -1 for
    none; fits: for each spec of the group, whether it accepts the key, [C] bool.
    """

    texts: tf.Tensor
    places: tf.Tensor
    fits: Sequence[tf.Tensor] = ()


def slice_keys(specs: Sequence[SlicingSpec], columns: Mapping[str, Column], rows: tf.Tensor) -> Keys:
    """Returns the slice keys of a batch of `rows` rows.

    A row belongs to a slice for each combination of its features' values; a row that lacks one of
    the features belongs to none. Strings are made once a distinct key, not once a row. Graph, host.
    """
    names = features(specs)
    found = []
    for group in groups(specs):
        keys = None
        for name in group.features:
            fixed = [dict(spec.feature_values).get(name) for spec in group.specs]
            one = _of_feature(names.index(name), columns[name], fixed)
            keys = one if keys is None else _cross(keys, one)
        if keys is None:
            keys = Keys(tf.constant([""]), tf.zeros([rows, 1], tf.int64), [tf.constant([True])])
        accepted = tf.reduce_any(tf.stack(keys.fits), 0)
        found.append(Keys(tf.where(accepted, keys.texts, "-"), keys.places))
    starts = tf.cumsum([tf.size(k.texts, tf.int64) for k in found], exclusive=True)
    shifted = [tf.where(k.places < 0, k.places, k.places + starts[i]) for i, k in enumerate(found)]
    return Keys(tf.concat([k.texts for k in found], 0), tf.concat(shifted, 1))


def _cross(left: Keys, right: Keys) -> Keys:
    """The keys of every pair that some row has."""
    size = tf.size(right.texts, tf.int64)
    one, other = left.places[:, :, None], right.places[:, None, :]
    pair = tf.where(tf.logical_and(one >= 0, other >= 0), one * size + other, tf.constant(-1, tf.int64))
    pairs, places = tf.unique(tf.reshape(pair, [-1]), tf.int64)
    first, second = tf.maximum(pairs, 0) // size, tf.maximum(pairs, 0) % size
    texts = tf.strings.join([tf.gather(left.texts, first), tf.gather(right.texts, second)])
    fits = [
        tf.logical_and(tf.gather(a, first), tf.gather(b, second))
        for a, b in zip(left.fits, right.fits, strict=True)
    ]
    flat = tf.where(tf.gather(pairs, places) < 0, tf.constant(-1, tf.int64), places)
    return Keys(texts, tf.reshape(flat, [tf.shape(pair)[0], -1]), fits)


def _of_feature(place: int, column: Column, fixed: Sequence[str | None]) -> Keys:
    """The keys that one feature makes alone; a value that a row repeats counts once, NaN not at all.

    fixed: the value that each spec of the group wants, None for any.
    """
    values = column.values
    shape = tf.shape(values)
    present = tf.sequence_mask(column.lengths, shape[1])
    if values.dtype.is_floating:
        present = tf.logical_and(present, tf.logical_not(tf.math.is_nan(values)))
        values = values + 0.0  # -0.0 is 0.0
    distinct, flat = tf.unique(tf.reshape(values, [-1]), tf.int64)
    places = tf.reshape(flat, shape)
    before = tf.sequence_mask(tf.range(shape[1]), shape[1])[None]
    repeated = tf.logical_and(tf.equal(places[:, :, None], places[:, None, :]), before)
    live = tf.logical_and(present, tf.logical_not(tf.reduce_any(repeated, 2)))
    texts = _part_texts(place, distinct)
    fits = [_fits(text, place, distinct.dtype, texts) for text in fixed]
    return Keys(texts, tf.where(live, places, tf.constant(-1, tf.int64)), fits)


def _part_texts(place: int, values: tf.Tensor) -> tf.Tensor:
    """The part of a slice key that each value [C] makes."""
    if values.dtype == tf.string:
        tag, texts = "b", values
    elif values.dtype.is_integer:
        tag, texts = "i", tf.strings.as_string(values)
    else:
        # Nine digits name a float32 uniquely.
        tag, texts = "f", tf.strings.as_string(values, precision=8, scientific=True)
    size = tf.strings.as_string(tf.strings.length(texts))
    return tf.strings.join([tf.constant(f"{place}{tag}"), size, tf.constant(":"), texts])


def _fits(text: str | None, place: int, dtype: tf.DType, parts: tf.Tensor) -> tf.Tensor:
    """Whether each key part [C] is the value that a spec fixes by `text`; None fixes nothing."""
    if text is None:
        return tf.ones_like(parts, tf.bool)
    wanted = _typed(text, dtype)
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
    """Returns the slice key of a text made by `slice_keys` over features `names`."""
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
        """Returns the numbers [C] int64 of slice key texts [C]; -1 for "-"; new keys get the next.

        Graph, host; not reentrant: call it in a sequential `map`.
        """
        names, places = tf.unique(texts)
        known = tf.ensure_shape(self._table.lookup(names), [None])
        is_new = tf.logical_and(known < 0, tf.not_equal(names, "-"))
        fresh = tf.boolean_mask(names, is_new)
        start = self._table.size()
        numbers = start + tf.range(tf.size(fresh, tf.int64))
        with tf.control_dependencies([self._table.insert(fresh, numbers)]):
            assigned = tf.tensor_scatter_nd_update(known, tf.where(is_new), numbers)
        return tf.gather(assigned, places)

    def size(self) -> tf.Tensor:
        """Returns how many slice keys have been seen, int64 []."""
        return self._table.size()

    def keys(self, names: Sequence[str]) -> list[SliceKey]:
        """Returns the slice keys by number. Host."""
        texts, numbers = self._table.export()
        by_number = dict(zip(numbers.numpy().tolist(), texts.numpy().tolist(), strict=True))
        return [parse(by_number[number], names) for number in range(len(by_number))]
