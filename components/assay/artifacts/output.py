"""All artifacts of one evaluation, in the order in which they may be believed: the blessing last.

Runs on the host.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from assay import __version__
from assay.artifacts import blessing, html, tfma
from assay.examples import reason
from assay.gate import Verdict
from assay.report import Report, to_json
from assay.request import Request
from assay.spec import RequestError
from assay.storage import write_whole

EVALUATION = re.compile(
    r"(metrics|plots|attributions)-\d+-of-\d+\.tfrecord|validations\.tfrecord|eval_config\.json"
)


def prepare(request: Request) -> None:
    """Makes the output folders.

    Raises:
      RequestError: one cannot be made.
    """
    for folder in filter(None, (request.evaluation, request.blessing, request.report)):
        try:
            tf.io.gfile.makedirs(folder)
        except tf.errors.OpError as error:
            raise RequestError(f"output: {folder} cannot be made: {reason(error)}") from error


def clear(request: Request) -> None:
    """Removes what an earlier run left in the output folders, so that a failed run shows nothing."""
    stale = [
        *(os.path.join(request.blessing, name) for name in blessing.FILES if request.blessing),
        *(os.path.join(request.report, name) for name in ("report.json", "report.html") if request.report),
    ]
    if request.evaluation:
        exists = tf.io.gfile.exists(request.evaluation)
        names = tf.io.gfile.listdir(request.evaluation) if exists else []
        stale.extend(os.path.join(request.evaluation, name) for name in names if EVALUATION.fullmatch(name))
    for path in stale:
        if tf.io.gfile.exists(path) and not tf.io.gfile.isdir(path):
            tf.io.gfile.remove(path)


def write(
    request: Request, report: Report, verdict: Verdict, eval_config: Any, locations: Mapping[str, str]
) -> None:
    """Writes ModelEvaluation, report.html, report.json and the blessing; folders "" are left out.

    What was written before a failure is removed again.
    """
    try:
        if request.evaluation:
            tfma.write(request.evaluation, report, verdict, eval_config, locations, __version__)
        if request.report:
            tf.io.gfile.makedirs(request.report)
            write_whole(os.path.join(request.report, "report.html"), html.render(report, verdict))
            write_whole(os.path.join(request.report, "report.json"), to_json(report, verdict))
        if request.blessing:
            blessing.write(request.blessing, verdict.blessed)
    except BaseException:
        clear(request)
        raise
