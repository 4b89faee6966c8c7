"""The Transform output as a function: raw features in, transformed features out.

Loads the SavedModel that TFT wrote without importing TFT. Runs on the host, in the tf.data graph.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from assay.examples import FeatureType, read_schema
from assay.spec import RequestError


@dataclass(frozen=True)
class Transform:
    """A loaded transform graph.

    inputs: raw feature name to TensorSpec or SparseTensorSpec; outputs: transformed feature types.
    `loaded` is kept because its tables and variables live as long as it does.
    """

    uri: str
    inputs: Mapping[str, Any]
    outputs: Mapping[str, FeatureType]
    loaded: Any

    def parsing_spec(self) -> dict[str, Any]:
        """Returns how to parse the raw features: FixedLen where dense, VarLen where sparse."""
        return {
            name: tf.io.VarLenFeature(spec.dtype)
            if isinstance(spec, tf.SparseTensorSpec)
            else tf.io.FixedLenFeature(spec.shape[1:], spec.dtype)
            for name, spec in self.inputs.items()
        }

    def __call__(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the transformed features of a batch. Graph, host."""
        return self.loaded.transform_fn({name: raw[name] for name in self.inputs})


def load(uri: str) -> Transform:
    """Returns the transform graph of a TransformGraph artifact.

    Raises:
      RequestError: it is not there, or it was not written by TFT with TensorFlow 2 behaviour.
    """
    path = os.path.join(uri, "transform_fn")
    schema = os.path.join(uri, "transformed_metadata")
    if not tf.io.gfile.exists(os.path.join(path, "saved_model.pb")):
        raise RequestError(f"transform_graph: {uri} holds no transform_fn/saved_model.pb")
    with tf.device("CPU:0"):
        loaded = tf.saved_model.load(path)
    if not hasattr(loaded, "transform_fn"):
        raise RequestError(
            f"transform_graph: {path} was written with force_tf_compat_v1; run Transform with "
            "TensorFlow 2 behaviour (the default)"
        )
    inputs = loaded.transform_fn.structured_input_signature[0][0]
    for name, spec in inputs.items():
        if isinstance(spec, tf.RaggedTensorSpec):
            raise RequestError(f"transform_graph: raw feature {name!r} is ragged, which is not supported yet")
    return Transform(uri, inputs, read_schema(schema), loaded)
