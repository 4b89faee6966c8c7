"""Made inputs of the tests: examples on disk, small SavedModels, EvalConfigs, one call to evaluate."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from assay import api, evaluation
from assay.request import Execution, Policy


def example(row: Mapping[str, Any]) -> bytes:
    """Returns a serialized tf.Example; None and [] leave a feature out."""
    feature = {}
    for name, value in row.items():
        values = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
        if not values:
            continue
        if isinstance(values[0], (bytes, str)):
            raw = [v.encode() if isinstance(v, str) else v for v in values]
            feature[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=raw))
        elif isinstance(values[0], float):
            feature[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
        else:
            feature[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString(deterministic=True)


def write(path: Path, rows: Sequence[Mapping[str, Any]], compression: str = "GZIP") -> Path:
    """Writes rows as a TFRecord file of tf.Examples and returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for row in rows:
            writer.write(example(row))
    return path


def examples(folder: Path, rows: Sequence[Mapping[str, Any]], files: int = 1, split: str = "eval") -> Path:
    """Writes rows as an Examples artifact of so many files and returns its folder."""
    for number in range(files):
        name = f"data_tfrecord-{number:05d}-of-{files:05d}.gz"
        write(folder / f"Split-{split}" / name, rows[number::files])
    return folder


class Named(tf.Module):
    """A model whose output is a feature fed by name, times a factor."""

    def __init__(self, feature: str = "score", factor: float = 1.0) -> None:
        super().__init__()
        self.factor = tf.Variable(factor, dtype=tf.float32)
        spec = tf.TensorSpec([None, 1], tf.float32, name=feature)

        @tf.function(input_signature=[spec])
        def serve(value: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"output": value * self.factor}

        self.serve = serve


class Parsing(tf.Module):
    """A model that parses serialized examples and gives one float feature, times a factor."""

    def __init__(self, feature: str = "score", factor: float = 1.0, size: int = 1) -> None:
        super().__init__()
        self.factor = tf.Variable(factor, dtype=tf.float32)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
        def serve(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
            parsed = tf.io.parse_example(serialized, {feature: tf.io.FixedLenFeature([size], tf.float32)})
            return {"output": parsed[feature] * self.factor}

        self.serve = serve


def model(folder: Path, module: tf.Module | None = None) -> Path:
    """Saves a module with signature serving_default and returns the folder."""
    module = module or Parsing()
    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.serve})
    return folder


def config(
    *metrics: str | Mapping[str, Any],
    slices: Sequence[Mapping[str, Any]] = ({},),
    models: Sequence[Mapping[str, Any]] = ({"labelKey": "label"},),
    **more: Any,
) -> str:
    """Returns EvalConfig JSON; a metric is a class name or a MetricConfig."""
    named = [{"className": m} if isinstance(m, str) else dict(m) for m in metrics]
    return json.dumps(
        {
            "modelSpecs": list(models),
            "slicingSpecs": list(slices),
            "metricsSpecs": [{"metrics": named}],
            **more,
        }
    )


def evaluate(
    examples: Any, model: Any, eval_config: str, *, replicas: int = 1, batch: int = 64, **more: Any
) -> Any:
    """Returns the outcome of an evaluation on so many logical CPU devices.

    shown: a folder for what Vertex and Kubeflow show, which makes the report hold it.
    """
    shown = more.pop("shown", None)
    request = api.request(
        examples=[str(e) for e in examples] if isinstance(examples, (list, tuple)) else str(examples),
        model=str(model),
        eval_config=eval_config,
        execution=Execution(
            "one_device" if replicas == 1 else "mirrored", 0 if replicas == 1 else replicas, batch
        ),
        policy=more.pop("policy", Policy()),
        **{k: str(v) if isinstance(v, Path) else v for k, v in more.items()},
    )
    if shown is not None:
        folder, kind = shown
        request = dataclasses.replace(
            request,
            classification_metrics=str(folder),
            vertex=f"{folder}/vertex" if kind else "",
            vertex_kind=kind,
        )
    return evaluation.run(request)


def values(outcome: Any, key: Any = ()) -> dict[str, Any]:
    """Returns the candidate's values of a slice by metric name."""
    baseline = outcome.report.baseline_name
    found = next(s for s in outcome.report.slices if s.key == key)
    return {
        k.label: v
        for k, v in found.values.items()
        if not k.is_diff and not (baseline and k.model_name == baseline)
    }
