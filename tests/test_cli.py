"""cli: the command in fresh processes: exit codes, what it prints, what it loads, how soon it answers."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

import made
import pytest

from assay import cli
from assay.request import Execution

# Runs the command line and tells, last of all, which of the heavy packages it has loaded.
WRAPPER = """
import sys, time
started = time.perf_counter()
from assay.cli import main
code = main(sys.argv[1:])
heavy = ("tensorflow", "numpy", "keras", "tf_keras", "apache_beam", "tensorflow_model_analysis",
         "tfx", "kfp", "tensorflow_transform", "tfx_bsl")
found = sorted({m.split(".")[0] for m in sys.modules} & set(heavy))
theirs = [m for m in sys.modules if m.startswith("tensorflow_model_analysis.") and ".proto." not in m]
print("loaded", time.perf_counter() - started, found, theirs, sep="|")
sys.exit(code)
"""


@dataclass
class Done:
    """What a run of the command came to."""

    code: int
    out: str
    err: str
    seconds: float
    loaded: list[str]
    theirs: list[str]


def command(*arguments, timeout=300):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WRAPPER, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert "|" in done.stdout, done.stderr
    out, _, last = done.stdout.rpartition("loaded|")
    seconds, loaded, theirs = last.strip().split("|")
    return Done(done.returncode, out, done.stderr, float(seconds), eval(loaded), eval(theirs))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    rows = [
        {"label": i % 2, "score": 0.2 + 0.15 * (i % 5), "pay": ["Cash", "Card"][i % 3 == 0]}
        for i in range(90)
    ]
    made.examples(folder / "examples", rows, files=2)
    made.model(folder / "model")
    return folder


def config(bound):
    demand = {"className": "AUC", "threshold": {"valueThreshold": {"lowerBound": bound}}}
    return made.config(demand, "ExampleCount", slices=[{}, {"featureKeys": ["pay"]}])


def request(root, bound, output):
    (root / f"{bound}.json").write_text(config(bound))
    return [
        "evaluate", "--examples", root / "examples", "--model", root / "model",
        "--eval-config", root / f"{bound}.json", "--output", output, "--fail-on-not-blessed",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def refused(root):
    """A run in a fresh process on two mirrored logical devices whose threshold is missed."""
    more = ["--strategy", "mirrored", "--logical-devices", 2, "--batch-size", 16]
    return command(*request(root, 0.999, root / "refused"), *more)


@pytest.fixture(scope="module")
def blessed(root):
    """A run in a fresh process, as the machine comes, whose threshold is met."""
    return command(*request(root, 0.001, root / "blessed"))


@pytest.mark.slow
def test_exit_3_where_the_model_is_not_blessed_and_that_was_asked_for(root, refused, blessed):
    assert (refused.code, refused.out) == (3, f"NOT_BLESSED {root / 'refused'}\n")
    assert (blessed.code, blessed.out) == (0, f"BLESSED {root / 'blessed'}\n")
    for name, marker in (("refused", "NOT_BLESSED"), ("blessed", "BLESSED")):
        assert [(p.name, p.stat().st_size) for p in (root / name / "blessing").iterdir()] == [(marker, 0)]
        assert {p.name for p in (root / name).iterdir()} >= {"evaluation", "report.json", "report.html"}


@pytest.mark.slow
def test_each_failure_is_one_line_of_the_log(refused, blessed):
    # Case 72.
    told = [line for line in refused.err.splitlines() if "not blessed" in line]
    assert len(told) == 3 and all("asked >= 0.999 (below the bound)" in line for line in told)
    assert [line.split(":")[2].split(" on ")[1] for line in told] == ["Overall", "pay=Card", "pay=Cash"]
    assert "not blessed" not in blessed.err


@pytest.mark.slow
def test_the_log_says_how_the_model_was_fed(refused):
    # Case 51.
    assert "signature 'serving_default' parses the serialized examples by itself" in refused.err
    assert "90 rows, 3 slices, " in refused.err and "2 replicas" in refused.err


@pytest.mark.slow
def test_two_logical_devices_in_a_fresh_process(root, refused, blessed):
    two, one = (json.loads((root / n / "report.json").read_text()) for n in ("refused", "blessed"))
    assert (two["execution"]["replicas"], one["execution"]["replicas"]) == (2, 1)
    assert two["execution"]["global_batch_size"] == 32
    assert two["slices"] == one["slices"] and len(one["slices"]) == 3
    assert two["examples"] == one["examples"]


@pytest.mark.slow
def test_neither_beam_nor_tfma_is_loaded(refused, blessed):
    for done in (refused, blessed):
        assert "tensorflow" in done.loaded, "the run is not real"
        assert set(done.loaded) <= {"tensorflow", "keras", "tf_keras", "numpy"}
        assert done.theirs == []


@pytest.mark.slow
def test_quiet_where_nobody_watches(refused, blessed):
    for done in (refused, blessed):
        assert not {"\x1b", "\r", "\b"} & set(done.err + done.out)
        assert len(done.err.splitlines()) < 8, done.err
        assert all(line.startswith("assay: ") for line in done.err.splitlines()), done.err


@pytest.mark.slow
def test_show(root, refused, blessed):
    shown = command("show", root / "refused")
    assert shown.code == 0 and shown.err == ""
    assert shown.out.startswith("NOT BLESSED\n90 rows, 3 slices, 3 checks, 3 failed\n")
    assert "auc" in shown.out and "pay=Cash" in shown.out and ">= 0.999" in shown.out
    assert not {"tensorflow", "apache_beam", "tensorflow_model_analysis"} & set(shown.loaded)
    compared = command("show", root / "blessed", "--compare", root / "refused")
    assert compared.code == 0 and compared.out.startswith("BLESSED\n")
    assert "other" in compared.out and "difference" in compared.out


def test_show_of_nothing(tmp_path, capsys):
    assert cli.main(["show", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith("assay: error: ") and str(tmp_path / "report.json") in told


def test_importing_the_package_is_cheap():
    code = (
        "import sys, time; t = time.perf_counter(); import assay; t = time.perf_counter() - t; "
        "print(t, assay.__version__, *sys.modules)"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True) for _ in range(3)]
    assert all(done.returncode == 0 for done in runs), runs[0].stderr
    assert min(float(done.stdout.split()[0]) for done in runs) < 0.3
    loaded = set(runs[0].stdout.split()[2:])
    assert not {"tensorflow", "numpy", "google.protobuf", "keras", "rich", "jinja2"} & loaded
    assert {m for m in loaded if m.startswith("assay")} == {"assay"}


@pytest.mark.parametrize("wrong", ["AOC", "two models"])
def test_a_wrong_config_is_refused_before_tensorflow_is_loaded(root, tmp_path, wrong):
    text = made.config(wrong) if wrong == "AOC" else made.config("AUC", models=[{"name": "a"}, {"name": "b"}])
    more = ["--examples", root / "examples", "--model", root / "model", "--eval-config", text]
    done = command("evaluate", *more, "--output", tmp_path / "out")
    assert done.code == 2 and done.err.count("assay: error: ") == 1
    assert "tensorflow" not in done.loaded and "tensorflow_model_analysis" not in done.loaded
    assert not (tmp_path / "out").exists()


def test_help(capsys):
    for words in (["--help"], ["evaluate", "--help"], ["show", "--help"]):
        with pytest.raises(SystemExit) as end:
            cli.main(words)
        assert end.value.code == 0
        assert "usage: assay" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        cli.main([])
    assert end.value.code == 2


# ── in this process, whose devices are started ────────────────────────────────────────────────


def test_not_blessed_is_no_failure_unless_asked(root, tmp_path, capsys):
    words = [*request(root, 0.999, tmp_path / "out"), "--strategy", "one_device"]
    assert cli.main([str(w) for w in words if w != "--fail-on-not-blessed"]) == 0
    assert capsys.readouterr().out == f"NOT_BLESSED {tmp_path / 'out'}\n"
    assert cli.main([str(w) for w in words]) == 3


def test_the_config_may_be_given_as_text(root, tmp_path):
    words = [*request(root, 0.001, tmp_path / "out"), "--strategy", "one_device"]
    words[words.index("--eval-config") + 1] = "  " + config(0.001)
    assert cli.main([str(w) for w in words]) == 0


def test_a_request_as_json_is_the_same_run(root, tmp_path):
    from assay.api import request as make

    made_of = make(
        examples=str(root / "examples"),
        model=str(root / "model"),
        eval_config=config(0.001),
        output=str(tmp_path / "json"),
        execution=Execution("one_device"),
    )
    (tmp_path / "request.json").write_text(made_of.to_json())
    assert cli.main(["evaluate", "--request", str(tmp_path / "request.json")]) == 0
    words = [*request(root, 0.001, tmp_path / "words"), "--strategy", "one_device"]
    assert cli.main([str(w) for w in words]) == 0
    left, right = (json.loads((tmp_path / n / "report.json").read_text()) for n in ("json", "words"))
    assert {k: v for k, v in left.items() if k != "execution"} == {
        k: v for k, v in right.items() if k != "execution"
    }


EMPTY = {"examples": ["a"], "model": "m", "eval_config": "{}", "evaluation": "", "blessing": "", "report": ""}


@pytest.mark.parametrize(
    "text,told",
    [
        ("{", "the request is not valid"),
        ("[]", "the request is not valid"),
        ('{"examples": ["a"]}', "the request is not valid"),
        (json.dumps({**EMPTY, "examples": []}), "examples is empty"),
        (json.dumps({**EMPTY, "execution": {"bach_size": 3}}), "nearest: batch_size"),
        (json.dumps({**EMPTY, "splitz": ["eval"]}), "splitz"),
    ],
)
def test_a_request_that_is_none(tmp_path, capsys, text, told):
    path = tmp_path / "request.json"
    path.write_text(text)
    assert cli.main(["evaluate", "--request", str(path)]) == 2
    assert told in capsys.readouterr().err


def test_a_fault_of_ours_is_one_line_and_exit_1(root, tmp_path, capsys, monkeypatch):
    def broken(*_):
        raise KeyError("two\nlines")

    monkeypatch.setattr("assay.evaluation.judge", broken)
    words = [*request(root, 0.001, tmp_path / "out"), "--strategy", "one_device"]
    assert cli.main([str(w) for w in words]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and told.startswith("assay: error: ")
    monkeypatch.setenv("ASSAY_TRACEBACK", "1")
    with pytest.raises(KeyError):
        cli.main([str(w) for w in words])
    assert not list((tmp_path / "out").rglob("*.*"))
