"""Real `assay evaluate` processes for the tests, each with a time limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

LIMIT = 120.0  # seconds
ROOT = Path(__file__).resolve().parents[1] / "components"


def start(arguments: Sequence[object], **environ: str) -> subprocess.Popen[str]:
    """Starts `assay evaluate` in a process of its own; variables of a cluster come from `environ` alone."""
    kept = {k: v for k, v in os.environ.items() if k not in ("TF_CONFIG", "CLUSTER_SPEC")}
    return subprocess.Popen(
        [sys.executable, "-m", "assay", "evaluate", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**kept, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **environ},
    )


def end(process: subprocess.Popen[str], code: int | None = 0) -> str:
    """Returns the output of a process that ends with a code (None: any) within the limit."""
    try:
        out, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"still running after {LIMIT} s:\n{process.communicate()[0]}") from None
    assert code is None or process.returncode == code, out
    return out


def tf_config(workers: int, index: int) -> dict[str, str]:
    """Returns the TF_CONFIG of a task in a cluster of a chief and workers; 0 is the chief."""
    cluster = {"chief": ["host:1"], "worker": ["host:1"] * (workers - 1)}
    task = {"type": "worker" if index else "chief", "index": max(index - 1, 0)}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


def cluster_spec(workers: int, index: int) -> dict[str, str]:
    """Returns Vertex AI's CLUSTER_SPEC of a task; pool 0 has the first, pool 1 the others."""
    cluster = {"workerpool0": ["host:1"], "workerpool1": ["host:1"] * (workers - 1)}
    task = {"type": "workerpool1" if index else "workerpool0", "index": max(index - 1, 0)}
    return {"CLUSTER_SPEC": json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})}


def record(folder: Path) -> Mapping[str, object]:
    """Returns a finished evaluation's report.json."""
    return json.loads((folder / "report.json").read_text("utf-8"))


def slices_bytes(folder: Path) -> str:
    """Returns the slices of report.json as one text, to compare byte by byte."""
    return json.dumps(record(folder)["slices"])
