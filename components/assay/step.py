"""One batch on one replica: predict, take every metric's statistics, and weight them once.

Runs in replica context, in graph, without Python per row. The result is exact integers by slice,
bin and limb; adding them up is `Accumulator`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from assay.faults import BITS, LABEL_FAULTS, Fault, forgive, mark
from assay.inputs import ROWS_MULTIPLE, Batch, file_of, prepare
from assay.metrics import Statistics
from assay.model import Model
from assay.plan import Plan, input_name
from assay.spec import RequestError, SlicingSpec
from assay.state import COUNT, REAL, WEIGHT, WORD, Column, Layout, Leaf

FAR = (1 << 63) - 1
FEW_BINS = 4


@dataclass(frozen=True)
class Sum:
    """One statistics of one model, weighted or not; metrics that share it share its sums.

    whole: labels are whole numbers and there are no weights, so that WEIGHT columns are counts; a
    third of the memory, and a third of the time that a histogram takes.
    """

    statistics: Statistics
    model: int
    weighted: bool
    whole: bool = False

    @property
    def name(self) -> str:
        """Identifies the sum in the layout."""
        return f"{self.statistics.name}/model {self.model}/{'weighted' if self.weighted else 'unweighted'}"

    @property
    def columns(self) -> tuple[Column, ...]:
        """The statistics' columns, with the limbs that they need here."""
        if not self.whole:
            return tuple(self.statistics.columns)
        return tuple(Column(c.name, COUNT if c.limbs == WEIGHT else c.limbs) for c in self.statistics.columns)


def layout(sums: Sequence[Sum], weighted: Sequence[int]) -> Layout:
    """Returns the leaves of the State: examples first, then one a sum.

    The examples leaf has the columns: rows, the weight by each model of `weighted`, and for each
    sum how many rows had no finite statistics.
    """
    columns = [Column("rows", COUNT)]
    columns += [Column(f"weight/model {m}", REAL) for m in weighted]
    columns += [Column(f"invalid/{s.name}", COUNT) for s in sums]
    return (
        Leaf("examples", 1, tuple(columns)),
        *(Leaf(s.name, s.statistics.bins, s.columns) for s in sums),
    )


@dataclass(frozen=True)
class Contribution:
    """What one batch adds to one leaf: bins [B] int32 (None: bin 0) and limbs [B, width] int64."""

    bins: tf.Tensor | None
    limbs: tf.Tensor


def contributions(
    batch: Batch,
    models: Sequence[Model],
    feeds: Sequence[Mapping[str, tuple[str, str]]],
    sums: Sequence[Sum],
    weighted: Sequence[int],
    replica: int = 0,
) -> tuple[list[Contribution], tf.Tensor]:
    """Returns what a batch of B rows adds to each leaf, and the faults of its rows, int64 [B].

    Raises:
      RequestError: a model's output has a shape or dtype that a metric cannot use.
    """
    count = batch["count"]
    faults = batch["faults"]
    predictions, statistics = [], {}
    for place, (model, feed) in enumerate(zip(models, feeds, strict=True)):
        given = {name: batch["inputs"][input_name(*origin)] for name, origin in feed.items()}
        raw = model.predict(given, replica)
        if not (raw.dtype.is_floating or raw.dtype.is_integer):
            raise RequestError(f"model {model.uri}: the output is {raw.dtype.name}, not numbers")
        rows = tf.cast(tf.ensure_shape(raw, [count.shape[0], *raw.shape[1:]]), tf.float64)
        predictions.append(rows)
        # Rows of weight 0 may be anything, unless some metric of the model takes no weights.
        weight = batch.get(f"weight_{place}", tf.cast(count, tf.float64))
        own = [s for s in sums if s.model == place]
        live = count > 0 if any(not s.weighted for s in own) else weight > 0
        faults = forgive(faults, LABEL_FAULTS, tf.logical_not(live), place)
        flat = tf.reshape(rows, [count.shape[0], -1])
        finite = tf.reduce_all(tf.math.is_finite(flat), 1)
        faults = mark(faults, Fault.PREDICTION_NAN, tf.logical_and(live, tf.logical_not(finite)), place)
        label = batch.get(f"label_{place}")
        kinds = [s.statistics for s in own]
        if any(kind.unit_predictions for kind in kinds):
            out = tf.logical_and(live, _outside_unit(flat))
            faults = mark(faults, Fault.PREDICTION_RANGE, out, place)
        if label is not None and any(kind.unit_labels for kind in kinds):
            out = tf.logical_and(live, _outside_unit(tf.reshape(label, [count.shape[0], -1])))
            faults = mark(faults, Fault.LABEL_RANGE, out, place)

    examples = [count[:, None]]
    for place in weighted:
        examples.append(split(batch[f"weight_{place}"], REAL))
    result = []
    for item in sums:
        kind = item.statistics
        if (kind, item.model) not in statistics:
            label = batch.get(f"label_{item.model}", tf.zeros_like(count, tf.float64))
            statistics[kind, item.model] = kind.rows(label, predictions[item.model])
        bins, values = statistics[kind, item.model]
        weight = tf.cast(count, tf.float64)
        if item.weighted and item.model in weighted:
            weight = batch[f"weight_{item.model}"]
        live = weight > 0
        products = values * weight[:, None]
        limits = tf.constant([c.limit for c in item.columns], tf.float64)
        # A NaN compares false, so it is not fit either.
        fit = tf.reduce_all(tf.abs(products) < limits[None], 1)
        examples.append(tf.cast(tf.logical_and(live, tf.logical_not(fit)), tf.int64)[:, None])
        products = tf.where(tf.logical_and(live, fit)[:, None], products, tf.zeros_like(products))
        limbs = [split(products[:, place], c.limbs) for place, c in enumerate(item.columns)]
        result.append(Contribution(bins, tf.concat(limbs, 1)))
    return [Contribution(None, tf.concat(examples, 1)), *result], faults * count


def _outside_unit(values: tf.Tensor) -> tf.Tensor:
    """Whether any of a row's values [B, K] lies outside [0, 1], as [B]."""
    return tf.reduce_any(tf.logical_or(values < 0.0, values > 1.0), 1)


def split(values: tf.Tensor, limbs: tuple[int, ...]) -> tf.Tensor:
    """Returns float64 [B] cut into int64 limbs [B, len(limbs)], each truncated toward zero."""
    rest, parts = values, []
    for exponent in limbs:
        part = tf.cast(rest * WORD**-exponent, tf.int64)
        rest = rest - tf.cast(part, tf.float64) * WORD**exponent
        parts.append(part)
    return tf.stack(parts, 1)


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
        bits = tf.constant([1 << place for place in range(BITS)], tf.int64)
        hit = tf.bitwise.bitwise_and(faults[:, None], bits[None]) > 0
        seen = tf.where(hit, position[:, None], tf.constant(FAR, tf.int64))
        self.first.assign(tf.minimum(self.first, tf.reduce_min(seen, 0)))
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

    @staticmethod
    def arrays(leaves: Layout, read: Mapping[str, Any], slot: int) -> tuple[Any, ...]:
        """Returns one slot's arrays [bins, width] by leaf, from what `read` gave. Host."""
        arrays, start = [], 0
        for place, leaf in enumerate(leaves):
            if leaf.bins <= FEW_BINS:
                stop = start + leaf.bins * leaf.width
                arrays.append(read["flat"][slot, start:stop].reshape(leaf.bins, leaf.width))
                start = stop
            else:
                arrays.append(read["binned"][str(place)][slot * leaf.bins : (slot + 1) * leaf.bins])
        return tuple(arrays)


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


def rehearse(model: Model, plan: Plan, sums: Sequence[Sum]) -> None:
    """Traces a model and its metrics on the shapes that the pipeline will give, without any data.

    Raises:
      RequestError: an output's shape or dtype is not what a metric needs, or the model cannot be
        called on these inputs.
    """
    rows = ROWS_MULTIPLE

    @tf.function(autograph=False)
    def trace(serialized: tf.Tensor) -> None:
        count = tf.ones([rows], tf.int64)
        batch = prepare({"serialized": serialized, "count": count}, plan, [SlicingSpec()])
        alone = [Sum(s.statistics, 0, weighted=False) for s in sums]
        contributions(batch, [model], plan.feeds, alone, ())

    try:
        trace.get_concrete_function(tf.TensorSpec([rows], tf.string))
    except RequestError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise RequestError(
            f"model {model.uri}: signature {model.signature!r} cannot be called on these inputs: {reason}"
        ) from error
