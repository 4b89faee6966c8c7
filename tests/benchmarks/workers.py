"""Rows a second of one worker on one core against two workers on a core each, from the same command.

`python tests/benchmarks/workers.py [--rows N]`. Each worker mirrors over two logical devices. The time is
from the first lease to the last State, start-up left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import workload

COMPONENTS = Path(__file__).resolve().parents[2] / "components"


def rate(examples: Path, model: Path, folder: Path, workers: int) -> tuple[float, str]:
    """Returns rows a second of so many workers, each on a core of its own, and the slices that they found."""
    command = [
        sys.executable, "-m", "assay", "evaluate", "--examples", examples, "--model", model,
        "--eval-config", workload.EVAL_CONFIG, "--output", folder, "--state-dir", folder / "shared",
        "--strategy", "mirrored", "--logical-devices", "2",
    ]  # fmt: skip
    environ = {**os.environ, "PYTHONPATH": str(COMPONENTS)}
    running = [
        subprocess.Popen(
            ["taskset", "-c", str(core), *map(str, command)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environ,
        )
        for core in range(workers)
    ]
    while not list(folder.glob("shared/*/0*.lease-*")):
        time.sleep(0.01)
    first = time.time()
    codes = [process.wait() for process in running]
    if any(codes):
        raise SystemExit("a worker failed")
    last = max(path.stat().st_mtime for path in folder.glob("shared/*/*.state"))
    record = json.loads((folder / "report.json").read_text("utf-8"))
    return record["examples"]["rows"] / (last - first), json.dumps(record["slices"])


def main() -> None:
    """Prints both rates and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--root", default=os.path.join(tempfile.gettempdir(), "assay-benchmark"))
    arguments = parser.parse_args()
    if (os.cpu_count() or 1) < 2:
        raise SystemExit("two cores are needed")
    examples, model = workload.prepare(Path(arguments.root), arguments.rows)
    with tempfile.TemporaryDirectory(prefix="assay-workers-") as folder:
        one, found = rate(examples, model, Path(folder, "one"), 1)
        two, same = rate(examples, model, Path(folder, "two"), 2)
    if found != same:
        raise SystemExit("two workers found other slices than one")
    print(
        f"1 worker on a core {one:,.0f} rows/s; 2 workers on two cores {two:,.0f}: "
        f"{two / one:.2f} times as fast, the same bytes ({arguments.rows:,} rows, 2 replicas each)"
    )


if __name__ == "__main__":
    main()
