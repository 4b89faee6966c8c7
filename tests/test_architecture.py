"""The folder listing is the architecture: who may import whom, what stays light, what stays small."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "components" / "assay"

# A module imports from lower layers alone; modules of one layer know nothing of each other.
LAYERS = (
    ("spec", "text", "faults", "quiet", "storage"),
    ("request", "state", "values", "slicing", "protos", "examples", "model", "cluster", "leases", "kfp.paths",
     "kfp.task"),
    ("gate", "curves", "transform", "progress", "shards", "identity", "metrics.metric"),
    tuple(f"metrics.{m}" for m in ("counts", "confusion", "calibration", "regression", "multiclass")),
    ("metrics", "report", "plan", "ledger"),
    ("finalize", "eval_config", "inputs", "show", "workers"),
    ("artifacts.blessing", "artifacts.html", "artifacts.tfma", "artifacts.kfp", "artifacts.vertex"),
    ("step", "explain", "artifacts.output"),
    ("accumulate",),
    ("loop", "question"),
    ("engine",),
    ("fleet",),
    ("spread",),
    ("evaluation",),
    ("api",),
    ("cli", "tfx.artifacts", "tfx.child"),
    ("__main__", "tfx.executor", "tfx.container", "kfp.entrypoint"),
    ("tfx.component", "kfp.component"),
    ("tfx", "kfp"),
)  # fmt: skip
LAYER = {module: number for number, layer in enumerate(LAYERS) for module in layer}
# Only these re-export: the package's own face, and folders without code of their own.
FACES = ("", "artifacts")

# Modules that are loaded before the data is looked at, or without it.
LIGHT = (
    "spec", "request", "text", "quiet", "state", "values", "curves", "gate", "report", "show", "protos",
    "finalize", "eval_config", "metrics", "metrics.metric", "metrics.counts", "metrics.confusion",
    "metrics.calibration", "metrics.regression", "metrics.multiclass", "question", "evaluation", "cluster",
    "api", "cli", "__main__", "", "artifacts", "artifacts.blessing", "artifacts.html", "artifacts.kfp",
    "artifacts.vertex",
)  # fmt: skip
ONLY_IN = {
    "tfx": ("tfx.",),
    "apache_beam": ("tfx.", "fleet."),
    "ml_metadata": ("tfx.",),
    "kfp": ("kfp.component.",),
    "tensorflow_model_analysis": (),  # protos.py takes its generated files by path
    "tensorflow_transform": (),
}


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(p for p in parts if p != "__init__")


FILES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text("utf-8")) for name, path in FILES.items()}


def imports(name: str, *, late: bool) -> Iterator[str]:
    """Yields the modules that a module imports, in full; `late`: inside functions, and for types, too."""

    def walk(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert not child.level, f"{name}: a relative import"
                for alias in child.names:
                    full = f"{child.module}.{alias.name}"
                    yield full if full.removeprefix("assay.") in FILES else str(child.module)
            elif late or not (isinstance(child, (ast.FunctionDef, ast.Lambda)) or for_types(child)):
                yield from walk(child)

    def for_types(node: ast.AST) -> bool:
        return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)

    return walk(TREES[name])


def ours(name: str) -> set[str]:
    """The modules of this package that a module imports, wherever it does."""
    found = {
        m.removeprefix("assay").removeprefix(".")
        for m in imports(name, late=True)
        if f"{m}.".startswith("assay.")
    }
    return found - {""}


def test_every_module_has_a_layer():
    assert set(FILES) == {*LAYER, *FACES}
    assert len(LAYER) == sum(map(len, LAYERS))


@pytest.mark.parametrize("name", sorted(LAYER))
def test_imports_go_downwards(name):
    for other in ours(name):
        assert LAYER[other] < LAYER[name], f"{name} imports {other}, which is not in a layer below its own"


def test_the_packages_face_loads_nothing():
    assert ours("") == {"api"} and not set(imports("", late=False)) - {"typing", "__future__"}
    assert not ours("artifacts")


@pytest.mark.parametrize("package", ONLY_IN)
def test_frameworks_stop_at_the_door(package):
    for name in FILES:
        if not any(f"{name}.".startswith(place) for place in ONLY_IN[package]):
            found = [m for m in imports(name, late=True) if f"{m}.".startswith(f"{package}.")]
            assert not found, f"{name} imports {found}"


@pytest.mark.parametrize("name", LIGHT)
def test_what_answers_early_loads_no_tensorflow(name):
    heavy = [m for m in imports(name, late=False) if m.split(".")[0] in ("tensorflow", "keras", "tf_keras")]
    assert not heavy, f"{name} imports {heavy} when it is loaded"
    loaded = {m for m in imports(name, late=False) if m.startswith("assay.")}
    for other in loaded:
        assert other.removeprefix("assay.") in LIGHT, f"{name} loads {other}, which may load TensorFlow"


@pytest.mark.parametrize("name", sorted(FILES))
def test_no_module_is_long(name):
    assert len(FILES[name].read_text("utf-8").splitlines()) <= 400


# Words that say nothing about what is inside.
VAGUE = ("util", "utils", "helper", "helpers", "common", "misc", "base", "core", "tools")


def test_modules_are_named_after_what_they_hold():
    assert not [name for name in FILES if name.split(".")[-1] in VAGUE]


@pytest.mark.parametrize("name", sorted(FILES))
def test_everything_public_says_what_it_is(name):
    tree = TREES[name]
    assert ast.get_docstring(tree), f"{name} has no docstring"
    bare = list(undocumented(tree, protocol=False))
    assert not bare, f"{name}: without a docstring: {bare}"


def undocumented(node: ast.AST, *, protocol: bool) -> Iterator[str]:
    """Yields public functions and classes without a docstring.

    A method that only fills a place in a contract (a Protocol's, an import hook's) is described
    there; a property of a dataclass of statistics is one of `Statistics`.
    """
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.ClassDef)) or child.name.startswith("_"):
            continue
        if isinstance(child, ast.FunctionDef) and protocol and child.name in CONTRACTS:
            continue
        if not ast.get_docstring(child):
            yield child.name
        if isinstance(child, ast.ClassDef):
            yield from undocumented(child, protocol=True)


# Methods described where the contract is: metrics.metric.Statistics, TFX's executors and components.
CONTRACTS = ("name", "bins", "columns", "unit_labels", "unit_predictions", "rows", "Do")
