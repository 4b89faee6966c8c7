"""A path to a model that predicts: SavedModel signatures and .keras files.

`load` runs on the host and loads one copy for each replica's device, so that variables and tables
lie where they are used, whatever the model is made of, and tf.distribute's own kinds stay out of it.
`Model.predict` runs in replica context, in graph.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from assay.spec import ModelSpec, RequestError, unknown

Call = Callable[[Mapping[str, tf.Tensor]], tf.Tensor]

DEFAULT_SIGNATURES = ("serving_default", "serve", "predict")


@dataclass(frozen=True)
class Model:
    """A loaded model.

    inputs: input name to TensorSpec, the batch first. serialized: the input that takes serialized
    examples, or "". calls: for each replica, inputs by name to the predictions [B, ...]. `loaded`
    is kept because the variables live as long as it does.
    """

    spec: ModelSpec
    uri: str
    signature: str
    inputs: Mapping[str, tf.TensorSpec]
    serialized: str
    calls: Sequence[Call]
    loaded: Any

    def predict(self, features: Mapping[str, tf.Tensor], replica: int = 0) -> tf.Tensor:
        """Returns the predictions [B, ...]; inputs are cast and reshaped to what the model asks."""
        call = self.calls[replica]
        return call({name: _fit(features[name], spec) for name, spec in self.inputs.items()})


def _fit(value: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    if value.dtype != spec.dtype:
        value = tf.cast(value, spec.dtype)
    if spec.shape.rank is not None and value.shape.rank != spec.shape.rank:
        rows = value.shape[0] if value.shape[0] is not None else tf.shape(value)[0]
        value = tf.reshape(value, [rows, *(-1 if d is None else d for d in spec.shape[1:])])
    return value


def resolve(uri: str, role: str = "model") -> str:
    """Returns the folder or file that holds the model: `Format-Serving` inside an artifact folder.

    role: what the model is to the request, for the message.

    Raises:
      RequestError: no model is there.
    """
    for path in (os.path.join(uri, "Format-Serving"), uri):
        if uri.endswith(".keras") and tf.io.gfile.exists(uri):
            return uri
        if tf.io.gfile.exists(os.path.join(path, "saved_model.pb")):
            return path
    raise RequestError(
        f"{role}: {uri} holds no model; a Model artifact (Format-Serving inside), a SavedModel folder "
        "(saved_model.pb inside) or a .keras file is needed"
    )


def load(uri: str, spec: ModelSpec, devices: Sequence[str | None] = ("CPU:0",)) -> Model:
    """Returns the model at a URI, one copy a device, with the signature and output of the spec.

    devices: None is wherever the strategy in scope puts variables.

    Raises:
      RequestError: no model there, one that cannot be loaded, no such signature, no such output.
    """
    path = resolve(uri)
    copies = []
    for device in devices:
        try:
            with tf.device(device):
                copies.append(_load_keras(path, spec) if path.endswith(".keras") else _load_saved(path, spec))
        except RequestError:
            raise
        except (OSError, TypeError, ValueError, tf.errors.NotFoundError, tf.errors.DataLossError) as error:
            raise RequestError(f"model {path} cannot be loaded: {str(error).splitlines()[0]}") from error
    return dataclasses.replace(
        copies[0], calls=[c.calls[0] for c in copies], loaded=[c.loaded for c in copies]
    )


def _load_saved(path: str, spec: ModelSpec) -> Model:
    loaded = tf.saved_model.load(path)
    names = list(loaded.signatures)
    place = f"model {path}"
    if spec.signature_name:
        if spec.signature_name not in names:
            raise unknown("signature", spec.signature_name, names, place=place)
        name = spec.signature_name
    else:
        usual = [n for n in DEFAULT_SIGNATURES if n in names]
        if not usual and len(names) != 1:
            raise RequestError(f"{place}: set signature_name to one of: {', '.join(names) or 'none there'}")
        name = usual[0] if usual else names[0]
    signature = loaded.signatures[name]
    inputs = dict(signature.structured_input_signature[1])
    select = _output(spec, list(signature.structured_outputs), f"{place}, signature {name!r}")
    call = [lambda f: signature(**f)[select]]
    return Model(spec, path, name, inputs, _serialized(inputs), call, (loaded, signature))


def _output(spec: ModelSpec, names: list[str], place: str) -> str:
    if spec.prediction_key:
        if spec.prediction_key not in names:
            raise unknown("prediction_key", spec.prediction_key, names, place=place)
        return spec.prediction_key
    if len(names) != 1:
        raise RequestError(
            f"{place}: several outputs; set prediction_key to one of: {', '.join(sorted(names))}"
        )
    return names[0]


def _serialized(inputs: Mapping[str, tf.TensorSpec]) -> str:
    """The one input that is a vector of strings named like serialized examples, if that is all."""
    if len(inputs) == 1:
        (name, spec), *_ = inputs.items()
        if spec.dtype == tf.string and spec.shape.rank in (None, 1):
            return name
    return ""


def _load_keras(path: str, spec: ModelSpec) -> Model:
    import keras

    if spec.signature_name:
        raise RequestError(f"model {path}: a .keras file has no signatures; leave signature_name empty")
    loaded = keras.models.load_model(path, compile=False)
    return from_keras(loaded, spec, path)


def from_keras(loaded: Any, spec: ModelSpec, uri: str) -> Model:
    """Returns a Keras model as a Model; it is called with training=False.

    Raises:
      RequestError: prediction_key names no output, or is needed and missing.
    """
    tensors = getattr(loaded, "inputs", None)
    if not tensors:
        raise RequestError(
            f"model {uri}: a .keras file of a subclassed model does not say what its inputs are; export "
            "it with a signature (model.export)"
        )
    names = [tensor.name.split(":")[0] for tensor in tensors]
    # A dict of inputs keeps its own keys; Keras lists their tensors in the keys' order.
    structure = getattr(loaded, "_inputs_struct", None)
    if isinstance(structure, Mapping):
        names = list(structure)
        tensors = [structure[name] for name in names]
    inputs = {n: tf.TensorSpec(t.shape, t.dtype, n) for n, t in zip(names, tensors, strict=True)}
    as_mapping = isinstance(structure, Mapping)
    # A Sequential model has one output and no name for it.
    outputs = list(getattr(loaded, "output_names", ["output_0"]))
    if isinstance(getattr(loaded, "_outputs_struct", None), Mapping):
        outputs = list(loaded._outputs_struct)
    select = _output(spec, outputs, f"model {uri}")

    def call(features: Mapping[str, tf.Tensor]) -> tf.Tensor:
        given: Any = dict(features) if as_mapping else [features[n] for n in names]
        result = loaded(given if as_mapping or len(names) > 1 else given[0], training=False)
        if isinstance(result, (list, tuple)):
            return result[outputs.index(select)]
        return result[select] if isinstance(result, Mapping) else result

    return Model(spec, uri, "call(training=False)", inputs, "", [call], loaded)
