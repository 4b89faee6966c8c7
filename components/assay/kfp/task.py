"""One task of a Kubeflow pipeline, as its executor input describes it.

Runs on the host, on the standard library alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from assay.spec import RequestError

INPUTS = ("examples", "model")
OUTPUTS = ("evaluation", "blessing", "metrics", "classification_metrics", "report")
PARAMETERS = ("blessed", "reason")
VERTEX = "vertex_metrics"


@dataclass(frozen=True)
class Artifact:
    """An artifact as the pipeline knows it: name in the metadata store, URI, and title of its schema."""

    name: str
    uri: str
    title: str = ""


@dataclass(frozen=True)
class Task:
    """Inputs and outputs by name, values of the input parameters, and the files to write values to."""

    inputs: Mapping[str, Artifact]
    outputs: Mapping[str, Artifact]
    values: Mapping[str, Any]
    parameter_files: Mapping[str, str]
    output_file: str


def read(text: str) -> Task:
    """Returns the task in an executor input.

    Raises:
      RequestError: the text is none, or not that of this component.
    """
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise RequestError(
            f"--executor_input is no JSON ({error}); give KFP's placeholder {{{{$}}}}, which it replaces"
        ) from None
    inputs, outputs = _dict(record, "inputs"), _dict(record, "outputs")
    files = _dict(outputs, "parameters", missing={})
    task = Task(
        inputs=_artifacts(inputs),
        outputs=_artifacts(outputs),
        values=_dict(inputs, "parameterValues", missing={}),
        parameter_files={name: str(_dict(files, name).get("outputFile") or "") for name in files},
        output_file=str(outputs.get("outputFile") or ""),
    )
    for kind, wanted, there in (
        ("input artifact", INPUTS, task.inputs),
        ("output artifact", OUTPUTS, task.outputs),
        ("output parameter", PARAMETERS, {n for n, path in task.parameter_files.items() if path}),
        ("outputFile", ("outputs",), {"outputs"} if task.output_file else ()),
    ):
        for name in wanted:
            if name not in there:
                raise _foreign(f"no {kind} {name!r}" if kind != "outputFile" else "no outputs.outputFile")
    return task


def _foreign(what: str) -> RequestError:
    return RequestError(
        f"--executor_input has {what}; "
        "this entry serves the component that assay.kfp.distributed_evaluator makes"
    )


def _dict(record: Any, name: str, missing: Any = None) -> Any:
    found = record.get(name, missing) if isinstance(record, dict) else None
    if not isinstance(found, dict):
        raise _foreign(f"no {name}")
    return found


def _artifacts(side: Mapping[str, Any]) -> dict[str, Artifact]:
    """Those that are there, by name; an optional input that was not given has none."""
    found = {}
    for name, value in _dict(side, "artifacts", missing={}).items():
        several = _dict({name: value}, name).get("artifacts") or []
        if not isinstance(several, list):
            raise _foreign(f"no list of artifacts for {name!r}")
        if not several:
            continue
        if len(several) > 1:
            raise RequestError(f"{name} has {len(several)} artifacts; one is evaluated")
        one = several[0]
        if not isinstance(one, dict) or not isinstance(one.get("uri"), str) or not one["uri"]:
            raise _foreign(f"no URI for artifact {name!r}")
        found[name] = Artifact(str(one.get("name") or ""), one["uri"], _title(one.get("type")))
    return found


def _title(kind: Any) -> str:
    """The title of a type that is given by it, or by a schema in YAML."""
    if not isinstance(kind, dict):
        return ""
    in_schema = re.search(r"^title: *(\S+)", str(kind.get("instanceSchema") or ""), re.M)
    return str(kind.get("schemaTitle") or (in_schema.group(1) if in_schema else ""))
