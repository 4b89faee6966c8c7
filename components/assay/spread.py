"""How the shards become one State: by this process alone, by several with a state folder, or by Beam.

Runs on the host; decides, and leaves the doing to `engine`, `workers` and `fleet`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from assay import ledger, shards, workers
from assay.cluster import Part, Task
from assay.engine import Engine
from assay.examples import reason
from assay.identity import identity
from assay.leases import Leases
from assay.ledger import Ledger
from assay.progress import Progress
from assay.request import Request
from assay.shards import Shard
from assay.spec import RequestError
from assay.state import State, merge
from assay.text import count

log = logging.getLogger("assay")

FLEET = 8  # shards that a Beam fleet finds at least, whatever its size
FEW = 2  # workers for whom shards are cut where nobody says how many will come

Outcome = TypeVar("Outcome")


def spread(
    request: Request,
    config: Any,
    own: Task,
    engine: Engine,
    part: Part,
    show: Progress,
    begin: Callable[[bool], None],
    conclude: Callable[[State, Sequence[str]], Outcome],
) -> Outcome | None:
    """Returns what `conclude` makes of the State of all rows; None where another process does so.

    config: the normalised EvalConfig; own: this process's task; part: what it did, written down here;
    begin: called before this process evaluates, where it is the one that will conclude, with whether the
    artifacts of this very evaluation are there; conclude: takes the State and the notes of all processes.

    Raises:
      RequestError: the state folder cannot be used, or Beam cannot.
      DataError: the data cannot be evaluated.
    """
    execution, state_dir = request.execution, request.state_dir
    is_shared = bool(execution.state_dir) or own.is_chief is not None
    by_beam = execution.runner == "beam"
    few = FEW if execution.state_dir or execution.resume else 1
    cut = shards.cut(engine.files, engine.records.mean_bytes, FLEET if by_beam else max(own.workers, few))
    part.shards = len(cut)

    def evaluate(shard: Shard) -> State:
        started = time.perf_counter()
        state = engine.evaluate(shard, show)
        part.add(time.perf_counter() - started, sum(state.rows_counted.values()))
        show.finished(sum(state.rows_counted.values()))
        return state

    if not state_dir or (len(cut) == 1 and not is_shared and not by_beam):
        begin(False)
        return conclude(functools.reduce(merge, map(evaluate, cut), State(engine.leaves)), ())
    if not is_shared and not execution.resume:
        try:
            ledger.clear(state_dir)
        except RequestError:
            part.writes = False  # the output is that of the other evaluation, which works on it
            raise
    if by_beam:
        _fleet().make_pipeline(execution.beam_options)
    book = _open(request, config, engine, cut)
    part.shards, part.found = len(book.shards), len(book.finished())
    if part.found:
        log.info("%d of %s found finished in %s", part.found, count(part.shards, "shard"), book.folder)
    part.writes = part.writes and by_beam
    if by_beam:
        begin(False)
        outcome: Outcome | None = conclude(_by_beam(request, engine, part, book), book.notes())
    else:

        def evaluate_and_tell(shard: Shard) -> State:
            state = evaluate(shard)
            for text in engine.notes:
                book.note(text)
            return state

        outcome = workers.run(
            book,
            workers.Output(
                seat=_seat(request.report),
                terms=repr(request.policy),
                begin=begin,
                resign=functools.partial(setattr, part, "writes", False),
            ),
            evaluate_and_tell,
            lambda state: conclude(state, book.notes()),
            is_chief=own.is_chief,
            lease_seconds=execution.lease_seconds,
        )
    if not is_shared:
        with contextlib.suppress(RequestError):  # a helper may still be there, and the next run clears
            ledger.clear(state_dir)
    return outcome


def _seat(output: str) -> str:
    """Names an output: processes that write to one place have one chief; without any each is its own."""
    place = output if "://" in output else os.path.abspath(output)
    return f"chief-{hashlib.sha256(place.encode()).hexdigest()[:12] if output else uuid.uuid4().hex}"


def _open(request: Request, config: Any, engine: Engine, cut: Sequence[Shard]) -> Ledger:
    asked = identity(request, config, engine.files, engine.stale, engine.device)
    try:
        return ledger.open_ledger(request.state_dir, asked, cut, request.execution.lease_seconds)
    except (OSError, tf.errors.OpError) as error:
        raise RequestError(f"state_dir: {request.state_dir} cannot be used: {reason(error)}") from error


def _fleet() -> Any:
    try:
        from assay import fleet
    except ImportError as error:
        raise RequestError(
            f"runner beam needs Apache Beam: pip install 'tfx-assay[beam]' ({error})"
        ) from error
    return fleet


def _by_beam(request: Request, engine: Engine, part: Part, book: Ledger) -> State:
    started = time.perf_counter()
    with Leases(book.folder, request.execution.lease_seconds) as leases:
        leases.take(f"beam-{uuid.uuid4().hex}")  # nobody wants it: a sign that the folder is in use
        state: State = _fleet().run(book, request, engine, request.execution.beam_options)
    if not part.found:  # else some rows were found counted, and this is no speed
        part.add(time.perf_counter() - started, sum(state.rows_counted.values()))
    return state
