"""The state folder: what is in it, what it leaves alone, and what several processes tell each other."""

from __future__ import annotations

import json
import os
import time

import made
import pytest
import tensorflow as tf

import assay
from assay import engine, ledger, storage, workers
from assay.leases import Leases
from assay.request import Execution, Policy
from assay.shards import Range, Shard
from assay.spec import DataError, ProcessError, RequestError
from assay.state import State

SHARDS = (Shard((Range(0, 0, 5), Range(1)), 700), Shard((Range(0, 5, -1),), 300))


def opened(folder, name="a", lease_seconds=30.0):
    return ledger.open_ledger(str(folder), {"model": name}, SHARDS, lease_seconds)


def test_the_first_process_cuts_and_the_others_find_its_shards(tmp_path):
    first = opened(tmp_path)
    other = ledger.open_ledger(str(tmp_path), {"model": "a"}, SHARDS[:1], 30.0)
    assert other == first == ledger.at(first.folder) and first.shards == SHARDS
    assert ledger.identity_at(first.folder) == {"model": "a"}
    record = json.loads((tmp_path / os.path.basename(first.folder) / "shards.json").read_text())
    assert [s["bytes"] for s in record["shards"]] == [700, 300]


def test_a_list_that_stays_half_written_is_told_of(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger, "WAIT", 0.2)
    book = opened(tmp_path)
    path = os.path.join(book.folder, "shards.json")
    storage.write_whole(path, storage.read(path)[:50])
    with pytest.raises(DataError, match=r"shards.json cannot be read; remove the folder it lies in"):
        opened(tmp_path)


def test_notes_are_told_once(tmp_path):
    book = opened(tmp_path)
    for text in ("b", "a", "b"):
        book.note(text)
    assert ledger.at(book.folder).notes() == ["a", "b"]


def test_a_failure_reaches_those_who_did_not_know_it(tmp_path):
    book = opened(tmp_path)
    known = book.failures()
    book.fail("record 7 has no label")
    (new,) = ledger.at(book.folder).failures() - known
    assert book.failure(new) == "record 7 has no label"


def test_clearing_takes_ledgers_and_nothing_else(tmp_path):
    # `state` in the output may be a folder of the user's own.
    opened(tmp_path)
    opened(tmp_path, "b")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    (tmp_path / "file").write_text("keep")
    ledger.clear(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == ["file", "mine"]
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"
    (tmp_path / "file").unlink()
    (tmp_path / "mine" / "notes.txt").unlink()
    (tmp_path / "mine").rmdir()
    ledger.clear(str(tmp_path))
    assert not tmp_path.exists()
    ledger.clear(str(tmp_path))  # nothing there is nothing to do


def old(folder):
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (0, 0))


@pytest.mark.parametrize("done", [True, False])
def test_void_state_stays_while_somebody_holds_a_lease(tmp_path, done):
    other = opened(tmp_path, "b")
    if done:
        other.finish("chief", "")
    with Leases(other.folder, 30.0) as leases:
        assert leases.take("chief")
        opened(tmp_path)
        assert len(storage.names(str(tmp_path))) == 2
        old(tmp_path)
        opened(tmp_path)
        assert len(storage.names(str(tmp_path))) == 1


def test_void_state_of_a_finished_run_goes_at_once(tmp_path):
    opened(tmp_path, "b").finish("chief", "")
    opened(tmp_path)
    assert len(storage.names(str(tmp_path))) == 1


@pytest.fixture
def given(tmp_path):
    made.examples(tmp_path / "examples", [{"label": i % 2, "score": i / 10} for i in range(10)], files=2)
    made.model(tmp_path / "model")
    return tmp_path


def evaluate(given, output, **execution):
    return assay.evaluate(
        examples=str(given / "examples"),
        model=str(given / "model"),
        eval_config=made.config("MeanPrediction"),
        output=str(output) if output else "",
        execution=Execution(strategy="one_device", **execution),
    )


@pytest.mark.parametrize("place", ["output", "output/state", "examples", "examples/Split-eval"])
def test_the_state_folder_may_lie_anywhere(given, place):
    for found in (0, 2):
        outcome = evaluate(given, given / "output", state_dir=str(given / place))
        assert made.values(outcome) == {"mean_prediction": pytest.approx(0.45)}
        assert outcome.report.execution["shards_found"] == found
        assert outcome.report.rows == 10


def test_a_relative_state_folder_is_one_for_beam_too(given, monkeypatch):
    monkeypatch.chdir(given)
    outcome = assay.evaluate(
        examples="examples",
        model="model",
        eval_config=made.config("MeanPrediction"),
        output="output",
        execution=Execution(runner="beam", state_dir="a folder/été [1]*"),
    )
    assert made.values(outcome) == {"mean_prediction": pytest.approx(0.45)}
    assert len(list((given / "a folder" / "été [1]*").iterdir())) == 1


@pytest.mark.parametrize(
    "execution,message",
    [
        ({"runner": "beam"}, "several workers need a folder in common: set state_dir, or an output"),
        ({"state_dir": "/proc/none"}, "state_dir: /proc/none cannot be used"),
        (
            {"runner": "beam", "state_dir": "/proc/none"},
            "state_dir: /proc/none cannot be used",
        ),
    ],
)
def test_without_a_folder_it_is_refused(given, execution, message):
    with pytest.raises(RequestError, match=message):
        evaluate(given, "", **execution)


def test_a_file_in_the_folders_place_is_refused(given):
    (given / "file").write_text("")
    with pytest.raises(RequestError, match=r"state_dir: .*file cannot be used"):
        evaluate(given, given / "output", state_dir=str(given / "file"))


def test_without_an_output_a_state_folder_still_holds_states(given):
    assert evaluate(given, "", state_dir=str(given / "state")).report.execution["shards_found"] == 0
    assert evaluate(given, "", state_dir=str(given / "state")).report.execution["shards_found"] == 2


@pytest.mark.parametrize(
    "options,message",
    [
        (("--runner=Nonsense",), "Beam does not take the options --runner=Nonsense: "),
        (("--direct_num_workers=x",), "does not take the options --direct_num_workers=x: argument"),
    ],
)
def test_beam_options_that_are_none_are_refused(given, options, message):
    with pytest.raises(RequestError, match=message):
        evaluate(given, given / "output", runner="beam", beam_options=options)


def test_a_state_under_another_shards_name_is_not_taken_for_it(tmp_path, caplog):
    # Records of one size: bytes and rows would add up with one half counted twice.
    rows = [{"label": 1, "score": i / 2048} for i in range(1024)]
    made.write(tmp_path / "examples" / "one.gz", rows)
    made.model(tmp_path / "model")
    expected = {"mean_prediction": pytest.approx(sum(range(1024)) / 2048 / 1024)}
    state = tmp_path / "state"
    assert made.values(evaluate(tmp_path, tmp_path / "output", state_dir=str(state))) == expected
    first, second = sorted(state.glob("*/*.state"))
    second.write_bytes(first.read_bytes())
    assert made.values(evaluate(tmp_path, tmp_path / "output", state_dir=str(state))) == expected
    assert f"{second} is damaged; the shard is evaluated again" in caplog.text


def test_a_state_of_another_evaluation_is_not_taken_either(given, tmp_path):
    evaluate(given, tmp_path / "output", state_dir=str(tmp_path / "one"))
    made.model(given / "model", made.Parsing(factor=0.5))
    evaluate(given, tmp_path / "output", state_dir=str(tmp_path / "two"))
    for path in (tmp_path / "one").glob("*/*.state"):
        (target,) = (tmp_path / "two").glob(f"*/{path.name}")
        target.write_bytes(path.read_bytes())
    outcome = evaluate(given, tmp_path / "output", state_dir=str(tmp_path / "two"))
    assert made.values(outcome) == {"mean_prediction": pytest.approx(0.225)}


def test_strange_files_in_the_folder_do_no_harm(given, tmp_path):
    evaluate(given, tmp_path / "output", state_dir=str(tmp_path / "state"))
    (folder,) = (tmp_path / "state").iterdir()
    for name in ("99999.state", "foo.state", "chief.lease-x", "00000.state.tmp", "note"):
        (folder / name).write_bytes(b"")
    outcome = evaluate(given, tmp_path / "output", state_dir=str(tmp_path / "state"))
    assert outcome.report.execution["shards_found"] == outcome.report.execution["shards"] == 2


@pytest.mark.parametrize("text", [b"", b"{}", b"null", b'{"identity": {}, "shards": [1]}'])
def test_a_list_that_is_none_is_told_of(given, tmp_path, monkeypatch, text):
    monkeypatch.setattr(ledger, "WAIT", 0.1)
    evaluate(given, tmp_path / "output", state_dir=str(tmp_path / "state"))
    (path,) = (tmp_path / "state").glob("*/shards.json")
    path.write_bytes(text)
    with pytest.raises(DataError, match=r"shards.json cannot be read; remove the folder it lies in"):
        evaluate(given, tmp_path / "output", state_dir=str(tmp_path / "state"))


def test_a_live_evaluation_in_the_same_output_is_not_swept_away(given, tmp_path):
    book = opened(tmp_path / "output" / "state")
    with Leases(book.folder, 30.0) as leases:
        assert leases.take("chief")
        with pytest.raises(RequestError, match=r"another evaluation works in .*state; wait for it"):
            ledger.clear(str(tmp_path / "output" / "state"))
        assert book.exists()
    ledger.clear(str(tmp_path / "output" / "state"))
    assert not book.exists()


@pytest.mark.parametrize("how", ["longer", "same size", "gone"])
def test_a_file_that_is_written_while_it_is_read_fails_the_run(given, tmp_path, monkeypatch, how):
    victim = sorted((given / "examples").rglob("*.gz"))[-1]
    true = engine.Engine.evaluate

    def write_after(self, shard, progress=None):
        state = true(self, shard, progress)
        content = victim.read_bytes()
        victim.unlink()
        if how != "gone":
            victim.write_bytes(content + (b"more" if how == "longer" else b""))
        return state

    monkeypatch.setattr(engine.Engine, "evaluate", write_after)
    message = "cannot be read any more" if how == "gone" else "was written while it was read"
    with pytest.raises(DataError, match=message):
        evaluate(given, tmp_path / "output")
    assert not (tmp_path / "output" / "report.json").exists()


class Calls:
    """What `workers.run` asks of its caller, noted."""

    def __init__(self, book, evaluate=None):
        self.names = []
        self.book = book
        self._evaluate = evaluate

    def run(self, is_chief=None, lease_seconds=0.5):
        return workers.run(
            self.book,
            workers.Output(
                seat="chief",
                terms="",
                begin=lambda is_done: self.names.append("begin again" if is_done else "begin"),
                resign=lambda: self.names.append("resign"),
            ),
            self._evaluate or (lambda shard: State(())),
            lambda state: self.names.append("conclude") or "outcome",
            is_chief=is_chief,
            lease_seconds=lease_seconds,
        )


def test_the_first_to_come_begins_and_concludes(tmp_path):
    calls = Calls(opened(tmp_path))
    assert calls.run() == "outcome" and calls.names == ["begin", "conclude"]
    assert calls.book.is_done("chief", "") and not calls.book.is_done("chief", "other terms")
    assert [n for n in storage.names(calls.book.folder) if ".lease-" in n] == []


@pytest.mark.parametrize("is_chief,names", [(True, ["begin", "conclude"]), (False, [])])
def test_whoever_is_named_does_so_or_not(tmp_path, is_chief, names):
    calls = Calls(opened(tmp_path))
    calls.run(is_chief)
    assert calls.names == names
    assert calls.book.finished() == {0, 1}


def test_a_chief_that_was_taken_for_dead_leaves_the_artifacts_to_the_other(tmp_path, monkeypatch):
    book = opened(tmp_path)

    def evaluate_slowly(shard):
        # Another process sees no sign of life, takes the chief's place, and finishes.
        monkeypatch.setattr(Leases, "_is_dead", lambda self, path: True)
        other.__enter__()
        assert other.take("chief")
        monkeypatch.undo()
        return State(())

    other = Leases(book.folder, 30.0)
    calls = Calls(book, evaluate_slowly)
    book.save(1, State(()))
    assert calls.run() is None and calls.names == ["begin", "resign"]
    other.__exit__(None, None, None)


@pytest.mark.parametrize("is_chief", [True, False])
def test_a_folder_that_another_evaluation_found_void_ends_the_run(tmp_path, is_chief):
    def sweep(shard):
        storage.remove_folder(str(tmp_path))
        return State(())

    calls = Calls(opened(tmp_path / "state"), sweep)
    if is_chief:
        with pytest.raises(DataError, match="was removed while it was in use"):
            calls.run(is_chief)
    else:
        assert calls.run(is_chief) is None


def test_an_unexpected_error_gives_the_lease_back_for_others(tmp_path):
    def fail(shard):
        raise OSError("the network is down")

    book = opened(tmp_path)
    with pytest.raises(OSError, match="the network is down"):
        Calls(book, fail).run(False)
    assert Calls(book).run() == "outcome"


def test_a_late_process_writes_the_same_artifacts_again_and_clears_none(tmp_path):
    calls = Calls(opened(tmp_path))
    calls.run()
    calls.run()
    assert calls.names == ["begin", "conclude", "begin again", "conclude"]


def test_a_helper_that_finds_the_chief_gone_and_done_leaves_it_at_that(tmp_path, monkeypatch):
    calls = Calls(opened(tmp_path))
    chief = Leases(calls.book.folder, 30.0).__enter__()
    assert chief.take("chief")
    true, looks = ledger.Ledger.is_done, []

    def is_done(self, seat, terms):
        found = true(self, seat, terms)
        if not looks:  # it finishes and goes between this look and the lease
            calls.book.finish("chief", "")
            chief.__exit__(None, None, None)
        looks.append(found)
        return found

    monkeypatch.setattr(ledger.Ledger, "is_done", is_done)
    assert calls.run() is None and calls.names == []
    assert looks == [False, True]


def test_another_output_has_a_chief_of_its_own(given, tmp_path):
    # A step's retry gets a new output folder, and the first try may still be alive.
    evaluate(given, tmp_path / "one", state_dir=str(tmp_path / "state"))
    (folder,) = (tmp_path / "state").iterdir()
    seats = {p.name.removeprefix("done-") for p in folder.glob("done-*")}
    with Leases(str(folder), 30.0) as leases:
        assert all(leases.take(seat) for seat in seats)
        outcome = evaluate(given, tmp_path / "two", state_dir=str(tmp_path / "state"))
        assert outcome.report.execution["shards_found"] == 2
        assert (tmp_path / "two" / "blessing" / "NOT_BLESSED").exists()
        assert evaluate(given, "", state_dir=str(tmp_path / "state")).report.rows == 10
    assert len(list(folder.glob("done-*"))) == 3


def test_other_terms_are_another_verdict(given, tmp_path):
    change = {"changeThreshold": {"direction": "HIGHER_IS_BETTER", "absolute": 0}}
    text = made.config({"className": "MeanPrediction", "threshold": change})
    for first_model, blessed in (("refuse", False), ("bless", True), ("refuse", False)):
        outcome = assay.evaluate(
            examples=str(given / "examples"),
            model=str(given / "model"),
            eval_config=text,
            output=str(tmp_path / "output"),
            execution=Execution(state_dir=str(tmp_path / "state")),
            policy=Policy(first_model=first_model),
        )
        assert outcome.verdict.blessed is blessed
        names = os.listdir(tmp_path / "output" / "blessing")
        assert names == ["BLESSED" if blessed else "NOT_BLESSED"]


def test_a_full_disk_leaves_no_half_written_list(tmp_path, monkeypatch):
    def full(self, data):
        raise OSError(28, "No space left on device")

    true = open

    class Full:
        def __init__(self, *given):
            self.handle = true(*given)

        def __enter__(self):
            return self

        def __exit__(self, *given):
            self.handle.close()

        write = full

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", Full)
        with pytest.raises(OSError, match="No space"):
            storage.create(str(tmp_path / "list"), b"text")
    assert os.listdir(tmp_path) == []
    assert storage.create(str(tmp_path / "list"), b"text")


def test_without_links_a_file_is_created_all_the_same(tmp_path, monkeypatch):
    def link(*given):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", link)
    assert storage.create(str(tmp_path / "a"), b"one")
    assert not storage.create(str(tmp_path / "a"), b"two")
    assert (tmp_path / "a").read_bytes() == b"one" and os.listdir(tmp_path) == ["a"]


def test_a_lease_that_cannot_be_renewed_once_is_renewed_again(tmp_path, monkeypatch, caplog):
    true, failed = storage.write_whole, []

    def fail_once(path, data):
        if not failed:
            failed.append(path)
            raise OSError("the network is down")
        true(path, data)

    monkeypatch.setattr(storage, "write_whole", fail_once)
    with Leases(str(tmp_path), 0.5) as leases:
        assert leases.take("a")
        before = (tmp_path / "a.lease-1").read_bytes()
        until = time.monotonic() + 5
        while (tmp_path / "a.lease-1").read_bytes() == before:
            assert time.monotonic() < until
            time.sleep(0.05)
    assert "could not be renewed: the network is down" in caplog.text


def test_storage_that_fails_one_process_does_not_end_the_others(given, tmp_path, monkeypatch):
    true = engine.Engine._build

    def build(self):
        def fail(ranges, progress):
            raise tf.errors.UnavailableError(None, None, "storage: try again")

        return fail

    monkeypatch.setattr(engine.Engine, "_build", build)
    with pytest.raises(ProcessError, match="evaluation failed: storage: try again"):
        evaluate(given, tmp_path / "output", state_dir=str(tmp_path / "state"))
    (folder,) = (tmp_path / "state").iterdir()
    assert not ledger.at(str(folder)).failures()  # nobody else has to give up
    monkeypatch.setattr(engine.Engine, "_build", true)
    assert evaluate(given, tmp_path / "output", state_dir=str(tmp_path / "state")).report.rows == 10
