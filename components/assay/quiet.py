"""Keeps what native libraries write while they are loaded off a command's standard error.

TensorFlow logs before any log level is in force. Runs on the host.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stderr_unless_it_fails() -> Iterator[None]:
    """Holds standard error back, the file descriptor itself; it is shown after all on an exception."""
    sys.stderr.flush()
    shown = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(shown, held.read())
            raise
        finally:
            os.dup2(shown, 2)
            os.close(shown)
