"""The container's entry in Kubeflow pipelines: `python -m assay.kfp.entrypoint --executor_input {{$}}`.

A task to one request, the outcome to the file that the launcher reads: strict JSON, written last, by the
chief alone. Runs on the host; starts TensorFlow; never loads kfp.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from assay.artifacts import blessing, kfp, vertex
from assay.cli import OK, evaluate, guarded
from assay.cluster import task as own_task
from assay.evaluation import Outcome
from assay.kfp.paths import local
from assay.kfp.task import VERTEX, Artifact, Task, read
from assay.request import Execution, Policy, Request
from assay.spec import RequestError

VERTEX_KINDS = {"google.ClassificationMetrics": "classification", "google.RegressionMetrics": "regression"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the task and returns 0, 2 (the request is wrong) or 1 (the run failed), told in one line."""
    parser = argparse.ArgumentParser(prog="python -m assay.kfp.entrypoint")
    parser.add_argument("--executor_input", required=True, metavar="JSON", help="KFP's placeholder {{$}}")
    given = parser.parse_args(argv).executor_input
    return guarded(lambda: run(given))


def run(executor_input: str) -> int:
    """Evaluates what an executor input names, writes every output, and returns 0, whatever the verdict.

    Raises:
      RequestError: it is none, or the request in it is wrong.
      DataError: the data cannot be evaluated. In either case nothing is left that looks like a verdict.
    """
    task = read(executor_input)
    files = {name: local(path) for name, path in task.parameter_files.items()}
    last = local(task.output_file)
    if own_task(os.environ).is_chief is not False:
        folder = local(task.outputs["blessing"].uri)
        _remove(last, *files.values(), *(os.path.join(folder, name) for name in blessing.FILES))
    found = perform(task)
    if found is None:
        return OK  # the chief writes
    try:
        for name, path in files.items():
            _write(path, found["parameterValues"][name])
        _write(last, json.dumps(found, allow_nan=False))
    except BaseException:
        _remove(last, *files.values())
        raise
    return OK


def perform(task: Task) -> dict[str, Any] | None:
    """Evaluates, writes the artifacts, and returns the ExecutorOutput; None where another is the chief.

    `parameterValues`: `blessed` "true" or "false", and `reason`, at most 400 bytes. `artifacts`: every
    output with its metadata.

    Raises:
      RequestError: the request is wrong.
      DataError: the data cannot be evaluated. In either case the artifacts are left without a verdict.
    """
    asked = request(task)
    outcome = evaluate(asked)
    if outcome is None:
        return None
    described = metadata(outcome, asked, task.inputs)
    return {
        "parameterValues": {
            "blessed": "true" if outcome.verdict.blessed else "false",
            "reason": blessing.message(outcome.verdict.reasons),
        },
        "artifacts": {
            name: {"artifacts": [{"name": a.name, "uri": a.uri, "metadata": described.get(name, {})}]}
            for name, a in task.outputs.items()
        },
    }


def request(task: Task) -> Request:
    """Returns the request that a task stands for; retries find the States that earlier tries finished.

    Raises:
      RequestError: a value is of the wrong kind or out of range, or a URI cannot be reached.
    """
    inputs = {name: local(artifact.uri) for name, artifact in task.inputs.items()}
    outputs = {name: local(artifact.uri) for name, artifact in task.outputs.items()}
    title = task.outputs[VERTEX].title if VERTEX in task.outputs else ""
    splits = task.values.get("example_splits") or ["eval"]
    if not isinstance(splits, list) or not all(isinstance(name, str) for name in splits):
        raise RequestError(f'example_splits is {splits!r}; a list of names is needed, such as ["eval"]')
    execution = Execution(
        strategy=_value(task, "strategy", Execution.strategy),
        batch_size=_value(task, "batch_size", Execution.batch_size),
        state_dir=local(_value(task, "state_dir", "")),
        resume=True,
    )
    policy = Policy(
        first_model=_value(task, "first_model", Policy.first_model),
        stale_baseline=_value(task, "stale_baseline", Policy.stale_baseline),
        slice_features=_value(task, "slice_features", Policy.slice_features),
    )
    return Request(
        examples=(inputs["examples"],),
        model=inputs["model"],
        baseline=inputs.get("baseline_model", ""),
        transform_graph=inputs.get("transform_graph", ""),
        schema=inputs.get("schema", ""),
        eval_config=_value(task, "eval_config", ""),
        splits=tuple(splits),
        execution=execution,
        policy=policy,
        evaluation=outputs["evaluation"],
        # report.json has to lie in some folder, and an HTML artifact is one file.
        report=outputs["evaluation"],
        page=outputs["report"],
        blessing=outputs["blessing"],
        metrics=outputs["metrics"],
        classification_metrics=outputs["classification_metrics"],
        vertex=outputs.get(VERTEX, ""),
        vertex_kind=VERTEX_KINDS.get(title, title),
    )


def _value(task: Task, name: str, default: Any) -> Any:
    value = task.values.get(name)
    if value is None:  # an optional parameter that the pipeline was not given
        return default
    if isinstance(default, int) and isinstance(value, float) and value.is_integer():
        return int(value)  # a pipeline's numbers are doubles
    if not isinstance(value, type(default)):
        kind = "a whole number" if isinstance(default, int) else "a text"
        raise RequestError(f"{name} is {value!r}; {kind} is needed")
    return value


def metadata(outcome: Outcome, asked: Request, inputs: Mapping[str, Artifact]) -> dict[str, dict[str, Any]]:
    """Returns the metadata of those output artifacts that have any, by name."""
    baseline = inputs.get("baseline_model")
    judged = blessing.properties(
        outcome.verdict.blessed,
        outcome.verdict.reasons,
        current_model=inputs["model"].uri,
        current_model_id=inputs["model"].name,
        baseline_model=baseline.uri if baseline else "",
        baseline_model_id=baseline.name if baseline else None,
    )
    shown: dict[str, dict[str, Any]] = {
        "blessing": judged,
        "metrics": kfp.metrics(outcome.report, outcome.verdict),
        "classification_metrics": kfp.classification_metrics(outcome.report),
    }
    if asked.vertex:
        shown[VERTEX] = vertex.metadata(outcome.report, asked.vertex_kind)
    return shown


def _write(path: str, text: str) -> None:
    from assay.storage import write_whole

    if "://" not in path:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    write_whole(path, text)


def _remove(*paths: str) -> None:
    for path in paths:
        if os.path.exists(path):
            os.remove(path)


if __name__ == "__main__":
    sys.exit(main())
