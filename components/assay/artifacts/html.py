"""The report as one page that needs nothing else: no script, no font, no network.

Runs on the host. What does not fit on a page of at most two megabytes is left to report.json, and
the page says so.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import jinja2

from assay import text
from assay.gate import Finding, Verdict
from assay.report import Report, role
from assay.spec import CANDIDATE, SliceKey, slice_text
from assay.values import SliceValues, Undefined

TOP_REASONS = 10
FINDINGS = 500
FILES = 200
NAMED_SLICES = 5
NAMES = 200
# A number in a table is about 20 bytes of page.
CELLS = 60_000

ROLES = ("candidate", "baseline", "diff")
HEADINGS = {"candidate": "candidate", "baseline": "baseline", "diff": "change"}


@dataclass(frozen=True)
class Column:
    """One metric in the table of slices, and which of its three values there are."""

    label: str
    roles: tuple[str, ...]


def render(report: Report, verdict: Verdict) -> str:
    """Returns the page: verdict and reasons, checks, metrics by slice, proof, provenance."""
    columns = _columns(report)
    width = max(1, sum(len(c.roles) for c in columns))
    shown = _foremost(report.slices, verdict, CELLS // width)
    failed, passed = verdict.failures, [f for f in verdict.told if f.ok]
    return _template().render(
        report=report,
        verdict=verdict,
        reasons=verdict.reasons[:TOP_REASONS],
        more_reasons=max(0, len(verdict.reasons) - TOP_REASONS),
        failed=[_check(f) for f in failed[:FINDINGS]],
        passed=[_check(f) for f in passed[:FINDINGS]],
        failed_count=len(failed),
        passed_count=len(passed),
        columns=columns,
        weighted=any(s.weight != s.rows for s in report.slices),
        slices=[(slice_text(s.key), s, _cells(s.values, columns, report.baseline_name)) for s in shown],
        cross_slices=[
            (
                slice_text(c.baseline_key),
                slice_text(c.comparison_key),
                _cells(c.values, columns, report.baseline_name),
            )
            for c in report.cross_slices[: CELLS // width // 2]
        ],
        undefined=_undefined(report),
        hidden=[(slice_text(key), rows) for key, rows in report.hidden[:NAMES]],
        files=sorted(report.files.items())[:FILES],
        proof=report.proof,
        notes=[*verdict.notes, *report.notes],
        execution=_flat(report.execution),
        headings=HEADINGS,
        candidate=CANDIDATE,
    )


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(number=text.number, change=text.change)
    environment.globals["count"] = text.count
    source = resources.files("assay.artifacts").joinpath("report.html").read_text(encoding="utf-8")
    return environment.from_string(source)


def _columns(report: Report) -> list[Column]:
    roles: dict[str, set[str]] = {}
    keys = [key for s in report.slices for key in s.values]
    keys += [key for c in report.cross_slices for key in c.values]
    for key in keys:
        roles.setdefault(key.label, set()).add(role(key, report.baseline_name))
    return [Column(label, tuple(r for r in ROLES if r in there)) for label, there in roles.items()]


def _cells(values: Any, columns: Sequence[Column], baseline_name: str) -> list[str | None]:
    """A text for each role of each column; None where it is undefined, "" where it is not there."""
    found = {(key.label, role(key, baseline_name)): value for key, value in values.items()}
    cells: list[str | None] = []
    for column in columns:
        for whose in column.roles:
            value = found.get((column.label, whose))
            if isinstance(value, Undefined):
                cells.append(None)
            else:
                cells.append(text.change(value) if whose == "diff" else text.number(value))
    return cells


def _foremost(slices: Sequence[SliceValues], verdict: Verdict, limit: int) -> Sequence[SliceValues]:
    """All slices if they fit; else the overall one, those that failed, and the largest."""
    if len(slices) <= limit:
        return slices
    failed = {f.slice_key for f in verdict.failures}
    ranked = sorted(slices, key=lambda s: (s.key != (), s.key not in failed, -s.rows))
    kept = {s.key for s in ranked[:limit]}
    return [s for s in slices if s.key in kept]


def _check(finding: Finding) -> dict[str, Any]:
    return {
        "metric": finding.key.label,
        "place": finding.place,
        "candidate": text.number(finding.candidate),
        "baseline": text.number(finding.baseline),
        "change": text.change(finding.observed) if finding.is_change else "",
        "bound": finding.bound,
        "ok": finding.ok,
        "reason": finding.reason,
    }


def _undefined(report: Report) -> list[tuple[str, str, str]]:
    """Metric, reason and where, by reason; a difference repeats its models' and is left out."""
    places: dict[tuple[str, str], list[SliceKey]] = {}
    for found in report.slices:
        for key, value in found.values.items():
            if isinstance(value, Undefined) and not key.is_diff:
                is_baseline = role(key, report.baseline_name) == "baseline"
                name = f"{key.label} (baseline)" if is_baseline else key.label
                places.setdefault((name, value.reason), []).append(found.key)
    rows = []
    for (name, reason), keys in list(places.items())[:NAMES]:
        where = "; ".join(slice_text(k) for k in keys[:NAMED_SLICES])
        more = f"; and {len(keys) - NAMED_SLICES:,} more" if len(keys) > NAMED_SLICES else ""
        rows.append((name, reason, where + more))
    return rows


def _flat(execution: Any) -> list[tuple[str, str]]:
    """Execution as names and texts, one level deep."""
    rows = []
    for name, value in execution.items():
        if isinstance(value, dict):
            shown = ", ".join(f"{k} {v}" for k, v in value.items())
        elif isinstance(value, (list, tuple)):
            shown = ", ".join(map(str, value))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            shown = text.number(float(value))
        else:
            shown = str(value)
        rows.append((name.replace("_", " "), shown))
    return rows
