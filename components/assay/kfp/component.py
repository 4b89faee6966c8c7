"""The KFP components: one that runs in a container, one that runs in this Python under `kfp.local`.

Loads kfp; makes pipelines, and is not needed to run them.
"""

import inspect
from typing import Any, NamedTuple

from kfp import dsl

from assay.kfp.task import VERTEX
from assay.spec import RequestError, unknown

COMMAND = ["python", "-m", "assay.kfp.entrypoint"]


class ClassificationMetrics(dsl.Artifact):
    """Vertex AI's metrics of a classifier."""

    schema_title = "google.ClassificationMetrics"
    schema_version = "0.0.1"


class RegressionMetrics(dsl.Artifact):
    """Vertex AI's metrics of a regression."""

    schema_title = "google.RegressionMetrics"
    schema_version = "0.0.1"


VERTEX_TYPES = {"classification": ClassificationMetrics, "regression": RegressionMetrics}


def distributed_evaluator(image: str, vertex: str = "") -> Any:
    """Returns the component that evaluates a model in a container of the image.

    vertex: `classification` or `regression` adds the output `vertex_metrics`, the metadata that Vertex AI
    shows and, as its file, what ModelImportEvaluationOp imports.

    Raises:
      RequestError: the image is empty, or vertex is neither.
    """
    if not image:
        raise RequestError("image is empty; name the image that container/build made")
    if vertex and vertex not in VERTEX_TYPES:
        raise unknown("vertex", vertex, tuple(VERTEX_TYPES))

    def distributed_evaluator(
        examples: dsl.Input[dsl.Artifact],
        model: dsl.Input[dsl.Artifact],
        eval_config: str,
        evaluation: dsl.Output[dsl.Artifact],
        blessing: dsl.Output[dsl.Artifact],
        metrics: dsl.Output[dsl.Metrics],
        classification_metrics: dsl.Output[dsl.ClassificationMetrics],
        report: dsl.Output[dsl.HTML],
        vertex_metrics: dsl.Output[VERTEX_TYPES.get(vertex, dsl.Artifact)],  # type: ignore[misc]
        blessed: dsl.OutputPath(str),  # type: ignore[valid-type]
        reason: dsl.OutputPath(str),  # type: ignore[valid-type]
        baseline_model: dsl.Input[dsl.Artifact] = None,
        transform_graph: dsl.Input[dsl.Artifact] = None,
        schema: dsl.Input[dsl.Artifact] = None,
        example_splits: list = ["eval"],  # noqa: B006
        strategy: str = "auto",
        batch_size: int = 1024,
        state_dir: str = "",
        first_model: str = "refuse",
        stale_baseline: str = "fail",
        slice_features: str = "raw",
    ):  # type: ignore[no-untyped-def]
        """Evaluates a model on every slice and says whether it may be promoted.

        Args:
            examples: Folder of an Examples artifact, of TFRecords, or a glob.
            model: Folder of a Model artifact or of a SavedModel.
            eval_config: tfma.EvalConfig as JSON text.
            baseline_model: The model that the candidate is compared with.
            transform_graph: Output of Transform, for models and labels that need transformed features.
            schema: Schema of the examples.
            example_splits: Names of the splits to evaluate.
            strategy: One of auto, one_device, mirrored, multi_worker, tpu.
            batch_size: Rows per replica and step.
            state_dir: Folder that keeps finished shards for retries; a stable one, such as gs://bucket/state/job.
            first_model: Verdict where only changes are bounded and there is no baseline; refuse or bless.
            stale_baseline: What a baseline that cannot be run means; fail or ignore.
            slice_features: Where slice features are looked up first; raw or transformed.

        Returns:
            evaluation: ModelEvaluation files as TFMA reads them, report.json and report.html.
            blessing: The file BLESSED or NOT_BLESSED.
            metrics: Overall values.
            classification_metrics: ROC curve and confusion matrix of a binary classifier.
            report: The report as one page.
            vertex_metrics: Metrics as Vertex AI shows and imports them.
            blessed: The verdict, true or false; the one to branch on.
            reason: Why the model is not blessed.
        """
        return dsl.ContainerSpec(image=image, command=COMMAND, args=["--executor_input", "{{$}}"])

    if not vertex:
        declared = inspect.signature(distributed_evaluator)
        kept = [p for name, p in declared.parameters.items() if name != VERTEX]
        distributed_evaluator.__signature__ = declared.replace(parameters=kept)  # type: ignore[attr-defined]
    return dsl.container_component(distributed_evaluator)


@dsl.component(base_image="python", install_kfp_package=False)
def local_evaluator(
    examples: str,
    model: str,
    eval_config: str,
    evaluation: dsl.Output[dsl.Artifact],
    blessing: dsl.Output[dsl.Artifact],
    metrics: dsl.Output[dsl.Metrics],
    classification_metrics: dsl.Output[dsl.ClassificationMetrics],
    report: dsl.Output[dsl.HTML],
    baseline_model: str = "",
    transform_graph: str = "",
    schema: str = "",
    example_splits: list = ["eval"],  # noqa: B006
    strategy: str = "auto",
    batch_size: int = 1024,
    state_dir: str = "",
    first_model: str = "refuse",
    stale_baseline: str = "fail",
    slice_features: str = "raw",
) -> NamedTuple("Verdict", blessed=str, reason=str):  # type: ignore[misc, valid-type]
    """Evaluates a model in this Python, as `distributed_evaluator` does in a container.

    Its inputs are paths: kfp.local of KFP 2.5 takes no input artifacts.
    """
    # kfp runs this function's source in a module of its own, without the names above.
    from collections import namedtuple

    from assay.kfp.entrypoint import perform
    from assay.kfp.task import Artifact, Task

    inputs = {
        "examples": examples,
        "model": model,
        "baseline_model": baseline_model,
        "transform_graph": transform_graph,
        "schema": schema,
    }
    outputs = {
        "evaluation": evaluation,
        "blessing": blessing,
        "metrics": metrics,
        "classification_metrics": classification_metrics,
        "report": report,
    }
    values = {
        "eval_config": eval_config,
        "example_splits": example_splits,
        "strategy": strategy,
        "batch_size": batch_size,
        "state_dir": state_dir,
        "first_model": first_model,
        "stale_baseline": stale_baseline,
        "slice_features": slice_features,
    }
    task = Task(
        inputs={name: Artifact("", uri) for name, uri in inputs.items() if uri},
        outputs={name: Artifact(a.name, a.uri) for name, a in outputs.items()},
        values=values,
        parameter_files={},
        output_file="",
    )
    found: Any = perform(task)
    for name, artifact in outputs.items():
        artifact.metadata.update(found["artifacts"][name]["artifacts"][0]["metadata"])
    verdict = found["parameterValues"]
    return namedtuple("Verdict", verdict)(**verdict)  # type: ignore[call-overload]
