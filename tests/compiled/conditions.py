"""Compiled branches, evaluated as Kubeflow's driver and Vertex do: CEL over a task's inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import celpy


def conditions(dag: Mapping[str, Any]) -> dict[str, str]:
    """Returns the condition of every task of a DAG that has one."""
    return {
        name: task["triggerPolicy"]["condition"]
        for name, task in dag["tasks"].items()
        if "condition" in task.get("triggerPolicy", {})
    }


def holds(condition: str, *, parameters: Mapping[str, Any] | None = None, artifacts: Any = None) -> bool:
    """Returns what a condition comes to.

    parameters: values by name; artifacts: metadata by name. Their numbers are doubles, as in the
    protobuf that a backend keeps them in.
    """

    def plain(value: Any) -> Any:
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else value

    inputs = {
        "parameter_values": {name: plain(value) for name, value in (parameters or {}).items()},
        "artifacts": {
            name: {"artifacts": [{"metadata": {key: plain(v) for key, v in metadata.items()}}]}
            for name, metadata in (artifacts or {}).items()
        },
    }
    environment = celpy.Environment()
    program = environment.program(environment.compile(condition))
    return bool(program.evaluate({"inputs": celpy.json_to_cel(inputs)}))
