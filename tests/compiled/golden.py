"""What the example pipelines compile to, without what changes from one SDK to the next.

    python -m tests.compiled.golden

writes the files again that the tests compare with, for the stack that it runs on.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kfp
import yaml
from tfx import version as tfx_version

IMAGE = "example/assay:0.1.0"
# The pipeline spec of TFX, and what KFP adds to a component, differ between the two stacks.
FOLDER = Path(__file__).parent / f"tfx-{'.'.join(tfx_version.__version__.split('.')[:2])}"
ROOT = Path(__file__).resolve().parents[2]
COMPONENT = ROOT / "components" / "assay" / "kfp" / "component.yaml"
COMPONENT_IMAGE = "assay:0.1.0"


def documents(compilable: Any) -> list[Any]:
    """Returns the documents of a compiled pipeline or component, without the SDK's version."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "compiled.yaml"))
        kfp.compiler.Compiler().compile(compilable, path)
        found = list(yaml.safe_load_all(Path(path).read_text("utf-8")))
    del found[0]["sdkVersion"]
    return found


def _gate(accelerator: str) -> list[Any]:
    from pipelines.gate_kfp import gate

    return documents(gate(IMAGE, accelerator))


def _vertex_component() -> list[Any]:
    from assay.kfp import distributed_evaluator

    return documents(distributed_evaluator(IMAGE, vertex="classification"))


def _taxi() -> Any:
    from pipelines.taxi_vertex import compiled

    job = compiled(IMAGE, "gs://example/taxi", "gs://example/root")
    for versioned in ("labels", "displayName"):
        job.pop(versioned, None)
    del job["pipelineSpec"]["sdkVersion"]
    return job


def _pools() -> Any:
    from pipelines.vertex_pools import worker_pools

    return worker_pools(IMAGE, "example", helpers=3)


def component() -> Any:
    """Returns the ready component, without the second names under which older SDKs show its metrics."""
    from assay.kfp import distributed_evaluator

    (spec,) = documents(distributed_evaluator(COMPONENT_IMAGE))
    for outputs in (spec["root"]["outputDefinitions"], spec["root"]["dag"]["outputs"]):
        for name in [n for n in outputs["artifacts"] if n.startswith("distributed-evaluator-")]:
            del outputs["artifacts"][name]
    return spec


EXAMPLES: dict[str, Callable[[], Any]] = {
    "gate_none": lambda: _gate("none"),
    "gate_gpu": lambda: _gate("gpu"),
    "gate_tpu": lambda: _gate("tpu"),
    "vertex_component": _vertex_component,
    "taxi_vertex": _taxi,
    "vertex_pools": _pools,
}


def text(value: Any) -> str:
    """Returns a golden file's text."""
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def main() -> None:
    """Writes every golden file, and the ready component."""
    FOLDER.mkdir(exist_ok=True)
    for name, compiled in EXAMPLES.items():
        (FOLDER / f"{name}.json").write_text(text(compiled()), "utf-8")
    COMPONENT.write_text(yaml.safe_dump(component(), sort_keys=True), "utf-8")


if __name__ == "__main__":
    main()
