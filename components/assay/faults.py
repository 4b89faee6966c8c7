"""What can be wrong with one row, as a bit for each kind and model.

The bits are set on the host (labels, weights) and on the replica (predictions), in graph.
"""

from __future__ import annotations

import enum

import tensorflow as tf


class Fault(enum.Enum):
    """What can be wrong with one row; `fatal` ones fail the run, all name the first row."""

    NO_LABEL = "has no label"
    MANY_LABELS = "has another number of label values than the first rows"
    BAD_LABEL = "has a label that is no finite number"
    NO_WEIGHT = "has no example weight"
    MANY_WEIGHTS = "has more than one example weight"
    BAD_WEIGHT = "has an example weight that is negative, not finite or 2**31 and above"
    LABEL_RANGE = "has a label outside [0, 1], which a metric on binary labels cannot use"
    PREDICTION_RANGE = (
        "has a prediction outside [0, 1], which AUC and its relatives cannot use; does the model give "
        "logits instead of probabilities?"
    )
    PREDICTION_NAN = "has a prediction that is no finite number"

    @property
    def fatal(self) -> bool:
        """Whether the run fails; a prediction that is NaN leaves its metrics undefined instead."""
        return self is not Fault.PREDICTION_NAN


FAULTS = tuple(Fault)
MODELS = 2
BITS = MODELS * len(FAULTS)
LABEL_FAULTS = (Fault.NO_LABEL, Fault.MANY_LABELS, Fault.BAD_LABEL)


def bit(fault: Fault, model: int) -> int:
    """Returns the number of the bit that stands for a fault of a model's label, weight or prediction."""
    return model * len(FAULTS) + FAULTS.index(fault)


def mark(faults: tf.Tensor, fault: Fault, rows: tf.Tensor, model: int) -> tf.Tensor:
    """Returns the fault bits [B] int64 with one more set on the rows [B] bool. Graph."""
    one = tf.constant(1 << bit(fault, model), tf.int64)
    return tf.bitwise.bitwise_or(faults, tf.where(rows, one, tf.zeros_like(faults)))


def forgive(faults: tf.Tensor, kinds: tuple[Fault, ...], rows: tf.Tensor, model: int) -> tf.Tensor:
    """Returns the fault bits [B] int64 without those of some kinds on the rows [B] bool. Graph."""
    kept = ~sum(1 << bit(fault, model) for fault in kinds)
    return tf.where(rows, tf.bitwise.bitwise_and(faults, tf.constant(kept, tf.int64)), faults)
