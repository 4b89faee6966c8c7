"""A TFX pipeline on the Chicago Taxi data that promotes only what the evaluator blesses."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from google.protobuf import text_format
from tensorflow_model_analysis.proto import config_pb2
from tfx import v1 as tfx

from assay.tfx import DistributedEvaluator

NAME = "taxi"

# A plain `threshold` would hold for every slice, down to a single ride at four in the morning; so
# each bound names its slices. Within Cash hardly any tip is on record, so only a loss is asked of
# it; Credit Card is where the model has to tell riders apart.
EVAL_CONFIG = """
model_specs { label_key: "big_tipper" signature_name: "serve_transformed" }
slicing_specs {}
slicing_specs { feature_keys: "payment_type" }
slicing_specs { feature_keys: "trip_start_hour" }
slicing_specs { feature_keys: ["payment_type", "trip_start_hour"] }
metrics_specs {
  metrics { class_name: "ExampleCount" }
  metrics {
    class_name: "BinaryAccuracy"
    per_slice_thresholds {
      slicing_specs {}
      threshold { value_threshold { lower_bound { value: 0.8 } } }
    }
  }
  metrics {
    class_name: "AUC"
    per_slice_thresholds {
      slicing_specs {}
      threshold {
        value_threshold { lower_bound { value: 0.85 } }
        change_threshold { direction: HIGHER_IS_BETTER absolute { value: -0.005 } }
      }
    }
    per_slice_thresholds {
      slicing_specs { feature_values { key: "payment_type" value: "Credit Card" } }
      threshold { value_threshold { lower_bound { value: 0.6 } } }
    }
  }
  metrics {
    class_name: "BinaryCrossEntropy"
    per_slice_thresholds {
      slicing_specs {}
      threshold { value_threshold { upper_bound { value: 0.35 } } }
    }
    per_slice_thresholds {
      slicing_specs { feature_values { key: "payment_type" value: "Cash" } }
      threshold { value_threshold { upper_bound { value: 0.1 } } }
    }
  }
  metrics {
    class_name: "Calibration"
    per_slice_thresholds {
      slicing_specs { feature_values { key: "payment_type" value: "Credit Card" } }
      threshold { value_threshold { lower_bound { value: 0.85 } upper_bound { value: 1.15 } } }
    }
  }
  metrics { class_name: "Precision" }
  metrics { class_name: "Recall" }
  metrics { class_name: "MeanLabel" }
  metrics { class_name: "MeanPrediction" }
  metrics { class_name: "ConfusionMatrixPlot" }
  metrics { class_name: "CalibrationPlot" }
}
"""


def taxi_data() -> Path:
    """Returns the folder of the data that the TFX wheel carries."""
    package = Path(importlib.util.find_spec("tfx").origin).parent
    return package / "examples" / "chicago_taxi_pipeline" / "data" / "simple"


def taxi_pipeline(root: Path, *, steps: int, learning_rate: float) -> tfx.dsl.Pipeline:
    """Returns the pipeline that trains for so many steps; everything it writes lies under root."""
    example_gen = tfx.components.CsvExampleGen(input_base=str(taxi_data()))
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
        custom_config={"steps": steps, "learning_rate": learning_rate},
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
        execution={"strategy": "mirrored", "logical_devices": 2},
    )
    pusher = tfx.components.Pusher(
        model=trainer.outputs["model"],
        model_blessing=evaluator.outputs["blessing"],
        push_destination=tfx.proto.PushDestination(
            filesystem=tfx.proto.PushDestination.Filesystem(base_directory=str(root / "serving"))
        ),
    )
    return tfx.dsl.Pipeline(
        pipeline_name=NAME,
        pipeline_root=str(root / "artifacts"),
        metadata_connection_config=tfx.orchestration.metadata.sqlite_metadata_connection_config(
            str(root / "metadata.sqlite")
        ),
        components=[
            example_gen,
            statistics_gen,
            schema_gen,
            transform,
            trainer,
            last_blessed,
            evaluator,
            pusher,
        ],
        enable_cache=True,
        beam_pipeline_args=["--direct_running_mode=in_memory", "--direct_num_workers=1"],
    )
