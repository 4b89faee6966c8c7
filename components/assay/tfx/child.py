"""Runs one request in a fresh process, as the command line would.

In the process that runs a TFX pipeline, TensorFlow is already initialised: its devices can no
longer be set, and a Trainer may have left a TF_CONFIG behind. A node is one process: the child is the
chief, whatever cluster the environment names.
"""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from absl import logging

from assay.cluster import VARIABLES
from assay.request import Request
from assay.spec import RequestError

ENTRY = (sys.executable, "-m", "assay", "evaluate")
ERROR = "assay: error: "
ROOT = str(Path(__file__).resolve().parents[2])


def evaluate(request: Request, entry: Sequence[str] = ENTRY) -> None:
    """Evaluates the request in a child process and sends its output to the log, line by line.

    Whatever ends this call early (an exception, Ctrl-C, SIGTERM) ends the child and its children.

    Raises:
      RequestError: the child found the request wrong; the message is the child's.
      RuntimeError: the run failed; the message is the child's, or tells how it ended.
    """
    last: collections.deque[str] = collections.deque(maxlen=20)
    error = ""
    with _unwinding_on_sigterm(), tempfile.TemporaryDirectory(prefix="assay-") as folder:
        file = Path(folder, "request.json")
        file.write_text(request.to_json(), encoding="utf-8")
        with subprocess.Popen(
            [*entry, "--request", str(file)],
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        ) as child:
            try:
                assert child.stdout is not None
                for line in map(str.rstrip, child.stdout):
                    logging.info("%s", line)
                    last.append(line)
                    error = line[len(ERROR) :] if line.startswith(ERROR) else error
                code = child.wait()
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                raise
    if code:
        raise _failure(code, error, last)


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    # Last, so that it finds this package where it is not installed and shadows nothing else.
    paths = [path for path in (kept.get("PYTHONPATH", ""), ROOT) if path]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


def _failure(code: int, error: str, last: Sequence[str]) -> Exception:
    if error:
        return RequestError(error) if code == 2 else RuntimeError(error)
    how = f"exit code {code}"
    if code < 0:
        how = signal.Signals(-code).name
        if code == -signal.SIGKILL:
            how += " (the usual cause is too little memory)"
    return RuntimeError("\n".join((f"the evaluation ended with {how}; its last output:", *last)))


@contextlib.contextmanager
def _unwinding_on_sigterm() -> Iterator[None]:
    """SIGTERM would end Python at once and leave the child running; here it raises SystemExit."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
