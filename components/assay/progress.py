"""Progress of the loop on a terminal: rows, rows a second, share of the input, time left.

Silent where standard error is no terminal. Runs on the host.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType

from assay.examples import FRAMING, File, unpacked_size


class Progress:
    """A context whose value is called with a shard's (rows, seconds) after each call of the loop."""

    def __init__(self, files: Sequence[File], mean_bytes: float, *, on: bool) -> None:
        self._bar = None
        if on and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.completed:,.0f} rows"),
                TextColumn("{task.fields[speed]:,.0f} rows/s"),
                BarColumn(),
                TextColumn("{task.percentage:.0f} % of {task.fields[files]} file(s)"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            # Rows are guessed from sizes, so the share is one of bytes.
            size = sum(max(unpacked_size(f), f.size) if f.compression else f.size for f in files)
            guess = max(size / (mean_bytes + FRAMING), 1.0)
            self._task = self._bar.add_task("", total=guess, speed=0.0, files=len(files))
        self._before = 0

    def __enter__(self) -> Progress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def __call__(self, rows: int, seconds: float) -> None:
        if self._bar:
            speed = rows / seconds if seconds else 0.0
            self._bar.update(self._task, completed=self._before + rows, speed=speed)

    def finished(self, rows: int) -> None:
        """A shard of so many rows is finished; the next call counts from there."""
        self._before += rows
