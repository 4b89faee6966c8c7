"""The state folder: which shards there are, and the State of each that is finished.

    STATE_DIR/IDENTITY/shards.json      what is evaluated, and the shards
                       00007.state      a finished shard
                       00007.lease-1    who works on it (`leases`)
                       failed-…         why a worker gave up for all
                       note-…           what the report should say of a worker
                       done-…           the artifacts of an output are written

A shard has one file, whoever made it and however often: it cannot be counted twice. Host.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from assay import storage
from assay.leases import LEASE, is_at_work
from assay.shards import Range, Shard
from assay.spec import DataError, RequestError
from assay.state import State, from_bytes, to_bytes

log = logging.getLogger("assay")

LIST, DONE, STATE, FAILED, NOTE = "shards.json", "done-", ".state", "failed-", "note-"
SLACK = 60.0  # seconds that clocks of several machines may be apart
WAIT = 10.0  # seconds in which whoever creates a small file has written it


@dataclass(frozen=True)
class Ledger:
    """One evaluation's folder, and its shards."""

    folder: str
    shards: tuple[Shard, ...]

    def exists(self) -> bool:
        """Returns whether the folder is still there; another evaluation may have found it void."""
        return storage.read(os.path.join(self.folder, LIST)) is not None

    def finished(self, listing: Sequence[str] | None = None) -> set[int]:
        """Returns the numbers of the shards whose State is there; listing: the names in the folder."""
        found = set(storage.names(self.folder) if listing is None else listing)
        return {n for n in range(len(self.shards)) if os.path.basename(self._path(n)) in found}

    def save(self, number: int, state: State) -> None:
        """Writes a shard's State, whole or not at all, with a line that says which shard's it is."""
        storage.write_whole(self._path(number), self._stamp(number) + to_bytes(state))

    def load(self, number: int) -> State | None:
        """Returns a shard's State; None where it is not there, or is damaged or another's and removed."""
        data = storage.read(self._path(number))
        if data is None:
            return None
        stamp = self._stamp(number)
        try:
            if not data.startswith(stamp):
                raise ValueError("another shard's")
            return from_bytes(data[len(stamp) :])
        except ValueError:
            log.warning("%s is damaged; the shard is evaluated again", self._path(number))
            storage.remove(self._path(number))
            return None

    def _stamp(self, number: int) -> bytes:
        ranges = [[r.file, r.start, r.stop] for r in self.shards[number].ranges]
        return json.dumps([os.path.basename(self.folder), number, ranges]).encode() + b"\n"

    def fail(self, message: str) -> None:
        """Tells all processes that the data cannot be evaluated."""
        storage.write_whole(os.path.join(self.folder, FAILED + uuid.uuid4().hex), message)

    def failures(self) -> set[str]:
        """Returns the names of all failures told so far, of earlier runs, too."""
        return {name for name in storage.names(self.folder) if name.startswith(FAILED)}

    def failure(self, name: str) -> str:
        """Returns the message of a failure."""
        return (storage.read(os.path.join(self.folder, name)) or b"").decode()

    def note(self, text: str) -> None:
        """Leaves a note for the report; the same one twice is one."""
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        storage.write_whole(os.path.join(self.folder, NOTE + digest), text)

    def notes(self) -> list[str]:
        """Returns the notes of all processes, sorted."""
        found = [name for name in storage.names(self.folder) if name.startswith(NOTE)]
        return sorted((storage.read(os.path.join(self.folder, n)) or b"").decode() for n in found)

    def finish(self, seat: str, terms: str) -> None:
        """Tells that the artifacts of an output are written, on these terms."""
        storage.write_whole(os.path.join(self.folder, DONE + seat), terms)

    def is_done(self, seat: str, terms: str) -> bool:
        """Returns whether the artifacts of an output are written, on these terms."""
        return storage.read(os.path.join(self.folder, DONE + seat)) == terms.encode()

    def _path(self, number: int) -> str:
        return os.path.join(self.folder, f"{number:05d}{STATE}")


def open_ledger(
    state_dir: str, identity: Mapping[str, str], shards: Sequence[Shard], lease_seconds: float
) -> Ledger:
    """Returns the ledger of an evaluation, with the shards as the first process cut them.

    Says which other evaluations the state folder holds, in what they differ, and removes those on which
    nobody has worked for `lease_seconds`.

    Raises:
      OSError, tf.errors.OpError: the folder cannot be written.
      DataError: the list of shards cannot be read.
    """
    import tensorflow as tf

    own = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    folder = os.path.join(state_dir, own)
    tf.io.gfile.makedirs(folder)
    for name in storage.names(state_dir):
        if name != own:
            _void(os.path.join(state_dir, name), identity, lease_seconds)
    path = os.path.join(folder, LIST)
    storage.create(path, _list(identity, shards))
    return Ledger(folder, _read(path)[1])


def clear(state_dir: str) -> None:
    """Removes every ledger in a state folder, and the folder if nothing else is in it.

    Raises:
      RequestError: another process of this machine works on one.
    """
    for name in storage.names(state_dir):
        folder = os.path.join(state_dir, name)
        if storage.read(os.path.join(folder, LIST)) is None:
            continue
        if is_at_work(folder):
            raise RequestError(
                f"another evaluation works in {state_dir}; wait for it, give each an output of its own, or "
                "both the same state_dir, and they share the work"
            )
        storage.remove_folder(folder)
    if not storage.names(state_dir):
        storage.remove_folder(state_dir)


def at(folder: str) -> Ledger:
    """Returns the ledger that another process has opened.

    Raises:
      DataError: the list of shards cannot be read.
    """
    return Ledger(folder, _read(os.path.join(folder, LIST))[1])


def identity_at(folder: str) -> Mapping[str, str]:
    """Returns the identity of the evaluation whose ledger lies in a folder.

    Raises:
      DataError: it cannot be read.
    """
    return _read(os.path.join(folder, LIST))[0]


def _list(identity: Mapping[str, str], shards: Sequence[Shard]) -> bytes:
    cut = [{"bytes": s.bytes, "ranges": [[r.file, r.start, r.stop] for r in s.ranges]} for s in shards]
    return json.dumps({"identity": dict(identity), "shards": cut}, indent=1).encode()


def _read(path: str) -> tuple[dict[str, str], tuple[Shard, ...]]:
    until = time.monotonic() + WAIT
    while True:
        try:
            record = json.loads(storage.read(path) or b"")
            cut = (Shard(tuple(Range(*r) for r in s["ranges"]), s["bytes"]) for s in record["shards"])
            return record["identity"], tuple(cut)
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            # Another process may be writing it.
            if time.monotonic() > until:
                raise DataError(f"{path} cannot be read; remove the folder it lies in") from error
            time.sleep(0.05)


def _void(folder: str, identity: Mapping[str, str], lease_seconds: float) -> None:
    """Says why a folder's States are of no use here, and removes them if nobody else has any."""
    import tensorflow as tf

    try:
        other = dict(json.loads(storage.read(os.path.join(folder, LIST)) or b"")["identity"])
    except (ValueError, KeyError, TypeError, tf.errors.OpError):
        return  # not one of ours
    differ = [name for name in identity if identity[name] != other.get(name)]
    names = storage.names(folder)
    is_done = any(name.startswith(DONE) for name in names)
    alive = [name for name in names if LEASE in name or not is_done]
    renewed = 0.0
    for name in alive:
        try:
            renewed = max(renewed, tf.io.gfile.stat(os.path.join(folder, name)).mtime_nsec / 1e9)
        except tf.errors.NotFoundError:
            continue
    in_use = time.time() - renewed < lease_seconds + SLACK
    changed = " and ".join(name + (" has" if len(differ) == 1 else "") for name in differ)
    log.info(
        "the state in %s is void: %s changed; it is %s",
        folder,
        changed + ("" if len(differ) == 1 else " have"),
        "left, since a process may still work on it" if in_use else "removed",
    )
    if not in_use:
        storage.remove_folder(folder)
