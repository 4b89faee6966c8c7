"""However the work is spread, the slices of report.json are the same bytes: one table of all the ways."""

from __future__ import annotations

import hashlib
from pathlib import Path

import made
import processes
import pytest
from fleets import MULTI, dask_cluster, dask_options

import assay
from assay.request import Execution

METRICS = (
    "ExampleCount", "WeightedExampleCount", "BinaryAccuracy", "BinaryCrossentropy", "AUC",
    "AUCPrecisionRecall", "Precision", "Recall", "Calibration", "MeanLabel", "MeanPrediction",
    "MeanSquaredError", "ConfusionMatrixPlot", "CalibrationPlot",
)  # fmt: skip
SLICES = ({}, {"featureKeys": ["pay"]}, {"featureKeys": ["hour"]}, {"featureKeys": ["pay", "hour"]})
FILES, SIZE = 5, 1501

WAYS = {
    **{f"{w} workers, {r} replicas": (w, r) for w in (1, 2, 3) for r in (1, 2, 3, 4)},
    "Beam, in memory": (),
    "Beam, multi_processing": MULTI,
    "Beam, Dask": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    root = tmp_path_factory.mktemp("drivers")
    rows = [
        {
            "label": (i * i + i // 3) % 2,
            "score": (i * 7919 % 10007) / 10007,
            "weight": (0.0, 0.3, 1.0, 2.5)[i % 4],
            # Each file begins with other slices, and the last has some that no other has.
            "pay": f"{(i * FILES // SIZE + i) % 6}",
            "hour": i * FILES // SIZE % 4 + i % 3,
        }
        for i in range(SIZE)
    ]
    for n in range(FILES):
        own = [r for i, r in enumerate(rows) if i * FILES // SIZE == n]
        made.write(root / "examples" / f"{n}.gz", own)
    made.model(root / "model")
    models = [{"labelKey": "label", "exampleWeightKey": "weight"}]
    (root / "config.json").write_text(made.config(*METRICS, slices=SLICES, models=models))
    return root


def in_this_process(given: Path, output: Path, **execution) -> None:
    assay.evaluate(
        examples=str(given / "examples"),
        model=str(given / "model"),
        eval_config=(given / "config.json").read_text(),
        output=str(output),
        execution=Execution(**{"strategy": "one_device", "batch_size": 128, **execution}),
    )


@pytest.fixture(scope="module")
def reference(given, tmp_path_factory):
    output = tmp_path_factory.mktemp("reference")
    in_this_process(given, output, batch_size=64)
    return output


@pytest.fixture(scope="module")
def table(pytestconfig):
    """Lines of the table that ends the run: how the work was spread, and what came out."""
    pytestconfig.table = [f"{'way':26}{'rows':>6}{'shards':>8}  SHA-256 of the slices"]
    return pytestconfig.table


def run(given: Path, output: Path, way: str) -> None:
    found = WAYS[way]
    if found is None:
        with dask_cluster() as address:
            in_this_process(given, output, runner="beam", beam_options=dask_options(address))
    elif way.startswith("Beam"):
        in_this_process(given, output, runner="beam", beam_options=found)
    else:
        workers, replicas = found
        command = [
            "--examples", given / "examples", "--model", given / "model", "--output", output,
            "--eval-config", given / "config.json", "--state-dir", output / "shared", "--batch-size", 128,
            "--strategy", "mirrored" if replicas > 1 else "one_device", "--logical-devices", replicas,
        ]  # fmt: skip
        if workers == 1:
            in_this_process(
                given, output, strategy="mirrored", logical_devices=replicas, state_dir=str(output / "shared")
            )
        else:
            started = [processes.start(command, **processes.tf_config(workers, i)) for i in range(workers)]
            for process in started:
                processes.end(process)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_bytes(given, reference, table, tmp_path, way):
    run(given, tmp_path, way)
    record = processes.record(tmp_path)
    text = processes.slices_bytes(tmp_path)
    shards = record["execution"]["shards"]
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    table.append(f"{way:26}{record['examples']['rows']:6,}{shards:8}  {digest}")
    assert text == processes.slices_bytes(reference)
    assert record["examples"] == processes.record(reference)["examples"]
    assert record["examples"]["rows"] == record["proof"]["rows_counted"] == SIZE
    assert shards > 1
    if not way.startswith("Beam"):
        assert record["execution"]["replicas"] == WAYS[way][1]
