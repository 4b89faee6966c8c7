"""All artifacts of one evaluation, in the order in which they may be believed: the blessing last.

Runs on the host.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from assay import __version__
from assay.artifacts import blessing, html, kfp, tfma, vertex
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
    for folder in filter(None, (*request.folders, *map(os.path.dirname, request.single_files))):
        try:
            tf.io.gfile.makedirs(folder)
        except tf.errors.OpError as error:
            raise RequestError(f"output: {folder} cannot be made: {reason(error)}") from error


def clear(request: Request) -> None:
    """Removes what an earlier run left in the output folders, so that a failed run shows nothing."""
    stale = [os.path.join(request.blessing, name) for name in blessing.FILES if request.blessing]
    stale.extend(_texts(request))
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
    """Writes ModelEvaluation, the report, what Kubeflow and Vertex show, and the blessing.

    Folders and files "" are left out. What was written before a failure is removed again.
    """
    try:
        if request.evaluation:
            tfma.write(request.evaluation, report, verdict, eval_config, locations, __version__)
        for path, render in _texts(request).items():
            tf.io.gfile.makedirs(os.path.dirname(path))
            write_whole(path, render(report, verdict))
        if request.blessing:
            blessing.write(request.blessing, verdict.blessed)
    except BaseException:
        clear(request)
        raise


def _texts(request: Request) -> dict[str, Callable[[Report, Verdict], str]]:
    """The files of one text each, and what makes it."""
    texts: dict[str, Callable[[Report, Verdict], str]] = {}
    if request.report:
        texts[os.path.join(request.report, "report.html")] = html.render
        texts[os.path.join(request.report, "report.json")] = to_json
    if request.metrics:
        texts[os.path.join(request.metrics, kfp.METRICS)] = kfp.metrics_file
    if request.classification_metrics:
        texts[os.path.join(request.classification_metrics, kfp.CLASSIFICATION)] = kfp.classification_file
    if request.page:
        texts[request.page] = html.render
    if request.vertex:
        texts[request.vertex] = lambda report, _: vertex.to_json(report, request.vertex_kind)
    return texts
