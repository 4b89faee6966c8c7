"""A stand-in for the evaluating process, and a tiny model with examples to evaluate for real."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest

FAKE = (sys.executable, str(Path(__file__).with_name("fake_child.py")))


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """Makes the executor start the stand-in; returns a function that says what it shall do.

    What the stand-in saw is in tmp_path/seen.json.
    """
    from assay.tfx import child

    monkeypatch.setattr(child, "evaluate", functools.partial(child.evaluate, entry=FAKE))
    monkeypatch.setenv("FAKE_SEEN", str(tmp_path / "seen.json"))
    return lambda how: monkeypatch.setenv("FAKE", how)


@pytest.fixture(scope="session")
def examples(tmp_path_factory) -> Path:
    """An Examples artifact: 200 rows in two gzip files; x from -1 to 1, y whether x is above 0."""
    import tensorflow as tf

    root = tmp_path_factory.mktemp("examples")
    folder = root / "Split-eval"
    folder.mkdir()
    rows = [(-1 + i / 100, float(i >= 100), b"even" if i % 2 == 0 else b"odd") for i in range(200)]
    for part in range(2):
        name = str(folder / f"data_tfrecord-{part:05d}-of-00002.gz")
        with tf.io.TFRecordWriter(name, "GZIP") as writer:
            for x, y, kind in rows[part::2]:
                feature = {
                    "x": tf.train.Feature(float_list=tf.train.FloatList(value=[x])),
                    "y": tf.train.Feature(float_list=tf.train.FloatList(value=[y])),
                    "kind": tf.train.Feature(bytes_list=tf.train.BytesList(value=[kind])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
    return root


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> dict[str, Path]:
    """Two Model artifacts: `good` ranks every row rightly, `bad` wrongly."""
    import tensorflow as tf

    class Scorer(tf.Module):
        def __init__(self, slope: float) -> None:
            super().__init__()
            self.slope = tf.Variable(slope)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "examples")])
        def serve(self, examples):
            spec = {"x": tf.io.FixedLenFeature([1], tf.float32)}
            return {"score": tf.sigmoid(self.slope * tf.io.parse_example(examples, spec)["x"])}

    found = {}
    for name, slope in (("good", 5.0), ("bad", -5.0)):
        found[name] = tmp_path_factory.mktemp(name)
        scorer = Scorer(slope)
        tf.saved_model.save(
            scorer,
            str(found[name] / "Format-Serving"),
            signatures={"serving_default": scorer.serve},
        )
    return found


EVAL_CONFIG = """{
  "model_specs": [{"label_key": "y"}],
  "slicing_specs": [{}, {"feature_keys": ["kind"]}],
  "metrics_specs": [{"metrics": [
    {"class_name": "ExampleCount"},
    {"class_name": "BinaryAccuracy", "threshold": {"value_threshold": {"lower_bound": 0.9}}}
  ]}]
}"""


@pytest.fixture
def eval_config() -> str:
    """Asks for an accuracy of 0.9 everywhere."""
    return EVAL_CONFIG
