"""The metrics by TFMA class name: each a function of its constructor's arguments to a Metric."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from assay.metrics import calibration, confusion, counts, multiclass, regression
from assay.metrics.metric import Metric, Statistics, Totals
from assay.spec import MetricSpec, RequestError, unknown

CLASSES: Mapping[str, Callable[..., Metric]] = {
    "AUC": confusion.auc,
    "AUCPrecisionRecall": confusion.auc_precision_recall,
    "BinaryAccuracy": confusion.binary_accuracy,
    "BinaryCrossEntropy": regression.binary_crossentropy,
    "BinaryCrossentropy": regression.binary_crossentropy,
    "Calibration": calibration.calibration,
    "CalibrationPlot": calibration.calibration_plot,
    "ConfusionMatrixPlot": confusion.confusion_matrix_plot,
    "ExampleCount": counts.example_count,
    "MeanAbsoluteError": regression.mean_absolute_error,
    "MeanLabel": calibration.mean_label,
    "MeanPrediction": calibration.mean_prediction,
    "MeanSquaredError": regression.mean_squared_error,
    "Precision": confusion.precision,
    "Recall": confusion.recall,
    "SparseCategoricalAccuracy": multiclass.sparse_categorical_accuracy,
    "WeightedExampleCount": counts.weighted_example_count,
}


# Arguments that Keras writes down for every metric, at the only value that we have.
NEUTRAL = {
    "dtype": "float32",
    "class_id": None,
    "from_logits": False,
    "label_weights": None,
    "multi_label": False,
    "num_labels": None,
    "thresholds": None,
    "top_k": None,
}


def build(spec: MetricSpec) -> Metric:
    """Returns the metric that a spec names.

    Raises:
      RequestError: no such class, no such argument of it, or a value of another type; what would
        be valid is named.
    """
    if spec.class_name not in CLASSES:
        raise unknown("metric class", spec.class_name, CLASSES)
    factory = CLASSES[spec.class_name]
    accepted = {name: hint for name, hint in typing.get_type_hints(factory).items() if name != "return"}
    given = {}
    for argument, value in spec.config.items():
        if argument not in accepted:
            if argument not in NEUTRAL or value != NEUTRAL[argument]:
                raise unknown("argument", argument, accepted, place=f"metric {spec.class_name}")
        elif value is not None:
            if not _fits(value, accepted[argument]):
                raise RequestError(
                    f"metric {spec.class_name}: {argument} is {value!r}; needed: {_names(accepted[argument])}"
                )
            given[argument] = value
    return factory(**given)


def shown(statistics: Statistics) -> list[Metric]:
    """Returns what Kubeflow and Vertex show of such sums, under fixed names, however a config names it.

    `matrix`, `curve` (confusion matrices), `auc`, `auc_precision_recall`, `log_loss`,
    `mean_squared_error`, `mean_absolute_error`; each takes the same sums, or a few more.
    """
    return [*confusion.shown(statistics), *regression.shown(statistics)]


def _fits(value: Any, hint: Any) -> bool:
    """Whether a JSON value is of the type that an argument declares."""
    kinds = typing.get_args(hint)
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return any(_fits(value, kind) for kind in kinds)
    if typing.get_origin(hint) is Sequence:
        return isinstance(value, list) and all(_fits(item, kinds[0]) for item in value)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def _names(hint: Any) -> str:
    """An argument's type in words."""
    kinds = typing.get_args(hint)
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return " or ".join(_names(kind) for kind in kinds if kind is not types.NoneType)
    if typing.get_origin(hint) is Sequence:
        return f"a list, each {_names(kinds[0])}"
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    return words.get(hint, str(hint))


__all__ = ["CLASSES", "Metric", "Statistics", "Totals", "build", "shown"]
