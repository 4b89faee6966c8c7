"""Rows through the real step and accumulator, without files: what the laws and oracles run on."""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf

from assay.accumulate import Accumulator, arrays
from assay.finalize import Bound, slice_values
from assay.metrics import Metric, build
from assay.model import Model
from assay.spec import OVERALL, MetricKey, MetricSpec, ModelSpec
from assay.state import State
from assay.step import Sum, contributions, layout

PHYSICAL = 64


@functools.cache
def _identity() -> Model:
    spec = ModelSpec(label_key="label", example_weight_key="weight")
    return Model(
        spec, "made", "identity", {"p": tf.TensorSpec(None, tf.float64)}, "", [lambda f: f["p"]], None
    )


def state(
    metric: Metric,
    labels: np.ndarray,
    predictions: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    batch: int = PHYSICAL,
    whole: bool = False,
) -> State:
    """Returns the State of rows run in padded batches of at most `batch` real rows."""
    sums = (
        []
        if metric.statistics is None
        else [Sum(metric.statistics, 0, weighted=weights is not None, whole=whole)]
    )
    weighted = [0] if weights is not None else []
    leaves = layout(sums, weighted)
    accumulator = Accumulator(leaves, 1, "CPU:0")
    for start in range(0, len(labels), batch):
        rows = slice(start, start + batch)
        size = len(labels[rows])
        count = np.concatenate([np.ones(size), np.zeros(PHYSICAL - size)]).astype(np.int64)

        def pad(values: np.ndarray, size: int = size) -> np.ndarray:
            return np.concatenate([values, np.repeat(values[-1:], PHYSICAL - size, 0)])

        made = {
            "inputs": {"raw/p": tf.constant(pad(predictions[rows]))},
            "label_0": tf.constant(pad(labels[rows]), tf.float64),
            "count": tf.constant(count),
            "position": tf.range(start, start + PHYSICAL, dtype=tf.int64),
            "hash": tf.ones([PHYSICAL], tf.int64),
            "faults": tf.zeros([PHYSICAL], tf.int64),
            "slots": tf.constant(count[:, None] - 1),
        }
        if weights is not None:
            made["weight_0"] = tf.constant(pad(weights[rows]) * count, tf.float64)
        parts, faults = contributions(made, [_identity()], [{"p": ("raw", "p")}], sums, weighted)
        accumulator.add(made, parts, faults)
    read = tf.nest.map_structure(lambda t: t.numpy(), accumulator.read(1))
    return State(leaves, {OVERALL: arrays(leaves, read, 0)}, {}, {"made": int(read["rows"][0])})


def value(metric: Metric, total: State) -> object:
    """Returns the metric's value (a number, Undefined, or a plot) of a State."""
    weighted = any(c.name.startswith("weight/") for c in total.layout[0].columns)
    bound = Bound(
        MetricKey("m"),
        metric,
        None if metric.statistics is None else 1,
        1 if weighted and metric.weighted is not False else 0,
        None if metric.statistics is None else (2 if weighted else 1),
    )
    (found,) = slice_values(total, [bound], "", 0)
    return {**found.values, **found.plots}[MetricKey("m")]


def metric(class_name: str, **config: object) -> Metric:
    """Returns a metric by TFMA class name."""
    return build(MetricSpec(class_name, config=config))


def rows(kind: str, size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns labels, predictions and weights fit for a metric of that kind."""
    random = np.random.default_rng(seed)
    weights = random.choice([0.0, 0.25, 1.0, 3.5, 1e-3], size)
    if kind == "classes":
        return random.integers(0, 5, size).astype(float), random.normal(size=[size, 5]), weights
    labels = random.integers(0, 2, size).astype(float)
    scores = np.clip(random.normal(0.4 + 0.2 * labels, 0.3), 0.0, 1.0)
    return labels, scores.astype(np.float32).astype(float), weights


def kind(class_name: str) -> str:
    """Which rows a class takes."""
    return "classes" if class_name.startswith("SparseCategorical") else "binary"
