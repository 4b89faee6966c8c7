"""Leases in a folder: who works on what, without a server, a clock in common, or locks of the dead.

A lease is a file that its owner rewrites every few seconds. Whoever wants it and finds it unchanged
for long enough, by its own clock, takes it over; where the owner was a process of this machine and is
gone, at once. Leases spare work, they do not guard results: if two processes ever hold one (object
stores, a suspended process), both make the same shard's State, and it is still one file. Host.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from assay import storage

log = logging.getLogger("assay")

LEASE = ".lease-"  # in the name of a lease's file, before the number of its term
BEATS = 5  # renewals in the time after which a lease may be taken over


class Leases:
    """The leases of this process in one folder. A context: leaving it gives all of them back.

    seconds: after so long without a renewal a lease may be taken over.
    """

    def __init__(self, folder: str, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        self._me = {"owner": uuid.uuid4().hex, **_process()}
        self._held: dict[str, int] = {}
        self._seen: dict[str, tuple[bytes, float]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="assay leases", daemon=True)
        self._beat = 0

    def __enter__(self) -> Leases:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        for name in list(self._held):
            self.release(name)

    def take(self, name: str, listing: Sequence[str] | None = None) -> bool:
        """Returns whether this process now holds the lease: it was free, or its owner is dead.

        listing: the names in the folder, where the caller has just looked.

        Raises:
          OSError, tf.errors.OpError: the folder cannot be written.
        """
        with self._lock:
            names = storage.names(self._folder) if listing is None else listing
            term = max(_terms(names, name), default=0)
            if term and not self._is_dead(self._path(name, term)):
                return False
            # The next term is created, never the last one overwritten: only one of two takers can.
            if not storage.create(self._path(name, term + 1), self._text()):
                return False
            self._held[name] = term + 1
            return True

    def holds(self, name: str) -> bool:
        """Returns whether a lease that this process took is still its own."""
        return self._held.get(name) == max(_terms(storage.names(self._folder), name), default=0)

    def release(self, name: str) -> None:
        """Gives a lease back."""
        with self._lock:
            last = self._held.pop(name)
            for term in _terms(storage.names(self._folder), name):
                if term <= last:
                    storage.remove(self._path(name, term))

    def _path(self, name: str, term: int) -> str:
        return os.path.join(self._folder, f"{name}{LEASE}{term}")

    def _text(self) -> bytes:
        self._beat += 1
        return json.dumps({**self._me, "beat": self._beat}).encode()

    def _renew(self) -> None:
        while not self._stop.wait(self._seconds / BEATS):
            try:
                with self._lock:
                    names = storage.names(self._folder)
                    for name, term in self._held.items():
                        if term == max(_terms(names, name), default=0):
                            storage.write_whole(self._path(name, term), self._text())
            except Exception as error:  # storage that fails now may not fail in a second
                log.warning("a lease in %s could not be renewed: %s", self._folder, error)

    def _is_dead(self, path: str) -> bool:
        text = storage.read(path)
        if text is None:
            return False
        now = time.monotonic()
        last, since = self._seen.get(path, (b"", now))
        if text != last:
            since = now
        self._seen[path] = text, since
        return now - since > self._seconds or _is_gone(text)


def _terms(names: Sequence[str], name: str) -> list[int]:
    start = f"{name}{LEASE}"
    ends = (found[len(start) :] for found in names if found.startswith(start))
    return [int(end) for end in ends if end.isdigit()]


def is_at_work(folder: str) -> bool:
    """Returns whether a process of this machine that is still there holds a lease in a folder."""
    for name in storage.names(folder):
        text = storage.read(os.path.join(folder, name)) if LEASE in name else None
        if text and _place() in text.decode() and not _is_gone(text):
            return True
    return False


def _process() -> dict[str, str]:
    """What tells this process from all others of the machine and, with their names, of all machines."""
    pid = str(os.getpid())
    return {"place": _place(), "pid": pid, "started": _started(pid)}


def _place() -> str:
    try:
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return uuid.uuid4().hex  # no way to tell: nobody's process is here


def _started(pid: str) -> str:
    """When a process of this machine started, in ticks; "" where it is not there or has ended."""
    try:
        # The name in parentheses may hold anything; state and start time come behind it.
        fields = Path("/proc", pid, "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _is_gone(text: bytes) -> bool:
    """Whether a lease's owner was a process of this machine that has ended."""
    try:
        owner = json.loads(text)
        return owner["place"] == _place() and owner["started"] != _started(owner["pid"])
    except (json.JSONDecodeError, KeyError, TypeError):
        return False  # it is being written, or not ours
