"""The metrics by TFMA class name: each a function of its constructor's arguments to a Metric."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

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


def build(spec: MetricSpec) -> Metric:
    """Returns the metric that a spec names.

    Raises:
      RequestError: no such class, or no such argument of it; the nearest known ones are named.
    """
    if spec.class_name not in CLASSES:
        raise unknown("metric class", spec.class_name, CLASSES)
    factory = CLASSES[spec.class_name]
    accepted = inspect.signature(factory).parameters
    # Keras writes its defaults into the config; what says nothing new is let through.
    given = {k: v for k, v in spec.config.items() if v is not None and (k, v) != ("dtype", "float32")}
    for argument in given:
        if argument not in accepted:
            raise unknown("argument", argument, accepted, place=f"metric {spec.class_name}")
    try:
        return factory(**given)
    except TypeError as error:
        raise RequestError(f"metric {spec.class_name}: {error}") from error


__all__ = ["CLASSES", "Metric", "Statistics", "Totals", "build"]
