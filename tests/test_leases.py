"""Leases: one holder at a time, given back, renewed, and taken over from the dead."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time

import pytest

from assay import leases, storage
from assay.leases import Leases


@pytest.fixture
def elsewhere(monkeypatch):
    """Every process looks like one of another machine: only time tells whether it is dead."""
    monkeypatch.setattr(leases, "_is_gone", lambda text: False)


def test_one_of_two_gets_it(tmp_path):
    with Leases(str(tmp_path), 30) as one, Leases(str(tmp_path), 30) as other:
        assert one.take("a") and not other.take("a")
        assert other.take("b") and not one.take("b")


def test_given_back_it_is_free(tmp_path):
    with Leases(str(tmp_path), 30) as one, Leases(str(tmp_path), 30) as other:
        assert one.take("a")
        one.release("a")
        assert other.take("a")


def test_leaving_gives_all_back(tmp_path):
    with Leases(str(tmp_path), 30) as one:
        assert one.take("a") and one.take("b")
    assert storage.names(str(tmp_path)) == []
    with Leases(str(tmp_path), 30) as other:
        assert other.take("a") and other.take("b")


def test_a_holder_that_lives_keeps_it(tmp_path, elsewhere):
    with Leases(str(tmp_path), 0.5) as one, Leases(str(tmp_path), 0.5) as other:
        assert one.take("a")
        until = time.monotonic() + 2
        while time.monotonic() < until:
            assert not other.take("a")
            time.sleep(0.05)


def test_a_holder_without_a_sign_of_life_loses_it_after_the_time_and_not_before(tmp_path, elsewhere):
    dead = Leases(str(tmp_path), 1.0)  # not entered: nothing renews it
    assert dead.take("a")
    with Leases(str(tmp_path), 1.0) as other:
        started = time.monotonic()
        while not other.take("a"):
            time.sleep(0.02)
            assert time.monotonic() - started < 5
        assert time.monotonic() - started >= 1.0


def test_two_that_take_over_at_once_are_one(tmp_path, elsewhere):
    dead = Leases(str(tmp_path), 0.2)
    assert dead.take("a")
    with Leases(str(tmp_path), 0.2) as one, Leases(str(tmp_path), 0.2) as other:
        taken = []
        until = time.monotonic() + 2
        while time.monotonic() < until and not taken:
            taken = [name for name, who in (("one", one), ("other", other)) if who.take("a")]
            time.sleep(0.02)
        assert len(taken) == 1


def hold(folder):
    with Leases(folder, 3600) as held:
        assert held.take("a")
        time.sleep(3600)


def test_a_killed_process_of_this_machine_loses_it_at_once(tmp_path):
    process = multiprocessing.get_context("fork").Process(target=hold, args=(str(tmp_path),))
    process.start()
    while not storage.names(str(tmp_path)):
        time.sleep(0.02)
    time.sleep(0.2)
    with Leases(str(tmp_path), 3600) as other:
        assert not other.take("a")
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert other.take("a")


def test_another_process_under_the_same_number_is_not_the_owner():
    own = {**leases._process(), "owner": "x"}
    assert not leases._is_gone(json.dumps(own).encode())
    assert leases._is_gone(json.dumps({**own, "started": "1"}).encode())
    assert not leases._is_gone(json.dumps({**own, "started": "1", "place": "another machine"}).encode())


def test_a_lease_that_is_being_written_is_held(tmp_path):
    (tmp_path / "a.lease-1").write_bytes(b"")
    with Leases(str(tmp_path), 30) as one:
        assert not one.take("a")


def test_whoever_was_thought_dead_does_not_renew_what_is_anothers_now(tmp_path, elsewhere):
    slow = Leases(str(tmp_path), 0.3)
    assert slow.take("a")
    with Leases(str(tmp_path), 0.3) as other:
        while not other.take("a"):
            time.sleep(0.02)
        with slow:  # it wakes up and renews
            time.sleep(0.3)
            assert not slow.take("a")
        # Its going leaves the other's lease.
        assert storage.names(str(tmp_path)) == ["a.lease-2"]


def race(folder, count, results):
    with Leases(folder, 30) as held:
        results.put([n for n in range(count) if held.take(str(n))])
        time.sleep(0.5)


def test_many_processes_share_without_overlap(tmp_path):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=race, args=(str(tmp_path), 40, results)) for _ in range(4)]
    for process in processes:
        process.start()
    taken = [n for _ in processes for n in results.get(timeout=30)]
    for process in processes:
        process.join(30)
    assert sorted(taken) == list(range(40))


def test_where_files_cannot_be_created_exclusively_it_is_looked_at_twice(tmp_path, monkeypatch):
    path = f"ram://{tmp_path.name}/a"
    assert storage.create(path, b"one")
    assert not storage.create(path, b"two")
    assert storage.read(path) == b"one"
