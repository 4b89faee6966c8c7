"""Why a run failed: the file and the record at which reading, parsing or predicting stops.

Reads the files again, on the host, and predicts on one device; called only when a run has failed.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
from google.protobuf.message import DecodeError

from assay.examples import File, reason, unreadable
from assay.inputs import prepare
from assay.model import Model
from assay.plan import Plan, input_name
from assay.spec import DataError, ProcessError, SlicingSpec

ROWS = 1024


def explain(
    error: Exception, files: Sequence[File], plan: Plan, models: Sequence[Model]
) -> DataError | ProcessError:
    """Returns the error that names the file and the record at which it stops.

    Where no record does so by itself (storage that fails, say), it is one of this process, told as it came.
    """
    searched = () if isinstance(error, tf.errors.ResourceExhaustedError) else files
    for file in searched:
        start = 0
        try:
            for chunk in tf.data.TFRecordDataset(file.uri, file.compression or None).batch(ROWS):
                if _problem(chunk, plan, models):
                    for number, record in enumerate(chunk):
                        problem = _problem(record[None], plan, models)
                        if problem:
                            return DataError(f"{file.uri}: record {start + number} {problem}")
                start += len(chunk)
        except tf.errors.OpError as problem:
            return unreadable(file, problem)
    return ProcessError(f"evaluation failed: {reason(error)}")


def _problem(serialized: tf.Tensor, plan: Plan, models: Sequence[Model]) -> str:
    """What is wrong with these records [n], if anything."""
    try:
        for record in serialized.numpy():
            tf.train.Example.FromString(record)
    except DecodeError:
        return "is not a tf.Example"
    try:
        count = tf.ones([len(serialized)], tf.int64)
        inputs = prepare({"serialized": serialized, "count": count}, plan, [SlicingSpec()])["inputs"]
    except tf.errors.OpError as error:
        return f"cannot be parsed: {reason(error)}"
    try:
        for model, feed in zip(models, plan.feeds, strict=True):
            model.predict({name: inputs[input_name(*origin)] for name, origin in feed.items()})
    except tf.errors.OpError as error:
        return f"cannot be evaluated by model {model.uri}: {reason(error)}"
    return ""
