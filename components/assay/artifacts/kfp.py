"""What Kubeflow and Vertex show of an evaluation: scalar metrics, a ROC curve, a confusion matrix.

Metadata of `system.Metrics` and `system.ClassificationMetrics`, as plain JSON values; every number is
finite, for the launcher takes strict JSON alone. Runs on the host, on NumPy alone.
"""

from __future__ import annotations

import json
import re
from typing import Any

from assay.curves import CLASSES, rates, table, thin
from assay.gate import Verdict
from assay.report import Report, key_record, role
from assay.spec import BASELINE, OVERALL
from assay.values import ConfusionMatrices, SliceValues, Undefined

METRICS = "metrics.json"
CLASSIFICATION = "classification_metrics.json"
SHOWN = ("curve", "matrix")  # of what `assay.metrics.shown` offers

# ML Metadata takes four megabytes a call, and people read a few dozen lines.
SCALARS = 500
NAME_LENGTH = 100
# Kubeflow and Vertex write these into the same properties.
RESERVED = ("display_name", "store_session_info")


def metrics(report: Report, verdict: Verdict) -> dict[str, float | int]:
    """Returns the overall values as flat numbers under plain, unique names.

    `rows`, `blessed` (1 or 0), every metric by its label, `…_baseline` and `…_diff` beside it where
    there is a baseline. Names keep letters, digits, `-` and `_`; what is undefined is left out.
    """
    found: dict[str, float | int] = {"rows": report.rows, "blessed": int(verdict.blessed)}
    overall = _overall(report)
    for key, value in overall.values.items() if overall else ():
        if isinstance(value, Undefined):
            continue
        if len(found) == SCALARS:
            break
        whose = role(key, report.baseline_name)
        ending = {BASELINE: "_baseline", "diff": "_diff"}.get(whose, "")
        found[_name(key.label, ending, found)] = value
    return found


def _name(label: str, ending: str, taken: Any) -> str:
    plain = re.sub(r"[^A-Za-z0-9_-]+", "_", label).strip("_") or "metric"
    number = 1
    while True:
        tail = ending if number == 1 else f"{ending}_{number}"
        name = plain[: NAME_LENGTH - len(tail)] + tail
        if name not in taken and name not in RESERVED:
            return name
        number += 1


def classification_metrics(report: Report) -> dict[str, Any]:
    """Returns the overall ROC curve, thinned to a few hundred points, and the confusion matrix at 0.5.

    `confidenceMetrics`: {confidenceThreshold, recall, falsePositiveRate} from (0, 0) to (1, 1);
    `confusionMatrix`: a row for each true class, [[TN, FP], [FN, TP]], weighted where the metric is.
    Each is there only where the candidate is a binary classifier whose metrics need its sums; {} where
    neither is, or where there are examples of one class only.
    """
    overall = _overall(report)
    return _classification(overall, whole=False) if overall else {}


def metrics_file(report: Report, verdict: Verdict) -> str:
    """Returns `metrics` as JSON text."""
    return json.dumps(metrics(report, verdict), indent=1, allow_nan=False) + "\n"


def classification_file(report: Report, verdict: Verdict) -> str:
    """Returns JSON text: `metadata` as `classification_metrics` gives it, and `slices`, with all points.

    The verdict plays no part in it.
    """
    slices = [
        {"key": key_record(s.key), **_classification(s, whole=True)}
        for s in report.slices
        if isinstance(s.shown.get("matrix"), ConfusionMatrices)
    ]
    record = {"metadata": classification_metrics(report), "slices": slices}
    return json.dumps(record, allow_nan=False) + "\n"


def _overall(report: Report) -> SliceValues | None:
    return next((s for s in report.slices if s.key == OVERALL), None)


def _classification(found: SliceValues, *, whole: bool) -> dict[str, Any]:
    curve, matrix = found.shown.get("curve"), found.shown.get("matrix")
    record: dict[str, Any] = {}
    if isinstance(curve, ConfusionMatrices):
        record["confidenceMetrics"] = _roc(curve if whole else thin(curve))
    if isinstance(matrix, ConfusionMatrices):
        record["confusionMatrix"] = {
            "annotationSpecs": [{"displayName": name} for name in CLASSES],
            "rows": [{"row": row} for row in table(matrix)],
        }
    return record


def _roc(curve: ConfusionMatrices) -> list[dict[str, float]]:
    recall, fall_out = rates(curve)
    return [
        {"confidenceThreshold": float(t), "recall": float(r), "falsePositiveRate": float(f)}
        for t, r, f in zip(curve.thresholds[::-1], recall[::-1], fall_out[::-1], strict=True)
    ]
