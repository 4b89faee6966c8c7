"""Makes what the pages in docs/ evaluate: a few rows, a model that is right about them, and one that is not.

python -m pipelines.small FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import tensorflow as tf

ROWS = 2_000
CONFIG = {
    "model_specs": [{"label_key": "tipped"}],
    "slicing_specs": [{}, {"feature_keys": ["payment_type"]}],
    "metrics_specs": [
        {
            "metrics": [
                {"class_name": "ExampleCount"},
                {"class_name": "BinaryAccuracy", "threshold": {"value_threshold": {"lower_bound": 0.9}}},
                {"class_name": "AUC"},
                {"class_name": "BinaryCrossEntropy"},
            ]
        }
    ],
}


class Scorer(tf.Module):
    """Scores a row by its fare, which is all that matters here."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope = tf.Variable(slope)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "examples")])
    def serve(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the score [B, 1] of serialized examples [B]."""
        parsed = tf.io.parse_example(examples, {"fare": tf.io.FixedLenFeature([1], tf.float32)})
        return {"score": tf.sigmoid(self.slope * (parsed["fare"] - 10.0))}


def make(folder: Path) -> None:
    """Writes examples/, good/, bad/ and eval_config.json into the folder."""
    split = folder / "examples" / "Split-eval"
    split.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(split / "data_tfrecord-00000-of-00001.gz"), "GZIP") as file:
        for i in range(ROWS):
            fare = 20.0 * (i + 0.5) / ROWS
            feature = {
                "fare": tf.train.Feature(float_list=tf.train.FloatList(value=[fare])),
                "tipped": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(fare > 10.0)])),
                "payment_type": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[b"Cash" if i % 3 else b"Credit Card"])
                ),
            }
            file.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    for name, slope in (("good", 2.0), ("bad", -2.0)):
        scorer = Scorer(slope)
        path = folder / name / "Format-Serving"
        tf.saved_model.save(scorer, str(path), signatures={"serving_default": scorer.serve})
    (folder / "eval_config.json").write_text(json.dumps(CONFIG, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
