"""What an evaluation is of: two that agree in all of this have the same States, shard by shard.

Runs on the host; reads models and tables whole, and of the examples names, sizes and times.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from google.protobuf import json_format

from assay import __version__
from assay.examples import File
from assay.model import resolve
from assay.request import Request


def identity(request: Request, config: Any, files: Sequence[File], stale: str, device: str) -> dict[str, str]:
    """Returns what the evaluation depends on, by name, as texts to compare.

    config: the normalised tfma.EvalConfig; stale: why the baseline is left out, if it is; device: the kind
    that predicts (CPU, GPU, TPU), since kinds round differently.
    """
    baseline = _tree(resolve(request.baseline, "baseline")) if request.baseline and not stale else stale
    return {
        "version": version(device),
        "model": _tree(resolve(request.model)),
        "baseline": baseline,
        "eval_config": _hash(
            json_format.MessageToJson(config, sort_keys=True).encode(), request.policy.slice_features.encode()
        ),
        "transform_graph": _tree(request.transform_graph),
        "schema": _tree(request.schema),
        "examples": _hash(*(f"{f.uri} {f.size} {f.changed}".encode() for f in files)),
    }


def version(device: str) -> str:
    """Returns what computes, as people read it."""
    return f"assay {__version__}, TensorFlow {tf.__version__}, {device}"


def _tree(path: str) -> str:
    """The hash of a file, or of every file below a folder with its place."""
    if not path:
        return ""
    if not tf.io.gfile.isdir(path):
        return _hash(_content(path))
    found: list[str] = []
    for folder, _, files in tf.io.gfile.walk(path):
        found.extend(os.path.join(folder, name) for name in files)
    return _hash(*(part for f in sorted(found) for part in (f[len(path) :].encode(), _content(f))))


def _content(path: str) -> bytes:
    digest = hashlib.sha256()
    with tf.io.gfile.GFile(path, "rb") as handle:
        while chunk := handle.read(1 << 24):
            digest.update(chunk)
    return digest.digest()


def _hash(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()
