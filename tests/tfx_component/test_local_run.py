"""Whole pipelines under LocalDagRunner, and evaluations of a tiny model through every entry."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ml_metadata.metadata_store import metadata_store
from tfx import v1 as tfx
from tfx.types import standard_artifacts

from assay.spec import RequestError
from assay.tfx import DistributedEvaluator, executor

from .test_container import invocation
from .test_executor import EMPTY, artifact, listing, outputs

ROOT = str(Path(executor.__file__).parents[2])


def pipeline(root, examples, model, eval_config, execution=None):
    def given(kind, uri, name):
        return tfx.dsl.Importer(source_uri=str(uri), artifact_type=kind).with_id(name)

    examples = given(standard_artifacts.Examples, examples, "examples")
    model = given(standard_artifacts.Model, model, "model")
    last_blessed = tfx.dsl.Resolver(
        strategy_class=tfx.dsl.experimental.LatestBlessedModelStrategy,
        model=tfx.dsl.Channel(type=standard_artifacts.Model),
        model_blessing=tfx.dsl.Channel(type=standard_artifacts.ModelBlessing),
    ).with_id("last_blessed")
    evaluator = DistributedEvaluator(
        examples=examples.outputs["result"],
        model=model.outputs["result"],
        baseline_model=last_blessed.outputs["model"],
        eval_config=eval_config,
        execution=execution,
    )
    pusher = tfx.components.Pusher(
        model=model.outputs["result"],
        model_blessing=evaluator.outputs["blessing"],
        push_destination=tfx.proto.PushDestination(
            filesystem=tfx.proto.PushDestination.Filesystem(base_directory=str(root / "serving"))
        ),
    )
    return tfx.dsl.Pipeline(
        pipeline_name="tiny",
        pipeline_root=str(root / "artifacts"),
        metadata_connection_config=metadata(root),
        components=[examples, model, last_blessed, evaluator, pusher],
        beam_pipeline_args=["--direct_num_workers=1"],
    )


def metadata(root):
    return tfx.orchestration.metadata.sqlite_metadata_connection_config(str(root / "mlmd.sqlite"))


def blessings(root):
    """The custom properties of every blessing in the metadata store, oldest first."""
    store = metadata_store.MetadataStore(metadata(root))
    return [
        {name: v.string_value or v.int_value for name, v in found.custom_properties.items()}
        for found in sorted(store.get_artifacts_by_type("ModelBlessing"), key=lambda a: a.id)
    ]


def pushed(root):
    folder = root / "serving"
    return len(list(folder.iterdir())) if folder.exists() else 0


def test_a_pipeline_pushes_what_is_blessed_and_compares_the_next_with_it(tmp_path, fake, models):
    fake("blessed")
    runner = tfx.orchestration.LocalDagRunner()
    runner.run(pipeline(tmp_path, "/e", models["good"], "{}"))
    assert pushed(tmp_path) == 1

    fake("not blessed")
    runner.run(pipeline(tmp_path, "/e", models["bad"], "{}"))
    assert pushed(tmp_path) == 1
    request = json.loads((tmp_path / "seen.json").read_text())["request"]
    assert (request["model"], request["baseline"]) == (str(models["bad"]), str(models["good"]))

    first, second = blessings(tmp_path)
    assert (first["blessed"], second["blessed"]) == (1, 0)
    assert second["baseline_model_id"] == first["current_model_id"]
    assert second["current_model_id"] != first["current_model_id"]


@pytest.mark.parametrize(("how", "kind"), [("wrong", RequestError), ("failed", RuntimeError)])
def test_a_failed_evaluation_fails_the_node(tmp_path, fake, models, how, kind):
    fake(how)
    with pytest.raises(kind):
        tfx.orchestration.LocalDagRunner().run(pipeline(tmp_path, "/e", models["good"], "{}"))
    assert pushed(tmp_path) == 0
    folder = tmp_path / "artifacts" / "DistributedEvaluator"
    left = [p for p in folder.rglob("*") if p.is_file() and ".system" not in p.parts]
    assert left == []
    store = metadata_store.MetadataStore(metadata(tmp_path))
    (execution,) = store.get_executions_by_type("assay.tfx.component.DistributedEvaluator")
    assert execution.last_known_state == execution.FAILED


@pytest.mark.slow
def test_the_child_sets_devices_that_the_parent_no_longer_could(tmp_path, examples, models, eval_config):
    import tensorflow as tf

    tf.constant(1.0) + 1.0
    with pytest.raises(RuntimeError):
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
        )
    given = {
        "examples": [artifact(standard_artifacts.Examples, examples)],
        "model": [artifact(standard_artifacts.Model, models["good"], 5)],
    }
    made = outputs(tmp_path)
    executor.Executor().Do(
        given,
        made,
        {
            "eval_config": eval_config,
            "example_splits": "null",
            "execution": '{"strategy": "mirrored", "logical_devices": 2, "batch_size": 16}',
        },
    )
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["execution"]["replicas"] == 2
    assert report["examples"]["rows"] == 200
    assert made["blessing"][0].get_int_custom_property("blessed") == 1
    assert listing(made)["blessing"] == ["BLESSED"]


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["loop", "beam"])
def test_a_retry_in_a_new_output_folder_goes_on_from_the_state_folder(
    tmp_path, examples, models, eval_config, runner
):
    given = {
        "examples": [artifact(standard_artifacts.Examples, examples)],
        "model": [artifact(standard_artifacts.Model, models["good"], 5)],
    }
    execution = {"state_dir": str(tmp_path / "states"), "runner": runner, "batch_size": 16}
    options = ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]
    found = []
    for attempt in ("first", "retry"):
        context = executor.Executor.Context(beam_pipeline_args=options, tmp_dir="", unique_id="")
        (tmp_path / attempt).mkdir()
        made = outputs(tmp_path / attempt)
        properties = {"eval_config": eval_config, "execution": json.dumps(execution)}
        executor.Executor(context).Do(given, made, properties)
        report = json.loads((tmp_path / attempt / "report" / "report.json").read_text())
        assert report["execution"]["runner"] == runner
        assert made["blessing"][0].get_int_custom_property("blessed") == 1
        found.append((report["slices"], report["execution"]["shards_found"]))
    (first, none), (again, every) = found
    assert again == first
    assert (none, every) == (0, report["execution"]["shards"]) and every > 1


@pytest.mark.slow
def test_a_real_mistake_reaches_the_pipeline_author_as_one_message(tmp_path, examples, models, eval_config):
    given = {
        "examples": [artifact(standard_artifacts.Examples, examples)],
        "model": [artifact(standard_artifacts.Model, models["good"], 5)],
    }
    made = outputs(tmp_path)
    config = eval_config.replace("BinaryAccuracy", "BinaryAcuracy")
    with pytest.raises(RequestError, match="BinaryAcuracy"):
        executor.Executor().Do(given, made, {"eval_config": config})
    assert listing(made) == EMPTY


@pytest.mark.slow
def test_a_real_pipeline_promotes_a_good_model_and_not_a_bad_one(tmp_path, examples, models, eval_config):
    import tensorflow_model_analysis as tfma

    runner = tfx.orchestration.LocalDagRunner()
    runner.run(pipeline(tmp_path, examples, models["good"], eval_config))
    assert pushed(tmp_path) == 1
    runner.run(pipeline(tmp_path, examples, models["bad"], eval_config, {"batch_size": 64}))
    assert pushed(tmp_path) == 1

    first, second = blessings(tmp_path)
    assert (first["blessed"], second["blessed"]) == (1, 0)
    assert second["baseline_model"] == str(models["good"])
    assert "BinaryAccuracy" in second["blessing_message"] or "accuracy" in second["blessing_message"]

    store = metadata_store.MetadataStore(metadata(tmp_path))
    evaluations = sorted(store.get_artifacts_by_type("ModelEvaluation"), key=lambda a: a.id)
    result = tfma.load_eval_result(evaluations[0].uri)
    assert len(result.slicing_metrics) == 3
    assert tfma.load_validation_result(evaluations[0].uri).validation_ok
    (report, _) = sorted(store.get_artifacts_by_type("system.HTML"), key=lambda a: a.id)
    assert {"report.html", "report.json"} <= set(os.listdir(report.uri))
    (shown, _) = sorted(store.get_artifacts_by_type("system.Metrics"), key=lambda a: a.id)
    numbers = {name: value.double_value for name, value in shown.custom_properties.items()}
    assert (numbers["rows"], numbers["blessed"], numbers["example_count"]) == (200, 1, 200)
    (matrix, _) = sorted(store.get_artifacts_by_type("system.ClassificationMetrics"), key=lambda a: a.id)
    assert "confusionMatrix" in matrix.custom_properties


@pytest.mark.slow
def test_a_real_evaluation_through_the_container_entry(tmp_path, examples, models, eval_config):
    record = invocation(tmp_path, examples, models["good"], eval_config)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "assay.tfx.container",
            "--executor_class_path",
            "assay.tfx.executor.Executor",
            "--json_serialized_invocation_args",
            json.dumps(record),
            "--json_serialized_inputs_spec_args",
            "{}",
        ],
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    with open(record["outputs"]["outputFile"]) as file:
        written = json.load(file)["artifacts"]
    metadata_written = written["blessing"]["artifacts"][0]["metadata"]
    assert metadata_written["blessed"] == 1
    assert metadata_written["current_model_id"].endswith("/artifacts/2")
    assert Path(written["report"]["artifacts"][0]["uri"]).read_text().startswith("<!")
    shown = written["metrics"]["artifacts"][0]["metadata"]
    # y is whether x > 0, and the score of x = 0 is exactly one half: not above it.
    assert (shown["rows"], shown["blessed"], shown["binary_accuracy"]) == (200, 1, 199 / 200)
    matrix = written["classification_metrics"]["artifacts"][0]["metadata"]["confusionMatrix"]
    assert matrix["rows"] == [{"row": [100, 0]}, {"row": [1, 99]}]
