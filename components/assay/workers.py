"""Several processes on one evaluation: each leases shards until all are finished, the chief merges them.

They share the state folder and nothing else; nobody waits for a collective, and whoever dies is replaced
by whoever is left. Runs on the host.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from assay import storage
from assay.leases import BEATS, Leases
from assay.ledger import Ledger
from assay.shards import Shard
from assay.spec import DataError
from assay.state import State, merge

log = logging.getLogger("assay")

CHIEF = "chief"
MOST_POLL = 1.0  # seconds

Outcome = TypeVar("Outcome")


def run(
    ledger: Ledger,
    evaluate: Callable[[Shard], State],
    begin: Callable[[], None],
    conclude: Callable[[State], Outcome],
    resign: Callable[[], None],
    *,
    is_chief: bool | None,
    lease_seconds: float,
) -> Outcome | None:
    """Returns what `conclude` makes of all States on the chief; None in the other processes.

    is_chief: None where nobody is named; then it is the first process to come and, should that die, the
    next to notice. begin: called where this process is the chief, before it evaluates; resign: where it no
    longer is, because it was taken for dead.

    Raises:
      DataError: the data cannot be evaluated, as this process or another one found; or the folder is gone.
    """
    known = ledger.failures()
    poll = min(MOST_POLL, lease_seconds / BEATS)

    def heed() -> None:
        for name in sorted(ledger.failures() - known):
            raise DataError(ledger.failure(name))

    with Leases(ledger.folder, lease_seconds) as leases:
        chief = bool(is_chief)
        try:
            if is_chief is None:
                chief = leases.take(CHIEF)
            if chief:
                begin()
                storage.remove(ledger.done)
            while True:
                _work(ledger, evaluate, leases, heed, poll)
                if is_chief is None and not chief:
                    # Ends once the chief has written, or in its place.
                    while storage.read(ledger.done) is None and not (chief := leases.take(CHIEF)):
                        heed()
                        time.sleep(poll)
                    if chief:
                        log.info("the chief is gone; this process takes its place")
                        begin()
                if not chief or (is_chief is None and not leases.holds(CHIEF)):
                    if chief:
                        resign()
                    log.info("all shards are finished; the chief writes the artifacts")
                    return None
                total = _merged(ledger)
                if total is not None:
                    outcome = conclude(total)
                    storage.write_whole(ledger.done, "done")
                    return outcome
        except BaseException as error:
            if isinstance(error, Exception) and not ledger.exists():
                if not chief:
                    log.info("the evaluation is over; its state folder has been removed")
                    return None
                raise DataError(f"{ledger.folder} was removed while it was in use") from error
            if chief and is_chief is None and not leases.holds(CHIEF):
                resign()
            raise


def _work(
    ledger: Ledger,
    evaluate: Callable[[Shard], State],
    leases: Leases,
    heed: Callable[[], None],
    poll: float,
) -> None:
    """Evaluates what can be leased, until every shard is finished."""
    while True:
        heed()
        finished = ledger.finished()
        missing = [number for number in range(len(ledger.shards)) if number not in finished]
        if not missing:
            return
        taken = next((number for number in missing if leases.take(_name(number))), None)
        if taken is None:
            time.sleep(poll)
            continue
        try:
            # It may have been finished between the listing and the lease.
            if taken not in ledger.finished():
                ledger.save(taken, evaluate(ledger.shards[taken]))
        except DataError as error:
            ledger.fail(str(error))
            raise
        finally:
            leases.release(_name(taken))


def _name(number: int) -> str:
    return f"{number:05d}"


def _merged(ledger: Ledger) -> State | None:
    """The merge of every shard's State, each once; None if one was damaged."""
    total = None
    for number in range(len(ledger.shards)):
        state = ledger.load(number)
        if state is None:
            return None
        total = state if total is None else merge(total, state)
    return total
