"""Real `assay evaluate` processes for the tests, each with a time limit.

They are forked from one process that has imported TensorFlow and done nothing with it, which spares each
of them some seconds; nothing else is shared.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

LIMIT = 120.0  # seconds
CLUSTER = ("TF_CONFIG", "CLUSTER_SPEC")

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["assay.spread", "assay.cli", "assay.artifacts.output"])


class Running:
    """One call of an entry's `main` in a process of its own, its output in a file."""

    def __init__(self, entry: str, arguments: Sequence[object], environ: Mapping[str, str]) -> None:
        handle, self._out = tempfile.mkstemp(prefix="assay-test-")
        os.close(handle)
        self._process = _context.Process(
            target=_command, args=(entry, [str(a) for a in arguments], dict(environ), self._out)
        )
        self._process.start()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Returns the exit code, None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, seconds: float) -> int | None:
        """Returns the exit code, None if it still runs after so long."""
        self._process.join(seconds)
        return self._process.exitcode

    def output(self) -> str:
        """Returns what it has written to stdout and stderr."""
        return Path(self._out).read_text("utf-8", "replace")


def _command(entry: str, arguments: Sequence[str], environ: Mapping[str, str], out: str) -> None:
    """What the forked process does: the entry's `main`, as `python -m` would."""
    for name in CLUSTER:
        os.environ.pop(name, None)
    os.environ.update(environ)
    handle = os.open(out, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(handle, stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(importlib.import_module(entry).main(arguments))


def start(arguments: Sequence[object], **environ: str) -> Running:
    """Starts `assay evaluate` in a process of its own; variables of a cluster come from `environ` alone."""
    return Running("assay.cli", ["evaluate", *arguments], environ)


def start_task(executor_input: Mapping[str, object], **environ: str) -> Running:
    """Starts the entry of a KFP container in a process of its own."""
    return Running("assay.kfp.entrypoint", ["--executor_input", json.dumps(executor_input)], environ)


def end(process: Running, code: int | None = 0) -> str:
    """Returns the output of a process that ends with a code (None: any) within the limit."""
    found = process.wait(LIMIT)
    if found is None:
        process.send_signal(signal.SIGKILL)
        process.wait(LIMIT)
        raise AssertionError(f"still running after {LIMIT} s:\n{process.output()}")
    assert code is None or found == code, process.output()
    return process.output()


def tf_config(workers: int, index: int) -> dict[str, str]:
    """Returns the TF_CONFIG of a task in a cluster of a chief and workers; 0 is the chief."""
    cluster = {"chief": ["host:1"], "worker": ["host:1"] * (workers - 1)}
    task = {"type": "worker" if index else "chief", "index": max(index - 1, 0)}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


def cluster_spec(workers: int, index: int) -> dict[str, str]:
    """Returns Vertex AI's CLUSTER_SPEC of a task; pool 0 has the first, pool 1 the others."""
    cluster = {"workerpool0": ["host:1"], "workerpool1": ["host:1"] * (workers - 1)}
    task = {"type": "workerpool1" if index else "workerpool0", "index": max(index - 1, 0)}
    return {"CLUSTER_SPEC": json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})}


def record(folder: Path) -> Mapping[str, object]:
    """Returns a finished evaluation's report.json."""
    return json.loads((folder / "report.json").read_text("utf-8"))


def slices_bytes(folder: Path) -> str:
    """Returns the slices of report.json as one text, to compare byte by byte."""
    return json.dumps(record(folder)["slices"])
