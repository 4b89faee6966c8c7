"""The composition root: request in, artifacts and outcome out. Reads like the picture in the README.

Everything that can be refused without reading data is refused first; nothing is written before
every value is known, and the blessing last.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from assay import __version__, finalize
from assay.eval_config import normalise, read, to_spec
from assay.gate import Evidence, Verdict, judge
from assay.question import Question, ask
from assay.quiet import stderr_unless_it_fails
from assay.report import Report
from assay.spec import CANDIDATE, EvaluationSpec, Request, RequestError, SlicingSpec
from assay.state import State, prove

log = logging.getLogger("assay")


@dataclass(frozen=True)
class Outcome:
    """What an evaluation came to."""

    report: Report
    verdict: Verdict


def run(request: Request, *, progress: bool = False) -> Outcome:
    """Evaluates, writes the artifacts, and returns the outcome. Host; starts TensorFlow.

    Raises:
      RequestError: the request is wrong; it was refused before the data was evaluated.
      DataError: the data cannot be evaluated.
    """
    try:
        return _run(request, progress)
    except BaseException:
        _withdraw(request)
        raise


def _run(request: Request, progress: bool) -> Outcome:
    started = time.perf_counter()
    config = read(request.eval_config)
    spec = to_spec(config, has_baseline=bool(request.baseline))
    question = ask(spec, spec.models)

    # TensorFlow from here on; what is above refuses a wrong config in milliseconds.
    import tensorflow as tf

    from assay import examples, inputs, loop, transform
    from assay.artifacts import output
    from assay.explain import explain
    from assay.plan import plan as make_plan
    from assay.progress import Progress
    from assay.step import layout

    loop.set_up(request.execution)
    files = examples.locate(request.examples, request.splits)
    schema = examples.read_schema(request.schema) if request.schema else {}
    output.clear(request)
    for folder in filter(None, (request.evaluation, request.blessing, request.report)):
        try:
            tf.io.gfile.makedirs(folder)
        except tf.errors.OpError as error:
            raise RequestError(f"output: {folder} cannot be made: {examples.reason(error)}") from error
    records = examples.peek(files, schema)
    graph = transform.load(request.transform_graph) if request.transform_graph else None
    distribution = loop.strategy(request.execution)
    replicas = distribution.num_replicas_in_sync

    models, stale = _load(request, question, records, graph, distribution, spec)
    if stale:
        log.warning("the baseline cannot be evaluated: %s", stale)
        question = ask(spec, [m.spec for m in models])
    plan = make_plan(records, graph, models, spec.slices, request.policy)
    log.info("%s", plan.route)
    sums = [dataclasses.replace(s, whole=not s.weighted and plan.whole[s.model]) for s in question.sums]
    # Overall is always counted, for the examples' total; it is shown where it is asked for.
    every = (SlicingSpec(), *(s for s in spec.slices if s.features))
    pipeline = inputs.pipeline(files, plan, every, batch_size=request.execution.batch_size, replicas=replicas)
    leaves = layout(sums, question.weighted)
    looped = time.perf_counter()
    try:
        with Progress(files, records.mean_bytes, on=progress) as show:
            state = loop.run(
                pipeline,
                models,
                plan.feeds,
                sums,
                question.weighted,
                leaves,
                distribution,
                request.execution,
                show,
            )
    except (tf.errors.OpError, UnicodeDecodeError) as error:  # the latter hides an OpError's message
        raise explain(error, files, plan, models) from error
    looped = time.perf_counter() - looped
    for file, size in zip(files, pipeline.bytes_read.numpy().tolist(), strict=True):
        examples.check_whole(file, size)
    prove(state)

    outcome = _conclude(request, spec, question, state, models, stale)
    seconds = time.perf_counter() - started
    execution = {
        "strategy": type(distribution).__name__,
        "replicas": replicas,
        "devices": list(distribution.extended.worker_devices),
        "batch_size": request.execution.batch_size,
        "global_batch_size": request.execution.batch_size * replicas,
        "padded_batch_size": inputs.physical(request.execution.batch_size),
        "seconds": round(seconds, 3),
        "loop_seconds": round(looped, 3),
        "rows_per_second": round(outcome.report.rows / looped, 1),
        "versions": {
            "assay": __version__,
            "tensorflow": tf.__version__,
            "python": platform.python_version(),
        },
    }
    report = dataclasses.replace(outcome.report, notes=[plan.route], execution=execution)
    output.write(
        request,
        report,
        outcome.verdict,
        normalise(config, has_baseline=bool(request.baseline)),
        {m.spec.name: m.uri for m in models},
    )
    return Outcome(report, outcome.verdict)


def _conclude(
    request: Request,
    spec: EvaluationSpec,
    question: Question,
    state: State,
    models: Sequence[Any],
    stale: str,
) -> Outcome:
    """The sums to values, and the values to a verdict."""
    baseline = next((m.spec.name for m in models if m.spec.is_baseline), "")
    weight_column = 1 if question.weighted and question.weighted[0] == 0 else 0
    every = finalize.slice_values(state, question.bound, baseline, weight_column)
    asked = [s for s in every if s.key or SlicingSpec() in spec.slices]
    slices, hidden = finalize.hide_small(asked, spec.min_slice_size)
    cross = finalize.cross_values(slices, spec.cross_slices)
    verdict = judge(
        Evidence(
            slices=slices,
            cross_specs=cross,
            hidden=hidden,
            min_slice_size=spec.min_slice_size,
            baseline_name=baseline,
            stale_baseline=stale,
        ),
        question.checks,
        request.policy,
    )
    rows = sum(state.rows_counted.values())
    report = Report(
        slices=slices,
        cross_slices=[pair for pairs in cross.values() for pair in pairs],
        hidden=hidden,
        rows=rows,
        weight=next((s.weight for s in every if not s.key), float(rows)),
        files=state.rows_counted,
        fingerprint=f"{state.fingerprint_counted:016x}",
        models={m.spec.name or CANDIDATE: {"uri": m.uri, "signature": m.signature} for m in models},
        baseline_name=baseline,
    )
    return Outcome(report, verdict)


def _withdraw(request: Request) -> None:
    """Removes what an earlier run left, so that a failed one leaves nothing that looks finished."""
    folders = [f for f in (request.evaluation, request.blessing, request.report) if f]
    if any("://" in f or os.path.exists(f) for f in folders):
        with contextlib.suppress(Exception):  # the failure that led here is the one to tell
            with stderr_unless_it_fails():
                from assay.artifacts import output
            output.clear(request)


def _load(
    request: Request, question: Question, records: Any, graph: Any, distribution: Any, spec: EvaluationSpec
) -> tuple[list[Any], str]:
    """The loaded models, candidate first, and why the baseline cannot be evaluated, if so."""
    from assay import model
    from assay.plan import plan as make_plan
    from assay.step import rehearse

    loaded: list[Any] = []
    for place, wanted in enumerate(question.models):
        role, given = ("baseline", request.baseline) if wanted.is_baseline else ("model", request.model)
        uri = model.resolve(given, role)
        try:
            candidate = model.load(uri, wanted, distribution.extended.worker_devices)
            plan = make_plan(records, graph, [candidate], spec.slices, request.policy)
            rehearse(candidate, plan, [s for s in question.sums if s.model == place])
        except Exception as error:
            if not wanted.is_baseline:
                raise
            return loaded, str(error).split("\n")[0]
        loaded.append(candidate)
    return loaded, ""


__all__ = ["Outcome", "run"]
