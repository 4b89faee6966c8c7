"""What Transform and Trainer run for the taxi pipeline: will a tip exceed a fifth of the fare?

The raw columns keep their names in the data; transformed features get names of their own, so that a
slice on `payment_type` means the word in the data and never its index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf
import tensorflow_transform as tft

LABEL = "big_tipper"
TIPS = "tips"
BIG_TIP = 0.2

AMOUNTS = ("fare", "trip_miles", "trip_seconds")
PLACES = ("pickup_latitude", "pickup_longitude", "dropoff_latitude", "dropoff_longitude")
PLACE_BUCKETS = 10
WORDS = ("payment_type", "company")
CALENDAR = {"trip_start_hour": 24, "trip_start_day": 8, "trip_start_month": 13}

Tensors = Mapping[str, tf.Tensor]


def preprocessing_fn(inputs: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Returns the transformed features and the label, each [B, 1], from the raw columns."""
    outputs = {}
    for name in AMOUNTS:
        amount = tf.cast(_dense(inputs[name]), tf.float32)
        outputs[f"{name}_scaled"] = tft.scale_to_z_score(tf.math.log1p(amount))
    for name in PLACES:
        outputs[f"{name}_bucket"] = tft.bucketize(_dense(inputs[name]), PLACE_BUCKETS)
    for name in WORDS:
        outputs[f"{name}_index"] = tft.compute_and_apply_vocabulary(
            _dense(inputs[name]), vocab_filename=name, num_oov_buckets=1
        )
    for name, size in CALENDAR.items():
        outputs[f"{name}_index"] = tf.clip_by_value(_dense(inputs[name]), 0, size - 1)
    big_tip = _dense(inputs[TIPS]) > BIG_TIP * _dense(inputs["fare"])
    outputs[LABEL] = tf.cast(big_tip, tf.int64)
    return outputs


def run_fn(args: Any) -> None:
    """Trains on the transformed examples and saves the model with three signatures.

    custom_config: `steps`, `learning_rate`.
    """
    keras.utils.set_random_seed(1)
    transform = tft.TFTransformOutput(args.transform_output)
    config = args.custom_config
    model = _model(transform)
    model.compile(
        optimizer=keras.optimizers.Adam(config["learning_rate"]),
        loss=keras.losses.BinaryCrossentropy(),
    )
    model.fit(
        _batches(args.train_files, transform),
        steps_per_epoch=config["steps"],
        verbose=0,
    )
    _save(model, transform, args.serving_model_dir)


def _dense(column: Any) -> tf.Tensor:
    """A column that is sometimes missing arrives sparse; zero or "" stands in the gaps."""
    if not isinstance(column, tf.SparseTensor):
        return column
    one_wide = tf.stack([column.dense_shape[0], tf.constant(1, tf.int64)])
    dense = tf.sparse.to_dense(tf.SparseTensor(column.indices, column.values, one_wide))
    return tf.reshape(dense, [-1, 1])


def _feature_spec(transform: tft.TFTransformOutput) -> dict[str, Any]:
    spec = transform.transformed_feature_spec()
    return {name: spec[name] for name in sorted(spec) if name != LABEL}


def _batches(patterns: list[str], transform: tft.TFTransformOutput) -> tf.data.Dataset:
    spec = transform.transformed_feature_spec()

    def parse(examples: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        features = tf.io.parse_example(examples, spec)
        return features, features.pop(LABEL)

    files = tf.data.Dataset.list_files(patterns, shuffle=False)
    return (
        tf.data.TFRecordDataset(files, compression_type="GZIP")
        .cache()
        .shuffle(20_000, seed=1)
        .repeat()
        .batch(128)
        .map(parse)
        .prefetch(tf.data.AUTOTUNE)
    )


def _model(transform: tft.TFTransformOutput) -> keras.Model:
    sizes = {f"{name}_bucket": PLACE_BUCKETS for name in PLACES}
    sizes |= {f"{name}_index": size for name, size in CALENDAR.items()}
    sizes |= {f"{name}_index": transform.vocabulary_size_by_name(name) + 1 for name in WORDS}
    inputs, columns = {}, []
    for name, feature in _feature_spec(transform).items():
        inputs[name] = keras.Input((1,), name=name, dtype=feature.dtype.name)
        if name in sizes:
            column = keras.layers.Embedding(sizes[name], 4)(inputs[name])
            columns.append(keras.layers.Flatten()(column))
        else:
            columns.append(inputs[name])
    hidden = keras.layers.Concatenate()(columns)
    for width in (32, 16):
        hidden = keras.layers.Dense(width, activation="relu")(hidden)
    return keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))


def _save(model: keras.Model, transform: tft.TFTransformOutput, path: str) -> None:
    served = tf.Module()
    served.model = model
    # Without this the vocabularies' tables are not saved with the model.
    served.transform = transform.transform_features_layer()

    def parsed(examples: tf.Tensor, without: tuple[str, ...] = ()) -> Tensors:
        spec = transform.raw_feature_spec()
        return tf.io.parse_example(examples, {k: v for k, v in spec.items() if k not in without})

    def serve(examples: tf.Tensor) -> Tensors:
        features = dict(served.transform(parsed(examples, without=(TIPS,))))
        features.pop(LABEL, None)
        return {"outputs": model(features, training=False)}

    def serve_transformed(**features: tf.Tensor) -> Tensors:
        return {"outputs": model(features, training=False)}

    def transform_features(examples: tf.Tensor) -> Tensors:
        return served.transform(parsed(examples))

    serialized = tf.TensorSpec([None], tf.string, name="examples")
    by_name = {
        name: tf.TensorSpec([None, 1], feature.dtype, name=name)
        for name, feature in _feature_spec(transform).items()
    }
    signatures: dict[str, Callable[..., Any]] = {
        "serving_default": tf.function(serve).get_concrete_function(serialized),
        "serve_transformed": tf.function(serve_transformed).get_concrete_function(**by_name),
        "transform_features": tf.function(transform_features).get_concrete_function(serialized),
    }
    tf.saved_model.save(served, path, signatures=signatures)
