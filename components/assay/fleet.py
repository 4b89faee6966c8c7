"""The same step in an Apache Beam pipeline, on any runner, and the same merge as a CombineFn.

Beam's elements are shards, not rows: each worker process loads the models once and folds a shard with
its own devices, in batches that Beam has no say in. `run` is what `--runner beam` does; `EvaluateShard`
and `MergeStates` are for a pipeline of your own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from assay import storage
from assay.engine import Engine
from assay.eval_config import read, to_spec
from assay.identity import version
from assay.ledger import Ledger, at, identity_at
from assay.question import ask
from assay.request import Request
from assay.spec import DataError, RequestError
from assay.state import State, from_bytes, merge, to_bytes

MERGED = "merged"

_engines: dict[str, Engine] = {}
_lock = threading.Lock()  # runners may process several elements at once, and the devices are the same


class StateCoder(beam.coders.Coder):
    """States between Beam's workers: encoded as in the state folder; nothing is the empty one."""

    def encode(self, value: State | None) -> bytes:
        """Returns the bytes of a State, b"" for None."""
        return b"" if value is None else to_bytes(value)

    def decode(self, encoded: bytes) -> State | None:
        """Returns the State in bytes made by `encode`."""
        return from_bytes(encoded) if encoded else None

    def is_deterministic(self) -> bool:
        """Equal States have equal bytes."""
        return True


beam.coders.registry.register_coder(State, StateCoder)


class EvaluateShard(beam.DoFn):
    """Shard numbers of a ledger to their States; a State that lies in the ledger already is taken from it.

    request: as JSON; its paths and the ledger's folder have to be reached by every worker.
    """

    def __init__(self, request: str, folder: str) -> None:
        self._request = request
        self._folder = folder

    def process(self, number: int) -> Iterable[State]:
        """Yields the State of one shard.

        Raises:
          DataError: its rows cannot be evaluated; or this worker has another version than the launcher.
        """
        ledger = at(self._folder)
        state = ledger.load(number)
        if state is None:
            try:
                with _lock:
                    engine = _engine(self._request, self._folder)
                    state = engine.evaluate(ledger.shards[number])
                for text in engine.notes:
                    ledger.note(text)
            except DataError as error:
                ledger.fail(str(error))
                raise
            ledger.save(number, state)
        yield state


class MergeStates(beam.CombineFn):
    """The one merge, as Beam's."""

    def create_accumulator(self) -> State | None:
        """Returns the zero."""
        return None

    def add_input(self, accumulator: State | None, state: State) -> State:
        """Returns the merge of both."""
        return state if accumulator is None else merge(accumulator, state)

    def merge_accumulators(self, accumulators: Iterable[State | None]) -> State | None:
        """Returns the merge of all."""
        total = None
        for one in accumulators:
            if one is not None:
                total = self.add_input(total, one)
        return total

    def extract_output(self, accumulator: State | None) -> State | None:
        """Returns the State."""
        return accumulator

    def get_accumulator_coder(self) -> beam.coders.Coder:
        """Returns the coder of States."""
        return StateCoder()


def run(ledger: Ledger, request: Request, engine: Engine, options: Sequence[str]) -> State:
    """Returns the State of all rows, from a Beam pipeline over the ledger's shards. Host.

    engine: this process's, used where Beam works in this process.

    Raises:
      RequestError: there is no such runner, or an option has no value.
      DataError: a worker found that the rows cannot be evaluated.
      Exception: whatever the runner raises.
    """
    # Workers may stand in another folder.
    ledger = Ledger(_absolute(ledger.folder), ledger.shards)
    path = os.path.join(ledger.folder, f"{MERGED}-{uuid.uuid4().hex}")
    text = dataclasses.replace(
        request,
        examples=tuple(map(_absolute, request.examples)),
        model=_absolute(request.model),
        baseline=_absolute(request.baseline),
        transform_graph=_absolute(request.transform_graph),
        schema=_absolute(request.schema),
    ).to_json()
    known = ledger.failures()
    with _shared(text, engine):
        pipeline = make_pipeline(options)
        # One chain: some runners (Dask) run only what was added last.
        (
            pipeline
            | "Shards" >> beam.Create(range(len(ledger.shards)))
            | "Spread" >> beam.Reshuffle()
            | "Evaluate" >> beam.ParDo(EvaluateShard(text, ledger.folder)).with_output_types(State)
            | "Merge" >> beam.CombineGlobally(MergeStates()).without_defaults()
            | "Write" >> beam.Map(_write, path)
        )
        try:
            _wait(pipeline.run())
        except Exception as error:
            for name in sorted(ledger.failures() - known):
                raise DataError(ledger.failure(name)) from error
            raise
    merged = storage.read(path)
    if merged is None:
        raise DataError(
            f"the Beam pipeline ended without {path}; the state folder has to be one that all workers reach"
        )
    storage.remove(path)
    return from_bytes(merged)


def _absolute(path: str) -> str:
    return path if not path or "://" in path else os.path.abspath(path)


def make_pipeline(options: Sequence[str]) -> beam.Pipeline:
    """Returns an empty pipeline with these options.

    Raises:
      RequestError: there is no such runner, or an option has a value that it cannot have.
    """
    said = io.StringIO()
    try:
        parsed = PipelineOptions(list(options))
        with contextlib.redirect_stderr(said):
            parsed.get_all_options()  # now, and not when the pipeline is already running
        # The runner is named beside the options, which Dask's hands on to its client.
        standard = parsed.view_as(StandardOptions)
        runner, standard.runner = standard.runner, None
        return beam.Pipeline(runner=runner, options=parsed)
    except ValueError as error:
        why = str(error)
    except SystemExit:  # of Beam's argument parser, which says why in the last line of its usage
        why = said.getvalue().rpartition("error: ")[2].strip()
    raise RequestError(f"Beam does not take the options {' '.join(options)}: {why}")


def _wait(result: Any) -> None:
    """Waits for the end of a pipeline, and raises what it raised."""
    if not (hasattr(result, "client") and hasattr(result, "futures")):
        result.wait_until_finish()
        return
    # Dask: Beam 2.61's own wait calls its client without an argument that it has to have, and a client
    # that stays open keeps the results of this pipeline for the next one that looks the same.
    try:
        result.client.gather(result.futures)
    finally:
        result.client.close()


def _write(state: State, path: str) -> None:
    storage.write_whole(path, to_bytes(state))


@contextlib.contextmanager
def _shared(request: str, engine: Engine) -> Iterator[None]:
    _engines[request] = engine
    try:
        yield
    finally:
        _engines.pop(request, None)


def _engine(text: str, folder: str) -> Engine:
    """This process's engine for a request, loaded once."""
    if text not in _engines:
        _engines.clear()  # one set of models at a time
        request = Request.from_json(text)
        spec = to_spec(read(request.eval_config), has_baseline=bool(request.baseline))
        engine = Engine(request, spec, ask(spec, spec.models))
        asked, own = identity_at(folder)["version"], version(engine.device)
        if asked != own:
            raise DataError(f"this worker runs {own}, and the evaluation was started by {asked}")
        beam.metrics.Metrics.counter("assay", "engines").inc()
        _engines[text] = engine
    return _engines[text]
