"""TFMA's generated messages, without TFMA.

Importing `config_pb2`, `metrics_for_slice_pb2` and `validation_result_pb2` the ordinary way runs
TFMA's own `__init__`, which loads TensorFlow, Beam and every TFMA metric. Their files need none of
it, so they are executed here under an empty parent package. An `import tensorflow_model_analysis`
before or after works in full, and shares these modules.

Runs on the host, in a few hundredths of a second, and loads protobuf alone.

Raises:
  RequestError: TFMA is not installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# TFMA 0.52's files take it from the descriptor pool without importing it.
import google.protobuf.wrappers_pb2  # noqa: F401

from assay.spec import RequestError

PACKAGE = "tensorflow_model_analysis"
NAMES = ("config_pb2", "metrics_for_slice_pb2", "validation_result_pb2")


class _Executed:
    """A finder and loader that answers an import with a module executed before.

    Without it a later import of TFMA would execute the files again, and on some protobuf builds
    make a second class for each message, of which isinstance and pickle know nothing.
    """

    def __init__(self, modules: Mapping[str, ModuleType]) -> None:
        self.modules = modules

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        module = self.modules.get(name)
        return None if module is None else ModuleSpec(name, self, origin=module.__file__)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Does nothing: it is executed."""


def _load() -> list[ModuleType]:
    """Returns the modules of NAMES: TFMA's own where it is imported, else their files alone."""
    names = [f"{PACKAGE}.proto.{name}" for name in NAMES]
    if PACKAGE in sys.modules:
        return [importlib.import_module(name) for name in names]
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None:
        raise RequestError(
            "tensorflow-model-analysis is not installed; it defines EvalConfig and the evaluation "
            "files. Install it with: pip install 'tfx-assay[tfx]'"
        )
    folders = list(spec.submodule_search_locations or ())
    try:
        sys.modules[PACKAGE] = _empty(PACKAGE, folders)
        proto = _empty(f"{PACKAGE}.proto", [f"{folder}/proto" for folder in folders])
        sys.modules[proto.__name__] = proto
        modules = [importlib.import_module(name) for name in names]
    finally:
        for name in [n for n in sys.modules if n == PACKAGE or n.startswith(f"{PACKAGE}.")]:
            del sys.modules[name]
    sys.meta_path.insert(0, _Executed(dict(zip(names, modules, strict=True))))  # type: ignore[arg-type]
    return modules


def _empty(name: str, path: list[str]) -> ModuleType:
    module = ModuleType(name)
    module.__path__ = path
    return module


config_pb2, metrics_for_slice_pb2, validation_result_pb2 = _load()
