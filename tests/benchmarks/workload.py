"""The benchmark's input: made examples and an MLP that parses them by itself."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import numpy as np
import tensorflow as tf

FLOATS = 10
PAYMENTS = (b"Cash", b"Credit Card", b"Unknown", b"No Charge")

EVAL_CONFIG = json.dumps(
    {
        "modelSpecs": [{"labelKey": "label"}],
        "slicingSpecs": [{}, {"featureKeys": ["payment"]}, {"featureKeys": ["hour"]}],
        "metricsSpecs": [
            {
                "metrics": [
                    {"className": name}
                    for name in (
                        "ExampleCount",
                        "BinaryAccuracy",
                        "AUC",
                        "BinaryCrossentropy",
                        "Precision",
                        "Recall",
                        "Calibration",
                    )
                ]
            }
        ],
    }
)


def write_examples(folder: Path, rows: int = 100_000, shards: int = 4, seed: int = 7) -> None:
    """Writes gzip TFRecord shards: ten floats, two ints (label, hour), one string (payment)."""
    random = np.random.default_rng(seed)
    floats = random.normal(size=[rows, FLOATS]).astype(np.float32)
    label = (floats[:, 0] + floats[:, 1] * 0.5 + random.normal(size=rows) > 0).astype(np.int64)
    hour = random.integers(0, 24, rows)
    payment = random.integers(0, len(PAYMENTS), rows)
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        path = str(folder / f"data-{shard:05d}-of-{shards:05d}.gz")
        with tf.io.TFRecordWriter(path, "GZIP") as writer:
            for row in range(shard, rows, shards):
                feature = {
                    f"x{i}": tf.train.Feature(float_list=tf.train.FloatList(value=[floats[row, i]]))
                    for i in range(FLOATS)
                }
                feature["label"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[label[row]]))
                feature["hour"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[hour[row]]))
                feature["payment"] = tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[PAYMENTS[payment[row]]])
                )
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())


class Mlp(tf.Module):
    """Two hidden layers, 64 and 32, over the ten floats; takes serialized examples."""

    def __init__(self, seed: int = 3) -> None:
        super().__init__()
        random = np.random.default_rng(seed)
        self.layers = []
        sizes = (FLOATS, 64, 32, 1)
        for fan_in, fan_out in itertools.pairwise(sizes):
            # The type last: NumPy 2 makes float64 of float32 / sqrt.
            weights = (random.normal(size=[fan_in, fan_out]) / np.sqrt(fan_in)).astype(np.float32)
            self.layers.append((tf.Variable(weights), tf.Variable(tf.zeros([fan_out]))))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def serve(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        spec = {f"x{i}": tf.io.FixedLenFeature([1], tf.float32) for i in range(FLOATS)}
        parsed = tf.io.parse_example(examples, spec)
        hidden = tf.concat([parsed[f"x{i}"] for i in range(FLOATS)], 1)
        for place, (weights, bias) in enumerate(self.layers):
            hidden = tf.matmul(hidden, weights) + bias
            if place < len(self.layers) - 1:
                hidden = tf.nn.relu(hidden)
        return {"scores": tf.sigmoid(hidden)}


def write_model(folder: Path, seed: int = 3) -> None:
    """Writes the MLP as a SavedModel with signature serving_default."""
    mlp = Mlp(seed)
    tf.saved_model.save(mlp, str(folder), signatures={"serving_default": mlp.serve})


def prepare(root: Path, rows: int = 100_000) -> tuple[Path, Path]:
    """Returns the folders of the examples and the model, made once below `root`."""
    examples, model = root / f"examples-{rows}", root / "model"
    if not os.path.isdir(examples):
        write_examples(examples, rows)
    if not os.path.isdir(model):
        write_model(model)
    return examples, model
