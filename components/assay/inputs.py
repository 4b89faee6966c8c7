"""Examples to batches: one pure tf.data pipeline on the host, from files to what a replica needs.

Every batch has the same static number of rows: each per-replica batch is padded to a multiple of
64 rows, since no row may meet a kernel for ragged tails, which rounds differently. Padding repeats
a real row and has count 0, weight 0 and no slice.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from assay import slicing
from assay.examples import File, Records, unreadable
from assay.model import Model
from assay.slicing import Column
from assay.spec import DataError, Policy, RequestError, SlicingSpec, unknown
from assay.transform import Transform

log = logging.getLogger("assay")

# The pipeline is plain graph code: no rewriting, and errors keep their own type.
plain = tf.autograph.experimental.do_not_convert

ROWS_MULTIPLE = 64
FILE_SHIFT = 40  # a row's position: its file's number above, its record number below
Batch = dict[str, Any]


class Fault(enum.Enum):
    """What can be wrong with one row; `fatal` ones fail the run, all name the first row."""

    NO_LABEL = "has no label"
    MANY_LABELS = "has more than one label value"
    BAD_LABEL = "has a label that is no finite number"
    NO_WEIGHT = "has no example weight"
    BAD_WEIGHT = "has an example weight that is negative, not finite or 2**31 and above"
    LABEL_RANGE = "has a label outside [0, 1], which a metric on binary labels cannot use"
    PREDICTION_RANGE = (
        "has a prediction outside [0, 1], which AUC and its relatives cannot use; does the model give "
        "logits instead of probabilities?"
    )
    PREDICTION_NAN = "has a prediction that is no finite number"

    @property
    def fatal(self) -> bool:
        """Whether the run fails; a prediction that is NaN leaves its metrics undefined instead."""
        return self is not Fault.PREDICTION_NAN


def input_name(space: str, feature: str) -> str:
    """Returns the key under which a batch's inputs hold a feature of a space."""
    return f"{space}/{feature}"


FAULTS = tuple(Fault)
HOST_FAULTS = (Fault.NO_LABEL, Fault.MANY_LABELS, Fault.BAD_LABEL, Fault.NO_WEIGHT, Fault.BAD_WEIGHT)


def physical(batch_size: int) -> int:
    """Returns the rows of a padded per-replica batch: the next multiple of 64."""
    return -(-batch_size // ROWS_MULTIPLE) * ROWS_MULTIPLE


@dataclass(frozen=True)
class Plan:
    """Where everything in a batch comes from, found out from signatures, schema and records.

    feeds: per model, input name to (space, feature); the space is "serialized", "raw" or
    "transformed". labels, weights: per model a (space, feature) or None. slices: feature to space.
    route: the sentence that is logged.
    """

    transform: Transform | None
    feeds: tuple[Mapping[str, tuple[str, str]], ...]
    labels: tuple[tuple[str, str] | None, ...]
    weights: tuple[tuple[str, str] | None, ...]
    slices: Mapping[str, str]
    types: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    route: str = ""


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
        log.info("the examples are Transform's output already; the transform graph only gives types")
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
    feeds, routes, fixed = [], [], {}
    for model in models:
        feed, route = _feed(model, raw, transformed)
        feeds.append(feed)
        routes.append(f"{model.spec.name or 'model'}: signature {model.signature!r} {route}")
        for name, (space, feature) in feed.items():
            if space == "raw":
                shape = model.inputs[name].shape
                fixed[feature] = (None,) if shape.rank is None else tuple(shape[1:])
    return Plan(
        transform=transform,
        feeds=tuple(feeds),
        labels=tuple(
            find(m.spec.label_key, "label_key", label_order, number=True) if m.spec.label_key else None for m in models
        ),
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


@dataclass(frozen=True)
class Pipeline:
    """The dataset of global batches, and what its stages note down on the host as they run.

    vocabulary: slices by number; rows_read [F] and fingerprint_read []: int64 variables.
    """

    dataset: tf.data.Dataset
    vocabulary: slicing.Vocabulary
    rows_read: tf.Variable
    fingerprint_read: tf.Variable
    files: Sequence[File]
    slice_features: Sequence[str]


def pipeline(
    files: Sequence[File],
    plan: Plan,
    slices: Sequence[SlicingSpec],
    *,
    batch_size: int,
    replicas: int,
) -> Pipeline:
    """Returns the pipeline over the files, as global batches of physical(batch_size) × replicas.

    A batch holds: inputs {"space/feature": [G, ...]}, label_I and weight_I float64 [G] for model
    I where there are such keys, count, position and hash int64 [G], faults int64 [G] (a bit for
    each of FAULTS), slots int64 [G, S] (-1 for no slice).
    """
    with tf.device("CPU:0"):
        rows_read = tf.Variable(tf.zeros([len(files)], tf.int64))
        fingerprint = tf.Variable(tf.zeros([], tf.int64))
    vocabulary = slicing.Vocabulary()

    @plain
    def note(serialized: tf.Tensor, position: tf.Tensor) -> Batch:
        hashes = tf.bitcast(tf.fingerprint(serialized), tf.int64)
        numbers = tf.bitwise.right_shift(position, tf.constant(FILE_SHIFT, tf.int64))
        counts = tf.math.bincount(tf.cast(numbers, tf.int32), minlength=len(files), dtype=tf.int64)
        with tf.control_dependencies([rows_read.assign_add(counts), fingerprint.assign_add(tf.reduce_sum(hashes))]):
            return _pad(
                {"serialized": tf.identity(serialized), "position": position, "hash": hashes},
                physical(batch_size),
            )

    @plain
    def number(batch: Batch) -> Batch:
        texts = tf.where(batch["count"][:, None] > 0, batch.pop("slices"), "-")
        slots = vocabulary.slots(texts)
        return {**batch, "slots": tf.ensure_shape(slots, [*batch["count"].shape, None])}

    dataset = (
        _records(files, batch_size)
        .map(note)
        .map(plain(lambda batch: prepare(batch, plan, slices)), num_parallel_calls=tf.data.AUTOTUNE)
        .map(number)
    )
    if replicas > 1:
        dataset = _group(dataset, replicas)
    options = tf.data.Options()
    options.deterministic = False
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = dataset.prefetch(2).with_options(options)
    return Pipeline(dataset, vocabulary, rows_read, fingerprint, files, slicing.features(slices))


def _records(files: Sequence[File], batch_size: int) -> tf.data.Dataset:
    """Serialized examples and their positions, both [n] with n = batch_size but at the end."""
    chunk = min(batch_size, 1024)

    @plain
    def read(uri: tf.Tensor, compression: tf.Tensor, file: tf.Tensor) -> tf.data.Dataset:
        chunks = tf.data.TFRecordDataset(uri, compression).batch(chunk).enumerate()

        @plain
        def locate(place: tf.Tensor, serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            start = tf.bitwise.left_shift(file, tf.constant(FILE_SHIFT, tf.int64)) + place * chunk
            return serialized, start + tf.range(tf.size(serialized, tf.int64))

        return chunks.map(locate)

    names = tf.data.Dataset.from_tensor_slices(
        (
            [f.uri for f in files],
            [f.compression for f in files],
            tf.range(len(files), dtype=tf.int64),
        )
    )
    return names.interleave(
        read,
        cycle_length=min(len(files), 16),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=False,
    ).rebatch(batch_size)


def _pad(batch: Batch, rows: int) -> Batch:
    real = tf.shape(batch["position"])[0]
    places = tf.minimum(tf.range(rows), real - 1)
    padded = {name: tf.ensure_shape(tf.gather(value, places), [rows]) for name, value in batch.items()}
    return {**padded, "count": tf.cast(tf.range(rows) < real, tf.int64)}


def prepare(
    batch: Batch, plan: Plan, slices: Sequence[SlicingSpec]
) -> Batch:
    """Parses and transforms one padded batch, and looks up labels, weights and slices."""
    serialized = batch.pop("serialized")
    count = batch["count"]
    raw = _parse(serialized, plan)
    transformed = plan.transform(raw) if plan.transform and _uses_transform(plan) else {}
    spaces = {"raw": raw, "transformed": transformed}

    inputs = {}
    for feed in plan.feeds:
        for space, feature in feed.values():
            value = serialized if space == "serialized" else _dense(spaces[space][feature])
            inputs[input_name(space, feature)] = value
    faults = tf.zeros_like(count)
    found: Batch = {}
    for place, (label, weight) in enumerate(zip(plan.labels, plan.weights, strict=True)):
        live = count > 0
        if weight is not None:
            column = _column(spaces[weight[0]][weight[1]])
            value = _number(column)
            none = column.lengths < 1
            bad = tf.logical_or(
                tf.logical_not(tf.math.is_finite(value)), tf.logical_or(value < 0, value >= 2.0**31)
            )
            faults = mark(faults, Fault.NO_WEIGHT, none)
            faults = mark(faults, Fault.BAD_WEIGHT, tf.logical_and(bad, tf.logical_not(none)))
            value = tf.where(tf.logical_or(bad, none), tf.zeros_like(value), value)
            found[f"weight_{place}"] = value * tf.cast(count, tf.float64)
            live = tf.logical_and(live, value > 0)
        if label is not None:
            column = _column(spaces[label[0]][label[1]])
            value = _number(column)
            none, many = column.lengths < 1, column.lengths > 1
            bad = tf.logical_not(tf.math.is_finite(value))
            for fault, rows in ((Fault.NO_LABEL, none), (Fault.MANY_LABELS, many), (Fault.BAD_LABEL, bad)):
                faults = mark(faults, fault, tf.logical_and(rows, live))
            found[f"label_{place}"] = tf.where(tf.logical_or(bad, none), tf.zeros_like(value), value)
    columns = {name: _column(spaces[space][name]) for name, space in plan.slices.items()}
    prepared = {
        **batch,
        **found,
        "inputs": inputs,
        "faults": faults * count,
        "slices": slicing.slice_texts(slices, columns, tf.shape(count)[0]),
    }
    return tf.nest.map_structure(lambda t: tf.ensure_shape(t, [*count.shape, *t.shape[1:]]), prepared)


def mark(faults: tf.Tensor, fault: Fault, rows: tf.Tensor) -> tf.Tensor:
    """Returns the fault bits [B] int64 with one more set on the rows [B] bool. Graph."""
    bit = tf.constant(1 << FAULTS.index(fault), tf.int64)
    return tf.bitwise.bitwise_or(faults, tf.where(rows, bit, tf.zeros_like(faults)))


def _uses_transform(plan: Plan) -> bool:
    places = [*plan.labels, *plan.weights, *(p for feed in plan.feeds for p in feed.values())]
    return "transformed" in {*(p[0] for p in places if p), *plan.slices.values()}


def _parse(serialized: tf.Tensor, plan: Plan) -> dict[str, Any]:
    """Parses once every raw feature that anything needs."""
    spec: dict[str, Any] = {}
    for places in (*plan.labels, *plan.weights, *((s, f) for f, s in plan.slices.items())):
        if places is not None and places[0] == "raw":
            spec[places[1]] = tf.io.VarLenFeature(plan.types[places[1]].dtype)
    for feature, shape in plan.fixed.items():
        if None not in shape:
            spec[feature] = tf.io.FixedLenFeature(shape, plan.types[feature].dtype)
        else:
            spec[feature] = tf.io.VarLenFeature(plan.types[feature].dtype)
    if plan.transform and _uses_transform(plan):
        spec.update(plan.transform.parsing_spec())
    return tf.io.parse_example(serialized, spec) if spec else {}


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
        lengths = tf.math.unsorted_segment_sum(
            tf.ones_like(value.indices[:, 0]), value.indices[:, 0], rows
        )
        return Column(tf.sparse.to_dense(value), lengths)
    if isinstance(value, tf.RaggedTensor):
        return Column(value.to_tensor(), tf.cast(value.row_lengths(), tf.int64))
    flat = tf.reshape(value, [tf.shape(value)[0], -1])
    return Column(flat, tf.fill([tf.shape(flat)[0]], tf.shape(flat, tf.int64)[1]))


def _number(column: Column) -> tf.Tensor:
    """The first value of each row as float64 [B]; 0 where there is none."""
    padded = tf.pad(tf.cast(column.values, tf.float64), [[0, 0], [0, 1]])
    return padded[:, 0]


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


def explain(error: Exception, files: Sequence[File], plan: Plan) -> DataError:
    """Returns the error that names the file, and the record, at which reading or parsing failed.

    Reads the files again, on the host; called only when a run has failed.
    """
    spec: dict[str, Any] = dict(plan.transform.parsing_spec()) if plan.transform else {}
    for feature, shape in plan.fixed.items():
        if None not in shape:
            spec[feature] = tf.io.FixedLenFeature(shape, plan.types[feature].dtype)
    for file in files:
        number = 0
        try:
            for record in tf.data.TFRecordDataset(file.uri, file.compression or None):
                try:
                    example = tf.train.Example.FromString(record.numpy())
                    if spec:
                        tf.io.parse_single_example(record, spec)
                except Exception as problem:  # noqa: BLE001 - whatever it is, this is the record
                    reason = str(getattr(problem, "message", problem)).split("\n")[0]
                    return DataError(f"{file.uri}: record {number} cannot be parsed: {reason}")
                for name, kind in plan.types.items():
                    held = example.features.feature.get(name)
                    which = held.WhichOneof("kind") if held is not None else None
                    if which and len(getattr(held, which).value) and _DTYPES[which] != kind.dtype:
                        return DataError(
                            f"{file.uri}: record {number}: feature {name!r} is {_DTYPES[which].name}, "
                            f"and {kind.dtype.name} in the schema or the first records"
                        )
                number += 1
        except tf.errors.OpError as problem:
            return unreadable(file, problem)
    reason = str(getattr(error, "message", error)).split("\n")[0]
    return DataError(f"evaluation failed: {reason}")


_DTYPES = {"bytes_list": tf.string, "int64_list": tf.int64, "float_list": tf.float32}
