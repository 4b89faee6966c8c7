"""Models of each kind give the same numbers as calling them, on every replica."""

from __future__ import annotations

import keras
import made
import numpy as np
import pytest
import tensorflow as tf

from assay import model as models
from assay.spec import ModelSpec, RequestError

ROWS = [{"label": i % 2, "score": i / 20, "other": float(i)} for i in range(20)]


def means(tmp_path, saved, replicas=1, **spec):
    made.examples(tmp_path / "examples", ROWS)
    text = made.config("MeanPrediction", "ExampleCount", models=[{"labelKey": "label", **spec}])
    outcome = made.evaluate(tmp_path / "examples", saved, text, replicas=replicas)
    assert made.values(outcome)["example_count"] == 20
    return made.values(outcome)["mean_prediction"]


EXPECTED = float(np.mean([float(np.float32(r["score"])) for r in ROWS]))


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("module", [made.Parsing, made.Named])
def test_saved_models_that_parse_or_take_named_inputs(tmp_path, module, replicas):
    saved = made.model(tmp_path / "model", module(factor=2.0))
    assert means(tmp_path, saved, replicas) == pytest.approx(2 * EXPECTED, rel=1e-12)


def test_format_serving_inside_an_artifact_is_found(tmp_path):
    made.model(tmp_path / "artifact" / "Format-Serving")
    assert means(tmp_path, tmp_path / "artifact") == pytest.approx(EXPECTED, rel=1e-12)


def noisy_keras():
    """A model whose output differs between training and inference in two ways."""
    inputs = keras.Input([1], name="score")
    hidden = keras.layers.BatchNormalization()(keras.layers.Dropout(0.5, seed=1)(inputs))
    built = keras.Model(inputs, hidden * 3.0)
    built.layers[2].set_weights([np.array([2.0]), np.array([0.5]), np.array([0.1]), np.array([4.0])])
    return built


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("kind", ["keras file", "export"])
def test_keras_models_run_with_training_false(tmp_path, kind, replicas):
    # Dropout is off and batch norm uses its moving statistics: 3 * (2 * (x - 0.1) / sqrt(4.001) + 0.5).
    built = noisy_keras()
    if kind == "keras file":
        path = tmp_path / "model.keras"
        built.save(path)
    else:
        path = tmp_path / "model"
        built.export(str(path))
    expected = 3 * (2 * (EXPECTED - 0.1) / np.sqrt(4.001) + 0.5)
    assert means(tmp_path, path, replicas) == pytest.approx(expected, rel=1e-6)
    sampled = np.mean(built(np.full([500, 1], 0.5, np.float32), training=True))
    assert abs(sampled - 3 * (2 * (0.5 - 0.1) / np.sqrt(4.001) + 0.5)) > 0.01, "the test could not fail"


def test_keras_inputs_are_matched_by_name_not_by_position(tmp_path):
    inputs = {"other": keras.Input([1], name="other"), "score": keras.Input([1], name="score")}
    built = keras.Model(inputs, inputs["score"] + 0.0 * inputs["other"])
    built.save(tmp_path / "model.keras")
    assert means(tmp_path, tmp_path / "model.keras") == pytest.approx(EXPECTED, rel=1e-6)


class TwoHeads(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None, 1], tf.float32, name="score")])
    def serve(self, score):
        return {"mu": score, "sigma": score * 10.0}


def test_prediction_key_chooses_the_output(tmp_path):
    # Case 56.
    saved = made.model(tmp_path / "model", TwoHeads())
    assert means(tmp_path, saved, predictionKey="mu") == pytest.approx(EXPECTED, rel=1e-12)
    assert means(tmp_path, saved, predictionKey="sigma") == pytest.approx(10 * EXPECTED, rel=1e-6)
    with pytest.raises(RequestError, match=r"several outputs; set prediction_key to one of: mu, sigma"):
        means(tmp_path, saved)
    with pytest.raises(RequestError, match=r"unknown prediction_key 'mean'.*known: mu, sigma"):
        means(tmp_path, saved, predictionKey="mean")


class Picky(tf.Module):
    """Takes int32 scalars a row, no trailing dimension, and gives float16."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, name="n")])
    def serve(self, n):
        return {"output": tf.cast(n, tf.float16)}


def test_inputs_are_cast_and_shaped_as_the_signature_says(tmp_path):
    made.examples(tmp_path / "examples", [{"label": 1, "n": i} for i in range(10)])
    saved = made.model(tmp_path / "model", Picky())
    outcome = made.evaluate(tmp_path / "examples", saved, made.config("MeanPrediction"), replicas=2)
    assert made.values(outcome)["mean_prediction"] == 4.5


@pytest.mark.parametrize("replicas", [2, 4])
def test_every_replica_computes_with_a_model_loaded_from_disk(tmp_path, replicas):
    # Case 21: a loaded model used to run on one device only.
    saved = made.model(tmp_path / "model", made.Named())
    devices = [f"CPU:{i}" for i in range(replicas)]
    strategy = tf.distribute.MirroredStrategy(devices)
    loaded = models.load(str(saved), ModelSpec(), strategy.extended.worker_devices)

    @tf.autograph.experimental.do_not_convert
    def predict(rows):
        context = tf.distribute.get_replica_context()
        return loaded.predict({"score": rows}, tf.get_static_value(context.replica_id_in_sync_group))

    @tf.function(autograph=False)
    def run(rows):
        return strategy.run(predict, (rows,))

    rows = strategy.experimental_distribute_values_from_function(
        lambda context: tf.fill([64, 1], float(context.replica_id_in_sync_group))
    )
    graph = run.get_concrete_function(rows).graph
    calls = [o.device[-5:] for o in graph.get_operations() if o.type.endswith("PartitionedCall")]
    assert calls == devices
    for (_, signature), device in zip(loaded.loaded, devices, strict=True):
        assert {c.device[-5:] for c in signature.captured_inputs} == {device}
    outputs = strategy.experimental_local_results(run(rows))
    assert [float(o[0, 0]) for o in outputs] == list(range(replicas))


def test_no_model_there(tmp_path):
    with pytest.raises(RequestError, match="holds no model; a Model artifact"):
        models.load(str(tmp_path), ModelSpec())
