"""KFP tasks as the backend hands them to a container, and their outputs as the launcher reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

OUTPUTS = {
    "evaluation": "system.Artifact",
    "blessing": "system.Artifact",
    "metrics": "system.Metrics",
    "classification_metrics": "system.ClassificationMetrics",
    "report": "system.HTML",
}


def artifact(uri: object, title: str = "system.Artifact", name: str = "") -> dict[str, Any]:
    """Returns a RuntimeArtifact in the list that the executor input holds."""
    return {
        "artifacts": [
            {
                "name": name,
                "uri": str(uri),
                "type": {"schemaTitle": title, "schemaVersion": "0.0.1"},
                "metadata": {},
            }
        ]
    }


def executor_input(
    root: object,
    *,
    inputs: Mapping[str, object],
    values: Mapping[str, Any],
    outputs: Mapping[str, str] = OUTPUTS,
    output_file: object = None,
) -> dict[str, Any]:
    """Returns the executor input of a task that writes below `root`."""
    return {
        "inputs": {
            "artifacts": {name: artifact(uri, name=f"artifacts/{name}") for name, uri in inputs.items()},
            "parameterValues": dict(values),
        },
        "outputs": {
            "artifacts": {name: artifact(f"{root}/{name}", title) for name, title in outputs.items()},
            "parameters": {
                name: {"outputFile": f"{root}/parameters/{name}"} for name in ("blessed", "reason")
            },
            "outputFile": str(output_file or f"{root}/task/executor_output.json"),
        },
    }


def launched(file: Path) -> pipeline_spec_pb2.ExecutorOutput:
    """Returns the output file as the launcher takes it: strict JSON into ExecutorOutput."""
    text = file.read_text("utf-8")
    assert len(text.encode()) < 1_000_000

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    json.loads(text, parse_constant=refuse)
    return json_format.Parse(text, pipeline_spec_pb2.ExecutorOutput())


def metadata(output: pipeline_spec_pb2.ExecutorOutput, name: str) -> dict[str, Any]:
    """Returns one artifact's metadata as plain values."""
    (one,) = output.artifacts[name].artifacts
    return json_format.MessageToDict(one.metadata)
