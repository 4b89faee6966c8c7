"""Translates TFX artifacts into one request, and what was found into their properties.

Runs wherever TFX runs the node; the evaluation itself runs in a child process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from tfx import types
from tfx.components.evaluator import executor as stock
from tfx.components.util import examples_utils
from tfx.dsl.io import fileio
from tfx.types import artifact_utils

from assay.artifacts import blessing, kfp
from assay.request import Execution, Policy, Request, options
from assay.spec import RequestError
from assay.tfx import child

Artifacts = Mapping[str, Sequence[types.Artifact]]


class Executor(stock.Executor):
    """Evaluates in a child process.

    A subclass of the stock executor because TFX's Kubeflow v2 entry writes the model's resource
    name into a blessing for such classes alone.
    """

    def __init__(self, context: Any = None) -> None:
        """Takes TFX's executor context; its Beam options are for the runner `beam`."""
        self._beam_options = tuple(getattr(context, "beam_pipeline_args", None) or ())
        if context is not None:
            # Given any, the base class packs all of TFX for Beam's workers.
            context.beam_pipeline_args = []
        super().__init__(context)

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: Mapping[str, Any]) -> None:
        """Writes the output artifacts and sets the properties of blessing and metrics.

        Raises:
          RequestError: the request is wrong.
          RuntimeError: the run failed. In either case the output folders are left empty.
        """
        try:
            request = translate(input_dict, output_dict, exec_properties, self._beam_options)
            child.evaluate(request)
            found = verdict(request)
            _describe(output_dict)
        except BaseException:
            for artifacts in output_dict.values():
                for artifact in artifacts:
                    _empty(artifact.uri)
            raise
        model = artifact_utils.get_single_instance(list(input_dict["model"]))
        baseline = next(iter(input_dict.get("baseline_model") or ()), None)
        properties = blessing.properties(
            found["blessed"],
            found["reasons"],
            current_model=model.uri,
            current_model_id=model.id,
            baseline_model=baseline.uri if baseline else "",
            baseline_model_id=baseline.id if baseline else None,
            component_id=exec_properties.get("current_component_id", ""),
        )
        written = artifact_utils.get_single_instance(list(output_dict["blessing"]))
        for name, value in properties.items():
            if isinstance(value, int):
                written.set_int_custom_property(name, value)
            else:
                written.set_string_custom_property(name, value)


def translate(
    inputs: Artifacts,
    outputs: Artifacts,
    exec_properties: Mapping[str, Any],
    beam_options: Sequence[str] = (),
) -> Request:
    """Returns the request that the artifacts and execution properties stand for.

    beam_options: of the pipeline, for the runner `beam` where the execution names none.

    Raises:
      RequestError: an input is missing, is there twice, or is of a format that is not supported.
    """
    for artifact in inputs.get("examples", ()):
        _check_format(artifact)
    execution = json.loads(exec_properties.get("execution") or "{}")
    if execution.get("runner") == "beam":
        execution.setdefault("beam_options", list(beam_options))
    return Request(
        examples=tuple(artifact.uri for artifact in inputs.get("examples", ())),
        model=_uri(inputs, "model"),
        baseline=_uri(inputs, "baseline_model"),
        schema=_uri(inputs, "schema"),
        transform_graph=_uri(inputs, "transform_graph"),
        eval_config=exec_properties.get("eval_config") or "",
        splits=_splits(exec_properties.get("example_splits")),
        execution=options(Execution, execution),
        policy=options(Policy, json.loads(exec_properties.get("policy") or "{}")),
        evaluation=_uri(outputs, "evaluation"),
        blessing=_uri(outputs, "blessing"),
        report=_uri(outputs, "report"),
        metrics=_uri(outputs, "metrics"),
        classification_metrics=_uri(outputs, "classification_metrics"),
    )


def verdict(request: Request) -> Mapping[str, Any]:
    """Returns the verdict in report.json, once the blessing folder says the same.

    Raises:
      RuntimeError: the blessing folder holds no verdict, both, or the other one.
    """
    found = _json(request.report, "report.json")["verdict"]
    markers = [n for n in blessing.FILES if fileio.exists(os.path.join(request.blessing, n))]
    if markers != [blessing.BLESSED_FILE if found["blessed"] else blessing.NOT_BLESSED_FILE]:
        raise RuntimeError(
            f"{request.blessing} holds {' and '.join(markers) or 'no verdict'}, but report.json "
            f"says {'blessed' if found['blessed'] else 'not blessed'}"
        )
    return found


def _describe(outputs: Artifacts) -> None:
    """Puts what Kubeflow and Vertex show into the artifacts' properties."""
    for artifact in outputs.get("metrics", ()):
        for name, value in _json(artifact.uri, kfp.METRICS).items():
            artifact.set_float_custom_property(name, float(value))
    for artifact in outputs.get("classification_metrics", ()):
        for name, value in _json(artifact.uri, kfp.CLASSIFICATION)["metadata"].items():
            artifact.set_json_value_custom_property(name, value)


def _json(folder: str, name: str) -> Any:
    with fileio.open(os.path.join(folder, name), "r") as file:
        return json.load(file)


def _uri(artifacts: Artifacts, name: str) -> str:
    found = artifacts.get(name) or ()
    if len(found) > 1:
        raise RequestError(f"{name} has {len(found)} artifacts; at most one is evaluated")
    return found[0].uri if found else ""


def _splits(text: str | None) -> tuple[str, ...]:
    try:
        names = json.loads(text or "null") or ["eval"]
    except json.JSONDecodeError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise RequestError(f'example_splits is {text!r}; JSON text is needed, such as ["eval"]')
    return tuple(names)


def _check_format(examples: types.Artifact) -> None:
    payload = examples_utils.get_payload_format_string(examples)
    file = examples_utils.get_file_format(examples)
    if payload != "FORMAT_TF_EXAMPLE" or file != "tfrecords_gzip":
        raise RequestError(
            f"examples {examples.uri}: {payload} in {file} is not supported; "
            "FORMAT_TF_EXAMPLE in tfrecords_gzip is"
        )


def _empty(uri: str) -> None:
    if fileio.exists(uri):
        fileio.rmtree(uri)
        fileio.makedirs(uri)
