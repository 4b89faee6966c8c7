"""Several processes on one evaluation: each leases shards until all are finished, the chief merges them.

They share the state folder and nothing else; nobody waits for a collective, and whoever dies is replaced
by whoever is left. Runs on the host.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from assay import storage
from assay.leases import BEATS, Leases
from assay.ledger import Ledger
from assay.shards import Shard
from assay.spec import DataError
from assay.state import State, merge

log = logging.getLogger("assay")

MOST_POLL = 1.0  # seconds

Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class Output:
    """Where artifacts go, as far as the processes that share the work have to know.

    seat: names it; of the processes with one seat one is the chief. terms: whatever a verdict depends on
    besides the States. begin: called where this process is the chief, with whether the artifacts of this very
    evaluation are there; resign: where it no longer is, because it was taken for dead.
    """

    seat: str
    terms: str
    begin: Callable[[bool], None]
    resign: Callable[[], None]


def run(
    ledger: Ledger,
    output: Output,
    evaluate: Callable[[Shard], State],
    conclude: Callable[[State], Outcome],
    *,
    is_chief: bool | None,
    lease_seconds: float,
) -> Outcome | None:
    """Returns what `conclude` makes of all States on the chief; None in the other processes.

    is_chief: None where nobody is named; then it is the first process to come with this output and,
    should that die, the next to notice.

    Raises:
      DataError: the data cannot be evaluated, as this process or another one found; or the folder is gone.
    """
    known = ledger.failures()
    poll = min(MOST_POLL, lease_seconds / BEATS)

    def heed() -> None:
        for name in sorted(ledger.failures() - known):
            raise DataError(ledger.failure(name))

    with Leases(ledger.folder, lease_seconds) as leases:
        chief, joined = bool(is_chief), False
        try:
            if is_chief is None:
                chief = leases.take(output.seat)
            joined = True
            if chief:
                output.begin(ledger.is_done(output.seat, output.terms))
            while True:
                _work(ledger, evaluate, leases, heed, poll)
                if is_chief is None and not chief:
                    chief = _succeed(ledger, output, leases, heed, poll)
                elif is_chief is None and not leases.holds(output.seat):
                    output.resign()
                    chief = False
                if not chief:
                    log.info("all shards are finished; the chief writes the artifacts")
                    return None
                total = _merged(ledger)
                if total is not None:
                    outcome = conclude(total)
                    ledger.finish(output.seat, output.terms)
                    return outcome
        except BaseException as error:
            if isinstance(error, Exception) and not ledger.exists():
                if joined and not chief:
                    log.info("the evaluation is over; its state folder has been removed")
                    return None
                raise DataError(f"{ledger.folder} was removed while it was in use") from error
            if chief and is_chief is None and not leases.holds(output.seat):
                output.resign()
            raise


def _succeed(ledger: Ledger, output: Output, leases: Leases, heed: Callable[[], None], poll: float) -> bool:
    """Waits for the chief; returns whether it died and this process has taken its place."""
    while not ledger.is_done(output.seat, output.terms):
        heed()
        if leases.take(output.seat):
            # It may have finished between the look and the lease.
            if ledger.is_done(output.seat, output.terms):
                leases.release(output.seat)
                return False
            log.info("the chief is gone; this process takes its place")
            output.begin(False)
            return True
        time.sleep(poll)
    return False


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
        # One look at the folder serves all shards: listing is slow on object stores.
        listing = storage.names(ledger.folder)
        finished = ledger.finished(listing)
        missing = [number for number in range(len(ledger.shards)) if number not in finished]
        if not missing:
            return
        taken = next((number for number in missing if leases.take(_name(number), listing)), None)
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
