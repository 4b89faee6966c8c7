"""The additive State of an evaluation: exact, order-free sums by slice key, and their one merge.

Every number is integers under the hood. A real number v is cut into limbs, v = sum of
limb[e] * 2**(32 * e) for the exponents e of its column, each limb truncated toward zero; limbs
are added as int64, so that the order, the grouping and the number of replicas cannot matter
(the idea of a Kulisch accumulator, U. Kulisch, "Computer Arithmetic and Validity", 2008, cut to
a window of a few words). What lies below the last limb is dropped: less than 2**(32 * e_last)
a row. A row with more than the first limb holds leaves its metric undefined.

Runs on the host, on NumPy alone.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from assay.spec import DataError, SliceKey

COUNT = (0,)  # whole numbers below 2**31 a row
WEIGHT = (0, -1, -2)  # a weight times what is whole where labels are: below 2**31 a row, to 2**-64
REAL = (1, 0, -1, -2, -3)  # below 2**63 a row, to 2**-96

WORD = 2.0**32
MOST_ROWS = 2**31  # a limb is below 2**32 a row, and holds 2**63


@dataclass(frozen=True)
class Column:
    """One summed quantity and the limb exponents that hold it."""

    name: str
    limbs: tuple[int, ...]

    @property
    def limit(self) -> float:
        """The magnitude that a row's value must stay below."""
        return 2.0 ** (32 * self.limbs[0] + 31)


@dataclass(frozen=True)
class Leaf:
    """One accumulated array per slice: `bins` rows of int64 limbs, column after column."""

    name: str
    bins: int
    columns: tuple[Column, ...]

    @property
    def width(self) -> int:
        """Limbs in one bin."""
        return sum(len(c.limbs) for c in self.columns)


Layout = tuple[Leaf, ...]


@dataclass(frozen=True)
class State:
    """Everything an evaluation has added up so far.

    slices: for each slice key, one int64 array [bins, width] per leaf of the layout.
    rows_read, bytes_read: rows taken from each file, by URI, and their bytes, framing included;
    rows_counted: rows that reached a replica.
    fingerprint_read, fingerprint_counted: sums of row hashes modulo 2**64 at the same two places.
    first: for each fault seen, the smallest (file URI, record number).
    """

    layout: Layout
    slices: Mapping[SliceKey, tuple[np.ndarray, ...]] = field(default_factory=dict)
    rows_read: Mapping[str, int] = field(default_factory=dict)
    bytes_read: Mapping[str, int] = field(default_factory=dict)
    rows_counted: Mapping[str, int] = field(default_factory=dict)
    fingerprint_read: int = 0
    fingerprint_counted: int = 0
    first: Mapping[str, tuple[str, int]] = field(default_factory=dict)


def merge(left: State, right: State) -> State:
    """Returns the State of both; associative and commutative, `State(layout)` is its zero.

    Raises:
      ValueError: the layouts differ, so the sums are of different things.
    """
    if left.layout != right.layout:
        raise ValueError("two states with different layouts cannot be merged")
    slices = dict(left.slices)
    for key, arrays in right.slices.items():
        mine = slices.get(key)
        slices[key] = arrays if mine is None else tuple(a + b for a, b in zip(mine, arrays, strict=True))
    first = dict(left.first)
    for fault, place in right.first.items():
        first[fault] = min(first.get(fault, place), place)
    return State(
        layout=left.layout,
        slices=slices,
        rows_read=_add(left.rows_read, right.rows_read),
        bytes_read=_add(left.bytes_read, right.bytes_read),
        rows_counted=_add(left.rows_counted, right.rows_counted),
        fingerprint_read=(left.fingerprint_read + right.fingerprint_read) % 2**64,
        fingerprint_counted=(left.fingerprint_counted + right.fingerprint_counted) % 2**64,
        first=first,
    )


def _add(left: Mapping[str, int], right: Mapping[str, int]) -> dict[str, int]:
    return {k: left.get(k, 0) + right.get(k, 0) for k in (*left, *(k for k in right if k not in left))}


def prove(state: State) -> None:
    """Checks that every row read was counted exactly once, and that no limb can have overflowed.

    Raises:
      DataError: rows or fingerprints differ between the reader and the replicas, or there are
        2**31 rows or more.
    """
    rows = sum(state.rows_counted.values())
    if rows >= MOST_ROWS:
        raise DataError(f"{rows} rows; sums are exact below {MOST_ROWS} rows, split the examples")
    for uri in sorted({*state.rows_read, *state.rows_counted}):
        read, counted = state.rows_read.get(uri, 0), state.rows_counted.get(uri, 0)
        if read != counted:
            raise DataError(f"{uri}: {read} rows were read and {counted} were counted")
    if state.fingerprint_read != state.fingerprint_counted:
        raise DataError(
            "the rows counted are not the rows read: fingerprints "
            f"{state.fingerprint_read:016x} and {state.fingerprint_counted:016x}"
        )


def split(values: np.ndarray, limbs: tuple[int, ...]) -> np.ndarray:
    """Returns float64 [...] cut into int64 limbs [..., len(limbs)]; NumPy twin of the step's."""
    rest = np.asarray(values, np.float64)
    parts = []
    for exponent in limbs:
        part = np.trunc(rest * WORD**-exponent)
        rest = rest - part * WORD**exponent
        parts.append(part.astype(np.int64))
    return np.stack(parts, -1)


def join(limbs: np.ndarray, exponents: tuple[int, ...]) -> np.ndarray:
    """Returns the float64 values [...] of int64 limbs [..., len(exponents)].

    Carries first, so that equal sums give equal floats whatever limbs they came in, and adds the
    positive limbs from the smallest up: off by at most one unit in the last place.
    """
    negative = _carry(limbs)[..., 0] < 0
    carried = _carry(np.where(negative[..., None], -limbs, limbs))
    total = np.zeros(limbs.shape[:-1], np.float64)
    for place in range(len(exponents) - 1, -1, -1):
        total = total + carried[..., place].astype(np.float64) * WORD ** exponents[place]
    return np.where(negative, -total, total)


def _carry(limbs: np.ndarray) -> np.ndarray:
    carried = limbs.copy()
    for place in range(carried.shape[-1] - 1, 0, -1):
        high = carried[..., place] >> 32
        carried[..., place] -= high << 32
        carried[..., place - 1] += high
    return carried


def totals(leaf: Leaf, array: np.ndarray) -> np.ndarray:
    """Returns the float64 sums [bins, columns] of one leaf's int64 array [bins, width]."""
    sums, start = [], 0
    for column in leaf.columns:
        stop = start + len(column.limbs)
        sums.append(join(array[:, start:stop], column.limbs))
        start = stop
    return np.stack(sums, -1)


def to_bytes(state: State) -> bytes:
    """Returns the State encoded and checksummed; equal states give equal bytes."""
    keys = sorted(state.slices, key=key_json)
    header = {
        "layout": [[f.name, f.bins, [[c.name, list(c.limbs)] for c in f.columns]] for f in state.layout],
        "slices": [key_json(k) for k in keys],
        "rows_read": dict(sorted(state.rows_read.items())),
        "bytes_read": dict(sorted(state.bytes_read.items())),
        "rows_counted": dict(sorted(state.rows_counted.items())),
        "fingerprints": [state.fingerprint_read, state.fingerprint_counted],
        "first": {k: list(v) for k, v in sorted(state.first.items())},
    }
    body = io.BytesIO()
    text = json.dumps(header, separators=(",", ":")).encode()
    body.write(len(text).to_bytes(8, "little") + text)
    for key in keys:
        for array in state.slices[key]:
            body.write(_pack(array))
    return hashlib.sha256(body.getvalue()).digest() + body.getvalue()


def from_bytes(data: bytes) -> State:
    """Returns the State in bytes made by `to_bytes`.

    Raises:
      ValueError: the checksum does not match: the bytes are cut short or damaged.
    """
    digest, body = data[:32], data[32:]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError("the encoded state is damaged: its checksum does not match")
    size = int.from_bytes(body[:8], "little")
    header = json.loads(body[8 : 8 + size])
    layout = tuple(
        Leaf(name, bins, tuple(Column(c, tuple(limbs)) for c, limbs in columns))
        for name, bins, columns in header["layout"]
    )
    slices, start = {}, 8 + size
    for text in header["slices"]:
        arrays = []
        for leaf in layout:
            array, start = _unpack(body, start, leaf.bins * leaf.width)
            arrays.append(array.reshape(leaf.bins, leaf.width))
        slices[key_from_json(text)] = tuple(arrays)
    return State(
        layout=layout,
        slices=slices,
        rows_read=header["rows_read"],
        bytes_read=header["bytes_read"],
        rows_counted=header["rows_counted"],
        fingerprint_read=header["fingerprints"][0],
        fingerprint_counted=header["fingerprints"][1],
        first={k: (uri, number) for k, (uri, number) in header["first"].items()},
    )


def _pack(array: np.ndarray) -> bytes:
    """How many numbers are not 0, where they are, and what: most bins of most slices are empty."""
    flat = array.reshape(-1)
    places = np.flatnonzero(flat)
    return b"".join(part.astype("<i8").tobytes() for part in (np.array([places.size]), places, flat[places]))


def _unpack(body: bytes, start: int, size: int) -> tuple[np.ndarray, int]:
    """The array [size] packed at `start`, and where it ends."""
    count = int(np.frombuffer(body, "<i8", 1, start)[0])
    places, values = np.frombuffer(body, "<i8", 2 * count, start + 8).reshape(2, count)
    array = np.zeros([size], np.int64)
    array[places] = values
    return array, start + 8 + 16 * count


def key_json(key: SliceKey) -> str:
    """Returns a slice key as JSON text that tells bytes, int and float apart."""
    tagged = [
        [f, "b", v.hex()] if isinstance(v, bytes) else [f, "f" if isinstance(v, float) else "i", v]
        for f, v in key
    ]
    return json.dumps(tagged, separators=(",", ":"))


def key_from_json(text: str) -> SliceKey:
    """Returns the slice key in text made by `key_json`."""
    return tuple((f, bytes.fromhex(v) if tag == "b" else v) for f, tag, v in json.loads(text))
