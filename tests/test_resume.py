"""A run that was killed goes on where it stopped: nothing read twice, nothing lost, the same bytes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path

import made
import processes
import pytest

import assay
from assay import ledger, storage
from assay.request import Execution

FILES, ROWS = 8, 300
METRICS = ("ExampleCount", "AUC", "BinaryCrossentropy", "MeanPrediction")
CONFIG = made.config(*METRICS, slices=({}, {"featureKeys": ["pay"]}))


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    root = tmp_path_factory.mktemp("resume")
    rows = [
        {"label": i % 2, "score": (i * 37 % 101) / 101, "pay": f"{i % 7}"} for i in range(1000 + FILES * ROWS)
    ]
    # The first records are looked at by every run; they lie in the first file.
    made.write(root / "examples" / "a.gz", rows[:1000])
    for n in range(1, FILES):
        made.write(root / "examples" / f"{n}.gz", rows[1000 + n * ROWS : 1000 + (n + 1) * ROWS])
    (root / "examples" / "a.gz").rename(root / "examples" / "0.gz")
    made.model(root / "model")
    return root


def evaluate(given: Path, output: Path, **execution):
    """Evaluates in this process."""
    return assay.evaluate(
        examples=str(given / "examples"),
        model=str(given / "model"),
        eval_config=CONFIG,
        output=str(output),
        execution=Execution(**{"strategy": "one_device", "batch_size": 64, **execution}),
    )


@pytest.fixture(scope="module")
def whole(given, tmp_path_factory):
    output = tmp_path_factory.mktemp("whole")
    evaluate(given, output)
    return output


def states(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.state"))


def halve(folder: Path) -> list[Path]:
    """Leaves half of the States, as a killed run does, and returns them."""
    for path in states(folder)[1::2]:
        path.unlink()
    for done in folder.glob("*/done-*"):
        done.unlink()
    return states(folder)


def spoil(given: Path, numbers: range) -> dict[Path, bytes]:
    """Damages files so that nobody could read them, under the same size and time; returns their content."""
    kept = {}
    for number in numbers:
        path = given / "examples" / f"{number}.gz"
        content, times = path.read_bytes(), path.stat()
        kept[path] = content
        path.write_bytes(content[:20] + bytes(len(content) - 28) + content[-8:])
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return kept


DRIVERS = {
    "loop": {},
    "two replicas": {"strategy": "mirrored", "logical_devices": 2},
    "beam in memory": {"runner": "beam"},
    "beam multi_processing": {
        "runner": "beam",
        "beam_options": ("--direct_running_mode=multi_processing", "--direct_num_workers=2"),
    },
}


@pytest.mark.parametrize("driver", DRIVERS)
def test_finished_shards_are_not_read_again(given, whole, tmp_path, driver):
    evaluate(given, tmp_path / "first", state_dir=str(tmp_path / "state"))
    left = halve(tmp_path / "state")
    assert len(left) == FILES // 2
    kept = spoil(given, range(2, FILES, 2))  # the files of the States that are left, but the first
    try:
        outcome = evaluate(given, tmp_path / "again", state_dir=str(tmp_path / "state"), **DRIVERS[driver])
    finally:
        for path, content in kept.items():
            times = path.stat()
            path.write_bytes(content)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert outcome.report.execution["shards_found"] == FILES // 2
    assert processes.slices_bytes(tmp_path / "again") == processes.slices_bytes(whole)
    assert outcome.report.fingerprint == processes.record(whole)["examples"]["fingerprint"]


def test_a_spoilt_file_cannot_be_read(given, tmp_path):
    # Without this the test above could pass by reading everything again.
    kept = spoil(given, range(2, 3))
    try:
        with pytest.raises(Exception, match=r"2\.gz"):
            evaluate(given, tmp_path / "output", state_dir=str(tmp_path / "state"))
    finally:
        for path, content in kept.items():
            path.write_bytes(content)


def command(given: Path, output: Path) -> list[object]:
    return [
        "--examples", given / "examples", "--model", given / "model", "--eval-config", CONFIG,
        "--output", output, "--batch-size", 1, "--resume",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def uninterrupted(given, whole, tmp_path_factory):
    """How many seconds a run takes that nobody kills."""
    output = tmp_path_factory.mktemp("uninterrupted")
    started = time.monotonic()
    processes.end(processes.start(command(given, output)))
    assert processes.slices_bytes(output) == processes.slices_bytes(whole)
    assert not (output / "state").exists()  # nobody needs it any more
    return time.monotonic() - started


def killed_after(seconds: float, process: processes.Running) -> bool:
    if process.wait(seconds) is None:
        process.send_signal(signal.SIGKILL)
        processes.end(process, None)
    return process.poll() == -signal.SIGKILL


@pytest.mark.parametrize("moment", range(10))
def test_killed_at_any_moment_the_bytes_are_the_same(given, whole, tmp_path, uninterrupted, moment):
    # One moment in each tenth of the time from the first second on, at random.
    seconds = 1 + (moment + random.Random(moment).random()) / 10 * (uninterrupted - 1)
    while not killed_after(seconds, processes.start(command(given, tmp_path / "output"))):
        shutil.rmtree(tmp_path / "output")  # it was faster this time, and had ended
        seconds *= 0.9
    finished = len(states(tmp_path / "output" / "state"))
    out = processes.end(processes.start(command(given, tmp_path / "output")))
    assert processes.slices_bytes(tmp_path / "output") == processes.slices_bytes(whole)
    assert not finished or f"{finished} of {FILES} shards found finished" in out
    record = processes.record(tmp_path / "output")
    assert record["execution"]["shards_found"] == finished
    assert record["examples"]["fingerprint"] == processes.record(whole)["examples"]["fingerprint"]


def test_without_resume_a_run_starts_anew(given, whole, tmp_path):
    evaluate(given, tmp_path / "output", state_dir=str(tmp_path / "output" / "state"))
    halve(tmp_path / "output" / "state")
    assert evaluate(given, tmp_path / "output", resume=True).report.execution["shards_found"] == FILES // 2
    evaluate(given, tmp_path / "output", state_dir=str(tmp_path / "output" / "state"))
    halve(tmp_path / "output" / "state")
    assert evaluate(given, tmp_path / "output").report.execution["shards_found"] == 0
    assert processes.slices_bytes(tmp_path / "output") == processes.slices_bytes(whole)


def test_a_damaged_state_is_made_again(given, whole, tmp_path, caplog):
    evaluate(given, tmp_path / "first", state_dir=str(tmp_path / "state"))
    victim = states(tmp_path / "state")[3]
    content = victim.read_bytes()
    victim.write_bytes(content[:-5])
    evaluate(given, tmp_path / "again", state_dir=str(tmp_path / "state"))
    assert f"{victim} is damaged; the shard is evaluated again" in caplog.text
    assert processes.slices_bytes(tmp_path / "again") == processes.slices_bytes(whole)
    assert victim.read_bytes() == content  # to the byte, as it was made first


@pytest.mark.parametrize("what", ["model", "eval_config", "examples", "version", "schema"])
def test_what_changed_makes_the_state_void(given, tmp_path, caplog, monkeypatch, what):
    caplog.set_level("INFO")
    root = tmp_path / "given"
    for n in range(2):
        made.write(root / "examples" / f"{n}.gz", [{"label": 1, "score": 0.25}, {"label": 0, "score": 0.75}])
    made.model(root / "model")
    call = {
        "examples": str(root / "examples"),
        "model": str(root / "model"),
        "eval_config": made.config("MeanPrediction"),
        "output": str(tmp_path / "output"),
        "execution": Execution(strategy="one_device", state_dir=str(tmp_path / "state")),
    }
    assert made.values(assay.evaluate(**call)) == {"mean_prediction": 0.5}
    expected = {"mean_prediction": 0.5}
    if what == "model":
        made.model(root / "model", made.Parsing(factor=0.5))
        expected = {"mean_prediction": 0.25}
    elif what == "eval_config":
        call["eval_config"] = made.config("MeanLabel")
        expected = {"mean_label": 0.5}
    elif what == "examples":
        made.write(root / "examples" / "1.gz", [{"label": 1, "score": 0.5}, {"label": 0, "score": 0.0}])
        expected = {"mean_prediction": 0.375}
    elif what == "version":
        monkeypatch.setattr("assay.identity.__version__", "0.0.0")
    elif what == "schema":
        (tmp_path / "schema.pbtxt").write_text('feature { name: "other" type: INT }')
        call["schema"] = str(tmp_path / "schema.pbtxt")
    outcome = assay.evaluate(**call)
    assert made.values(outcome) == expected
    assert outcome.report.execution["shards_found"] == 0
    assert f"is void: {what} has changed; it is removed" in caplog.text
    assert len(list((tmp_path / "state").iterdir())) == 1


def test_the_same_files_under_another_batch_size_and_strategy_go_on(given, whole, tmp_path):
    evaluate(given, tmp_path / "first", state_dir=str(tmp_path / "state"), batch_size=1000)
    halve(tmp_path / "state")
    more = {"strategy": "mirrored", "logical_devices": 3, "batch_size": 7}
    outcome = evaluate(given, tmp_path / "again", state_dir=str(tmp_path / "state"), **more)
    assert outcome.report.execution["shards_found"] == FILES // 2
    assert processes.slices_bytes(tmp_path / "again") == processes.slices_bytes(whole)


def test_state_that_somebody_may_still_work_on_is_left(tmp_path, caplog):
    caplog.set_level("INFO")
    ledger.open_ledger(str(tmp_path), {"model": "a"}, (), 30.0)
    ledger.open_ledger(str(tmp_path), {"model": "b"}, (), 30.0)
    assert len(storage.names(str(tmp_path))) == 2
    assert "model has changed; it is left, since a process may still work on it" in caplog.text
    for path in tmp_path.glob("*/*"):
        os.utime(path, (0, 0))
    ledger.open_ledger(str(tmp_path), {"model": "c"}, (), 30.0)
    assert len(storage.names(str(tmp_path))) == 1


def test_what_is_no_state_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    (tmp_path / "file").write_text("keep")
    ledger.open_ledger(str(tmp_path), {"model": "a"}, (), 30.0)
    assert (tmp_path / "mine" / "notes.txt").exists() and (tmp_path / "file").exists()
