"""Several real processes on one evaluation: exact counts, one set of artifacts, nobody hangs."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import made
import processes
import pytest

from assay.api import request
from assay.request import Execution

METRICS = ("ExampleCount", "MeanLabel", "AUC", "BinaryCrossentropy")
SLICES = ({}, {"featureKeys": ["pay"]})
ARTIFACTS = ("evaluation/eval_config.json", "blessing/NOT_BLESSED", "report.json", "report.html")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return made.model(tmp_path_factory.mktemp("model") / "model")


def rows(size, pay=("Cash", "Card", "Other")):
    return [
        {"id": i, "label": i % 2, "score": (i * 37 % 101) / 101, "pay": pay[i % len(pay)]}
        for i in range(size)
    ]


def arguments(folder: Path, model: Path, batch: int = 2) -> list[object]:
    return [
        "--examples", folder / "examples", "--model", model, "--batch-size", batch,
        "--eval-config", made.config(*METRICS, slices=SLICES), "--output", folder / "output",
        "--state-dir", folder / "state",
    ]  # fmt: skip


def alone(folder: Path, model: Path):
    """The same evaluation in this process, with nothing in common."""
    config = made.config(*METRICS, slices=SLICES)
    return made.evaluate(folder / "examples", model, config, output=folder / "alone")


def agree(folder: Path, model: Path, size: int) -> None:
    outcome = alone(folder, model)
    record = processes.record(folder / "output")
    assert record["examples"]["rows"] == outcome.report.rows == size
    assert processes.slices_bytes(folder / "output") == processes.slices_bytes(folder / "alone")
    assert record["examples"]["fingerprint"] == outcome.report.fingerprint
    assert record["proof"]["rows_read"] == record["proof"]["rows_counted"] == size
    assert all((folder / "output" / name).exists() for name in ARTIFACTS)


def write_files(folder: Path, *files, **more) -> None:
    for number, content in enumerate(files):
        made.write(folder / "examples" / "Split-eval" / f"data-{number}.gz", content, **more)


INPUTS = {
    # Cases 15 and 16: fewer files than workers; every row once, neither twice nor by one alone.
    "one file": [rows(12)],
    "one record": [rows(1)],
    "three files": [rows(4), rows(4, ("Card",)), rows(4)],
    # Case 17: one worker is through before the other.
    "5 and 9 records": [rows(5), rows(9)],
    # Case 44: ten times the data.
    "ten times the data": [rows(300), rows(30)],
    # Slot 0 is another slice in each process.
    "slices in opposite order": [rows(6, ("Cash", "Card")), rows(6, ("Card", "Cash"))],
    "disjoint slices": [rows(6, ("Cash", "Card")), rows(6, ("Voucher", "Other"))],
}


NAMED = {"TF_CONFIG": processes.tf_config, "CLUSTER_SPEC": processes.cluster_spec}
CASES = [  # input, who is named by what, processes, shards
    ("one file", "TF_CONFIG", 2, 2),
    ("one record", "TF_CONFIG", 2, 1),
    ("three files", "TF_CONFIG", 2, 3),
    ("5 and 9 records", "TF_CONFIG", 2, 2),
    ("ten times the data", "TF_CONFIG", 2, 2),
    ("slices in opposite order", "TF_CONFIG", 3, 4),
    ("disjoint slices", "TF_CONFIG", 2, 2),
    ("one file", "CLUSTER_SPEC", 2, 2),
    ("one record", "CLUSTER_SPEC", 2, 1),
    ("one file", "nobody", 2, 2),
    ("5 and 9 records", "nobody", 3, 2),
]


@pytest.mark.parametrize("name,named,workers,shards", CASES)
def test_any_number_of_workers_gives_the_same_bytes_once(tmp_path, model, name, named, workers, shards):
    files = INPUTS[name]
    write_files(tmp_path, *files)
    environs = [NAMED[named](workers, i) if named in NAMED else {} for i in range(workers)]
    started = [processes.start(arguments(tmp_path, model), **environ) for environ in environs]
    outputs = [processes.end(process) for process in started]
    agree(tmp_path, model, sum(map(len, files)))
    wrote = [number for number, out in enumerate(outputs) if "BLESSED" in out]
    if named in NAMED:
        assert wrote == [0]  # case 45: the others have the same output folder and leave it alone
    else:
        assert wrote  # a process that comes when all is done is the first again
    assert processes.record(tmp_path / "output")["execution"]["shards"] == shards


SLOW = 6  # files, each some seconds of batches of one row


@pytest.fixture
def slow(tmp_path):
    write_files(tmp_path, *[rows(700, (f"only {n}", "Cash")) for n in range(SLOW)])
    return tmp_path


def chiefs(folder: Path) -> set[int]:
    """The process that is the chief, if there is one."""
    return set(holders(folder, "chief-*").values())


def holders(folder: Path, lease: str = "0*") -> dict[str, int]:
    """Shard to the process that has leased it."""
    found = {}
    for path in folder.glob(f"state/*/{lease}.lease-*"):
        try:
            found[path.name.split(".")[0]] = int(json.loads(path.read_text())["pid"])
        except (FileNotFoundError, json.JSONDecodeError):
            continue  # given back, or being written
    return found


def wait_until(condition, process) -> None:
    until = time.monotonic() + processes.LIMIT
    while not condition():
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.02)


def finished(folder: Path) -> int:
    return len(list(folder.glob("state/*/*.state")))


def test_a_killed_workers_shard_is_taken_over(slow, model):
    chief, worker = (processes.start(arguments(slow, model, 1), **processes.tf_config(2, i)) for i in (0, 1))
    wait_until(lambda: worker.pid in holders(slow).values(), worker)
    worker.send_signal(signal.SIGKILL)
    processes.end(chief)
    agree(slow, model, SLOW * 700)
    processes.end(worker, -signal.SIGKILL)


def test_a_killed_chief_is_replaced_by_a_restart(slow, model):
    chief, worker = (processes.start(arguments(slow, model, 1), **processes.tf_config(2, i)) for i in (0, 1))
    wait_until(lambda: finished(slow) and chief.pid in holders(slow).values(), chief)
    chief.send_signal(signal.SIGKILL)
    processes.end(chief, -signal.SIGKILL)
    again = processes.start(arguments(slow, model, 1), **processes.tf_config(2, 0))
    assert "all shards are finished" in processes.end(worker)
    assert "found finished" in processes.end(again)
    agree(slow, model, SLOW * 700)


def test_where_nobody_is_named_a_helper_takes_the_chiefs_place(slow, model):
    both = [processes.start(arguments(slow, model, 1)) for _ in range(2)]
    wait_until(lambda: {p.pid for p in both} <= {*holders(slow).values(), *chiefs(slow)}, both[0])
    (pid,) = chiefs(slow)
    first, helper = sorted(both, key=lambda p: p.pid != pid)
    first.send_signal(signal.SIGKILL)
    out = processes.end(helper)
    assert "this process takes its place" in out and "NOT_BLESSED" in out
    agree(slow, model, SLOW * 700)
    processes.end(first, -signal.SIGKILL)


def test_a_suspended_workers_shard_is_evaluated_by_both_and_counted_once(slow, model):
    # Its lease runs out by time alone; when it wakes up it finishes what it no longer holds.
    made_of = request(
        examples=str(slow / "examples"),
        model=str(model),
        eval_config=made.config(*METRICS, slices=SLICES),
        output=str(slow / "output"),
        execution=Execution(batch_size=1, state_dir=str(slow / "state"), lease_seconds=1.0),
    )
    (slow / "request.json").write_text(made_of.to_json())
    given = ["--request", slow / "request.json"]
    chief, worker = (processes.start(given, **processes.tf_config(2, i)) for i in (0, 1))
    wait_until(lambda: worker.pid in holders(slow).values(), worker)
    worker.send_signal(signal.SIGSTOP)
    processes.end(chief)
    worker.send_signal(signal.SIGCONT)
    processes.end(worker)
    agree(slow, model, SLOW * 700)


def test_a_row_that_fails_one_worker_fails_all_of_them(tmp_path, model):
    bad = rows(200)
    bad[150]["label"] = None
    write_files(tmp_path, rows(200), bad)
    started = [processes.start(arguments(tmp_path, model), **processes.tf_config(2, i)) for i in (0, 1)]
    for process in started:
        assert "data-1.gz: record 150 has no label" in processes.end(process, 1)
    assert not any((tmp_path / "output" / name).exists() for name in ARTIFACTS)
    # The failure is of that attempt: with the data mended the next one is not held up by it.
    write_files(tmp_path, rows(200), rows(200))
    assert "examples has changed" in processes.end(processes.start(arguments(tmp_path, model)))
    agree(tmp_path, model, 400)


def test_a_failing_helper_leaves_the_chiefs_artifacts(tmp_path, model):
    write_files(tmp_path, rows(12))
    processes.end(processes.start(arguments(tmp_path, model), **processes.tf_config(2, 0)))
    # Another config is another evaluation, but a worker writes no artifacts, and removes none.
    wrong = [a if a != model else tmp_path / "nothing" for a in arguments(tmp_path, model)]
    assert "holds no model" in processes.end(processes.start(wrong, **processes.tf_config(2, 1)), 2)
    agree(tmp_path, model, 12)


@pytest.mark.parametrize(
    "given,environ,message",
    [
        (["--strategy", "multi_worker"], {}, "neither TF_CONFIG nor CLUSTER_SPEC names a cluster"),
        ([], {"TF_CONFIG": "{"}, "TF_CONFIG is not valid JSON"),
        (["--state-dir", "/proc/nowhere"], {}, "state_dir: /proc/nowhere cannot be used"),
        (["--", "--num_workers=2"], {}, "beam_options are of no use to the loop; set runner to beam"),
        (["--strategy", "tpu"], {}, "takes strings (examples), which a TPU does not have; set"),
    ],
)
def test_what_cannot_work_is_refused_at_start(tmp_path, model, given, environ, message):
    write_files(tmp_path, rows(4))
    out = processes.end(processes.start([*arguments(tmp_path, model), *given], **environ), 2)
    assert message in out and len([line for line in out.splitlines() if "error" in line]) == 1
