"""The example pipelines: compiled to what they compiled to before, loaded back, and branching as they say."""

import json
import os
import subprocess
import sys

import pytest
import yaml
from google.auth.credentials import AnonymousCredentials
from google.cloud import aiplatform
from kfp import components

from . import conditions, golden

LOST, WON = "false", "true"


@pytest.fixture(scope="module")
def compiled():
    return {name: make() for name, make in golden.EXAMPLES.items()}


@pytest.mark.parametrize("name", golden.EXAMPLES)
def test_compiles_to_the_golden_file(compiled, name):
    found = golden.text(compiled[name])
    assert json.loads(found) == json.loads((golden.FOLDER / f"{name}.json").read_text("utf-8")), (
        "if the change is meant: python -m tests.compiled.golden"
    )


def test_the_ready_component_is_the_compiled_one():
    assert yaml.safe_load(golden.COMPONENT.read_text("utf-8")) == golden.component()


def test_the_ready_component_can_be_loaded_and_used():
    from kfp import dsl

    ready = components.load_component_from_file(str(golden.COMPONENT))

    @dsl.pipeline(name="uses-it")
    def uses_it(uri: str, eval_config: str):
        artifact = dsl.importer(artifact_uri=uri, artifact_class=dsl.Artifact).output
        ready(examples=artifact, model=artifact, eval_config=eval_config)

    (spec,) = golden.documents(uses_it)
    assert spec["deploymentSpec"]["executors"]["exec-distributed-evaluator"]["container"] == {
        "image": golden.COMPONENT_IMAGE,
        "command": ["python", "-m", "assay.kfp.entrypoint"],
        "args": ["--executor_input", "{{$}}"],
    }


@pytest.mark.parametrize("name", ["gate_none", "gate_gpu", "gate_tpu", "vertex_component"])
def test_kubeflow_yaml_is_loaded_back_by_the_sdk(compiled, name, tmp_path):
    loaded = components.load_component_from_text(yaml.safe_dump_all(compiled[name]))
    assert set(loaded.component_spec.inputs) >= {"eval_config"}


@pytest.mark.parametrize("name", ["gate_none", "gate_gpu", "gate_tpu"])
def test_the_model_is_pushed_only_where_the_parameter_says_blessed(compiled, name):
    """kubeflow/pipelines#7250, #9681, #9722: metadata cannot be branched on; a parameter can."""
    dag = compiled[name][0]["root"]["dag"]
    ((branch, condition),) = conditions.conditions(dag).items()
    (parameter,) = dag["tasks"][branch]["inputs"]["parameters"]
    taken = {v: conditions.holds(condition, parameters={parameter: v}) for v in (WON, LOST, "", "True")}
    assert taken == {WON: True, LOST: False, "": False, "True": False}
    source = dag["tasks"][branch]["inputs"]["parameters"][parameter]["taskOutputParameter"]
    assert source == {"producerTask": "distributed-evaluator", "outputParameterKey": "blessed"}
    inner = compiled[name][0]["components"][dag["tasks"][branch]["componentRef"]["name"]]
    assert list(inner["dag"]["tasks"]) == ["push"]


def test_a_task_asks_for_accelerators_retries_caching_and_a_stable_state_folder(compiled):
    spec, platform = compiled["gate_gpu"]
    task = spec["root"]["dag"]["tasks"]["distributed-evaluator"]
    assert task["retryPolicy"]["maxRetryCount"] == 2
    assert task["cachingOptions"]["enableCache"] is True
    assert task["inputs"]["parameters"]["state_dir"] == {"componentInputParameter": "state_dir"}
    container = spec["deploymentSpec"]["executors"]["exec-distributed-evaluator"]["container"]
    accelerator = container["resources"]["accelerator"]
    assert "nvidia.com/gpu" in accelerator.values() and 1 in map(int, map(str, _numbers(accelerator)))
    nodes = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-distributed-evaluator"]
    assert nodes["nodeSelector"]["labels"] == {"cloud.google.com/gke-accelerator": "nvidia-l4"}
    spec, platform = compiled["gate_tpu"]
    parameters = spec["root"]["dag"]["tasks"]["distributed-evaluator"]["inputs"]["parameters"]
    assert parameters["strategy"] == {"runtimeValue": {"constant": "tpu"}}
    assert len(compiled["gate_none"]) == 1


def _numbers(record):
    return [v for v in record.values() if str(v).isdigit()]


def test_vertex_takes_the_taxi_job(compiled, tmp_path):
    path = tmp_path / "job.json"
    path.write_text(golden.text({"displayName": "taxi", **compiled["taxi_vertex"]}))
    job = aiplatform.PipelineJob(
        display_name="taxi",
        template_path=str(path),
        pipeline_root="gs://example/root",
        credentials=AnonymousCredentials(),
        project="example",
        location="us-central1",
    )
    spec = job.to_dict()["pipelineSpec"]
    assert "DistributedEvaluator" in spec["root"]["dag"]["tasks"]


def test_vertex_takes_the_compiled_component(compiled, tmp_path):
    path = tmp_path / "component.yaml"
    (spec,) = compiled["vertex_component"]
    path.write_text(yaml.safe_dump({**spec, "sdkVersion": "kfp-2.5.0"}))
    job = aiplatform.PipelineJob(
        display_name="evaluation",
        template_path=str(path),
        pipeline_root="gs://example/root",
        parameter_values={"eval_config": "{}"},
        input_artifacts={"examples": "1", "model": "2"},
        credentials=AnonymousCredentials(),
        project="example",
        location="us-central1",
    )
    (component,) = job.to_dict()["pipelineSpec"]["components"].values()
    output = component["outputDefinitions"]["artifacts"]["vertex_metrics"]
    assert output["artifactType"]["schemaTitle"] == "google.ClassificationMetrics"


def test_the_taxi_job_pushes_only_what_is_blessed_and_runs_on_accelerators(compiled):
    spec = compiled["taxi_vertex"]["pipelineSpec"]
    dag = spec["root"]["dag"]
    ((task, condition),) = conditions.conditions(dag).items()
    assert task == "Pusher"
    (name,) = [n for n in dag["tasks"]["Pusher"]["inputs"]["artifacts"] if f"'{n}'" in condition]
    assert [conditions.holds(condition, artifacts={name: {"blessed": b}}) for b in (1, 0)] == [True, False]
    executors = spec["deploymentSpec"]["executors"]
    container = executors["DistributedEvaluator_executor"]["container"]
    assert container["image"] == golden.IMAGE
    assert container["command"] == ["python", "-m", "assay.tfx.container"]
    assert container["resources"]["accelerator"] == {"type": "NVIDIA_TESLA_T4", "count": "2"}
    evaluator = dag["tasks"]["DistributedEvaluator"]
    assert evaluator["retryPolicy"]["maxRetryCount"] == 2
    assert "gs://example/root/evaluation-state" in json.dumps(evaluator["inputs"]["parameters"]["execution"])
    assert evaluator["cachingOptions"] == {"enableCache": True}
    assert not any("InfraValidator" in name for name in dag["tasks"])  # tensorflow/tfx#5512: not needed


def test_several_worker_pools_run_the_same_command(compiled):
    pools = compiled["vertex_pools"]
    assert [pool["replica_count"] for pool in pools] == [1, 3]
    assert pools[0]["container_spec"] == pools[1]["container_spec"]
    assert any(a.startswith("--state-dir=gs://") for a in pools[0]["container_spec"]["args"])
    job = aiplatform.CustomJob(
        display_name="evaluation",
        worker_pool_specs=pools,
        staging_bucket="gs://example",
        project="example",
        location="us-central1",
        credentials=AnonymousCredentials(),
    )
    assert len(job.job_spec.worker_pool_specs) == 2


def test_the_command_of_the_pools_is_one_that_assay_takes(compiled):
    from assay import cli

    arguments = cli.parse(compiled["vertex_pools"][0]["container_spec"]["args"])
    assert arguments.state_dir == "gs://example/evaluation-state"


@pytest.mark.parametrize(
    ("module", "options"),
    [
        ("gate_kfp", ["--accelerator", "gpu"]),
        ("taxi_vertex", ["--data", "gs://example/taxi", "--root", "gs://example/root"]),
        ("vertex_pools", ["--bucket", "example", "--helpers", "3"]),
    ],
)
def test_the_command_lines_write_what_is_compiled(compiled, module, options, tmp_path):
    command = [sys.executable, "-m", f"pipelines.{module}", "--image", golden.IMAGE, *options]
    suffix = "out.yaml" if module == "gate_kfp" else "out.json"
    output = tmp_path / suffix
    environment = {**os.environ, "PYTHONPATH": f"{golden.ROOT}/components"}
    done = subprocess.run(
        [*command, "--output", str(output)], cwd=golden.ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = list(yaml.safe_load_all(output.read_text()))
    if module == "gate_kfp":
        del found[0]["sdkVersion"]
        assert found == compiled["gate_gpu"]
    elif module == "vertex_pools":
        assert found == [compiled["vertex_pools"]]
    else:
        assert found[0]["pipelineSpec"]["root"] == compiled["taxi_vertex"]["pipelineSpec"]["root"]
