"""The step in a Beam pipeline: loaded once a worker, spread, its failures told; the merge as a CombineFn."""

from __future__ import annotations

import apache_beam as beam
import made
import numpy as np
import pytest
import sums
from apache_beam.testing.util import assert_that, equal_to
from fleets import MULTI, dask_cluster, dask_options

import assay
from assay import fleet, ledger
from assay.fleet import MergeStates, StateCoder
from assay.request import Execution
from assay.spec import DataError
from assay.state import State, merge, to_bytes

METRICS = ("ExampleCount", "MeanPrediction", "BinaryCrossentropy")


def parts(count: int = 6) -> list[State]:
    metric = sums.metric("AUC")
    return [sums.state(metric, *sums.rows("binary", 20 + n, n)) for n in range(count)]


def test_the_combine_is_the_merge():
    states = parts()
    total = states[0]
    for state in states[1:]:
        total = merge(total, state)
    with beam.Pipeline() as pipeline:
        found = (
            pipeline
            | beam.Create(states)
            | beam.CombineGlobally(MergeStates()).without_defaults()
            | beam.Map(to_bytes)
        )
        assert_that(found, equal_to([to_bytes(total)]))


def test_accumulators_that_saw_nothing_add_nothing():
    combine, (one, other) = MergeStates(), parts(2)
    zero = combine.create_accumulator()
    total = combine.merge_accumulators([zero, combine.add_input(zero, one), zero, other])
    assert to_bytes(combine.extract_output(total)) == to_bytes(merge(one, other))
    assert combine.extract_output(combine.merge_accumulators([zero])) is None


def test_states_travel_encoded():
    coder = beam.coders.registry.get_coder(State)
    assert isinstance(coder, StateCoder) and coder.is_deterministic()
    (one,) = parts(1)
    assert to_bytes(coder.decode(coder.encode(one))) == to_bytes(one)
    assert coder.decode(coder.encode(None)) is None
    assert isinstance(MergeStates().get_accumulator_coder(), StateCoder)


@pytest.fixture
def given(tmp_path):
    rows = [{"label": i % 2, "score": (i * 37 % 101) / 101} for i in range(200)]
    for n in range(10):
        made.write(tmp_path / "examples" / f"{n}.gz", rows[n * 20 : n * 20 + 20])
    made.model(tmp_path / "model")
    return tmp_path


def evaluate(given, *options: str, **more):
    return assay.evaluate(
        examples=str(given / "examples"),
        model=str(given / "model"),
        eval_config=made.config(*METRICS),
        output=str(given / "output"),
        execution=Execution(runner="beam", beam_options=options, state_dir=str(given / "state"), **more),
    )


@pytest.mark.parametrize("options", [(), MULTI], ids=["in memory", "multi_processing"])
def test_models_are_loaded_once_a_process(given, monkeypatch, options):
    made_pipelines = []
    create = fleet.make_pipeline

    def noted(given_options):
        made_pipelines.append(create(given_options))
        return made_pipelines[-1]

    results = []
    wait = fleet._wait
    monkeypatch.setattr(fleet, "make_pipeline", noted)
    monkeypatch.setattr(fleet, "_wait", lambda result: (results.append(result), wait(result)))
    outcome = evaluate(given, *options)
    assert made.values(outcome)["example_count"] == 200.0
    assert outcome.report.execution["shards"] == 10
    counters = results[-1].metrics().query()["counters"]
    loaded = {c.key.metric.name: c.committed for c in counters if c.key.metric.namespace == "assay"}
    # In memory Beam works in this process, which has them already.
    assert loaded.get("engines", 0) == (2 if options else 0)


def test_a_row_that_fails_is_named_whatever_the_runner_makes_of_errors(given):
    rows = [{"label": 1, "score": 0.5}] * 5 + [{"label": None, "score": 0.5}]
    made.write(given / "examples" / "4.gz", rows)
    for options in ((), MULTI):
        with pytest.raises(DataError, match=r"4\.gz: record 5 has no label$"):
            evaluate(given, *options)
        assert not (given / "output" / "report.json").exists()


def test_a_failure_on_dask_is_named_too(given):
    made.write(given / "examples" / "4.gz", [{"label": 1, "score": 0.5}, {"label": None, "score": 0.5}])
    with dask_cluster() as address, pytest.raises(DataError, match=r"4\.gz: record 1 has no label$"):
        evaluate(given, *dask_options(address))


def test_a_worker_of_another_version_is_refused(given, monkeypatch):
    monkeypatch.setattr(fleet, "_shared", lambda request, engine: fleet.contextlib.nullcontext())
    monkeypatch.setattr(fleet, "version", lambda device: f"assay 9.9.9, {device}")
    with pytest.raises(
        DataError, match=r"this worker runs assay 9.9.9, CPU, and the evaluation was started by"
    ):
        evaluate(given)


def test_a_pipeline_of_ones_own(given):
    evaluate(given)
    (folder,) = (given / "state").iterdir()
    book = ledger.at(str(folder))
    with beam.Pipeline() as pipeline:
        rows = (
            pipeline
            | beam.Create(range(len(book.shards)))
            | beam.ParDo(fleet.EvaluateShard("never read: all shards are finished", book.folder))
            | beam.CombineGlobally(fleet.MergeStates()).without_defaults()
            | beam.Map(lambda state: int(np.sum(list(state.rows_counted.values()))))
        )
        assert_that(rows, equal_to([200]))


def test_workers_that_cannot_reach_the_state_folder_are_told_of(given, monkeypatch):
    monkeypatch.setattr(fleet, "_write", lambda state, path: None)
    with pytest.raises(DataError, match="the state folder has to be one that all workers reach"):
        evaluate(given)
