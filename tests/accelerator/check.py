"""On a GPU: the State that a CPU gives from the same predictions, rows a second, and how busy the GPU is.

`make accelerator`, or this file with [--device GPU:0] [--rows N], components and tests on PYTHONPATH. Ends
with 1 where a sum differs, with 2 where there is no such device. With `--device CPU:0` it holds the CPU
against itself, which shows that the script works. One report in JSON at the end, for whoever keeps it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import made
import numpy as np
import tensorflow as tf
from benchmarks import workload

from assay import loop, shards
from assay.api import request
from assay.engine import Engine
from assay.eval_config import read, to_spec
from assay.question import ask
from assay.request import Execution
from assay.state import State, totals

METRICS = (
    "ExampleCount", "WeightedExampleCount", "BinaryAccuracy", "BinaryCrossentropy", "AUC",
    "Precision", "Recall", "Calibration", "MeanSquaredError", "MeanAbsoluteError",
    "ConfusionMatrixPlot", "CalibrationPlot",
)  # fmt: skip
CLOSE = 1e-12  # a logarithm differs in its last bit from one kind of device to another


def evaluate(examples: Path, model: Path, config: str, device: str, batch: int) -> tuple[State, float]:
    """Returns the State on one device, and its rows a second once everything is compiled."""
    asked = request(
        examples=str(examples), model=str(model), eval_config=config, execution=Execution(batch_size=batch)
    )
    spec = to_spec(read(config), has_baseline=False)
    strategy = tf.distribute.OneDeviceStrategy(device)
    true, loop.strategy = loop.strategy, lambda execution: strategy
    try:
        engine = Engine(asked, spec, ask(spec, spec.models))
    finally:
        loop.strategy = true
    (shard,) = shards.cut(engine.files, engine.records.mean_bytes, 1)[:1]
    engine.evaluate(shard)
    started = time.perf_counter()
    state = engine.evaluate(shard)
    return state, sum(state.rows_counted.values()) / (time.perf_counter() - started)


def differences(one: State, other: State) -> list[str]:
    """Returns the leaves that differ: to the bit, or by more than CLOSE where a logarithm is in them."""
    found = [] if one.slices.keys() == other.slices.keys() else ["the slices themselves"]
    for key in one.slices.keys() & other.slices.keys():
        for leaf, mine, theirs in zip(one.layout, one.slices[key], other.slices[key], strict=True):
            if np.array_equal(mine, theirs):
                continue
            near = np.allclose(totals(leaf, mine), totals(leaf, theirs), rtol=CLOSE, atol=0)
            if not (leaf.name.startswith("cross_entropy") and near):
                found.append(f"{leaf.name} on slice {key}")
    if one.fingerprint_counted != other.fingerprint_counted:
        found.append("the fingerprint")
    return found


@contextmanager
def utilisation(device: str) -> Iterator[list[int]]:
    """Collects the GPU's utilisation in percent, ten times a second; nothing on a CPU."""
    samples: list[int] = []
    stop = threading.Event()

    def sample() -> None:
        asked = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        while not stop.wait(0.1):
            try:
                out = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
            except (OSError, subprocess.CalledProcessError):
                return
            samples.append(int(out.split()[0]))

    thread = threading.Thread(target=sample, daemon=True)
    if device.startswith("GPU"):
        thread.start()
    yield samples
    stop.set()


def recorded(root: Path, rows: int) -> tuple[Path, Path]:
    """Writes predictions as a feature, and the model that hands them on unchanged."""
    random = np.random.default_rng(5)
    labels = random.integers(0, 2, rows)
    scores = np.clip(random.normal(0.4 + 0.2 * labels, 0.25), 0.001, 0.999).astype(np.float32)
    made.examples(
        root / "recorded",
        [
            {
                "label": int(labels[i]),
                "score": float(scores[i]),
                "weight": float(random.choice([0.0, 0.5, 1.0, 3.0])),
                "pay": f"{random.integers(5)}",
            }
            for i in range(rows)
        ],
    )
    return root / "recorded", made.model(root / "identity", made.Named())


def main(argv: list[str] | None = None) -> int:
    """Runs the checks; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="GPU:0")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=8192)
    arguments = parser.parse_args(argv)
    loop.set_up(Execution())
    known = [f"{d.device_type}:{d.name.rsplit(':', 1)[1]}" for d in tf.config.list_logical_devices()]
    if arguments.device not in known:
        print(f"no device {arguments.device} here; TensorFlow finds {', '.join(known)}", file=sys.stderr)
        return 2
    report: dict[str, object] = {"device": arguments.device, "tensorflow": tf.__version__}
    with tempfile.TemporaryDirectory(prefix="assay-accelerator-") as folder:
        root = Path(folder)
        models = [{"labelKey": "label", "exampleWeightKey": "weight"}]
        config = made.config(*METRICS, slices=({}, {"featureKeys": ["pay"]}), models=models)
        examples, identity = recorded(root, min(arguments.rows, 20_000))
        here, _ = evaluate(examples, identity, config, "CPU:0", 1024)
        there, _ = evaluate(examples, identity, config, arguments.device, 1024)
        report["different"] = differences(here, there)
        examples, mlp = workload.prepare(root / "workload", arguments.rows)
        rates = {}
        for device in ("CPU:0", arguments.device):
            with utilisation(device) as samples:
                _, rates[device] = evaluate(examples, mlp, workload.EVAL_CONFIG, device, arguments.batch)
            report["utilisation"] = {"median": float(np.median(samples))} if samples else {}
        report["rows_per_second"] = {device: round(value) for device, value in rates.items()}
    print(json.dumps(report, indent=1))
    return 1 if report["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
