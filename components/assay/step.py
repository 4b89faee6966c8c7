"""One batch on one replica: predict, take every metric's statistics, and weight them once.

Runs in replica context, in graph, without Python per row. The result is exact integers by slice,
bin and limb; adding them up is `accumulate`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from assay.faults import LABEL_FAULTS, Fault, forgive, mark
from assay.inputs import ROWS_MULTIPLE, Batch, prepare
from assay.metrics import Statistics
from assay.model import Model
from assay.plan import Plan, input_name
from assay.spec import RequestError, SlicingSpec
from assay.state import COUNT, REAL, WEIGHT, WORD, Column, Layout, Leaf


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
