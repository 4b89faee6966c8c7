"""Why a run failed: the file and the record at which reading or parsing stops.

Reads the files again, on the host, record by record; called only when a run has failed.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
from google.protobuf.message import DecodeError

from assay.examples import File, unreadable
from assay.plan import Plan
from assay.spec import DataError


def explain(error: Exception, files: Sequence[File], plan: Plan) -> DataError:
    """Returns the error that names the file, and the record, at which reading or parsing failed."""
    spec = plan.parsing_spec()
    for file in files:
        number = 0
        try:
            for record in tf.data.TFRecordDataset(file.uri, file.compression or None):
                try:
                    tf.train.Example.FromString(record.numpy())
                    if spec:
                        tf.io.parse_single_example(record, spec)
                except (DecodeError, tf.errors.OpError) as problem:
                    return DataError(f"{file.uri}: record {number} cannot be parsed: {_reason(problem)}")
                number += 1
        except tf.errors.OpError as problem:
            return unreadable(file, problem)
    return DataError(f"evaluation failed: {_reason(error)}")


def _reason(error: Exception) -> str:
    """The first line of an error that says what went wrong."""
    lines = [line.strip() for line in str(getattr(error, "message", error)).splitlines()]
    return next((line for line in lines if line and not line.startswith(_PREAMBLE)), type(error).__name__)


_PREAMBLE = ("Graph execution error", "Detected at node", "<stack traces", "error(s) found")
