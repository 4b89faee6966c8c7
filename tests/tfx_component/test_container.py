"""TFX's v2 container entry, through ours: the output file that Kubeflow and Vertex read."""

from __future__ import annotations

import json

import pytest
from tfx.orchestration.kubeflow.v2 import compiler_utils
from tfx.types import standard_artifacts

from assay.tfx import container
from assay.tfx.artifacts import HTML, ClassificationMetrics, Metrics

from .fake_child import CLASSIFICATION, METRICS

STORE = "projects/1/locations/us-central1/metadataStores/default/artifacts"


def runtime_artifact(kind, uri, number):
    schema = compiler_utils.get_artifact_schema(kind)
    text = schema.decode() if isinstance(schema, bytes) else schema
    return {"artifacts": [{"name": f"{STORE}/{number}", "uri": str(uri), "type": {"instanceSchema": text}}]}


def invocation(root, examples, model, eval_config, baseline=None):
    baseline_model = (
        {}
        if baseline is None
        else {"baseline_model": runtime_artifact(standard_artifacts.Model, baseline, 9)}
    )
    kinds = {
        "evaluation": standard_artifacts.ModelEvaluation,
        "blessing": standard_artifacts.ModelBlessing,
        "metrics": Metrics,
        "classification_metrics": ClassificationMetrics,
        "report": HTML,
    }
    return {
        "inputs": {
            "artifacts": {
                "examples": runtime_artifact(standard_artifacts.Examples, examples, 1),
                "model": runtime_artifact(standard_artifacts.Model, model, 2),
                **baseline_model,
            },
            "parameterValues": {"eval_config": eval_config, "example_splits": "null"},
            "parameters": {
                "eval_config": {"stringValue": eval_config},
                "example_splits": {"stringValue": "null"},
            },
        },
        "outputs": {
            "artifacts": {
                name: runtime_artifact(kind, root / name, number)
                for number, (name, kind) in enumerate(kinds.items(), 3)
            },
            "outputFile": str(root / "task" / "executor_output.json"),
        },
    }


def arguments(record, spec_2_1):
    return [
        "container",
        "--executor_class_path",
        "assay.tfx.executor.Executor",
        "--json_serialized_invocation_args",
        json.dumps(record),
        *(["--json_serialized_inputs_spec_args", "{}"] if spec_2_1 else []),
        "--direct_num_workers=1",
    ]


def run(record, spec_2_1=True):
    container.main(container.parse(arguments(record, spec_2_1)))
    with open(record["outputs"]["outputFile"]) as file:
        return json.load(file)["artifacts"]


@pytest.mark.parametrize("spec_2_1", [False, True])
@pytest.mark.parametrize(("how", "blessed"), [("blessed", 1), ("not blessed", 0)])
def test_the_blessing_names_the_models_as_the_metadata_store_does(tmp_path, fake, how, blessed, spec_2_1):
    fake(how)
    written = run(invocation(tmp_path, "/e", "/m", "{}", baseline="/b"), spec_2_1)
    (blessing,) = written["blessing"]["artifacts"]
    assert blessing["name"] == f"{STORE}/4"
    assert blessing["metadata"]["blessed"] == blessed
    assert not isinstance(blessing["metadata"]["blessed"], (bool, str))
    assert blessing["metadata"]["current_model_id"] == f"{STORE}/2"
    assert blessing["metadata"]["current_model"] == "/m"
    assert blessing["metadata"]["baseline_model_id"] == f"{STORE}/9"
    request = json.loads((tmp_path / "seen.json").read_text())["request"]
    assert (request["examples"], request["model"], request["baseline"]) == (["/e"], "/m", "/b")


def test_the_report_points_at_the_page(tmp_path, fake):
    fake("blessed")
    written = run(invocation(tmp_path, "/e", "/m", "{}"))
    (report,) = written["report"]["artifacts"]
    assert report["uri"] == str(tmp_path / "report" / "report.html")
    assert (tmp_path / "report" / "report.html").is_file()
    (evaluation,) = written["evaluation"]["artifacts"]
    assert evaluation["uri"] == str(tmp_path / "evaluation")


def test_metrics_are_plain_numbers_lists_and_records(tmp_path, fake):
    fake("blessed")
    written = run(invocation(tmp_path, "/e", "/m", "{}"))
    (metrics,) = written["metrics"]["artifacts"]
    # TFX signs every artifact with its version.
    assert {n: v for n, v in metrics["metadata"].items() if n != "tfx_version"} == METRICS
    (classification,) = written["classification_metrics"]["artifacts"]
    assert {n: v for n, v in classification["metadata"].items() if n != "tfx_version"} == CLASSIFICATION


@pytest.mark.parametrize("how", ["wrong", "failed"])
def test_a_failed_run_writes_no_output_file(tmp_path, fake, how):
    fake(how)
    record = invocation(tmp_path, "/e", "/m", "{}")
    with pytest.raises((ValueError, RuntimeError)):
        run(record)
    assert not (tmp_path / "task" / "executor_output.json").exists()
    assert not list((tmp_path / "blessing").iterdir())
