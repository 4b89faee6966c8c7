"""The evaluation as Vertex AI's model evaluations hold it, overall and by slice.

The JSON that ModelImportEvaluationOp reads, and the metadata of google.ClassificationMetrics and
google.RegressionMetrics. Field names: the schemas classification_metrics 1.0.0 and regression_metrics
1.0.0 of Vertex AI. Runs on the host, on NumPy alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from assay.curves import CLASSES, at, table
from assay.report import Report
from assay.spec import OVERALL, RequestError, SliceKey, SliceValue, unknown, value_text
from assay.values import ConfusionMatrices, Plot, Undefined

MOST_PREDICTIONS = 2**31 - 1

Shown = Mapping[str, float | Undefined | Plot]


def check(names: Collection[str], kind: str, *, has_overall: bool) -> None:
    """Checks that what is shown of the candidate holds a metric of the kind. Before any data is read.

    names: those of `assay.metrics.shown` that this evaluation has; kind: one of KINDS; has_overall:
    whether the overall slice is asked for.

    Raises:
      RequestError: the kind is unknown, there is no such metric, or no overall slice.
    """
    if kind not in KINDS:
        raise unknown("vertex_kind", kind, KINDS)
    sources = KINDS[kind].sources
    if not any(name in names for name in sources):
        raise RequestError(
            f"eval_config has no {kind} metric for Vertex AI; add one of {', '.join(sources.values())}"
        )
    if not has_overall:
        raise RequestError("slicing_specs leave out the overall slice, which Vertex AI needs; add {}")


def to_json(report: Report, kind: str) -> str:
    """Returns the import file's text: the overall record, then one for each slice that has such metrics.

    kind: one of KINDS. What is undefined is left out.
    """
    values = KINDS[kind].values
    records = [{"singleOutputSlicingSpec": {}, "metrics": {kind: metadata(report, kind)}}]
    for found in report.slices:
        if found.key != OVERALL and values(found.shown):
            records.append(
                {"singleOutputSlicingSpec": _slicing(found.key), "metrics": {kind: values(found.shown)}}
            )
    return json.dumps({"slicedMetrics": records}, allow_nan=False) + "\n"


def metadata(report: Report, kind: str) -> dict[str, Any]:
    """Returns the metadata of google.ClassificationMetrics or google.RegressionMetrics: overall values."""
    overall = next((s for s in report.slices if s.key == OVERALL), None)
    return KINDS[kind].values(overall.shown) if overall else {}


def _classification(shown: Shown) -> dict[str, Any]:
    record = _numbers(shown, auPrc="auc_precision_recall", auRoc="auc", logLoss="log_loss")
    curve, matrix = shown.get("curve"), shown.get("matrix")
    if isinstance(curve, ConfusionMatrices):
        record["confidenceMetrics"] = _confidence(at(curve))
    if isinstance(matrix, ConfusionMatrices):
        # Vertex counts rows, in whole numbers; weighted ones are rounded.
        record["confusionMatrix"] = {
            "annotationSpecs": [{"id": str(i), "displayName": name} for i, name in enumerate(CLASSES)],
            "rows": [[round(count) for count in row] for row in table(matrix)],
        }
    return record


def _regression(shown: Shown) -> dict[str, Any]:
    record = _numbers(shown, meanAbsoluteError="mean_absolute_error")
    for squared in _numbers(shown, it="mean_squared_error").values():
        record["rootMeanSquaredError"] = math.sqrt(squared)
    return record


def _numbers(shown: Shown, **names: str) -> dict[str, Any]:
    values = {field: shown.get(name) for field, name in names.items()}
    return {f: v for f, v in values.items() if isinstance(v, float) and math.isfinite(v)}


def _confidence(curve: ConfusionMatrices) -> list[dict[str, Any]]:
    """One record a threshold; a ratio that is 0/0 is left out."""
    records = []
    points = zip(curve.thresholds, curve.tp, curve.fp, curve.fn, curve.tn, strict=True)
    for threshold, tp, fp, fn, tn in (map(float, point) for point in points):
        record = {
            "confidenceThreshold": threshold,
            "maxPredictions": MOST_PREDICTIONS,
            "recall": tp / (tp + fn),
            "falsePositiveRate": fp / (fp + tn),
            "f1Score": 2 * tp / (2 * tp + fp + fn),
            "accuracy": (tp + tn) / (tp + fp + fn + tn),
            "truePositiveCount": round(tp),
            "falsePositiveCount": round(fp),
            "falseNegativeCount": round(fn),
            "trueNegativeCount": round(tn),
        }
        if tp + fp:
            record["precision"] = tp / (tp + fp)
        records.append(record)
    return records


def _slicing(key: SliceKey) -> dict[str, Any]:
    if not key:
        return {}
    return {
        "dimension": "slice",
        "value": ", ".join(f"{feature}={value_text(value)}" for feature, value in key),
        "slicingSpec": {"configs": {feature: {"value": _value(value)} for feature, value in key}},
    }


def _value(value: SliceValue) -> dict[str, Any]:
    if isinstance(value, bytes) or not math.isfinite(value):
        return {"stringValue": value_text(value)}
    return {"floatValue": float(value)}


@dataclass(frozen=True)
class Kind:
    """One of Vertex's kinds of model: its fields' values, and by shown name the metric that brings them."""

    values: Callable[[Shown], dict[str, Any]]
    sources: Mapping[str, str]


KINDS: Mapping[str, Kind] = {
    "classification": Kind(
        _classification,
        {"auc": "AUC", "log_loss": "BinaryCrossentropy", "matrix": "BinaryAccuracy"},
    ),
    "regression": Kind(
        _regression,
        {"mean_squared_error": "MeanSquaredError", "mean_absolute_error": "MeanAbsoluteError"},
    ),
}
