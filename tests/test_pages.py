"""The pages in docs/ can be followed to the end: their commands and programs run, in their order."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
# What has made the environment that the tests run in.
SET_UP = ("make setup", "source .venv/bin/activate")
# Services that no test reaches: their clients take the same arguments and do nothing.
STAND_INS = """
from unittest import mock

import google.auth
import kfp
from google.auth.credentials import AnonymousCredentials
from google.cloud import aiplatform

kfp.Client = mock.create_autospec(kfp.Client)
google.auth.default = lambda *_, **__: (AnonymousCredentials(), "project")
for job in (aiplatform.PipelineJob, aiplatform.CustomJob):
    job.submit = mock.create_autospec(job.submit)
"""


def blocks(page: str) -> list[tuple[str, str]]:
    """Returns the fenced blocks of a page, in order, as (language, text)."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.M | re.S)


@pytest.fixture
def follow(tmp_path, monkeypatch):
    """Returns a function that runs a page's blocks in a folder of its own and returns what they print."""
    (tmp_path / "bin").mkdir()
    for name, words in (("python", []), ("assay", ["-m", "assay"])):
        script = tmp_path / "bin" / name
        script.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, *words])} "$@"\n')
        script.chmod(0o755)
    environment = {n: v for n, v in os.environ.items() if n not in ("TF_CONFIG", "CLUSTER_SPEC")}
    environment["PATH"] = os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]])
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "components")])

    def run(page: str) -> str:
        printed = ""
        for number, (language, text) in enumerate(blocks(page)):
            if language == "bash":
                lines = [line for line in text.splitlines() if line not in SET_UP]
                command = ["bash", "-euc", "\n".join(lines)]
            elif language == "python":
                program = tmp_path / f"block{number}.py"
                # Stand-ins go in behind the page's back, or the program would not be the page's.
                program.write_text(f"exec({STAND_INS!r})\n{text}")
                command = ["python", str(program)]
            else:
                continue
            done = subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, (
                f"{page}, block {number}:\n{text}\n{done.stdout}{done.stderr[-3000:]}"
            )
            printed += done.stdout
        return printed

    return run


@pytest.mark.slow
def test_the_terminal_page(follow, tmp_path):
    printed = follow("terminal.md")
    assert "BLESSED build/small/first\n" in printed and "NOT_BLESSED build/small/second\n" in printed
    assert (tmp_path / "build" / "small" / "first" / "report.html").is_file()


@pytest.mark.slow
def test_the_kubeflow_page(follow, tmp_path):
    printed = follow("kubeflow.md")
    assert re.search(r"^good true *$", printed, re.M) and re.search(
        r"^bad false .*binary_accuracy", printed, re.M
    )
    assert {"gate.yaml", "gate_gpu.yaml", "gate_tpu.yaml", "mine.yaml"} <= {
        p.name for p in tmp_path.iterdir()
    }


@pytest.mark.slow
def test_the_vertex_page(follow, tmp_path):
    follow("vertex.md")
    assert {"taxi.json", "evaluate.yaml", "pools.json"} <= {p.name for p in tmp_path.iterdir()}


def test_the_tfx_page_has_the_demo_that_the_tests_run():
    assert blocks("tfx.md") == [("bash", "make demo\n")]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "-m pipelines.taxi_demo run --root build/demo" in makefile.split("demo: setup")[1].split("\n\n")[0]
    assert "taxi_demo" in (ROOT / "tests" / "test_demo.py").read_text(encoding="utf-8")


def test_the_container_page_has_the_commands_that_its_own_test_runs():
    """They need a builder of images: `container/test` runs them, and .ci/run runs that where there is one."""
    named = {
        line.split()[0]
        for language, text in blocks("container.md")
        if language == "bash"
        for line in text.splitlines()
    }
    assert named == {"container/build", "container/base-image", "container/test"}
    test = (ROOT / "container" / "test").read_text(encoding="utf-8")
    assert "container/build " in test and "container/base-image " in test
    for name in named:
        assert os.access(ROOT / name, os.X_OK)
        done = subprocess.run([str(ROOT / name), "--no-such", "x", "y", "z"], capture_output=True, text=True)
        assert (done.returncode, done.stderr.count("usage: ")) == (2, 1)
    options = set(
        re.findall(
            r"(--[a-z]+)", (ROOT / "container" / "build").read_text().split("usage: ")[1].split('"')[0]
        )
    )
    listed = set(re.findall(r"^\| `(--[a-z]+)", (DOCS / "container.md").read_text(encoding="utf-8"), re.M))
    assert listed == options
