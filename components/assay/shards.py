"""The input cut into shards: whole files, or ranges of records where there are fewer files than workers.

Runs on the host, from the files' sizes alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from assay.examples import FRAMING, File, unpacked_size

TOGETHER = 16  # files read at a time
SHARDS_PER_WORKER = 4  # so that one slow worker does not hold up the others
GRAIN = 1 << 28  # bytes of records behind which a killed run should not have to go back
MOST_PIECES = 4  # a reader of gzip's last piece unpacks all pieces
TO_THE_END = -1
UNPACKS_TO_4_GB = 1 << 28  # the size of a gzip file that may hold so much


@dataclass(frozen=True)
class Range:
    """Records [start, stop) of a file, by its number; stop is TO_THE_END for all that follow."""

    file: int
    start: int = 0
    stop: int = TO_THE_END


@dataclass(frozen=True)
class Shard:
    """What one process evaluates at a time; bytes: about so many, unpacked."""

    ranges: tuple[Range, ...]
    bytes: int


def cut(files: Sequence[File], mean_bytes: float, workers: int) -> tuple[Shard, ...]:
    """Returns shards that hold every record of the files exactly once.

    mean_bytes: of a record. Their number of records is guessed, so the last range of a file is open.
    """
    sizes = [records_bytes(f) for f in files]
    together = 1
    if len(files) >= workers:
        wanted = workers * SHARDS_PER_WORKER if workers > 1 else 1
        together = min(TOGETHER, max(1, len(files) // wanted))
    shards = []
    for start in range(0, len(files), together):
        bundle = range(start, min(start + together, len(files)))
        size = sum(sizes[n] for n in bundle)
        pieces = max(math.ceil(workers / len(files)), min(MOST_PIECES, size // GRAIN))
        for piece in range(pieces):
            ranges = [_piece(n, sizes[n] / (mean_bytes + FRAMING), piece, pieces) for n in bundle]
            held = tuple(r for r in ranges if r is not None)
            if held:
                shards.append(Shard(held, size // pieces))
    return tuple(shards)


def _piece(file: int, records: float, piece: int, pieces: int) -> Range | None:
    """A file's piece; None where a file of so few records has none."""
    pieces = min(pieces, max(1, round(records)))
    if piece >= pieces:
        return None
    start, stop = (round(records * p / pieces) for p in (piece, piece + 1))
    return Range(file, start, TO_THE_END if piece == pieces - 1 else stop)


def records_bytes(file: File) -> int:
    """Returns the bytes of a file's records; of gzip a guess, since its trailer has them modulo 2**32.

    Of joined gzip files the trailer is the last one's.
    """
    if not file.compression:
        return file.size
    size = unpacked_size(file)
    if file.size < UNPACKS_TO_4_GB or size >= file.size:
        return max(size, file.size)
    return size + (math.ceil((file.size - size) / 2**32) << 32)
