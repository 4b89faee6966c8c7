"""Runs the taxi pipeline twice, with a good and with a worse model, and shows what the gate said.

python -m pipelines.taxi_demo run  --root DIR    both runs, then `show`
python -m pipelines.taxi_demo show --root DIR    what they left in DIR, read from the artifacts
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from assay.quiet import stderr_unless_it_fails

TRAININGS = {
    "first": {"steps": 1500, "learning_rate": 2e-3},
    "second": {"steps": 25, "learning_rate": 2e-4},
}
DATABASE = "metadata.sqlite"
EVALUATOR = "DistributedEvaluator"

Outputs = Mapping[str, Any]


class DemoError(Exception):
    """What the demo cannot go on without; the message is all a reader needs."""


def run(root: Path, console: Console) -> None:
    """Runs both pipelines under root, emptied first."""
    _empty(root)
    _quiet()
    console.print("Loading TFX …")
    # Only now: TensorFlow reads the log levels when it is imported.
    with stderr_unless_it_fails():
        from tfx.v1.orchestration import LocalDagRunner

        from pipelines.taxi_tfx import taxi_pipeline

    for name, training in TRAININGS.items():
        settings = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in training.items())
        console.print(f"\n[bold]The {name} run[/bold] ({settings})")
        with _progress(console):
            LocalDagRunner().run(taxi_pipeline(root, **training))


def show(root: Path, console: Console) -> None:
    """Prints both verdicts, and why the second model was held back, from the runs' artifacts."""
    runs = _runs(root)
    if len(runs) != len(TRAININGS):
        raise DemoError(f"{root / DATABASE} holds {len(runs)} finished evaluations, not 2")
    folder = Path(runs[-1]["report"].uri)
    report = json.loads(_existing(folder / "report.json").read_text(encoding="utf-8"))
    page = _existing(folder / "report.html")
    failed = [finding for finding in report["verdict"]["findings"] if not finding["ok"]]

    # Both before the first line: what is missing shows while they are made.
    tables = _verdicts(runs), _failures(failed, report["slices"])
    for table in tables:
        console.print()
        console.print(table)
    console.print()
    reasons = report["verdict"]["reasons"]
    if len(reasons) > len(failed):
        console.print("Reasons:", *reasons, sep="\n  ", highlight=False)
    console.print(f"Report of the second run: {page}", soft_wrap=True, highlight=False)


def _verdicts(runs: list[Outputs]) -> Table:
    table = _table("Verdicts", "run", "verdict", "pushed to")
    for name, outputs in zip(TRAININGS, runs, strict=True):
        blessing, pushed = outputs["blessing"], outputs["pushed_model"].custom_properties
        blessed = bool(blessing.custom_properties["blessed"].int_value)
        _existing(Path(blessing.uri) / ("BLESSED" if blessed else "NOT_BLESSED"))
        table.add_row(
            name,
            "[green]BLESSED[/green]" if blessed else "[red]NOT BLESSED[/red]",
            pushed["pushed_destination"].string_value if pushed["pushed"].int_value else "nowhere",
        )
    return table


def _failures(failed: list[Mapping[str, Any]], slices: list[Mapping[str, Any]]) -> Table:
    table = _table("What the second model failed", "metric", "slice")
    for column in ("observed", "bound", "baseline"):
        table.add_column(column, justify="right", no_wrap=True)
    metrics = {json.dumps(of_slice["key"]): of_slice["metrics"] for of_slice in slices}
    for finding in failed:
        name, key = finding["metric"], finding["slice"]
        baseline = metrics.get(json.dumps(key), {}).get(name, {}).get("baseline")
        table.add_row(
            name,
            _slice_text(key),
            _number(finding["observed"]),
            str(finding["bound"]),
            _number(baseline),
        )
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.padding = (0, 2, 0, 0)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _slice_text(key: Any) -> str:
    if isinstance(key, list):
        return ", ".join(f"{feature}={value}" for feature, value in key) or "overall"
    return str(key)


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"


def _existing(path: Path) -> Path:
    if not path.exists():
        raise DemoError(f"{path} is not there: nothing to show without it")
    return path


def _runs(root: Path) -> list[Outputs]:
    """Returns the evaluator's and the pusher's outputs of each run, oldest first, by output key."""
    # ML Metadata would make a database where there is none.
    database = str(_existing(root / DATABASE))
    from ml_metadata.metadata_store import metadata_store
    from ml_metadata.proto import metadata_store_pb2 as mlmd

    config = mlmd.ConnectionConfig()
    config.sqlite.filename_uri = database
    config.sqlite.connection_mode = mlmd.SqliteMetadataSourceConfig.READONLY
    store = metadata_store.MetadataStore(config)
    contexts = sorted(store.get_contexts_by_type("pipeline_run"), key=lambda c: c.id)
    runs = []
    for context in contexts:
        executions = store.get_executions_by_context(context.id)
        ours = [e.id for e in executions if e.type.endswith((f".{EVALUATOR}", ".Pusher"))]
        events = [
            event for event in store.get_events_by_execution_ids(ours) if event.type == mlmd.Event.OUTPUT
        ]
        artifacts = store.get_artifacts_by_id([event.artifact_id for event in events])
        by_id = {artifact.id: artifact for artifact in artifacts}
        runs.append({e.path.steps[0].key: by_id[e.artifact_id] for e in events})
    return [outputs for outputs in runs if {"blessing", "report", "pushed_model"} <= outputs.keys()]


def _empty(root: Path) -> None:
    if root.exists() and any(root.iterdir()) and not (root / DATABASE).exists():
        raise DemoError(f"{root} holds something other than an earlier demo; name another --root")
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)


def _quiet() -> None:
    """Keeps the libraries' chatter off the terminal; exceptions are still shown in full."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    warnings.filterwarnings("ignore")
    logging.getLogger().setLevel(logging.ERROR)


@contextmanager
def _progress(console: Console) -> Iterator[None]:
    """Prints a line for each node; LocalDagRunner tells of them by its log alone."""
    from absl import logging as absl_logging

    began = time.monotonic()

    def show_node(record: logging.LogRecord) -> bool:
        nonlocal began
        if record.filename == "local_dag_runner.py" and record.args:
            if "is running" in record.msg:
                began = time.monotonic()
            elif "is finished" in record.msg:
                seconds = time.monotonic() - began
                console.print(f"  {record.args[0]:<22}{seconds:6.1f} s", highlight=False)
        return record.levelno >= logging.ERROR

    logger = absl_logging.get_absl_logger()
    logger.addFilter(show_node)
    absl_logging.set_verbosity(absl_logging.INFO)
    try:
        yield
    finally:
        absl_logging.set_verbosity(absl_logging.ERROR)
        logger.removeFilter(show_node)


def main() -> int:
    parser = argparse.ArgumentParser(prog="taxi_demo", description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("run", "show"))
    parser.add_argument("--root", type=Path, default=Path("build/demo"))
    args = parser.parse_args()
    root = args.root.resolve()
    # A pipe has no width; 80 columns would cut the paths.
    console = Console(width=None if sys.stdout.isatty() else 200)
    try:
        if args.command == "run":
            run(root, console)
        show(root, console)
    except DemoError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
