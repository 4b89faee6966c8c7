"""The script for accelerators: on a GPU where there is one, and on the CPU to see that it works."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("check.py")


@pytest.fixture(scope="module")
def check():
    spec = importlib.util.spec_from_file_location("accelerator_check", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_works_on_a_cpu(check, capsys):
    assert check.main(["--device", "CPU:1", "--rows", "3000", "--batch", "512"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["different"] == [] and min(report["rows_per_second"].values()) > 0


def test_it_notices_a_sum_that_differs(check, monkeypatch, capsys):
    true = check.evaluate

    def evaluate(examples, model, config, device, batch):
        state, rate = true(examples, model, config, device, batch)
        if device == "CPU:1":
            next(iter(state.slices.values()))[1][0, 0] += 1
        return state, rate

    monkeypatch.setattr(check, "evaluate", evaluate)
    assert check.main(["--device", "CPU:1", "--rows", "300", "--batch", "64"]) == 1
    assert len(json.loads(capsys.readouterr().out)["different"]) == 1


def test_without_the_device_it_says_what_there_is(check, capsys):
    assert check.main(["--device", "GPU:7"]) == 2
    assert "no device GPU:7 here; TensorFlow finds CPU:0" in capsys.readouterr().err


@pytest.mark.gpu
def test_a_gpu_gives_the_state_of_the_cpu(check):
    assert check.main(["--device", "GPU:0"]) == 0
