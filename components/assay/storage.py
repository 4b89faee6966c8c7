"""Files written whole or not at all, wherever `tf.io.gfile` can write; several processes may do so.

Runs on the host.
"""

from __future__ import annotations

import os
import uuid

TRIES = 10
PART = ".part"  # ends the name of a file that is still being written


def write_whole(path: str, data: bytes | str) -> None:
    """Writes a file, so that nobody ever sees half of it, wherever renaming is atomic.

    Raises:
      tf.errors.OpError: it cannot be written.
    """
    import tensorflow as tf

    part = f"{path}.{uuid.uuid4().hex}{PART}"
    try:
        with tf.io.gfile.GFile(part, "wb") as handle:
            handle.write(data.encode() if isinstance(data, str) else data)
        tf.io.gfile.rename(part, path, overwrite=True)
    except BaseException:
        remove(part)
        raise


def create(path: str, data: bytes) -> bool:
    """Writes a file that is not there yet; returns False where it is, whoever was first.

    Where files cannot be created exclusively (object stores), two processes that do so in the same
    instant may both get True.

    Raises:
      OSError, tf.errors.OpError: it cannot be written.
    """
    if "://" in path:
        if read(path) is not None:
            return False
        write_whole(path, data)
        return read(path) == data
    part = f"{path}.{uuid.uuid4().hex}{PART}"
    try:
        with open(part, "wb") as handle:
            handle.write(data)
        try:
            os.link(part, path)  # there, whole, or not at all
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            return _create_open(path, data)
        return True
    finally:
        remove(part)


def _create_open(path: str, data: bytes) -> bool:
    try:
        handle = open(path, "xb")  # noqa: SIM115
    except FileExistsError:
        return False
    try:
        with handle:
            handle.write(data)
    except BaseException:
        remove(path)
        raise
    return True


def read(path: str) -> bytes | None:
    """Returns what a file holds, or None where there is none."""
    import tensorflow as tf

    try:
        with tf.io.gfile.GFile(path, "rb") as handle:
            return handle.read()
    except (tf.errors.NotFoundError, tf.errors.FailedPreconditionError):  # the latter of a folder
        return None


def names(folder: str) -> list[str]:
    """Returns the sorted names of what lies in a folder, finished; [] where there is no such folder."""
    import tensorflow as tf

    try:
        found = tf.io.gfile.listdir(folder)
    except (tf.errors.NotFoundError, tf.errors.FailedPreconditionError):  # the latter of a file
        return []
    return sorted(name.rstrip("/") for name in found if not name.endswith(PART))


def remove(path: str) -> None:
    """Removes a file, if it is there."""
    import tensorflow as tf

    try:
        tf.io.gfile.remove(path)
    except tf.errors.NotFoundError:
        return


def remove_folder(path: str) -> None:
    """Removes a folder with all that it holds, if it is there; another process may be at it, too."""
    import tensorflow as tf

    for _ in range(TRIES):
        try:
            tf.io.gfile.rmtree(path)
            return
        except tf.errors.NotFoundError:
            if not tf.io.gfile.exists(path):
                return
