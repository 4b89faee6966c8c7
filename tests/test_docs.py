"""The documents are true: their programs print what they show, their names are those of the code."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from assay import cli
from assay.metrics import CLASSES

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
LESSON = ROOT / "docs" / "distributed_evaluation.md"
DESIGN = ROOT / "docs" / "design.md"
PACKAGE = ROOT / "components" / "assay"

MARK = "<end of block>"


def blocks(path: Path) -> list[tuple[str, str]]:
    """Returns the fenced blocks of a page, in order, as (language, text)."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", path.read_text(encoding="utf-8"), re.M | re.S)


def flags(command: str) -> set[str]:
    """Returns the options that the parser of a subcommand shows in its help."""
    text = cli.parser()._subparsers._group_actions[0].choices[command].format_help()
    return set(re.findall(r"(?<!\S)(?:\[)?(--[a-z-]+)", text))


def test_the_lesson_prints_what_it_shows(tmp_path):
    found = blocks(LESSON)
    programs = [text for language, text in found if language == "python"]
    shown = [text for language, text in found if language == "text"]
    assert [language for language, _ in found] == ["python", "text"] * len(programs)
    script = tmp_path / "lesson.py"
    script.write_text("\n".join(f"{p}\nprint({MARK!r})" for p in programs), encoding="utf-8")
    paths = [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
    ran = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "TMPDIR": str(tmp_path)},
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    printed = ran.stdout.split(f"{MARK}\n")
    assert printed.pop() == ""
    assert printed == shown


def commands() -> list[list[str]]:
    """Returns the `assay …` command lines in README's bash blocks, as words."""
    text = "\n".join(text for language, text in blocks(README) if language == "bash")
    lines = text.replace("\\\n", " ").splitlines()
    return [line.split("#")[0].split() for line in lines if line.startswith("assay ")]


def test_readme_commands_parse():
    assert {words[1] for words in commands()} == {"evaluate", "show"}
    for words in commands():
        cli.parse([word for word in words[1:] if word != "…"])


def test_readme_lists_the_options_of_the_parser():
    listed = set(re.findall(r"^\| `(--[a-z-]+)", README.read_text(encoding="utf-8"), re.M))
    assert listed == (flags("evaluate") | flags("show")) - {"--help"}


def test_readme_lists_the_metrics():
    section = README.read_text(encoding="utf-8").split("## Metrics")[1].split("\n## ")[0]
    listed = set(re.findall(r"^\| `(\w+)`(?:, `(\w+)`)?", section, re.M))
    assert {name for pair in listed for name in pair if name} == set(CLASSES)


def test_readme_names_make_targets():
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", README.read_text(encoding="utf-8"), re.M))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    assert {"demo", "test"} <= named <= targets


def calls(name: str) -> list[ast.Call]:
    """Returns the calls of a function in README's Python blocks."""
    trees = [ast.parse(text) for language, text in blocks(README) if language == "python"]
    nodes = [n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Call)]
    return [n for n in nodes if ast.unparse(n.func) == name]


def test_readme_python_example_fits_the_function():
    from assay.api import request
    from assay.request import Execution, Policy

    for name, function in (("assay.evaluate", request), ("Execution", Execution), ("Policy", Policy)):
        assert calls(name), name
        for call in calls(name):
            inspect.signature(function).bind(
                *call.args, **{keyword.arg: keyword.value for keyword in call.keywords}
            )


def test_readme_component_example_builds_a_node():
    from tfx.types import channel_utils, standard_artifacts

    from assay.tfx import DistributedEvaluator

    class Node:
        """Stands for any upstream node: a channel of each output that the example takes."""

        def __init__(self, **kinds):
            self.outputs = {n: channel_utils.as_channel([k()]) for n, k in kinds.items()}

    names = {
        "DistributedEvaluator": DistributedEvaluator,
        "eval_config": '{"modelSpecs": [{"labelKey": "y"}]}',
        "example_gen": Node(examples=standard_artifacts.Examples),
        "transform": Node(transform_graph=standard_artifacts.TransformGraph),
        "trainer": Node(model=standard_artifacts.Model),
        "last_blessed": Node(model=standard_artifacts.Model),
    }
    (call,) = calls("DistributedEvaluator")
    node = eval(compile(ast.Expression(call), str(README), "eval"), names)
    assert set(node.outputs) == {"evaluation", "blessing", "metrics", "classification_metrics", "report"}


def modules() -> list[str]:
    """Returns the modules in the design page's table, in its order."""
    return re.findall(r"^\| `([\w/]+)\.py`", DESIGN.read_text(encoding="utf-8"), re.M)


def test_the_design_page_names_every_module():
    found = {p.relative_to(PACKAGE).with_suffix("").as_posix() for p in PACKAGE.rglob("*.py")}
    assert sorted(modules()) == sorted(m for m in found if not m.endswith(("__init__", "__main__")))


def imported(module: str) -> set[str]:
    """Returns the modules of ours that a module imports, wherever in it; a package is all of its."""
    found = set()
    for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("assay."):
            base = (node.module or "").split(".")[1:]
            for name in ("/".join([*base, alias.name]) for alias in node.names):
                paths = [m for m in modules() if name == m or "/".join(base) == m]
                paths = paths or [m for m in modules() if base and m.startswith(f"{'/'.join(base)}/")]
                assert paths or not base, f"{module}: {name}"
                found.update(paths)
    return found


@pytest.mark.parametrize("module", modules())
def test_a_module_imports_only_from_rows_above_its_own(module):
    above = modules()[: modules().index(module)]
    assert imported(module) <= set(above)


def test_names_in_the_design_page_exist():
    """`module.name` in backquotes is a name of that module of ours."""
    files, foreign = {"py", "json", "html"}, {"tfma"}
    paths = {m.split("/")[-1]: m for m in modules() if m.split("/")[-1] not in foreign}
    named = re.findall(r"`([a-z_]+)\.([A-Za-z_]+)[`(]", DESIGN.read_text(encoding="utf-8"))
    named = [(m, n) for m, n in named if m in paths and n not in files]
    assert len(named) > 15
    for module, name in named:
        loaded = importlib.import_module("assay." + paths[module].replace("/", "."))
        assert hasattr(loaded, name), f"{module}.{name}"


@pytest.mark.parametrize("page", [README, LESSON, DESIGN], ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), target


def test_the_metric_of_the_design_page_works():
    import numpy as np
    import tensorflow as tf

    from assay.metrics import Totals

    (program,) = [text for language, text in blocks(DESIGN) if language == "python"]
    names: dict = {"__name__": __name__}
    exec(compile(program, str(DESIGN), "exec", dont_inherit=True), names)
    metric = names["mean_squared_logarithmic_error"]()
    labels, predictions = np.array([0.0, 1.0, 3.0]), np.array([1.0, 1.0, 0.0])
    bins, values = metric.statistics.rows(tf.constant(labels), tf.constant(predictions))
    assert bins is None and values.shape == (3, 1)
    value = metric.formula(Totals(3, 3.0, values.numpy().sum(0, keepdims=True)))
    assert value == pytest.approx(np.mean((np.log1p(labels) - np.log1p(predictions)) ** 2), abs=1e-15)
