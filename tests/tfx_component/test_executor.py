"""The executor: artifacts to a request, the verdict to the blessing, and every way to fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tfx.components.evaluator import executor as stock
from tfx.components.util import examples_utils
from tfx.dsl.components.base import base_beam_executor
from tfx.proto import example_gen_pb2
from tfx.types import standard_artifacts

from assay.request import Execution, Policy, Request
from assay.spec import RequestError
from assay.tfx import executor
from assay.tfx.artifacts import HTML, ClassificationMetrics, Metrics


def artifact(kind, uri, number=0):
    made = kind()
    made.uri = str(uri)
    made.id = number
    return made


def inputs(root, **more):
    return {
        "examples": [artifact(standard_artifacts.Examples, root / "examples")],
        "model": [artifact(standard_artifacts.Model, root / "model", 7)],
        **more,
    }


def outputs(root):
    kinds = {
        "evaluation": standard_artifacts.ModelEvaluation,
        "blessing": standard_artifacts.ModelBlessing,
        "metrics": Metrics,
        "classification_metrics": ClassificationMetrics,
        "report": HTML,
    }
    for name in kinds:
        (root / name).mkdir()
    return {name: [artifact(kind, root / name)] for name, kind in kinds.items()}


def listing(made):
    return {name: sorted(os.listdir(found[0].uri)) for name, found in made.items()}


EMPTY = {"evaluation": [], "blessing": [], "metrics": [], "classification_metrics": [], "report": []}
PROPERTIES = {"eval_config": '{"metrics_specs": []}', "example_splits": "null"}


def test_every_input_reaches_the_request(tmp_path):
    given = {
        "examples": [
            artifact(standard_artifacts.Examples, "/e1"),
            artifact(standard_artifacts.Examples, "gs://bucket/e2"),
        ],
        "model": [artifact(standard_artifacts.Model, "/m")],
        "baseline_model": [artifact(standard_artifacts.Model, "/b")],
        "schema": [artifact(standard_artifacts.Schema, "/s")],
        "transform_graph": [artifact(standard_artifacts.TransformGraph, "/t")],
    }
    request = executor.translate(
        given,
        outputs(tmp_path),
        {
            "eval_config": '{"modelSpecs": []}',
            "example_splits": '["eval", "test"]',
            "execution": '{"strategy": "mirrored", "logical_devices": 2}',
            "policy": '{"first_model": "bless"}',
            "fairness_indicator_thresholds": "null",
        },
    )
    assert request == Request(
        examples=("/e1", "gs://bucket/e2"),
        model="/m",
        baseline="/b",
        schema="/s",
        transform_graph="/t",
        eval_config='{"modelSpecs": []}',
        splits=("eval", "test"),
        execution=Execution(strategy="mirrored", logical_devices=2),
        policy=Policy(first_model="bless"),
        evaluation=str(tmp_path / "evaluation"),
        blessing=str(tmp_path / "blessing"),
        report=str(tmp_path / "report"),
        metrics=str(tmp_path / "metrics"),
        classification_metrics=str(tmp_path / "classification_metrics"),
    )


@pytest.mark.parametrize("splits", [None, "", "null", "[]"])
def test_what_is_not_given_is_left_out(tmp_path, splits):
    given = inputs(tmp_path, baseline_model=[], schema=[])
    properties = {"eval_config": "{}", "example_splits": splits, "execution": None}
    request = executor.translate(given, outputs(tmp_path), properties)
    assert (request.baseline, request.schema, request.transform_graph) == ("", "", "")
    assert request.splits == ("eval",)
    assert request.execution == Execution()


@pytest.mark.parametrize("splits", ["eval", '"eval"', "[1]", '{"a": 1}'])
def test_splits_that_are_no_json_list_of_names_are_refused(tmp_path, splits):
    with pytest.raises(RequestError, match="example_splits"):
        executor.translate(inputs(tmp_path), outputs(tmp_path), {**PROPERTIES, "example_splits": splits})


@pytest.mark.parametrize("name", ["model", "baseline_model"])
def test_two_models_are_refused(tmp_path, name):
    two = [artifact(standard_artifacts.Model, f"/m{i}") for i in range(2)]
    with pytest.raises(RequestError, match=f"^{name} has 2 artifacts"):
        executor.translate(inputs(tmp_path, **{name: two}), outputs(tmp_path), PROPERTIES)


def test_examples_of_another_format_are_refused_by_name(tmp_path):
    given = inputs(tmp_path)
    examples_utils.set_payload_format(given["examples"][0], example_gen_pb2.PayloadFormat.FORMAT_PARQUET)
    with pytest.raises(RequestError, match="FORMAT_PARQUET"):
        executor.translate(given, outputs(tmp_path), PROPERTIES)


def test_kubeflow_writes_resource_names_into_our_blessings():
    assert issubclass(executor.Executor, stock.Executor)


@pytest.mark.parametrize(("how", "blessed"), [("blessed", 1), ("not blessed", 0)])
def test_the_blessing_says_what_was_judged_and_how(tmp_path, fake, how, blessed):
    fake(how)
    given = inputs(tmp_path, baseline_model=[artifact(standard_artifacts.Model, "/b", 3)])
    made = outputs(tmp_path)
    executor.Executor().Do(given, made, {**PROPERTIES, "current_component_id": "Judge"})
    found = {
        name: value.string_value or value.int_value
        for name, value in made["blessing"][0].mlmd_artifact.custom_properties.items()
    }
    message = {} if blessed else {"blessing_message": "AUC is 0.5; bad"}
    assert found == {
        "blessed": blessed,
        "current_model": str(tmp_path / "model"),
        "current_model_id": 7,
        "baseline_model": "/b",
        "baseline_model_id": 3,
        "component_id": "Judge",
        **message,
    }
    assert made["blessing"][0].mlmd_artifact.custom_properties["blessed"].HasField("int_value")
    assert listing(made)["blessing"] == ["BLESSED" if blessed else "NOT_BLESSED"]


def test_no_baseline_leaves_no_baseline_properties(tmp_path, fake):
    fake("blessed")
    made = outputs(tmp_path)
    executor.Executor().Do(inputs(tmp_path, baseline_model=[]), made, PROPERTIES)
    blessing = made["blessing"][0]
    assert not blessing.has_custom_property("baseline_model")
    assert not blessing.has_custom_property("component_id")


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("wrong", RequestError, "^no such signature 'x'$"),
        ("failed", RuntimeError, "^file 7 is corrupt$"),
        ("silent", RuntimeError, "exit code 1(.|\n)*on stderr: ü"),
        ("killed", RuntimeError, "SIGKILL.*memory"),
        ("no verdict", RuntimeError, "holds no verdict"),
        ("liar", RuntimeError, "holds BLESSED, but report.json says not blessed"),
    ],
)
def test_a_failed_run_raises_and_leaves_nothing(tmp_path, fake, how, kind, message):
    fake(how)
    made = outputs(tmp_path)
    with pytest.raises(kind, match=message) as error:
        executor.Executor().Do(inputs(tmp_path), made, PROPERTIES)
    assert type(error.value) is kind
    assert listing(made) == EMPTY
    assert not made["blessing"][0].mlmd_artifact.custom_properties


PIPELINES = ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]


@pytest.mark.parametrize(
    ("execution", "expected"),
    [
        ({"runner": "beam"}, PIPELINES),
        ({"runner": "beam", "beam_options": ["--runner=DirectRunner"]}, ["--runner=DirectRunner"]),
        ({}, []),  # the pipeline's are for its other nodes
    ],
)
def test_the_pipelines_beam_options_are_for_the_runner_beam(tmp_path, fake, execution, expected):
    fake("blessed")
    context = executor.Executor.Context(beam_pipeline_args=list(PIPELINES), tmp_dir="", unique_id="")
    properties = {**PROPERTIES, "execution": json.dumps(execution)}
    executor.Executor(context).Do(inputs(tmp_path), outputs(tmp_path), properties)
    request = json.loads((tmp_path / "seen.json").read_text())["request"]
    assert request["execution"]["beam_options"] == expected
    assert Request.from_json(json.dumps(request)).execution.beam_options == tuple(expected)


def test_the_child_sees_a_clean_environment_and_this_package(tmp_path, fake, monkeypatch):
    fake("blessed")
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:2"]}}')
    monkeypatch.setenv("CLUSTER_SPEC", '{"cluster": {"workerpool0": ["a:1"], "workerpool1": ["b:2"]}}')
    monkeypatch.setenv("PYTHONPATH", "/mine")
    executor.Executor().Do(inputs(tmp_path), outputs(tmp_path), PROPERTIES)
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert not {"TF_CONFIG", "CLUSTER_SPEC"} & set(seen["environment"])  # a node is one process
    paths = seen["environment"]["PYTHONPATH"].split(os.pathsep)
    assert paths[0] == "/mine"
    assert Path(paths[1], "assay", "tfx", "executor.py").is_file()
    assert not Path(seen["argv"][2]).exists()


def test_the_output_of_the_child_goes_to_the_log(tmp_path, fake, monkeypatch):
    from absl import logging

    lines = []
    monkeypatch.setattr(logging, "info", lambda text, *values: lines.append(text % values))
    fake("blessed")
    executor.Executor().Do(inputs(tmp_path), outputs(tmp_path), PROPERTIES)
    assert [line for line in lines if line.startswith("on std")] == ["on stdout", "on stderr: ü"]


def test_beam_options_cost_nothing(monkeypatch):
    from tfx.utils import dependency_utils

    monkeypatch.setattr(dependency_utils, "build_ephemeral_package", pytest.fail)
    context = base_beam_executor.BaseBeamExecutor.Context(
        beam_pipeline_args=["--direct_num_workers=1"], tmp_dir="/tmp", unique_id="1"
    )
    executor.Executor(context)


PARENT = """
import signal, sys, types
from assay.request import Request

# A shell that starts a job in the background has it ignore Ctrl-C, and so would this process.
signal.signal(signal.SIGINT, signal.default_int_handler)
package = sys.modules["assay.tfx"] = types.ModuleType("assay.tfx")  # TFX takes long to import
package.__path__ = [sys.argv[3]]
from assay.tfx import child
folders = {name: f"{sys.argv[1]}/{name}" for name in ("evaluation", "blessing", "report")}
request = Request(examples=("e",), model="m", eval_config="{}", **folders)
child.evaluate(request, (sys.executable, sys.argv[2]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ending_the_pipeline_ends_the_evaluation(tmp_path, number):
    seen = tmp_path / "seen.json"
    fake_child = str(Path(__file__).with_name("fake_child.py"))
    root = str(Path(executor.__file__).parents[2])
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), fake_child, f"{root}/assay/tfx"],
        env={
            **os.environ,
            "FAKE": "hang",
            "FAKE_SEEN": str(seen),
            "PYTHONPATH": os.pathsep.join((root, os.environ.get("PYTHONPATH", ""))),
        },
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 120
        while not (seen.exists() and seen.read_text().endswith("}")):
            assert parent.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        parent.send_signal(number)
        assert parent.wait(60) != 0
        with pytest.raises(ProcessLookupError):
            os.kill(json.loads(seen.read_text())["pid"], 0)
    finally:
        parent.kill()
