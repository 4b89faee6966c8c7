"""The evaluation loop: every replica runs the step on its share of each batch; the sums are joined.

`strategy.run` broadcasts a function and gives back one unrelated result a replica; only
`strategy.reduce(SUM)` over every replica's sums makes them one. There is no MEAN here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from assay import model
from assay.accumulate import FAR, Accumulator, arrays, dense
from assay.faults import FAULTS, MODELS, Fault, bit
from assay.inputs import FILE_SHIFT, Batch, Pipeline
from assay.model import Model
from assay.request import Execution
from assay.shards import Range
from assay.spec import DataError, ModelSpec, RequestError
from assay.state import Layout, State
from assay.step import Contribution

log = logging.getLogger("assay")

Progress = Callable[[int, float], None]
Contributions = tuple[list[Contribution], tf.Tensor]
Step = Callable[[Batch, int], Contributions]
Fold = Callable[..., State]


def set_up(execution: Execution) -> None:
    """Splits the CPU and turns memory growth on, before TensorFlow starts its devices.

    A CPU that is split into enough devices already is left as it is.

    Raises:
      RequestError: TensorFlow has started them already, so the CPU cannot be split any more.
    """
    try:
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)
        if execution.logical_devices:
            cpu = tf.config.list_physical_devices("CPU")[0]
            if len(tf.config.get_logical_device_configuration(cpu) or ()) < execution.logical_devices:
                parts = [tf.config.LogicalDeviceConfiguration()] * execution.logical_devices
                tf.config.set_logical_device_configuration(cpu, parts)
    except RuntimeError as error:
        raise RequestError(
            "logical_devices cannot be set: TensorFlow is initialised in this process already; use a "
            "fresh process (the command line does), or split the CPU before the first operation"
        ) from error


def strategy(execution: Execution) -> tf.distribute.Strategy:
    """Returns the tf.distribute strategy of this process.

    `auto` and `multi_worker` mirror over its GPUs, or over several logical CPUs.

    Raises:
      RequestError: a TPU is asked for, and there is none.
    """
    if execution.strategy == "tpu":
        if not tf.config.list_physical_devices("TPU"):
            raise RequestError("strategy tpu: TensorFlow finds no TPU here; auto takes what there is")
        return tf.distribute.TPUStrategy(tf.distribute.cluster_resolver.TPUClusterResolver.connect("local"))
    gpus = [d.name for d in tf.config.list_logical_devices("GPU")]
    cpus = [d.name for d in tf.config.list_logical_devices("CPU")]
    devices = gpus or cpus[: execution.logical_devices or 1]
    if execution.strategy == "one_device" or (execution.strategy != "mirrored" and len(devices) == 1):
        return tf.distribute.OneDeviceStrategy(devices[0])
    return tf.distribute.MirroredStrategy(devices)


def load(uri: str, spec: ModelSpec, distribution: tf.distribute.Strategy) -> Model:
    """Returns the model at a URI where the strategy's replicas can call it; errors as `model.load`."""
    if isinstance(distribution, tf.distribute.TPUStrategy):
        with distribution.scope():  # one program for all cores, over variables that the strategy copies
            return model.load(uri, spec, (None,))
    return model.load(uri, spec, distribution.extended.worker_devices)


def build(
    pipeline: Pipeline,
    models: Sequence[Model],
    step: Step,
    leaves: Layout,
    distribution: tf.distribute.Strategy,
    steps_per_call: int,
    *,
    dense: bool = False,
    jit: bool = False,
) -> Fold:
    """Returns the function that evaluates a shard: its ranges to the State of their rows.

    It is traced once, for all shards. dense: add up without variables, as on a TPU; jit: let XLA
    compile the replicas' part of that.

    The function raises:
      DataError: a row has a fatal fault; the message names the first one.
      tf.errors.OpError: reading or computing failed; `explain` finds where. Nothing of the shard is
        kept, so that it may be tried again.
    """
    options = tf.distribute.InputOptions(experimental_fetch_to_device=not _has_strings(pipeline.dataset))
    batches = distribution.experimental_distribute_dataset(pipeline.dataset, options)
    static = pipeline.dataset.element_spec["count"].shape[0] // distribution.num_replicas_in_sync

    def fixed(batch: Batch) -> Batch:
        return tf.nest.map_structure(lambda t: tf.ensure_shape(t, [static, *t.shape[1:]]), batch)

    def one(batch: Batch) -> Contributions:
        return step(fixed(batch), _replica())

    if dense:
        sweep = _dense(pipeline, one, leaves, distribution, steps_per_call, jit)
    else:
        sweep = _scattered(pipeline, one, leaves, distribution, steps_per_call)

    def fold(ranges: Sequence[Range], progress: Progress | None = None) -> State:
        pipeline.aim(ranges)
        started = time.perf_counter()
        for rows, first in sweep.run(iter(batches)):
            _check(_named(first, pipeline), models)
            if progress:
                progress(rows, time.perf_counter() - started)
        return _state(pipeline, ranges, leaves, sweep)

    return fold


@dataclass(frozen=True)
class Sweep:
    """One way to fold batches.

    run: an iterator to (rows so far, least position of each fault) every few steps, from nothing;
    total: so many slots to the sums of all replicas, as `accumulate.arrays` takes them, and `first`.
    """

    run: Callable[[Iterator[Any]], Iterator[tuple[int, np.ndarray]]]
    total: Callable[[int], dict[str, Any]]


def _scattered(
    pipeline: Pipeline,
    step: Callable[[Batch], Contributions],
    leaves: Layout,
    distribution: tf.distribute.Strategy,
    steps_per_call: int,
) -> Sweep:
    """Sums in variables, one set a replica, joined once at the end."""
    devices = distribution.extended.worker_devices
    accumulators = [Accumulator(leaves, len(pipeline.files), device) for device in devices]

    @tf.autograph.experimental.do_not_convert
    def add(batch: Batch) -> None:
        parts, faults = step(batch)
        accumulators[_replica()].add(batch, parts, faults)

    @tf.function(autograph=False)
    def call(iterator: tf.distribute.DistributedIterator) -> tf.Tensor:
        """Runs up to `steps_per_call` steps; returns whether there may be more."""

        def body(done: tf.Tensor, more: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            batch = iterator.get_next_as_optional()

            def work() -> tf.Tensor:
                distribution.run(add, (batch.get_value(),))
                return tf.constant(True)

            return done + 1, tf.cond(batch.has_value(), work, lambda: tf.constant(False))

        _, more = tf.while_loop(
            lambda done, more: tf.logical_and(more, done < steps_per_call),
            body,
            (tf.constant(0), tf.constant(True)),
            parallel_iterations=1,
        )
        return more

    def first() -> np.ndarray:
        return np.min([a.first.numpy() for a in accumulators], 0)

    def run(iterator: Iterator[Any]) -> Iterator[tuple[int, np.ndarray]]:
        for accumulator in accumulators:
            accumulator.clear()
        more = True
        while more:
            more = bool(call(iterator))
            yield sum(int(tf.reduce_sum(a.rows)) for a in accumulators), first()

    @tf.autograph.experimental.do_not_convert
    def read(slots: tf.Tensor) -> dict:
        return accumulators[_replica()].read(slots)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.int32)])
    def joined(slots: tf.Tensor) -> dict:
        return distribution.reduce(tf.distribute.ReduceOp.SUM, distribution.run(read, (slots,)), axis=None)

    def total(slots: int) -> dict[str, Any]:
        return {**tf.nest.map_structure(lambda t: t.numpy(), joined(slots)), "first": first()}

    return Sweep(run, total)


def _dense(
    pipeline: Pipeline,
    step: Callable[[Batch], Contributions],
    leaves: Layout,
    distribution: tf.distribute.Strategy,
    steps_per_call: int,
    jit: bool,
) -> Sweep:
    """Sums of static shape a step, joined over the replicas each time and added up on the host.

    A program for each number of slots, a power of two: the host knows the slices of a batch before
    the batch is on its way.
    """
    sums: dict[str, Any] = {}

    @tf.function(autograph=False)
    def call(batch: Any, slots: int) -> tuple[dict, tf.Tensor]:
        def add(batch: Batch) -> dict:
            parts, faults = step(batch)
            return dense(leaves, batch, parts, faults, slots, len(pipeline.files))

        # A function a replica: each has its own copy of the models.
        replicas = range(distribution.num_replicas_in_sync)
        adds = [tf.function(add, autograph=False, jit_compile=jit or None) for _ in replicas]
        found = distribution.run(lambda batch: adds[_replica()](batch), (batch,))
        firsts = tf.stack(distribution.experimental_local_results(found.pop("first")))
        return distribution.reduce(tf.distribute.ReduceOp.SUM, found, axis=None), tf.reduce_min(firsts, 0)

    def run(iterator: Iterator[Any]) -> Iterator[tuple[int, np.ndarray]]:
        sums.clear()
        for number, batch in enumerate(iterator, 1):
            slots = 1 << max(int(pipeline.vocabulary.size()) - 1, 0).bit_length()
            found, first = call(batch, slots)
            found = tf.nest.map_structure(lambda t: t.numpy(), found)
            _add({**found, "first": first.numpy()}, sums)
            if number % steps_per_call == 0:
                yield int(sums["rows"].sum()), sums["first"]
        if sums:
            yield int(sums["rows"].sum()), sums["first"]

    def total(slots: int) -> dict[str, Any]:
        return sums

    return Sweep(run, total)


def _add(more: dict[str, Any], sums: dict[str, Any]) -> None:
    """Adds one step's sums, of at least as many slots, to those so far."""
    for name, value in more.items():
        if isinstance(value, dict):
            _add(value, sums.setdefault(name, {}))
        elif name not in sums:
            sums[name] = value.copy()
        elif name == "first":
            sums[name] = np.minimum(sums[name], value)
        elif np.ndim(value) == 2 and len(value) > len(sums[name]):
            grown = value.copy()
            grown[: len(sums[name])] += sums[name]
            sums[name] = grown
        else:
            with np.errstate(over="ignore"):  # the fingerprint is a sum modulo 2**64
                sums[name] = sums[name] + value


def _replica() -> int:
    """The number of the replica being traced; each one is traced by itself. Replica context.

    On a TPU all replicas run one program, with one model: 0.
    """
    context = tf.distribute.get_replica_context()
    if context is None:
        raise RuntimeError("sums are added up in replica context: call the step inside strategy.run")
    number = tf.get_static_value(context.replica_id_in_sync_group)
    return 0 if number is None else int(number)


def _has_strings(dataset: tf.data.Dataset) -> bool:
    return any(s.dtype == tf.string for s in tf.nest.flatten(dataset.element_spec))


def _named(first: np.ndarray, pipeline: Pipeline) -> dict[str, tuple[str, int]]:
    """The first row of each fault and model, by file and record."""
    found = {}
    for place in range(MODELS):
        for fault in FAULTS:
            position = int(first[bit(fault, place)])
            if position != FAR:
                record = position & ((1 << FILE_SHIFT) - 1)
                found[f"{fault.name}/{place}"] = (pipeline.files[position >> FILE_SHIFT].uri, record)
    return found


def _check(found: Mapping[str, tuple[str, int]], models: Sequence[Model]) -> None:
    fatal = [key for key in found if Fault[key.split("/")[0]].fatal]
    if fatal:
        key = min(fatal, key=found.__getitem__)
        uri, record = found[key]
        name, place = key.split("/")
        of = f" (model {models[int(place)].spec.name})" if len(models) > 1 else ""
        raise DataError(f"{uri}: record {record} {Fault[name].value}{of}")


def _state(pipeline: Pipeline, ranges: Sequence[Range], leaves: Layout, sweep: Sweep) -> State:
    """The sums of every replica joined, named by slice key instead of slot."""
    keys = pipeline.vocabulary.keys(pipeline.slice_features)
    sums = sweep.total(len(keys))

    def by_file(numbers: np.ndarray) -> dict[str, int]:
        return {pipeline.files[r.file].uri: int(numbers[r.file]) for r in ranges}

    slices = {}
    if sums:
        found = {key: arrays(leaves, sums, slot) for slot, key in enumerate(keys)}
        # The vocabulary outlives the shard; a slice is one that has rows here.
        slices = {key: own for key, own in found.items() if own[0][0, 0]}
    return State(
        layout=leaves,
        slices=slices,
        rows_read=by_file(pipeline.rows_read.numpy()),
        bytes_read=by_file(pipeline.bytes_read.numpy()),
        rows_counted=by_file(sums["rows"] if sums else np.zeros([len(pipeline.files)], int)),
        fingerprint_read=int(pipeline.fingerprint_read.numpy()) % 2**64,
        fingerprint_counted=int(sums["fingerprint"]) % 2**64 if sums else 0,
        first=_named(sums["first"], pipeline) if sums else {},
    )
