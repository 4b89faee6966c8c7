"""The blessing: one empty file that says whether the model may be pushed, and its properties.

Names are those that Pusher, the resolvers and the stock Evaluator use. Runs on the host.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

BLESSED_FILE = "BLESSED"
NOT_BLESSED_FILE = "NOT_BLESSED"
FILES = (BLESSED_FILE, NOT_BLESSED_FILE)

BLESSED = "blessed"
CURRENT_MODEL = "current_model"
CURRENT_MODEL_ID = "current_model_id"
BASELINE_MODEL = "baseline_model"
BASELINE_MODEL_ID = "baseline_model_id"
COMPONENT_ID = "component_id"
MESSAGE = "blessing_message"

# ML Metadata is no place for a thousand failed slices; report.json has them all.
MESSAGE_BYTES = 400


def write(folder: str, blessed: bool) -> None:
    """Leaves exactly one empty file in `folder`: BLESSED or NOT_BLESSED.

    What an earlier run left goes first: between the two steps there is no verdict, never a wrong
    one. Call it last, when everything else is written.

    Raises:
      tf.errors.OpError: the folder cannot be written.
    """
    import tensorflow as tf

    tf.io.gfile.makedirs(folder)
    there = [name for name in FILES if tf.io.gfile.exists(os.path.join(folder, name))]
    wanted = BLESSED_FILE if blessed else NOT_BLESSED_FILE
    if there == [wanted] and not tf.io.gfile.stat(os.path.join(folder, wanted)).length:
        return  # never without a verdict, where the same one is written again
    for name in there:
        tf.io.gfile.remove(os.path.join(folder, name))
    with tf.io.gfile.GFile(os.path.join(folder, wanted), "w") as file:
        file.write("")


def properties(
    blessed: bool,
    reasons: Sequence[str],
    *,
    current_model: str,
    current_model_id: int | str,
    baseline_model: str = "",
    baseline_model_id: int | str | None = None,
    component_id: str = "",
) -> dict[str, int | str]:
    """Returns the custom properties of the blessing artifact; what is empty is left out.

    Ids are whole numbers in ML Metadata and resource names on Kubeflow v2.
    """
    found: dict[str, int | str] = {
        BLESSED: int(blessed),
        CURRENT_MODEL: current_model,
        CURRENT_MODEL_ID: current_model_id,
    }
    if baseline_model:
        found[BASELINE_MODEL] = baseline_model
        if baseline_model_id is not None:
            found[BASELINE_MODEL_ID] = baseline_model_id
    if component_id:
        found[COMPONENT_ID] = component_id
    if reasons:
        found[MESSAGE] = message(reasons)
    return found


def message(reasons: Sequence[str]) -> str:
    """Returns the reasons as one text of at most MESSAGE_BYTES bytes of UTF-8.

    Whole reasons, as many as fit, and how many more there are; only a first reason that does not
    fit by itself is cut.
    """
    for kept in range(min(len(reasons), MESSAGE_BYTES), 0, -1):
        more = f"; and {len(reasons) - kept} more" if kept < len(reasons) else ""
        text = "; ".join(reasons[:kept]) + more
        if len(text.encode()) <= MESSAGE_BYTES:
            return text
    more = f"; and {len(reasons) - 1} more" if len(reasons) > 1 else ""
    room = MESSAGE_BYTES - len(f"…{more}".encode())
    return "".join(reasons[:1]).encode()[:room].decode(errors="ignore") + ("…" if reasons else "") + more
