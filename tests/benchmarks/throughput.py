"""Rows a second of the evaluation loop against the bare read + parse + forward loop, in one run.

`python tests/benchmarks/throughput.py [--rows N] [--rounds N] [--replicas N]`. The two take turns;
the ratio is taken pair by pair. Rates are of the warm loop: from the end of the first call on.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
import workload

from assay import examples, inputs, loop, model
from assay.eval_config import read, to_spec
from assay.plan import plan as make_plan
from assay.question import ask
from assay.request import Execution, Policy
from assay.shards import Range
from assay.state import COUNT, Column
from assay.step import Sum, contributions, layout

STEPS = 32


def bare(files: list[str], folder: str, batch: int, *, batched_reads: bool) -> float:
    """Rows a second of reading, parsing and the forward pass, and nothing else.

    batched_reads: batches are cut within each file, which spares the interleave a step a row;
    otherwise the loop is as it is usually written, rows first and batches after.
    """
    loaded = tf.saved_model.load(folder)  # kept: its variables live as long as it does
    predict = loaded.signatures["serving_default"]

    def read(path: tf.Tensor) -> tf.data.Dataset:
        records = tf.data.TFRecordDataset(path, "GZIP")
        return records.batch(batch) if batched_reads else records

    dataset = tf.data.Dataset.from_tensor_slices(files).interleave(
        read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False
    )
    dataset = (dataset if batched_reads else dataset.batch(batch)).prefetch(2)

    @tf.function
    def call(iterator: tf.data.Iterator) -> tuple[tf.Tensor, tf.Tensor]:
        rows, more = tf.constant(0, tf.int64), tf.constant(True)
        for _ in tf.range(STEPS):
            serialized = iterator.get_next_as_optional()
            if serialized.has_value():
                scores = predict(examples=serialized.get_value())["scores"]
                rows += tf.size(scores, tf.int64)
            else:
                more = tf.constant(False)
        return rows, more

    iterator = iter(dataset)
    call(iterator)
    start, total, more = time.perf_counter(), 0, True
    while more:
        rows, more = call(iterator)
        total += int(rows)
    return total / (time.perf_counter() - start)


class Plain(Sum):
    """A sum held in one word, as a float64 or int64 would be: what exactness is measured against."""

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(Column(c.name, COUNT) for c in self.statistics.columns)


def assay(files: list[str], folder: str, batch: int, replicas: int, *, exact: bool = True) -> float:
    """Rows a second of the evaluation loop, with every metric and slice of the workload."""
    execution = Execution(
        "mirrored" if replicas > 1 else "one_device", replicas if replicas > 1 else 0, batch, STEPS
    )
    spec = to_spec(read(workload.EVAL_CONFIG), has_baseline=False)
    question = ask(spec, spec.models)
    found = examples.locate(files, ("eval",))
    records = examples.peek(found, {})
    strategy = loop.strategy(execution)
    models = [model.load(folder, spec.models[0], strategy.extended.worker_devices)]
    plan = make_plan(records, None, models, spec.slices, Policy())
    sums: list[Sum] = [dataclasses.replace(s, whole=plan.whole[0]) for s in question.sums]
    if not exact:
        sums = [Plain(s.statistics, s.model, s.weighted) for s in sums]
    pipeline = inputs.pipeline(found, plan, spec.slices, batch_size=batch, replicas=replicas)
    marks: list[tuple[int, float]] = []

    def step(batch: inputs.Batch, replica: int) -> loop.Contributions:
        return contributions(batch, models, plan.feeds, sums, question.weighted, replica)

    fold = loop.build(pipeline, models, step, layout(sums, question.weighted), strategy, STEPS)
    whole = [Range(number) for number in range(len(found))]
    fold(whole, lambda rows, seconds: marks.append((rows, seconds)))
    (first_rows, first), (rows, seconds) = marks[0], marks[-1]
    return (rows - first_rows) / (seconds - first)


def main() -> None:
    """Prints the two rates and their ratio for each round, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--root", default=os.path.join(tempfile.gettempdir(), "assay-benchmark"))
    arguments = parser.parse_args()
    if arguments.replicas > 1:
        loop.set_up(Execution("mirrored", arguments.replicas))
    folder, saved = workload.prepare(Path(arguments.root), arguments.rows)
    files = sorted(str(p) for p in folder.iterdir())
    usual_ratios, best_ratios, plain_ratios = [], [], []
    for number in range(arguments.rounds):
        usual = bare(files, str(saved), arguments.batch, batched_reads=False)
        best = bare(files, str(saved), arguments.batch, batched_reads=True)
        ours = assay(files, str(saved), arguments.batch, arguments.replicas)
        plain = assay(files, str(saved), arguments.batch, arguments.replicas, exact=False)
        plain_ratios.append(plain / ours)
        usual_ratios.append(ours / usual)
        best_ratios.append(ours / best)
        print(
            f"round {number + 1}: assay with 29 slices {ours:,.0f} rows/s; read + parse + forward alone "
            f"{usual:,.0f} as usually written, {best:,.0f} with reads in batches",
            flush=True,
        )
    print(
        f"median ratio to the bare loop as usually written {statistics.median(usual_ratios):.2f} "
        f"(at least 0.70 is asked), to the fastest one {statistics.median(best_ratios):.2f}; "
        f"one-word sums would be {statistics.median(plain_ratios):.2f} times as fast as exact ones"
    )


if __name__ == "__main__":
    main()
