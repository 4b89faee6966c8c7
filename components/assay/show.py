"""A finished evaluation in the terminal: verdict, what failed, metrics by slice.

Reads report.json alone, so it needs neither TensorFlow nor TFMA. Runs on the host.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from assay.report import SCHEMA
from assay.spec import RequestError
from assay.text import change, count, number

SLICES = 50
FINDINGS = 50
# Wide enough that nothing is wrapped or cut for whoever reads the lines from a pipe.
PLAIN_WIDTH = 400

Record = Mapping[str, Any]


def show(folder: str, compare: str | None = None, console: Console | None = None) -> None:
    """Prints the evaluation in `folder`; with `compare`, another one's values beside it.

    Plain aligned text where the output is no terminal.

    Raises:
      RequestError: a folder has no report.json, or it is no "assay.report/1".
    """
    record = load(folder)
    other = load(compare) if compare else None
    if console is None:
        console = Console()
        if not console.is_terminal:
            console = Console(width=PLAIN_WIDTH, color_system=None)
    _verdict(record, console)
    _failed(record["verdict"]["findings"], console)
    if other is not None and other["examples"]["fingerprint"] != record["examples"]["fingerprint"]:
        _line(console, f"note: {compare} was evaluated on other rows", "yellow")
    _metrics(record, other, console)


def load(folder: str) -> Record:
    """Returns the report in `folder`.

    Raises:
      RequestError: there is none, or it is no "assay.report/1"; the path is named.
    """
    path = os.path.join(folder, "report.json")
    try:
        record = json.loads(_read(path))
    except OSError as error:
        raise RequestError(
            f"{path} cannot be read: {error.strerror or error}; name a finished --output folder"
        ) from error
    except ValueError as error:
        raise RequestError(f"{path} is not JSON: {error}") from error
    schema = record.get("schema") if isinstance(record, dict) else None
    if schema != SCHEMA:
        raise RequestError(f"{path} has schema {schema!r}; {SCHEMA!r} is needed")
    return record


def _read(path: str) -> str:
    if "://" not in path:
        with open(path, encoding="utf-8") as file:
            return file.read()
    import tensorflow as tf

    try:
        with tf.io.gfile.GFile(path) as file:
            return file.read()
    except tf.errors.OpError as error:
        raise OSError(error.message) from error


def _line(console: Console, line: str, style: str = "") -> None:
    console.print(Text(line, style=style), soft_wrap=True)


def _verdict(record: Record, console: Console) -> None:
    verdict, examples = record["verdict"], record["examples"]
    _line(console, *(("BLESSED", "bold green") if verdict["blessed"] else ("NOT BLESSED", "bold red")))
    failed = sum(not f["ok"] for f in verdict["findings"])
    _line(
        console,
        f"{count(examples['rows'], 'row')}, {count(len(record['slices']), 'slice')}, "
        f"{count(len(verdict['findings']), 'check')}, {failed:,} failed",
    )
    for name, model in record["models"].items():
        _line(console, f"{name}: {model.get('uri', '')}")
    # A failed check's reason is in the table; what is left is about the evaluation as a whole.
    told = tuple(_opening(f) for f in verdict["findings"] if not f["ok"])
    for reason in verdict["reasons"]:
        if not reason.startswith(told):
            _line(console, reason, "red")
    for note in (*verdict["notes"], *record["notes"]):
        _line(console, f"note: {note}")


def _opening(finding: Record) -> str:
    kind = "change of " if finding["kind"] == "change" else ""
    return f"{kind}{finding['metric']} on {finding['place']}: "


def _failed(findings: list[Record], console: Console) -> None:
    failed = [f for f in findings if not f["ok"]]
    if not failed:
        return
    table = _table(console, "Failed checks", "metric", "slice", "observed", "asked", "baseline", "reason")
    for f in failed[:FINDINGS]:
        observed = "undefined" if f["observed"] is None else number(f["observed"])
        _row(table, f["metric"], f["place"], observed, f["bound"], number(f["baseline"]), f["reason"])
    console.print(table)
    if len(failed) > FINDINGS:
        _line(console, f"and {count(len(failed) - FINDINGS, 'more failed check')}, in report.json")


def _metrics(record: Record, other: Record | None, console: Console) -> None:
    slices = record["slices"]
    values = [m for s in slices for m in s["metrics"].values()]
    roles = [r for r in ("candidate", "baseline", "diff") if r == "candidate" or any(r in m for m in values)]
    names = [("change" if r == "diff" else r) for r in roles] + (["other", "difference"] if other else [])
    # In a terminal's few columns a slice is a line of its own; in a pipe every line stands alone.
    narrow = console.is_terminal
    table = _table(
        console,
        "Metrics by slice",
        *(("metric",) if narrow else ("slice", "rows", "metric")),
        *names,
    )
    others = {_place(s["key"]): s["metrics"] for s in other["slices"]} if other else {}
    for found in slices[:SLICES]:
        place = _place(found["key"])
        if narrow:
            table.add_row(Text(f"{place}, {count(found['rows'], 'row')}", style="bold"))
        for metric in dict.fromkeys((*found["metrics"], *found["undefined"])):
            mine = found["metrics"].get(metric, {})
            cells = [_cell(mine, r) for r in roles]
            if other:
                theirs = others.get(place, {}).get(metric, {})
                both = "candidate" in mine and "candidate" in theirs
                cells += [
                    number(theirs.get("candidate")),
                    change(mine["candidate"] - theirs["candidate"]) if both else "",
                ]
            _row(
                table,
                *((f"  {metric}",) if narrow else (place, f"{found['rows']:,}", metric)),
                *cells,
            )
        if narrow:
            table.add_section()
    console.print(table)
    if len(slices) > SLICES:
        _line(console, f"and {count(len(slices) - SLICES, 'more slice')}, in report.json")
    for found in slices[:SLICES]:
        for metric, reason in found["undefined"].items():
            _line(console, f"undefined: {metric} on {_place(found['key'])}: {reason}")


def _cell(values: Mapping[str, float], role: str) -> str:
    if role in values:
        return change(values[role]) if role == "diff" else number(values[role])
    return "undefined" if role == "candidate" else ""


def _place(key: list[list[Any]]) -> str:
    return ", ".join(f"{feature}={value}" for feature, value in key) or "Overall"


def _table(console: Console, title: str, *names: str) -> Table:
    """A table whose columns of numbers are aligned right; lines only on a terminal."""
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD if console.is_terminal else None,
        collapse_padding=True,
        title_style="bold",
        pad_edge=False,
    )
    texts = {"metric", "slice", "asked", "reason"}
    for name in names:
        is_text = name in texts
        table.add_column(name, justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text)
    return table


def _row(table: Table, *cells: str) -> None:
    # Text, not str: a slice value such as "[red]" is no markup.
    table.add_row(*(Text(str(c)) for c in cells))
