"""What TPUs and XLA ask for, without either: static shapes, one program each, no strings, 32-bit sums."""

from __future__ import annotations

import made
import numpy as np
import pytest
import tensorflow as tf
from test_numbers import METRICS

from assay import accumulate, inputs, loop, shards
from assay.api import request
from assay.engine import Engine
from assay.eval_config import read, to_spec
from assay.question import ask
from assay.request import Execution
from assay.spec import OVERALL
from assay.state import REAL, Column, Leaf, State, to_bytes
from assay.step import Contribution, contributions

SLICES = ({}, {"featureKeys": ["pay"]}, {"featureKeys": ["hour"]})
SIZE = 1003


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    root = tmp_path_factory.mktemp("static")
    random = np.random.default_rng(8)
    rows = [
        {
            "label": int(random.integers(0, 2)),
            "score": float(np.float32(random.uniform(0.01, 0.99))),
            "weight": float(random.choice([0.0, 0.5, 1.0, 3.0])),
            "pay": ["Cash", "Card", "Other"][int(random.integers(3))],
            "hour": min(i // 60, 15),  # new slices all along
        }
        for i in range(SIZE)
    ]
    made.examples(root / "examples", rows)
    made.model(root / "model", made.Named())
    return root


class Bench:
    """An engine whose loop can be built in any way, with its pipeline and its function in sight."""

    def __init__(self, given, replicas: int, batch: int = 64, **how: bool) -> None:
        models = [{"labelKey": "label", "exampleWeightKey": "weight"}]
        config = made.config(*METRICS, slices=SLICES, models=models)
        execution = Execution("mirrored" if replicas > 1 else "one_device", replicas, batch, steps_per_call=4)
        asked = request(
            examples=str(given / "examples"),
            model=str(given / "model"),
            eval_config=config,
            execution=execution,
        )
        spec = to_spec(read(config), has_baseline=False)
        self.engine = engine = Engine(asked, spec, ask(spec, spec.models))
        self.pipeline = inputs.pipeline(
            engine.files,
            engine.plan,
            engine._slices,
            batch_size=batch,
            replicas=replicas,
            static=how.get("dense", False),
        )
        self.shapes: list[tuple] = []  # of the arguments, once a trace

        def step(batch, replica):
            flat = tf.nest.flatten(batch)
            self.shapes.append(tuple((t.shape, t.dtype) for t in flat))
            return contributions(
                batch, engine.models, engine.plan.feeds, engine._sums, engine.question.weighted, replica
            )

        self.fold = loop.build(
            self.pipeline, engine.models, step, engine.leaves, engine.distribution, 4, **how
        )

    def state(self) -> State:
        return self.fold((shards.Range(0),))


@pytest.fixture(scope="module")
def scattered(given):
    return Bench(given, 1).state()


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("batch", [50, 64, 500])
def test_both_ways_of_adding_up_give_the_same_bytes(given, scattered, replicas, batch):
    assert to_bytes(Bench(given, replicas, batch, dense=True).state()) == to_bytes(scattered)


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_step_runs_under_xla(given, scattered, replicas):
    compiled = Bench(given, replicas, dense=True, jit=True).state()
    assert compiled.slices.keys() == scattered.slices.keys()
    for key, arrays in scattered.slices.items():
        for leaf, ours, theirs in zip(scattered.layout, arrays, compiled.slices[key], strict=True):
            if leaf.name.startswith("cross_entropy"):
                # XLA has a logarithm of its own, another in the last bit.
                total, other = (a.astype(float) @ 2.0 ** (32 * np.array(REAL)) for a in (ours, theirs))
                np.testing.assert_allclose(other, total, rtol=1e-12)
            else:
                np.testing.assert_array_equal(theirs, ours, leaf.name)
    assert compiled.fingerprint_counted == scattered.fingerprint_counted


def test_xla_compiles_the_whole_step_or_fails(given):
    # must_be_compiled: a step that XLA cannot compile raises, so the test above would have failed.
    bench = Bench(given, 1, dense=True, jit=True)
    bench.pipeline.aim((shards.Range(0),))
    batch = next(iter(bench.pipeline.dataset))

    @tf.function(jit_compile=True, autograph=False)
    def texts(batch):
        return tf.strings.as_string(batch["count"])

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?i)compil|AsString|unsupported"):
        texts(batch)


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_one_trace_serves_all_batches_and_shards(given, replicas):
    bench = Bench(given, replicas)
    first = bench.state()
    # Every replica is traced by itself; a trace of tf.distribute's own comes first.
    traced = len(bench.shapes)
    assert traced <= 2 * replicas
    assert len(first.slices) == 1 + 3 + 16  # slices came all along: capacity grew, the program did not change
    parts = [bench.fold((shards.Range(0, start, stop),)) for start, stop in ((0, 300), (300, 300), (300, -1))]
    assert len(bench.shapes) == traced
    assert [sum(p.rows_counted.values()) for p in parts] == [300, 0, SIZE - 300]


def test_there_is_a_program_for_each_power_of_two_of_slices_and_no_other(given):
    bench = Bench(given, 1, dense=True)
    state = bench.state()
    capacities = {1 << n for n in range((len(state.slices) - 1).bit_length() + 1)}
    assert len(set(bench.shapes)) == 1  # the shapes of a batch never change, the short last one included
    # tf.function traces a program's body at most twice.
    assert len(bench.shapes) <= 2 * len(capacities)
    before = len(bench.shapes)
    assert to_bytes(bench.state()) == to_bytes(state)
    assert len(bench.shapes) <= before + 2  # one more at most: now all slices are known from the first batch


def test_what_goes_to_a_device_is_static_and_has_no_strings(given):
    bench = Bench(given, 2, dense=True)
    bench.state()
    (shapes,) = set(bench.shapes)
    for shape, dtype in shapes:
        assert shape.is_fully_defined() and shape[0] == 64
        assert dtype != tf.string


def test_there_is_no_python_in_the_pipeline_and_it_prefetches(given):
    bench = Bench(given, 2)
    variant = bench.pipeline.dataset._variant_tensor
    graph = tf.compat.v1.GraphDef.FromString(tf.raw_ops.DatasetToGraphV2(input_dataset=variant).numpy())
    ops = {n.op for n in graph.node} | {n.op for f in graph.library.function for n in f.node_def}
    assert ops & {"ParseExampleV2", "ParseExampleDatasetV2"}  # parsing is on the host, in the pipeline
    assert not [op for op in ops if "PyFunc" in op]
    assert "PrefetchDataset" in {n.op for n in graph.node}


@pytest.mark.parametrize("size,batch", [(10, 8), (1, 8), (64, 64), (65, 64)])
def test_no_row_is_dropped_and_padding_counts_for_nothing(tmp_path, size, batch):
    # Case 36: 10 rows in batches of 8 are 10 rows, not 8 and not 16.
    rows = [{"label": 1, "score": 0.5, "weight": 2.0, "pay": "Cash", "hour": 1} for _ in range(size)]
    made.examples(tmp_path / "examples", rows)
    made.model(tmp_path / "model", made.Named())
    for how in ({}, {"dense": True}):
        bench = Bench(tmp_path, 2, batch, **how)
        bench.pipeline.aim((shards.Range(0),))
        for batch_of in bench.pipeline.dataset:
            padding = batch_of["count"].numpy() == 0
            assert not batch_of["weight_0"].numpy()[padding].any()
            assert (batch_of["slots"].numpy()[padding] == -1).all()
            assert len(padding) == 128
        state = bench.state()
        examples = state.slices[OVERALL][0][0]
        assert examples[0] == size and examples[1 + REAL.index(0)] == 2 * size


def test_partial_sums_are_32_bit_and_stay_below_2_to_the_24(monkeypatch):
    # As many rows as there may be, each with every limb as large as can be, all in one bin.
    summed = []
    segment_sum = tf.math.unsorted_segment_sum

    def noted(values, *rest):
        found = segment_sum(values, *rest)
        summed.append((found.dtype, int(tf.reduce_max(tf.abs(found)))))
        return found

    monkeypatch.setattr(tf.math, "unsorted_segment_sum", noted)
    rows, most = accumulate.DENSE_ROWS, 2**32 - 1
    limbs = tf.fill([rows, 5], tf.constant(-most, tf.int64))
    batch = {
        "count": tf.ones([rows], tf.int64),
        "position": tf.zeros([rows], tf.int64),
        "hash": tf.zeros([rows], tf.int64),
        "slots": tf.zeros([rows, 1], tf.int64),
    }
    leaves = (Leaf("examples", 1, (Column("x", REAL),)),)
    found = accumulate.dense(leaves, batch, [Contribution(None, limbs)], batch["hash"], 1, 1)
    assert found["flat"].numpy().tolist() == [[-most * rows] * 5]
    assert found["rows"].numpy().tolist() == [rows]
    assert {dtype for dtype, _ in summed} == {tf.int32}
    assert max(value for _, value in summed) < 2**24


def test_more_rows_than_32_bit_sums_hold_are_refused(tmp_path):
    with pytest.raises(Exception, match=r"batch_size is 65537; strategy tpu takes at most 65536"):
        Execution(strategy="tpu", batch_size=accumulate.DENSE_ROWS + 1)
