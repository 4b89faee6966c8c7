"""Examples to batches: one pure tf.data pipeline on the host, from files to what a replica needs.

Every batch has the same static number of rows: each per-replica batch is padded to a multiple of
64 rows, since no row may meet a kernel for ragged tails, which rounds differently. Padding repeats
a real row and has count 0, weight 0 and no slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from assay import slicing
from assay.examples import FRAMING, File
from assay.faults import Fault, mark
from assay.plan import Plan, input_name
from assay.shards import TO_THE_END, TOGETHER, Range
from assay.slicing import Column
from assay.spec import SlicingSpec

# The pipeline is plain graph code: no rewriting, and errors keep their own type.
plain = tf.autograph.experimental.do_not_convert

ROWS_MULTIPLE = 64
FILE_SHIFT = 40  # a row's position: its file's number above, its record number below
Batch = dict[str, Any]


def physical(batch_size: int) -> int:
    """Returns the rows of a padded per-replica batch: the next multiple of 64."""
    return -(-batch_size // ROWS_MULTIPLE) * ROWS_MULTIPLE


def file_of(position: tf.Tensor) -> tf.Tensor:
    """Returns the file numbers of row positions, both int64 [B]. Graph."""
    return tf.bitwise.right_shift(position, tf.constant(FILE_SHIFT, tf.int64))


@dataclass(frozen=True)
class Pipeline:
    """The dataset of global batches, and what its stages note down on the host as they run.

    ranges: what an iterator made from now on reads, [R, 3] int64: file, start, stop. vocabulary:
    slices by number. rows_read [F], bytes_read [F] (framing included) and fingerprint_read []: int64.
    """

    dataset: tf.data.Dataset
    ranges: tf.Variable
    vocabulary: slicing.Vocabulary
    rows_read: tf.Variable
    bytes_read: tf.Variable
    fingerprint_read: tf.Variable
    files: Sequence[File]
    slice_features: Sequence[str]

    def aim(self, ranges: Sequence[Range]) -> None:
        """Lets the next iterator read these ranges and starts counting anew; slices keep their numbers."""
        self.ranges.assign([[r.file, r.start, r.stop] for r in ranges])
        for noted in (self.rows_read, self.bytes_read, self.fingerprint_read):
            noted.assign(tf.zeros_like(noted))


def pipeline(
    files: Sequence[File],
    plan: Plan,
    slices: Sequence[SlicingSpec],
    *,
    batch_size: int,
    replicas: int,
    static: bool = False,
) -> Pipeline:
    """Returns the pipeline over the files, as global batches of physical(batch_size) * replicas.

    It reads nothing until it is aimed; one pipeline serves any number of shards, one after the other.
    static: S, the slices of a row, is a power of two, so that few programs serve all batches.

    A batch holds: inputs {"space/feature": [G, ...]}, label_I and weight_I float64 [G] for model
    I where there are such keys, count, position and hash int64 [G], faults int64 [G] (a bit for
    each of FAULTS and model), slots int64 [G, S] (-1 for no slice).
    """
    with tf.device("CPU:0"):
        ranges = tf.Variable(tf.zeros([0, 3], tf.int64), shape=tf.TensorShape([None, 3]))
        rows_read = tf.Variable(tf.zeros([len(files)], tf.int64))
        bytes_read = tf.Variable(tf.zeros([len(files)], tf.int64))
        fingerprint = tf.Variable(tf.zeros([], tf.int64))
    vocabulary = slicing.Vocabulary()

    @plain
    def note(serialized: tf.Tensor, position: tf.Tensor) -> Batch:
        hashes = tf.bitcast(tf.fingerprint(serialized), tf.int64)
        numbers = file_of(position)
        sizes = tf.cast(tf.strings.length(serialized), tf.int64) + FRAMING
        with tf.control_dependencies(
            [
                rows_read.assign_add(tf.math.unsorted_segment_sum(tf.ones_like(sizes), numbers, len(files))),
                bytes_read.assign_add(tf.math.unsorted_segment_sum(sizes, numbers, len(files))),
                fingerprint.assign_add(tf.reduce_sum(hashes)),
            ]
        ):
            return _pad(
                {"serialized": tf.identity(serialized), "position": position, "hash": hashes},
                physical(batch_size),
            )

    @plain
    def number(batch: Batch) -> Batch:
        texts, places = batch.pop("slice_texts"), batch.pop("slice_places")
        live = tf.logical_and(places >= 0, batch["count"][:, None] > 0)
        # Only what some row has is a slice: texts also stand for absent values and unmet pairs.
        size = tf.size(texts, tf.int64)
        met = tf.math.unsorted_segment_sum(tf.cast(live, tf.int32), tf.maximum(places, 0), size) > 0
        numbers = vocabulary.slots(tf.where(met, texts, "-"))
        slots = tf.where(live, tf.gather(numbers, tf.maximum(places, 0)), tf.constant(-1, tf.int64))
        return {**batch, "slots": _widen(slots) if static else slots}

    dataset = (
        _records(files, ranges, batch_size)
        .map(note)
        .map(plain(lambda batch: prepare(batch, plan, slices)), num_parallel_calls=tf.data.AUTOTUNE)
        .map(number)
    )
    if replicas > 1:
        dataset = _group(dataset, replicas)
    options = tf.data.Options()
    options.deterministic = False
    # It looks for the constant in `skip(start)` and, where there is none, ends the process (TensorFlow 2.16).
    options.experimental_optimization.noop_elimination = False
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = dataset.prefetch(2).with_options(options)
    names = slicing.features(slices)
    return Pipeline(dataset, ranges, vocabulary, rows_read, bytes_read, fingerprint, files, names)


def _records(files: Sequence[File], ranges: tf.Variable, batch_size: int) -> tf.data.Dataset:
    """Serialized examples and their positions, both [n] with n = batch_size but at the end."""
    chunk = min(batch_size, 1024)
    uris = tf.constant([f.uri for f in files])
    compressions = tf.constant([f.compression for f in files])

    @plain
    def read(one: tf.Tensor) -> tf.data.Dataset:
        file, start, stop = tf.unstack(one)
        records = tf.data.TFRecordDataset(tf.gather(uris, file), tf.gather(compressions, file))
        size = tf.where(stop == TO_THE_END, tf.constant(-1, tf.int64), stop - start)
        chunks = records.skip(start).take(size).batch(chunk).enumerate()

        @plain
        def locate(place: tf.Tensor, serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            before = tf.bitwise.left_shift(file, tf.constant(FILE_SHIFT, tf.int64)) + start + place * chunk
            return serialized, before + tf.range(tf.size(serialized, tf.int64))

        return chunks.map(locate)

    # Read when an iterator starts, not now: what the pipeline is aimed at then.
    aimed = tf.data.Dataset.range(1).flat_map(
        plain(lambda _: tf.data.Dataset.from_tensor_slices(ranges.read_value()))
    )
    return aimed.interleave(
        read,
        cycle_length=min(len(files), TOGETHER),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=False,
    ).rebatch(batch_size)


def _widen(slots: tf.Tensor) -> tf.Tensor:
    """Slots [B, S] with S filled up with -1 to the next power of two."""
    ways = tf.shape(slots)[1]
    powers = tf.constant([1 << n for n in range(31)])
    width = tf.reduce_min(tf.boolean_mask(powers, powers >= ways))
    return tf.pad(slots, [[0, 0], [0, width - ways]], constant_values=-1)


def _pad(batch: Batch, rows: int) -> Batch:
    real = tf.shape(batch["position"])[0]

    def pad(value: tf.Tensor) -> tf.Tensor:
        # Full batches are nearly all, and a gather would copy every string.
        places = tf.minimum(tf.range(rows), real - 1)
        return tf.cond(real < rows, lambda: tf.gather(value, places), lambda: value)

    padded = {name: tf.ensure_shape(pad(value), [rows]) for name, value in batch.items()}
    return {**padded, "count": tf.cast(tf.range(rows) < real, tf.int64)}


def prepare(batch: Batch, plan: Plan, slices: Sequence[SlicingSpec]) -> Batch:
    """Parses and transforms one padded batch, and looks up labels, weights and slices."""
    serialized = batch.pop("serialized")
    count = batch["count"]
    spec = plan.parsing_spec()
    raw = tf.io.parse_example(serialized, spec) if spec else {}
    transformed = plan.transform(raw) if plan.transform and plan.uses_transform else {}
    spaces = {"raw": raw, "transformed": transformed}

    inputs = {}
    for feed in plan.feeds:
        for space, feature in feed.values():
            value = serialized if space == "serialized" else _dense(spaces[space][feature])
            inputs[input_name(space, feature)] = value
    faults = tf.zeros_like(count)
    found: Batch = {}
    for place, (label, weight) in enumerate(zip(plan.labels, plan.weights, strict=True)):
        if weight is not None:
            column = _column(spaces[weight[0]][weight[1]])
            value = _number(column)
            none, many = column.lengths < 1, column.lengths > 1
            bad = tf.logical_or(
                tf.logical_not(tf.math.is_finite(value)), tf.logical_or(value < 0, value >= 2.0**31)
            )
            faults = mark(faults, Fault.NO_WEIGHT, none, place)
            faults = mark(faults, Fault.MANY_WEIGHTS, many, place)
            faults = mark(faults, Fault.BAD_WEIGHT, tf.logical_and(bad, tf.logical_not(none)), place)
            value = tf.where(tf.logical_or(bad, none), tf.zeros_like(value), value)
            found[f"weight_{place}"] = value * tf.cast(count, tf.float64)
        if label is not None:
            column = _column(spaces[label[0]][label[1]])
            size = plan.label_sizes[place]
            value = _number(column) if size == 1 else _numbers(column, size)
            none, many = column.lengths < 1, tf.logical_and(column.lengths > 0, column.lengths != size)
            finite = tf.math.is_finite(value)
            bad = tf.logical_not(finite if size == 1 else tf.reduce_all(finite, 1))
            for fault, rows in ((Fault.NO_LABEL, none), (Fault.MANY_LABELS, many), (Fault.BAD_LABEL, bad)):
                faults = mark(faults, fault, rows, place)
            found[f"label_{place}"] = tf.where(finite, value, tf.zeros_like(value))
    columns = {name: _column(spaces[space][name]) for name, space in plan.slices.items()}
    prepared = {**batch, **found, "inputs": inputs, "faults": faults * count}
    keys = slicing.slice_keys(slices, columns, tf.shape(count)[0])
    prepared["slice_places"] = keys.places
    prepared = tf.nest.map_structure(lambda t: tf.ensure_shape(t, [*count.shape, *t.shape[1:]]), prepared)
    return {**prepared, "slice_texts": keys.texts}


def _dense(value: Any) -> tf.Tensor:
    if isinstance(value, tf.SparseTensor):
        return tf.sparse.to_dense(value)
    if isinstance(value, tf.RaggedTensor):
        return value.to_tensor()
    return value


def _column(value: Any) -> Column:
    """A parsed or transformed feature as values [B, K] and lengths [B]."""
    if isinstance(value, tf.SparseTensor):
        rows = value.dense_shape[0]
        lengths = tf.math.unsorted_segment_sum(tf.ones_like(value.indices[:, 0]), value.indices[:, 0], rows)
        return Column(tf.sparse.to_dense(value), lengths)
    if isinstance(value, tf.RaggedTensor):
        return Column(value.to_tensor(), tf.cast(value.row_lengths(), tf.int64))
    flat = tf.reshape(value, [tf.shape(value)[0], -1])
    return Column(flat, tf.fill([tf.shape(flat)[0]], tf.shape(flat, tf.int64)[1]))


def _number(column: Column) -> tf.Tensor:
    """The first value of each row as float64 [B]; 0 where there is none."""
    return _numbers(column, 1)[:, 0]


def _numbers(column: Column, size: int) -> tf.Tensor:
    """The first `size` values of each row as float64 [B, size]; 0 where there are fewer."""
    padded = tf.pad(tf.cast(column.values, tf.float64), [[0, 0], [0, size]])
    return tf.ensure_shape(padded[:, :size], [None, size])


def _group(dataset: tf.data.Dataset, replicas: int) -> tf.data.Dataset:
    """Global batches of exactly `replicas` per-replica ones; the last is filled up with padding."""
    spec = dataset.element_spec
    shapes = tf.nest.map_structure(lambda s: s.shape, spec)
    fill = tf.nest.map_structure(lambda s: tf.constant("" if s.dtype == tf.string else 0, s.dtype), spec)
    fill["slots"] = tf.constant(-1, tf.int64)

    @plain
    def flatten(group: Batch) -> Batch:
        real = tf.shape(group["count"])[0]
        places = tf.minimum(tf.range(replicas), real - 1)
        live = tf.cast(tf.range(replicas) < real, tf.int64)
        full = tf.nest.map_structure(lambda value: tf.gather(value, places), group)
        full["count"] *= live[:, None]
        full["faults"] *= live[:, None]
        full["slots"] = tf.where(live[:, None, None] > 0, full["slots"], tf.constant(-1, tf.int64))
        for name in list(full):
            if name.startswith("weight_"):
                full[name] *= tf.cast(live, tf.float64)[:, None]
        return tf.nest.map_structure(_merge_rows, full, shapes)

    def _merge_rows(value: tf.Tensor, one: tf.TensorShape) -> tf.Tensor:
        rows = replicas * one[0]
        merged = tf.reshape(value, tf.concat([[rows], tf.shape(value)[2:]], 0))
        return tf.ensure_shape(merged, [rows, *one[1:]])

    return dataset.padded_batch(replicas, shapes, fill).map(flatten)
