"""The finished evaluation as one record, and as report.json (schema "assay.report/1").

Runs on the host, on NumPy alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.gate import Finding, Verdict
from assay.spec import BASELINE, CANDIDATE, MetricKey, SliceKey, value_text
from assay.values import CrossSliceValues, SliceValues, Undefined

SCHEMA = "assay.report/1"
DIFF = "diff"


@dataclass(frozen=True)
class Report:
    """What was evaluated, how, and what came out.

    files: rows by file URI; fingerprint: the sum of row hashes modulo 2**64, in hexadecimal.
    proof: rows and fingerprint as the reader took them from the files and as the replicas counted them,
    and the bytes read; each pair is equal, and the bytes are all that the files hold, or there would be
    no report.
    models: name, URI and signature by role; execution: strategy, replicas, batch sizes, speed.
    """

    slices: Sequence[SliceValues]
    cross_slices: Sequence[CrossSliceValues] = ()
    hidden: Sequence[tuple[SliceKey, int]] = ()
    rows: int = 0
    weight: float = 0.0
    files: Mapping[str, int] = field(default_factory=dict)
    proof: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    models: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    baseline_name: str = ""
    notes: Sequence[str] = ()
    execution: Mapping[str, Any] = field(default_factory=dict)


def to_json(report: Report, verdict: Verdict) -> str:
    """Returns the report and the verdict as strict JSON: never NaN, never Infinity."""
    record = {
        "schema": SCHEMA,
        "examples": {
            "rows": report.rows,
            "weight": report.weight,
            "files": [{"uri": uri, "rows": rows} for uri, rows in sorted(report.files.items())],
            "fingerprint": report.fingerprint,
        },
        "proof": report.proof,
        "models": report.models,
        "slices": [
            {
                "key": key_record(s.key),
                "rows": s.rows,
                "weight": s.weight,
                **_values(s.values, report.baseline_name),
            }
            for s in report.slices
        ],
        "cross_slices": [
            {
                "baseline_key": key_record(c.baseline_key),
                "comparison_key": key_record(c.comparison_key),
                **_values(c.values, report.baseline_name),
            }
            for c in report.cross_slices
        ],
        "hidden": [{"key": key_record(key), "rows": rows} for key, rows in report.hidden],
        "verdict": {
            "blessed": verdict.blessed,
            "findings": [_finding(f) for f in verdict.told],
            "reasons": list(verdict.reasons),
            "notes": list(verdict.notes),
        },
        "notes": list(report.notes),
        "execution": report.execution,
    }
    return json.dumps(record, indent=1, allow_nan=False) + "\n"


def key_record(key: SliceKey) -> list[list[Any]]:
    """Returns a slice key as JSON: [[feature, value], …]; [] is overall."""
    # JSON has no Infinity.
    return [[f, v if not isinstance(v, bytes) and math.isfinite(v) else value_text(v)] for f, v in key]


def role(key: MetricKey, baseline_name: str) -> str:
    """Returns whose value a key names: candidate, baseline, or their diff."""
    if key.is_diff:
        return DIFF
    return BASELINE if baseline_name and key.model_name == baseline_name else CANDIDATE


def _values(values: Mapping[MetricKey, float | Undefined], baseline_name: str) -> dict[str, Any]:
    metrics: dict[str, dict[str, float]] = {}
    undefined: dict[str, str] = {}
    for key, value in values.items():
        whose = role(key, baseline_name)
        if isinstance(value, Undefined):
            if whose == CANDIDATE or key.label not in undefined:
                undefined[key.label] = value.reason if whose == CANDIDATE else f"{whose}: {value.reason}"
        else:
            metrics.setdefault(key.label, {})[whose] = value
    return {"metrics": metrics, "undefined": undefined}


def _finding(finding: Finding) -> dict[str, Any]:
    key = finding.slice_key
    if key is None:
        place: Any = finding.spec.text if finding.spec is not None else None
    elif finding.is_cross:
        place = [key_record(k) for k in key]  # type: ignore[arg-type]
    else:
        place = key_record(key)  # type: ignore[arg-type]
    return {
        "metric": finding.key.label,
        "slice": place,
        "place": finding.place,
        "kind": "change" if finding.is_change else "value",
        "observed": finding.observed,
        "bound": finding.bound,
        "candidate": finding.candidate,
        "baseline": finding.baseline,
        "ok": finding.ok,
        "reason": finding.reason,
    }
