"""The Python form: the same request as the command line's, in this process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format

from assay.request import Execution, Policy, Request

if TYPE_CHECKING:
    from assay.evaluation import Outcome


def request(
    *,
    examples: str | Sequence[str],
    model: str,
    eval_config: Any,
    output: str = "",
    splits: Sequence[str] = ("eval",),
    baseline: str = "",
    transform_graph: str = "",
    schema: str = "",
    execution: Execution | None = None,
    policy: Policy | None = None,
) -> Request:
    """Returns the request that writes everything below one output folder ("": writes nothing).

    eval_config: tfma.EvalConfig as a message or as JSON text.

    Raises:
      RequestError: an argument is empty or out of range.
    """
    text = eval_config if isinstance(eval_config, str) else json_format.MessageToJson(eval_config)
    return Request(
        examples=(examples,) if isinstance(examples, str) else tuple(examples),
        model=model,
        eval_config=text,
        evaluation=os.path.join(output, "evaluation") if output else "",
        blessing=os.path.join(output, "blessing") if output else "",
        report=output,
        splits=tuple(splits),
        baseline=baseline,
        transform_graph=transform_graph,
        schema=schema,
        execution=execution or Execution(),
        policy=policy or Policy(),
    )


def evaluate(**arguments: Any) -> Outcome | None:
    """Returns the outcome (report, verdict) of the request that `request` makes of the arguments.

    None in a process that only helps: one of several on a `state_dir` of which another is the chief.
    Host; starts TensorFlow in this process.

    Raises:
      RequestError: the request is wrong.
      DataError: the data cannot be evaluated.
    """
    from assay.evaluation import run

    return run(request(**arguments))
