"""show: a finished evaluation in the terminal."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from assay import gate
from assay.finalize import with_diffs
from assay.report import Report, to_json
from assay.request import Policy
from assay.show import show
from assay.spec import MetricKey, RequestError, Threshold, ValueThreshold
from assay.values import SliceValues, Undefined

AUC, PRECISION = MetricKey("auc", "candidate"), MetricKey("precision", "candidate")


def folder(path: Path, auc: float = 0.65, fingerprint: str = "aa", slices: int = 1, **verdict) -> str:
    found = []
    for number in range(slices):
        key = () if number == 0 else (("pay", f"[red]{number}".encode()),)
        values = with_diffs(
            {AUC: auc, AUC.of("baseline"): 0.7, PRECISION: Undefined("nothing positive")},
            "baseline",
        )
        found.append(SliceValues(key, 1234, 1234.0, values, {}))
    checks = [gate.Check(AUC, Threshold(ValueThreshold(0.66)))] if not verdict.get("bare") else []
    judged = gate.judge(gate.Evidence(found, baseline_name="baseline"), checks, Policy())
    report = Report(
        found,
        rows=1234,
        fingerprint=fingerprint,
        models={"candidate": {"uri": "/m/6"}},
        baseline_name="baseline",
    )
    path.mkdir(exist_ok=True)
    (path / "report.json").write_text(to_json(report, judged))
    return str(path)


def shown(*arguments, terminal: bool = False, width: int = 400) -> list[str]:
    out = io.StringIO()
    show(
        *arguments,
        console=Console(file=out, width=width, force_terminal=terminal, color_system=None),
    )
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_not_blessed(tmp_path: Path) -> None:
    lines = shown(folder(tmp_path))
    assert lines[0] == "NOT BLESSED"
    assert "1,234 rows, 1 slice, 1 check, 1 failed" in lines
    assert "candidate: /m/6" in lines
    assert "auc Overall 0.65000 >= 0.66 0.70000 below the bound" in lines
    assert "Overall 1,234 auc 0.65000 0.70000 -0.05000" in lines
    assert "Overall 1,234 precision undefined" in lines
    assert "undefined: precision on Overall: nothing positive" in lines


def test_blessed(tmp_path: Path) -> None:
    lines = shown(folder(tmp_path, auc=0.8))
    assert lines[0] == "BLESSED" and "Failed checks" not in lines


def test_a_reason_without_a_check_is_told(tmp_path: Path) -> None:
    assert gate.NO_THRESHOLDS in shown(folder(tmp_path, bare=True))


def test_compare(tmp_path: Path) -> None:
    mine, other = folder(tmp_path / "a"), folder(tmp_path / "b", auc=0.6)
    lines = shown(mine, other)
    assert "slice rows metric candidate baseline change other difference" in lines
    assert "Overall 1,234 auc 0.65000 0.70000 -0.05000 0.60000 +0.05000" in lines
    assert not [line for line in lines if "other rows" in line]
    moved = folder(tmp_path / "c", fingerprint="bb")
    assert f"note: {moved} was evaluated on other rows" in shown(mine, moved)


@pytest.mark.parametrize("terminal", [True, False])
def test_slice_values_are_no_markup_and_many_slices_are_counted(tmp_path: Path, terminal: bool) -> None:
    lines = shown(folder(tmp_path, slices=70), terminal=terminal, width=100)
    assert any("pay=[red]3" in line for line in lines)
    assert "and 20 more slices, in report.json" in lines


def test_a_terminal_of_80_columns_cuts_no_number(tmp_path: Path) -> None:
    lines = shown(folder(tmp_path / "a"), folder(tmp_path / "b"), terminal=True, width=80)
    assert "auc 0.65000 0.70000 -0.05000 0.65000 0" in lines


def test_a_pipe_gets_plain_lines(tmp_path: Path) -> None:
    code = f"from assay.show import show; show({folder(tmp_path, slices=3)!r})"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "\x1b" not in out and "─" not in out
    assert "pay=[red]2 1,234 auc" in " ".join(out.split())


def test_no_report_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=str(tmp_path / "report.json")):
        show(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "schema None"),
        (json.dumps({"schema": "assay.report/9"}), "assay.report/9"),
        ("\x80", r"report\.json"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "report.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(RequestError, match=said) as caught:
        show(str(tmp_path))
    assert str(tmp_path / "report.json") in str(caught.value)
