"""A device that is out of memory: the shard again with half the batch, nothing twice, said aloud."""

from __future__ import annotations

import made
import numpy as np
import processes
import pytest
import tensorflow as tf

import assay
from assay import engine, loop
from assay.request import Execution
from assay.spec import ProcessError

SIZE = 3000
CONFIG = made.config("ExampleCount", "AUC", "BinaryCrossentropy", slices=({}, {"featureKeys": ["pay"]}))


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    root = tmp_path_factory.mktemp("memory")
    rows = [{"label": i % 2, "score": (i * 37 % 101) / 101, "pay": f"{i % 5}"} for i in range(SIZE)]
    made.examples(root / "examples", rows, files=3)
    made.model(root / "model")
    return root


def evaluate(given, output, batch, replicas=1, **more):
    return assay.evaluate(
        examples=str(given / "examples"),
        model=str(given / "model"),
        eval_config=CONFIG,
        output=str(output),
        execution=Execution("mirrored" if replicas > 1 else "one_device", replicas, batch, **more),
    )


@pytest.fixture
def tight(monkeypatch):
    """Lets each replica's second step of a pass fail where its batch is above a number of rows."""
    steps = []
    true = engine.contributions

    def limit(most: int, at: int = 2) -> list[int]:
        def step(batch, *rest):
            parts, faults = true(batch, *rest)
            rows = batch["count"].shape[0]

            def allocate(value):
                steps.append(rows)
                if rows > most and steps.count(rows) >= at:
                    raise MemoryError(f"OOM when allocating tensor with shape[{rows},1]")
                return value

            return parts, tf.ensure_shape(tf.numpy_function(allocate, [faults], tf.int64), faults.shape)

        monkeypatch.setattr(engine, "contributions", step)
        return steps

    return limit


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_replay_counts_nothing_twice(given, tmp_path, tight, caplog, replicas):
    evaluate(given, tmp_path / "whole", 64)
    steps = tight(most=256)
    outcome = evaluate(given, tmp_path / "tight", 1024, replicas)
    assert {1024, 512, 256} == set(steps)  # the first step of each try had gone well
    assert processes.slices_bytes(tmp_path / "tight") == processes.slices_bytes(tmp_path / "whole")
    assert outcome.report.rows == SIZE
    assert outcome.report.proof["rows_read"] == outcome.report.proof["rows_counted"] == SIZE
    execution = outcome.report.execution
    assert (execution["batch_size"], execution["padded_batch_size"]) == (256, 256)
    told = [f"out of memory: the per-replica batch was halved to {rows}" for rows in (512, 256)]
    assert [n for n in outcome.report.notes if "out of memory" in n] == told
    assert all(text in caplog.text for text in told)
    assert told[0] in (tmp_path / "tight" / "report.html").read_text()


def test_only_the_shard_that_failed_is_tried_again_and_the_next_ones_keep_the_smaller_batch(
    given, tmp_path, tight
):
    evaluate(given, tmp_path / "whole", 64)
    steps = tight(most=128, at=3)  # in the second shard: a file of 1,000 rows has at most two such batches
    outcome = evaluate(given, tmp_path / "tight", 512, state_dir=str(tmp_path / "state"))
    assert outcome.report.execution["shards"] == 3
    assert processes.slices_bytes(tmp_path / "tight") == processes.slices_bytes(tmp_path / "whole")
    assert steps.count(512) == 3 and steps[-1] == 128
    assert sum(outcome.report.files.values()) == SIZE


def test_where_the_smallest_batch_does_not_fit_it_says_so(given, tmp_path, tight):
    tight(most=0)
    with pytest.raises(
        ProcessError, match=r"out of memory with 64 rows per replica, the smallest batch: .*OOM"
    ):
        evaluate(given, tmp_path / "output", 256)
    assert not (tmp_path / "output" / "report.json").exists()


def test_a_batch_below_the_padding_is_at_the_end_at_once(given, tmp_path, tight):
    steps = tight(most=0)
    with pytest.raises(ProcessError, match="out of memory with 64 rows per replica"):
        evaluate(given, tmp_path / "output", 8)
    assert len(steps) == 2


def test_devices_are_left_the_memory_that_is_not_needed(monkeypatch):
    # Case 74: without memory growth the first process takes all of every GPU.
    grown, gpus = [], [object(), object()]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus if kind == "GPU" else [])
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda gpu, on: grown.append((gpu, on)))
    loop.set_up(Execution())
    assert grown == [(gpu, True) for gpu in gpus]


def test_the_batch_size_asked_for_is_the_one_that_every_step_has(given, tmp_path, monkeypatch):
    # Case 74: a batch that grows by itself is how others run out of memory.
    sizes = []
    true = engine.contributions

    def note(count, faults):
        sizes.append(int(count.sum()))
        return faults

    def step(batch, *rest):
        parts, faults = true(batch, *rest)
        noted = tf.numpy_function(note, [batch["count"], faults], tf.int64)
        return parts, tf.ensure_shape(noted, faults.shape)

    monkeypatch.setattr(engine, "contributions", step)
    outcome = evaluate(given, tmp_path / "output", 100)
    assert max(sizes) == 100 and sum(sizes) == SIZE
    assert outcome.report.execution["batch_size"] == 100
    assert np.ceil(SIZE / 100) <= len(sizes)


@pytest.mark.parametrize("runner", ["loop", "beam"])
def test_a_helpers_halved_batch_is_in_the_chiefs_report(given, tmp_path, tight, monkeypatch, runner):
    # What another process went through is left for the report in the state folder.
    tight(most=128)
    told = "out of memory: the per-replica batch was halved to 128"
    first = evaluate(given, tmp_path / "first", 256, state_dir=str(tmp_path / "state"), runner=runner)
    assert told in first.report.notes
    again = evaluate(given, tmp_path / "again", 256, state_dir=str(tmp_path / "state"))
    assert again.report.execution["shards_found"] == again.report.execution["shards"]
    assert again.report.notes.count(told) == 1
