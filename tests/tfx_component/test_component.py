"""The component as a pipeline author meets it: arguments, outputs, and what compiles."""

from __future__ import annotations

import inspect
import json

import pytest
from google.protobuf import json_format
from tensorflow_model_analysis.proto import config_pb2
from tfx import v1 as tfx
from tfx.components import Evaluator
from tfx.dsl.compiler import compiler
from tfx.dsl.components.base import base_beam_component
from tfx.orchestration.data_types import RuntimeParameter
from tfx.types import channel_utils, standard_artifacts, standard_component_specs

from assay.spec import RequestError
from assay.tfx import DistributedEvaluator
from assay.tfx.artifacts import HTML, ClassificationMetrics, Metrics
from assay.tfx.component import DistributedEvaluatorSpec

CONFIG = config_pb2.EvalConfig(model_specs=[config_pb2.ModelSpec(label_key="y")])


def channel(kind):
    return channel_utils.as_channel([kind()])


def evaluator(**arguments):
    given = {
        "examples": channel(standard_artifacts.Examples),
        "model": channel(standard_artifacts.Model),
        "eval_config": CONFIG,
    }
    return DistributedEvaluator(**{**given, **arguments})


def importer(kind, name):
    return tfx.dsl.Importer(source_uri=f"/tmp/{name}", artifact_type=kind).with_id(name)


def pipeline(*build):
    """A pipeline of an evaluator per function of (examples, model) → nodes."""
    examples = importer(standard_artifacts.Examples, "examples")
    model = importer(standard_artifacts.Model, "model")
    nodes = [examples, model]
    for function in build:
        nodes.extend(function(examples.outputs["result"], model.outputs["result"]))
    return tfx.dsl.Pipeline(
        pipeline_name="p",
        pipeline_root="/tmp/root",
        components=nodes,
        metadata_connection_config=tfx.orchestration.metadata.sqlite_metadata_connection_config(
            "/tmp/root/metadata.sqlite"
        ),
    )


def node(ir, name):
    return next(n.pipeline_node for n in ir.nodes if n.pipeline_node.node_info.id == name)


def vertex(built, tmp_path, spec_2_1):
    runner = tfx.orchestration.experimental.KubeflowV2DagRunner(
        config=tfx.orchestration.experimental.KubeflowV2DagRunnerConfig(
            default_image="image",
            default_commands=["python", "-m", "assay.tfx.container"],
            use_pipeline_spec_2_1=spec_2_1,
        ),
        output_dir=str(tmp_path),
        output_filename="pipeline.json",
    )
    runner.run(built)
    return json.loads((tmp_path / "pipeline.json").read_text())["pipelineSpec"]


def test_every_argument_of_the_stock_evaluator_keeps_its_name_and_place():
    stock = list(inspect.signature(Evaluator.__init__).parameters)
    ours = list(inspect.signature(DistributedEvaluator.__init__).parameters)
    assert ours[: len(stock)] == stock
    assert ours[len(stock) :] == ["transform_graph", "execution", "policy"]


def test_the_spec_is_the_stock_spec_and_more():
    stock = standard_component_specs.EvaluatorSpec
    assert set(DistributedEvaluatorSpec.PARAMETERS) - set(stock.PARAMETERS) == {
        "execution",
        "policy",
    }
    assert set(DistributedEvaluatorSpec.INPUTS) - set(stock.INPUTS) == {"transform_graph"}
    ours = {"metrics", "classification_metrics", "report"}
    assert set(DistributedEvaluatorSpec.OUTPUTS) - set(stock.OUTPUTS) == ours
    for kind in ("PARAMETERS", "INPUTS", "OUTPUTS"):
        for key, parameter in getattr(stock, kind).items():
            assert getattr(DistributedEvaluatorSpec, kind)[key] is parameter


def test_outputs():
    outputs = evaluator().outputs
    assert {key: c.type for key, c in outputs.items()} == {
        "evaluation": standard_artifacts.ModelEvaluation,
        "blessing": standard_artifacts.ModelBlessing,
        "metrics": Metrics,
        "classification_metrics": ClassificationMetrics,
        "report": HTML,
    }
    # The titles by which Kubeflow and Vertex know what they can show.
    titles = [kind.TYPE_NAME for kind in (Metrics, ClassificationMetrics, HTML)]
    assert titles == ["system.Metrics", "system.ClassificationMetrics", "system.HTML"]


def test_execution_properties_are_written_as_the_stock_evaluator_writes_them():
    given = {
        "examples": channel(standard_artifacts.Examples),
        "model": channel(standard_artifacts.Model),
        "eval_config": CONFIG,
        "example_splits": ["eval", "test"],
    }
    stock, ours = Evaluator(**given), DistributedEvaluator(**given)
    for key in ("eval_config", "example_splits"):
        assert ours.exec_properties[key] == stock.exec_properties[key]
    assert evaluator().exec_properties["example_splits"] == "null"


def test_options_are_kept_as_given():
    built = evaluator(execution={"batch_size": 64}, policy={"first_model": "bless"})
    assert json.loads(built.exec_properties["execution"]) == {"batch_size": 64}
    assert json.loads(built.exec_properties["policy"]) == {"first_model": "bless"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"execution": {"batch_sise": 3}}, ["batch_sise", "batch_size"]),
        ({"execution": {"batch_size": 0}}, ["batch_size", "at least 1"]),
        ({"execution": {"strategy": "mirorred"}}, ["mirorred", "mirrored"]),
        ({"execution": "mirrored"}, ["execution", "dict"]),
        ({"policy": {"first_model": "yes"}}, ["first_model", "bless"]),
        ({"module_file": "m.py"}, ["module_file", "custom_extractors"]),
        ({"module_path": "m"}, ["module_path", "custom_eval_shared_model"]),
        ({"model": None}, ["model is missing", "prediction_key"]),
        ({"eval_config": None}, ["eval_config is missing"]),
        ({"feature_slicing_spec": {"specs": []}}, ["feature_slicing_spec", "slicing_specs"]),
        ({"fairness_indicator_thresholds": [0.5]}, ["fairness_indicator_thresholds"]),
        ({"example_splits": "eval"}, ["example_splits", "list"]),
        ({"example_splits": [RuntimeParameter("s", str)]}, ["example_splits", "RuntimeParameter"]),
    ],
)
def test_a_wrong_argument_is_refused_when_the_component_is_built(arguments, words):
    with pytest.raises(RequestError) as error:
        evaluator(**arguments)
    for word in words:
        assert word in str(error.value)


def test_beam_options_are_taken_as_by_any_beam_component():
    built = evaluator().with_beam_pipeline_args(["--runner=DirectRunner"])
    assert isinstance(built, base_beam_component.BaseBeamComponent)
    assert built.executor_spec.beam_pipeline_args == ["--runner=DirectRunner"]
    assert evaluator().executor_spec.beam_pipeline_args == []


def test_a_local_pipeline_keeps_runtime_parameters_and_two_evaluators():
    config = RuntimeParameter(name="config", ptype=str)
    splits = RuntimeParameter(name="splits", ptype=str, default='["eval"]')
    ir = compiler.Compiler().compile(
        pipeline(
            lambda e, m: [evaluator(examples=e, model=m, eval_config=config, example_splits=splits)],
            lambda e, m: [evaluator(examples=e, model=m, execution={"batch_size": 8}).with_id("second")],
        )
    )
    first, second = node(ir, "DistributedEvaluator"), node(ir, "second")
    parameters = first.parameters.parameters
    assert parameters["eval_config"].runtime_parameter.name == "config"
    assert parameters["example_splits"].runtime_parameter.name == "splits"
    assert second.parameters.parameters["execution"].field_value.string_value == '{"batch_size": 8}'
    assert second.node_info.type.name == "assay.tfx.component.DistributedEvaluator"


def test_a_local_pipeline_keeps_placeholders():
    def build(examples, model):
        config = importer(standard_artifacts.String, "config").with_id("config")
        splits = importer(standard_artifacts.String, "splits").with_id("splits")
        return [
            config,
            splits,
            evaluator(
                examples=examples,
                model=model,
                eval_config=config.outputs["result"].future()[0].value,
                example_splits=splits.outputs["result"].future()[0].value,
            ),
        ]

    ir = compiler.Compiler().compile(pipeline(build))
    parameters = node(ir, "DistributedEvaluator").parameters.parameters
    for key in ("eval_config", "example_splits"):
        assert parameters[key].placeholder.operator.HasField("artifact_value_op")


def gated(examples, model):
    """An evaluator, and a Pusher that runs only if it blesses."""
    judge = evaluator(examples=examples, model=model)
    blessing = judge.outputs["blessing"]
    with tfx.dsl.Cond(blessing.future()[0].custom_property("blessed") == 1):
        pusher = tfx.components.Pusher(
            model=model,
            model_blessing=blessing,
            push_destination=tfx.proto.PushDestination(
                filesystem=tfx.proto.PushDestination.Filesystem(base_directory="/tmp/serving")
            ),
        )
    return [judge, pusher]


def test_a_condition_on_the_blessing_compiles_for_a_local_run():
    ir = compiler.Compiler().compile(pipeline(gated))
    assert "blessed" in str(node(ir, "Pusher").inputs.conditionals)


@pytest.mark.parametrize("spec_2_1", [False, True])
def test_a_vertex_pipeline(tmp_path, spec_2_1):
    config = RuntimeParameter(name="config", ptype=str)
    splits = RuntimeParameter(name="splits", ptype=str, default='["eval"]')
    spec = vertex(
        pipeline(
            gated,
            lambda e, m: [
                evaluator(
                    examples=e,
                    model=m,
                    eval_config=config,
                    example_splits=splits,
                    execution={"batch_size": 8},
                ).with_id("second")
            ],
        ),
        tmp_path,
        spec_2_1,
    )
    component = spec["components"]["second"]
    outputs = component["outputDefinitions"]["artifacts"]
    titles = {key: out["artifactType"]["instanceSchema"] for key, out in outputs.items()}
    assert "title: tfx.ModelBlessing" in titles["blessing"]
    assert "title: tfx.ModelEvaluation" in titles["evaluation"]
    assert "title: system.HTML" in titles["report"]
    assert "title: system.Metrics" in titles["metrics"]
    assert "title: system.ClassificationMetrics" in titles["classification_metrics"]

    tasks = spec["root"]["dag"]["tasks"]
    parameters = tasks["second"]["inputs"]["parameters"]
    assert parameters["eval_config"] == {"componentInputParameter": "config"}
    assert parameters["example_splits"] == {"componentInputParameter": "splits"}
    assert "batch_size" in json.dumps(parameters["execution"])
    assert "metadata['blessed'] == 1.0" in tasks["Pusher"]["triggerPolicy"]["condition"]

    executor = spec["deploymentSpec"]["executors"]["second_executor"]["container"]
    assert executor["command"] == ["python", "-m", "assay.tfx.container"]
    assert executor["args"][:2] == ["--executor_class_path", "assay.tfx.executor.Executor"]


def test_a_vertex_pipeline_keeps_a_placeholder(tmp_path):
    def build(examples, model):
        chosen = importer(standard_artifacts.String, "chosen")
        return [
            chosen,
            evaluator(
                examples=examples,
                model=model,
                eval_config=chosen.outputs["result"].future()[0].value,
            ),
        ]

    spec = vertex(pipeline(build), tmp_path, True)
    parameters = spec["root"]["dag"]["tasks"]["DistributedEvaluator"]["inputs"]["parameters"]
    assert parameters["eval_config"]["taskOutputParameter"]["outputParameterKey"] == "result"


def test_eval_config_as_json_text():
    text = json_format.MessageToJson(CONFIG)
    assert json.loads(evaluator(eval_config=text).exec_properties["eval_config"])["modelSpecs"]
