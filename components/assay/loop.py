"""The evaluation loop: every replica runs the step on its share of each batch; the sums are joined.

`strategy.run` broadcasts a function and gives back one unrelated result a replica; only
`strategy.reduce(SUM)` over every replica's sums makes them one. There is no MEAN here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from assay.faults import FAULTS, MODELS, Fault, bit
from assay.inputs import FILE_SHIFT, Pipeline
from assay.model import Model
from assay.spec import DataError, Execution, RequestError
from assay.state import Layout, State
from assay.step import FAR, Accumulator, Sum, contributions

log = logging.getLogger("assay")

Progress = Callable[[int, float], None]


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
    """Returns the tf.distribute strategy: `auto` mirrors over the GPUs, or over several logical CPUs."""
    gpus = [d.name for d in tf.config.list_logical_devices("GPU")]
    cpus = [d.name for d in tf.config.list_logical_devices("CPU")]
    devices = gpus or cpus[: execution.logical_devices or 1]
    if execution.strategy == "one_device" or (execution.strategy == "auto" and len(devices) == 1):
        return tf.distribute.OneDeviceStrategy(devices[0])
    return tf.distribute.MirroredStrategy(devices)


def run(
    pipeline: Pipeline,
    models: Sequence[Model],
    feeds: Sequence[Mapping[str, tuple[str, str]]],
    sums: Sequence[Sum],
    weighted: Sequence[int],
    leaves: Layout,
    distribution: tf.distribute.Strategy,
    execution: Execution,
    progress: Progress | None = None,
) -> State:
    """Returns the State of all rows that the pipeline gives. Host; the step runs on every replica.

    Raises:
      DataError: a row has a fatal fault; the message names the first one.
      tf.errors.OpError: reading or computing failed; `inputs.explain` finds where.
    """
    replicas = distribution.num_replicas_in_sync
    devices = distribution.extended.worker_devices
    accumulators = [Accumulator(leaves, len(pipeline.files), device) for device in devices]
    options = tf.distribute.InputOptions(experimental_fetch_to_device=not _has_strings(pipeline.dataset))
    batches = iter(distribution.experimental_distribute_dataset(pipeline.dataset, options))
    static = pipeline.dataset.element_spec["count"].shape[0] // replicas

    @tf.autograph.experimental.do_not_convert
    def step(batch: dict) -> None:
        batch = tf.nest.map_structure(lambda t: tf.ensure_shape(t, [static, *t.shape[1:]]), batch)
        replica = _replica()
        parts, faults = contributions(batch, models, feeds, sums, weighted, replica)
        accumulators[replica].add(batch, parts, faults)

    @tf.function(autograph=False)
    def call(iterator: tf.distribute.DistributedIterator) -> tf.Tensor:
        """Runs up to `steps_per_call` steps; returns whether there may be more."""

        def body(done: tf.Tensor, more: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            batch = iterator.get_next_as_optional()

            def work() -> tf.Tensor:
                distribution.run(step, (batch.get_value(),))
                return tf.constant(True)

            return done + 1, tf.cond(batch.has_value(), work, lambda: tf.constant(False))

        _, more = tf.while_loop(
            lambda done, more: tf.logical_and(more, done < execution.steps_per_call),
            body,
            (tf.constant(0), tf.constant(True)),
            parallel_iterations=1,
        )
        return more

    started = time.perf_counter()
    while call(batches):
        _check(accumulators, pipeline, models)
        if progress:
            counted = sum(int(tf.reduce_sum(a.rows)) for a in accumulators)
            progress(counted, time.perf_counter() - started)
    _check(accumulators, pipeline, models)
    return _collect(pipeline, accumulators, leaves, distribution)


def _replica() -> int:
    """The number of the replica being traced; each one is traced by itself. Replica context."""
    return int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))


def _has_strings(dataset: tf.data.Dataset) -> bool:
    return any(s.dtype == tf.string for s in tf.nest.flatten(dataset.element_spec))


def _first(accumulators: Sequence[Accumulator], pipeline: Pipeline) -> dict[str, tuple[str, int]]:
    """The first row of each fault and model: the least of the replicas' least positions."""
    found = {}
    for model in range(MODELS):
        for fault in FAULTS:
            position = min(int(a.first[bit(fault, model)]) for a in accumulators)
            if position != FAR:
                record = position & ((1 << FILE_SHIFT) - 1)
                found[f"{fault.name}/{model}"] = (pipeline.files[position >> FILE_SHIFT].uri, record)
    return found


def _check(accumulators: Sequence[Accumulator], pipeline: Pipeline, models: Sequence[Model]) -> None:
    found = _first(accumulators, pipeline)
    fatal = [key for key in found if Fault[key.split("/")[0]].fatal]
    if fatal:
        key = min(fatal, key=found.__getitem__)
        uri, record = found[key]
        name, place = key.split("/")
        of = f" (model {models[int(place)].spec.name})" if len(models) > 1 else ""
        raise DataError(f"{uri}: record {record} {Fault[name].value}{of}")


def _collect(
    pipeline: Pipeline,
    accumulators: Sequence[Accumulator],
    leaves: Layout,
    distribution: tf.distribute.Strategy,
) -> State:
    """The State of all replicas: strategy.reduce(SUM), then named by slice key."""
    keys = pipeline.vocabulary.keys(pipeline.slice_features)

    @tf.autograph.experimental.do_not_convert
    def read() -> dict:
        return accumulators[_replica()].read(len(keys))

    @tf.function(autograph=False)
    def total() -> dict:
        return distribution.reduce(tf.distribute.ReduceOp.SUM, distribution.run(read), axis=None)

    sums = tf.nest.map_structure(lambda t: t.numpy(), total())
    uris = [f.uri for f in pipeline.files]
    return State(
        layout=leaves,
        slices={key: Accumulator.arrays(leaves, sums, slot) for slot, key in enumerate(keys)},
        rows_read=dict(zip(uris, pipeline.rows_read.numpy().tolist(), strict=True)),
        rows_counted=dict(zip(uris, sums["rows"].tolist(), strict=True)),
        fingerprint_read=int(pipeline.fingerprint_read.numpy()) % 2**64,
        fingerprint_counted=int(sums["fingerprint"]) % 2**64,
        first=_first(accumulators, pipeline),
    )
