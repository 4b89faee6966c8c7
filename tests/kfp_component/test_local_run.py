"""The Python form of the component under `kfp.local`, with no docker: both verdicts, and where they lead."""

import os
from pathlib import Path

import made
import pytest
from compiled import conditions, golden
from kfp import local

from assay.kfp import distributed_evaluator, local_evaluator
from assay.kfp.task import OUTPUTS, PARAMETERS
from assay.request import Execution, Policy

ROWS = [{"label": float(i % 2), "score": 0.25 + 0.5 * (i % 2)} for i in range(40)]
ARTIFACTS = {"examples", "model", "baseline_model", "transform_graph", "schema"}
DEFAULTS = {
    "example_splits": ["eval"],
    "strategy": Execution.strategy,
    "batch_size": Execution.batch_size,
    "state_dir": Execution.state_dir,
    "first_model": Policy.first_model,
    "stale_baseline": Policy.stale_baseline,
    "slice_features": Policy.slice_features,
}


@pytest.mark.slow
def test_both_verdicts_and_where_they_lead(tmp_path, monkeypatch):
    """kubeflow/pipelines#12552, #11661: local runs without docker."""
    paths = [f"{golden.ROOT}/components", os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    for name in ("TF_CONFIG", "CLUSTER_SPEC"):
        monkeypatch.delenv(name, raising=False)
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "local"))
    examples = str(made.examples(tmp_path / "x", ROWS))
    good = str(made.model(tmp_path / "good"))
    bad = str(made.model(tmp_path / "bad", made.Parsing(factor=-1.0)))
    bound = {"valueThreshold": {"lowerBound": 0.9}}
    config = made.config({"className": "BinaryAccuracy", "threshold": bound})
    # kfp.local does not branch on a task's output, so the branch is taken here as a backend would.
    dag = golden.EXAMPLES["gate_none"]()[0]["root"]["dag"]
    ((branch, condition),) = conditions.conditions(dag).items()
    (parameter,) = dag["tasks"][branch]["inputs"]["parameters"]
    for model, blessed, marker in ((good, "true", "BLESSED"), (bad, "false", "NOT_BLESSED")):
        task = local_evaluator(examples=examples, model=model, eval_config=config)
        assert task.outputs["blessed"] == blessed
        assert ("binary_accuracy" in task.outputs["reason"]) == (blessed == "false")
        assert os.listdir(task.outputs["blessing"].path) == [marker]
        assert task.outputs["blessing"].metadata["blessed"] == (blessed == "true")
        assert task.outputs["metrics"].metadata["rows"] == 40
        matrix = task.outputs["classification_metrics"].metadata["confusionMatrix"]
        assert [r["row"] for r in matrix["rows"]] == [[20, 0], [0, 20] if blessed == "true" else [20, 0]]
        assert Path(task.outputs["report"].path).read_text().startswith("<!")
        taken = conditions.holds(condition, parameters={parameter: task.outputs["blessed"]})
        assert taken == (blessed == "true")


def test_both_forms_declare_what_the_entry_reads_and_writes():
    for component in (distributed_evaluator("image"), local_evaluator):
        spec = component.component_spec
        assert set(spec.inputs) == {*ARTIFACTS, *DEFAULTS, "eval_config"}
        assert set(spec.outputs) == {*OUTPUTS, *PARAMETERS}
        assert {n: spec.inputs[n].default for n in DEFAULTS} == DEFAULTS


@pytest.mark.parametrize(
    ("image", "vertex", "message"), [("", "", "image is empty"), ("image", "regresion", "regression")]
)
def test_a_wrong_component_is_refused_when_it_is_made(image, vertex, message):
    with pytest.raises(ValueError, match=message):
        distributed_evaluator(image, vertex=vertex)


def test_vertex_metrics_are_an_output_by_choice():
    for vertex, title in (("classification", "Classification"), ("regression", "Regression")):
        outputs = distributed_evaluator("image", vertex=vertex).component_spec.outputs
        assert outputs["vertex_metrics"].type == f"google.{title}Metrics@0.0.1"
