"""The taxi pipeline for Vertex AI: the evaluation on a GPU node, and a Pusher behind its blessing.

    python -m pipelines.taxi_vertex --image IMAGE --data gs://… --root gs://… --output taxi.json

The image is Assay's with this folder in it. Nothing is submitted: `google.cloud.aiplatform.PipelineJob`
takes the file.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from kfp.pipeline_spec import pipeline_spec_pb2
from tensorflow_model_analysis.proto import config_pb2
from tfx import v1 as tfx

from assay.tfx import DistributedEvaluator
from pipelines.taxi_tfx import EVAL_CONFIG

NAME = "taxi-vertex"
Container = pipeline_spec_pb2.PipelineDeploymentConfig.PipelineContainerSpec


def compiled(image: str, data: str, root: str) -> dict[str, Any]:
    """Returns the Vertex AI pipeline job; the evaluation runs on two GPUs of one node."""
    example_gen = tfx.components.CsvExampleGen(input_base=data)
    statistics_gen = tfx.components.StatisticsGen(examples=example_gen.outputs["examples"])
    schema_gen = tfx.components.SchemaGen(statistics=statistics_gen.outputs["statistics"])
    transform = tfx.components.Transform(
        examples=example_gen.outputs["examples"],
        schema=schema_gen.outputs["schema"],
        preprocessing_fn="pipelines.taxi_module.preprocessing_fn",
    )
    trainer = tfx.components.Trainer(
        examples=transform.outputs["transformed_examples"],
        transform_graph=transform.outputs["transform_graph"],
        run_fn="pipelines.taxi_module.run_fn",
        custom_config={"steps": 1000, "learning_rate": 0.01},
    )
    last_blessed = tfx.dsl.Resolver(
        strategy_class=tfx.dsl.experimental.LatestBlessedModelStrategy,
        model=tfx.dsl.Channel(type=tfx.types.standard_artifacts.Model),
        model_blessing=tfx.dsl.Channel(type=tfx.types.standard_artifacts.ModelBlessing),
    ).with_id("last_blessed")
    evaluator = DistributedEvaluator(
        examples=example_gen.outputs["examples"],
        model=trainer.outputs["model"],
        baseline_model=last_blessed.outputs["model"],
        schema=schema_gen.outputs["schema"],
        transform_graph=transform.outputs["transform_graph"],
        eval_config=text_format.Parse(EVAL_CONFIG, config_pb2.EvalConfig()),
        # A retry gets new output folders; what is finished is found here.
        execution={"strategy": "mirrored", "state_dir": f"{root}/evaluation-state"},
    ).with_platform_config(
        Container.ResourceSpec(
            cpu_limit=8.0,
            memory_limit=30.0,
            accelerator=Container.ResourceSpec.AcceleratorConfig(type="NVIDIA_TESLA_T4", count=2),
        )
    )
    # Not as model_blessing, too: TFX would compile the condition to an input that the task does not have.
    with tfx.dsl.Cond(evaluator.outputs["blessing"].future()[0].custom_property("blessed") == 1):
        pusher = tfx.components.Pusher(
            model=trainer.outputs["model"],
            push_destination=tfx.proto.PushDestination(
                filesystem=tfx.proto.PushDestination.Filesystem(base_directory=f"{root}/serving")
            ),
        )
    nodes = [example_gen, statistics_gen, schema_gen, transform, trainer, last_blessed, evaluator, pusher]
    runner = tfx.orchestration.experimental.KubeflowV2DagRunner(
        config=tfx.orchestration.experimental.KubeflowV2DagRunnerConfig(
            default_image=image,
            # TFX's own entry does not know the artifact types that Vertex AI shows.
            default_commands=["python", "-m", "assay.tfx.container"],
            use_pipeline_spec_2_1=True,
        )
    )
    job = runner.run(
        tfx.dsl.Pipeline(pipeline_name=NAME, pipeline_root=root, components=nodes, enable_cache=True),
        write_out=False,
    )
    # TFX has no word for retries of a node; the pipeline spec has.
    for task in job["pipelineSpec"]["root"]["dag"]["tasks"].values():
        if task["componentRef"]["name"] == evaluator.id:
            task["retryPolicy"] = {"maxRetryCount": 2, "backoffDuration": "60s", "backoffFactor": 2.0}
    return job


def main() -> None:
    """Writes the job's JSON."""
    parser = argparse.ArgumentParser(description="Compiles the pipeline.")
    parser.add_argument("--image", required=True)
    parser.add_argument("--data", required=True, help="folder of the taxi CSV")
    parser.add_argument("--root", required=True, help="where artifacts go")
    parser.add_argument("--output", default="taxi.json")
    arguments = parser.parse_args()
    job = compiled(arguments.image, arguments.data, arguments.root)
    Path(arguments.output).write_text(json.dumps(job, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
