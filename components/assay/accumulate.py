"""What the steps of a replica gave, added up: into variables, or into sums of static shape.

Both run in replica context, in graph, and give the same integers. Variables are for CPU and GPU: a
batch costs what its rows cost. TPUs and XLA know no variables that grow and no rows that come and go:
there each batch becomes a whole array of sums, a segment sum over slot and bin, which the loop adds up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from assay.faults import BITS
from assay.inputs import Batch, file_of
from assay.request import TPU_ROWS
from assay.state import Layout
from assay.step import Contribution

FAR = (1 << 63) - 1
FEW_BINS = 4
PIECE = 8  # bits of a limb that are summed at a time in 32-bit numbers
DENSE_ROWS = TPU_ROWS  # so many rows of such pieces stay below 2**24, where even float32 is exact


class Accumulator:
    """The running sums of one replica, in variables on its device: a batch costs O(rows).

    Leaves of few bins lie side by side in one variable [slots, bins * width], each histogram in its
    own, [slots * bins, width]; all grow, by doubling, as slices appear.
    """

    def __init__(self, leaves: Layout, files: int, device: str) -> None:
        self._leaves = leaves
        self._flat = [place for place, leaf in enumerate(leaves) if leaf.bins <= FEW_BINS]
        self._binned = [place for place, leaf in enumerate(leaves) if leaf.bins > FEW_BINS]
        width = sum(leaves[place].bins * leaves[place].width for place in self._flat)

        def variable(columns: int) -> tf.Variable:
            shape = tf.TensorShape([None, columns])
            return tf.Variable(tf.zeros([0, columns], tf.int64), shape=shape, trainable=False)

        with tf.device(device):
            self.flat = variable(width)
            self.binned = {place: variable(leaves[place].width) for place in self._binned}
            self.first = tf.Variable(tf.fill([BITS], tf.constant(FAR, tf.int64)))
            self.rows = tf.Variable(tf.zeros([files], tf.int64))
            self.fingerprint = tf.Variable(tf.zeros([], tf.int64))

    def add(self, batch: Batch, parts: Sequence[Contribution], faults: tf.Tensor) -> None:
        """Adds one batch. Replica context, in graph."""
        count, slots = batch["count"], batch["slots"]
        flat = tf.reshape(slots, [-1])
        places = tf.where(flat >= 0)[:, 0]
        rows, slot = places // tf.shape(slots, tf.int64)[1], tf.gather(flat, places)
        needed = tf.reduce_max(slots) + 1
        with tf.control_dependencies([_grow(self.flat, needed, 1)]):
            wide = tf.concat([_spread(parts[place], self._leaves[place].bins) for place in self._flat], 1)
            self.flat.scatter_add(tf.IndexedSlices(tf.gather(wide, rows), slot))
        for place in self._binned:
            bins = self._leaves[place].bins
            with tf.control_dependencies([_grow(self.binned[place], needed, bins)]):
                index = slot * bins + tf.cast(tf.gather(parts[place].bins, rows), tf.int64)
                self.binned[place].scatter_add(tf.IndexedSlices(tf.gather(parts[place].limbs, rows), index))
        position = batch["position"]
        self.first.assign(tf.minimum(self.first, _first_of_each(position, faults)))
        self.rows.scatter_add(tf.IndexedSlices(count, file_of(position)))
        self.fingerprint.assign_add(tf.reduce_sum(batch["hash"] * count))

    def read(self, slots: int) -> dict[str, Any]:
        """Returns the sums so far for the first `slots` slots, as tensors that add up. In graph."""
        return {
            "flat": _first_rows(self.flat, slots),
            "binned": {
                str(place): _first_rows(self.binned[place], slots * self._leaves[place].bins)
                for place in self._binned
            },
            "rows": self.rows.read_value(),
            "fingerprint": self.fingerprint.read_value(),
        }

    def clear(self) -> None:
        """Forgets everything added so far; the room for slices stays. Host."""
        for variable in (self.flat, *self.binned.values(), self.rows, self.fingerprint):
            variable.assign(tf.zeros_like(variable))
        self.first.assign(tf.fill([BITS], tf.constant(FAR, tf.int64)))


def dense(
    leaves: Layout, batch: Batch, parts: Sequence[Contribution], faults: tf.Tensor, slots: int, files: int
) -> dict[str, Any]:
    """Returns the sums of one batch for slots below `slots`, as `Accumulator.read` gives them, and `first`.

    No shape depends on the data. The partial sums are 32-bit numbers below 2**24 and are widened to
    int64 here, for hardware that has neither 64-bit nor exact 32-bit sums; a batch has at most
    DENSE_ROWS rows. Replica context, in graph, with XLA or without.
    """
    count, position = batch["count"], batch["position"]
    ways = batch["slots"].shape[1]
    slot = tf.reshape(batch["slots"], [-1])
    rows = tf.repeat(tf.range(count.shape[0]), ways)
    flat = [place for place, leaf in enumerate(leaves) if leaf.bins <= FEW_BINS]
    wide = tf.concat([_spread(parts[place], leaves[place].bins) for place in flat], 1)
    binned = {}
    for place, leaf in enumerate(leaves):
        if leaf.bins > FEW_BINS:
            bins = tf.gather(tf.cast(parts[place].bins, tf.int64), rows)
            index = tf.where(slot < 0, tf.constant(-1, tf.int64), slot * leaf.bins + bins)
            binned[str(place)] = _segments(tf.gather(parts[place].limbs, rows), index, slots * leaf.bins)
    return {
        "flat": _segments(tf.gather(wide, rows), slot, slots),
        "binned": binned,
        "rows": _segments(count[:, None], file_of(position), files)[:, 0],
        "fingerprint": tf.reduce_sum(batch["hash"] * count),
        "first": _first_of_each(position, faults),
    }


def _segments(limbs: tf.Tensor, segments: tf.Tensor, size: int) -> tf.Tensor:
    """The sums of limbs [N, W] below 2**32 by segment, int64 [size, W]; segment -1 is none."""
    sign, magnitude = tf.sign(limbs), tf.abs(limbs)
    total = tf.zeros([size, limbs.shape[1]], tf.int64)
    for shift in range(0, 32, PIECE):
        piece = tf.bitwise.right_shift(magnitude, tf.constant(shift, tf.int64)) % (1 << PIECE)
        summed = tf.math.unsorted_segment_sum(tf.cast(sign * piece, tf.int32), segments, size)
        total += tf.cast(summed, tf.int64) * (1 << shift)
    return total


def arrays(leaves: Layout, read: Mapping[str, Any], slot: int) -> tuple[Any, ...]:
    """Returns one slot's arrays [bins, width] by leaf, from what `Accumulator.read` or `dense` gave. Host."""
    found, start = [], 0
    for place, leaf in enumerate(leaves):
        if leaf.bins <= FEW_BINS:
            stop = start + leaf.bins * leaf.width
            found.append(read["flat"][slot, start:stop].reshape(leaf.bins, leaf.width))
            start = stop
        else:
            found.append(read["binned"][str(place)][slot * leaf.bins : (slot + 1) * leaf.bins])
    return tuple(found)


def _first_of_each(position: tf.Tensor, faults: tf.Tensor) -> tf.Tensor:
    """The least position of a row with each fault, [BITS]; FAR where no row has it."""
    bits = tf.constant([1 << place for place in range(BITS)], tf.int64)
    hit = tf.bitwise.bitwise_and(faults[:, None], bits[None]) > 0
    return tf.reduce_min(tf.where(hit, position[:, None], tf.constant(FAR, tf.int64)), 0)


def _spread(part: Contribution, bins: int) -> tf.Tensor:
    """Limbs [B, bins * width]: each row's in its own bin, zeros in the others."""
    if part.bins is None:
        return part.limbs
    own = tf.one_hot(part.bins, bins, dtype=tf.int64)
    return tf.reshape(own[:, :, None] * part.limbs[:, None, :], [part.limbs.shape[0], -1])


def _grow(variable: tf.Variable, slots: tf.Tensor, bins: int) -> tf.Tensor:
    """Makes room for `slots` slots of `bins` rows, doubling so that growth is rare."""
    have = tf.shape(variable, tf.int64)[0]
    need = slots * bins

    def widen() -> tf.Tensor:
        more = tf.maximum(need, 2 * have) - have
        grown = tf.concat([variable, tf.zeros([more, variable.shape[1]], tf.int64)], 0)
        with tf.control_dependencies([variable.assign(grown)]):
            return tf.constant(0)

    return tf.cond(need > have, widen, lambda: tf.constant(0))


def _first_rows(variable: tf.Variable, rows: int) -> tf.Tensor:
    have = variable.read_value()[:rows]
    return tf.pad(have, [[0, rows - tf.shape(have)[0]], [0, 0]])
