"""The TFX component: the stock Evaluator's inputs and outputs, and what Kubeflow and Vertex show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfx import types
from tfx.dsl.components.base import base_beam_component, executor_spec
from tfx.dsl.placeholder import placeholder
from tfx.orchestration import data_types
from tfx.types import component_spec, standard_artifacts, standard_component_specs
from tfx.utils import json_utils

from assay.request import Execution, Policy, options
from assay.spec import RequestError
from assay.tfx.artifacts import HTML, ClassificationMetrics, Metrics
from assay.tfx.executor import Executor

STOCK = standard_component_specs.EvaluatorSpec


class DistributedEvaluatorSpec(component_spec.ComponentSpec):
    """The stock Evaluator's spec; ours are transform_graph, execution, policy, metrics and report."""

    PARAMETERS: Mapping[str, component_spec.ExecutionParameter] = {
        **STOCK.PARAMETERS,
        "execution": component_spec.ExecutionParameter(type=str, optional=True),
        "policy": component_spec.ExecutionParameter(type=str, optional=True),
    }
    INPUTS: Mapping[str, component_spec.ChannelParameter] = {
        **STOCK.INPUTS,
        "transform_graph": component_spec.ChannelParameter(
            type=standard_artifacts.TransformGraph, optional=True
        ),
    }
    OUTPUTS: Mapping[str, component_spec.ChannelParameter] = {
        **STOCK.OUTPUTS,
        "metrics": component_spec.ChannelParameter(type=Metrics),
        "classification_metrics": component_spec.ChannelParameter(type=ClassificationMetrics),
        "report": component_spec.ChannelParameter(type=HTML),
    }
    TYPE_ANNOTATION = STOCK.TYPE_ANNOTATION


class DistributedEvaluator(base_beam_component.BaseBeamComponent):
    """Evaluates a model under `tf.distribute` and says whether it may be promoted.

    Takes the stock Evaluator's arguments, in its order. Outputs: `evaluation` (ModelEvaluation),
    `blessing` (ModelBlessing), `metrics` and `classification_metrics` (shown by Kubeflow and Vertex),
    `report` (a folder with report.html and report.json).
    A Beam component like the stock one, so that pipelines which give it Beam options need no
    change; the evaluation itself runs in a process of its own, without Beam.
    """

    SPEC_CLASS = DistributedEvaluatorSpec
    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(Executor)

    def __init__(
        self,
        examples: types.BaseChannel,
        model: types.BaseChannel | None = None,
        baseline_model: types.BaseChannel | None = None,
        feature_slicing_spec: Any = None,
        fairness_indicator_thresholds: Any = None,
        example_splits: Any = None,
        eval_config: Any = None,
        schema: types.BaseChannel | None = None,
        module_file: str | None = None,
        module_path: str | None = None,
        *,
        transform_graph: types.BaseChannel | None = None,
        execution: Mapping[str, Any] | None = None,
        policy: Mapping[str, Any] | None = None,
    ) -> None:
        """Checks the arguments and builds the node.

        Args:
          examples: Examples; every artifact of the channel is read.
          model: the candidate.
          baseline_model: what the candidate is compared with; may turn out empty at run time.
          feature_slicing_spec, fairness_indicator_thresholds, module_file, module_path: refused.
          example_splits: names of splits, ["eval"] where None or empty; or a RuntimeParameter or
            placeholder that holds such a list as JSON text.
          eval_config: tfma.EvalConfig, its JSON text, or a RuntimeParameter or placeholder of that.
          schema: the schema of the examples.
          transform_graph: Transform's output, for models and labels that need transformed features.
          execution: options of `assay.request.Execution`: strategy, batch_size, state_dir, runner, …
          policy: options of `assay.request.Policy`: first_model, stale_baseline, slice_features.

        Raises:
          RequestError: an argument is missing, unsupported, unknown or out of range.
        """
        _refuse(feature_slicing_spec, fairness_indicator_thresholds, module_file, module_path)
        if model is None:
            raise RequestError(
                "model is missing; predictions that lie in the examples (prediction_key without a "
                "model) are not supported yet"
            )
        if eval_config is None:
            raise RequestError(
                "eval_config is missing; give a tfma.EvalConfig that names at least one metric"
            )
        super().__init__(
            spec=DistributedEvaluatorSpec(
                examples=examples,
                model=model,
                baseline_model=baseline_model,
                schema=schema,
                transform_graph=transform_graph,
                eval_config=eval_config,
                example_splits=_splits(example_splits),
                execution=_options("execution", Execution, execution),
                policy=_options("policy", Policy, policy),
                evaluation=types.Channel(type=standard_artifacts.ModelEvaluation),
                blessing=types.Channel(type=standard_artifacts.ModelBlessing),
                metrics=types.Channel(type=Metrics),
                classification_metrics=types.Channel(type=ClassificationMetrics),
                report=types.Channel(type=HTML),
            )
        )


def _refuse(slicing: Any, fairness: Any, module_file: Any, module_path: Any) -> None:
    if slicing is not None:
        raise RequestError(
            "feature_slicing_spec is not supported (deprecated in TFX, for estimators only); "
            "use slicing_specs in eval_config"
        )
    if fairness is not None:
        raise RequestError(
            "fairness_indicator_thresholds is not supported (the stock Evaluator never reads it); "
            "set thresholds in the config of a FairnessIndicators metric in eval_config"
        )
    if module_file is not None or module_path is not None:
        name = "module_file" if module_file is not None else "module_path"
        raise RequestError(f"{name}: custom_eval_shared_model and custom_extractors are not supported yet")


def _splits(given: Any) -> Any:
    if isinstance(given, (data_types.RuntimeParameter, placeholder.Placeholder)):
        return given
    if given is not None and (isinstance(given, str) or not all(isinstance(name, str) for name in given)):
        raise RequestError(
            f"example_splits is {given!r}; give a list of split names, or one RuntimeParameter or "
            "placeholder that holds such a list as JSON text"
        )
    return json_utils.dumps(given and list(given))


def _options(name: str, kind: type, given: Any) -> str | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise RequestError(f"{name} is {given!r}; a dict of options is needed")
    options(kind, given)
    # Only what was given: the image that runs this may know further options and their defaults.
    return json_utils.dumps(dict(given))
