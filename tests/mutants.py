"""Faults put into a copy of the code on purpose: the tests have to notice each of them, three times at least.

`python tests/mutants.py [NAME…]`, or `make mutants`. Ends with 1 where one survives.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path("components", "assay")
LEAST = 3


@dataclass(frozen=True)
class Mutant:
    """One fault: what it is, where, and the tests that should see it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


SUM = "distribution.reduce(tf.distribute.ReduceOp.SUM, distribution.run(read, (slots,)), axis=None)"
FIRST = "tf.nest.map_structure(lambda v: distribution.experimental_local_results(v)[0], found)"
NUMBERS = ("tests/test_numbers.py", "-k", "mean_of_means or without_rows")
STATIC = ("tests/test_static.py", "-k", "both_ways or dropped")

MUTANTS = (
    Mutant(
        "the reduce over the replicas is dropped",
        "loop.py",
        f"return {SUM}",
        f"found = distribution.run(read, (slots,))\n        return {FIRST}",
        NUMBERS,
    ),
    Mutant(
        "the reduce over the replicas is dropped for histograms alone",
        "loop.py",
        f"return {SUM}",
        f'found = distribution.run(read, (slots,))["binned"]\n        return {{**{SUM}, "binned": {FIRST}}}',
        ("tests/test_numbers.py", "-k", "devices_or_batches"),
    ),
    Mutant("MEAN instead of SUM", "loop.py", SUM, SUM.replace("SUM", "MEAN"), NUMBERS),
    Mutant(
        "MEAN instead of SUM in sums of static shape",
        "loop.py",
        "return distribution.reduce(tf.distribute.ReduceOp.SUM, found, axis=None)",
        "return distribution.reduce(tf.distribute.ReduceOp.MEAN, found, axis=None)",
        STATIC,
    ),
    Mutant(
        "one State is added twice by the chief",
        "workers.py",
        "total = state if total is None else merge(total, state)",
        "total = merge(state, state) if total is None else merge(total, state)",
        ("tests/test_resume.py", "-k", "not_read_again or goes_on or go_on or damaged"),
    ),
    Mutant(
        "one State is added twice in Beam",
        "fleet.py",
        "return state if accumulator is None else merge(accumulator, state)",
        "return merge(state, state) if accumulator is None else merge(accumulator, state)",
        ("tests/test_fleet.py", "-k", "combine or nothing or own or once"),
    ),
    Mutant(
        "a lease is honoured twice",
        "leases.py",
        "if term and not self._is_dead(self._path(name, term)):\n                return False",
        "if False:\n                return False",
        ("tests/test_leases.py",),
    ),
    Mutant(
        "a shard counts once for each process that finishes it",
        "loop.py",
        "            accumulator.clear()",
        "            pass",
        ("tests/test_static.py", "tests/test_resume.py", "-k", "one_trace or void or new or damaged"),
    ),
    Mutant(
        "the rows of a shard begin one too late",
        "inputs.py",
        "records.skip(start)",
        "records.skip(start + 1)",
        NUMBERS,
    ),
    Mutant(
        "padding counts as rows",
        "inputs.py",
        '"count": tf.cast(tf.range(rows) < real, tf.int64)',
        '"count": tf.ones([rows], tf.int64)',
        NUMBERS,
    ),
    Mutant(
        "sums of static shape are not widened before they overflow",
        "accumulate.py",
        "PIECE = 8",
        "PIECE = 32",
        STATIC,
    ),
    Mutant(
        "after out-of-memory the sums so far are kept",
        "engine.py",
        "self._fold = None  # and with it everything that lies on the devices but the models",
        "pass",
        ("tests/test_memory.py",),
    ),
)


def failures(mutant: Mutant, copy: Path) -> int:
    """Returns how many tests fail on the copy with the fault in it, of the first few."""
    path = copy / PACKAGE / mutant.file
    text = path.read_text("utf-8")
    if text.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.name}: {mutant.file} holds {text.count(mutant.old)} times {mutant.old!r}")
    path.write_text(text.replace(mutant.old, mutant.new), "utf-8")
    try:
        ran = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                f"--maxfail={LEAST}",
                *mutant.tests,
            ],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy / "components")},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        path.write_text(text, "utf-8")
    found = re.search(r"(\d+) failed", ran.stdout)
    if ran.returncode not in (0, 1, 2) or not re.search(r"\d+ (passed|failed)", ran.stdout):
        raise SystemExit(f"{mutant.name}: the tests did not run\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return int(found.group(1)) if found else 0


def main(names: list[str]) -> int:
    """Runs the mutants whose names hold one of the words given, all where there is none."""
    survived = 0
    with tempfile.TemporaryDirectory(prefix="assay-mutants-") as folder:
        copy = Path(folder)
        for part in ("components", "tests", "pipelines", "pyproject.toml"):
            source = ROOT / part
            (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / part)
        for mutant in MUTANTS:
            if names and not any(word in mutant.name for word in names):
                continue
            count = failures(mutant, copy)
            survived += count < LEAST
            told = "killed" if count >= LEAST else "SURVIVED"
            print(f"{told:9} {count} of the first {LEAST} failing tests: {mutant.name}", flush=True)
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
