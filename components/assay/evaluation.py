"""The composition root: request in, artifacts and outcome out. Reads like the picture in the README.

Everything that can be refused without reading data is refused first; nothing is written before
every value is known, and the blessing last.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from assay import __version__, finalize
from assay.artifacts import kfp, vertex
from assay.cluster import Part, Task, task
from assay.eval_config import normalise, read, to_spec
from assay.gate import Evidence, Verdict, judge
from assay.question import Question, ask
from assay.quiet import stderr_unless_it_fails
from assay.report import Report
from assay.request import Request
from assay.spec import CANDIDATE, EvaluationSpec, RequestError, SlicingSpec, unique
from assay.state import State, prove

log = logging.getLogger("assay")


@dataclass(frozen=True)
class Outcome:
    """What an evaluation came to."""

    report: Report
    verdict: Verdict


def run(request: Request, *, progress: bool = False) -> Outcome | None:
    """Evaluates, writes the artifacts, and returns the outcome. Host; starts TensorFlow.

    None where another process of the same evaluation is the chief and does so.

    Raises:
      RequestError: the request is wrong; it was refused before the data was evaluated.
      DataError: the data cannot be evaluated.
    """
    part = Part()
    try:
        return _run(request, part, progress)
    except BaseException:
        if part.writes:
            _withdraw(request)
        raise


def _run(request: Request, part: Part, progress: bool) -> Outcome | None:
    own = _task(request)
    # Where others may be at work on the same output, nothing in it is this process's until it is the chief.
    part.writes = not (request.execution.state_dir or own.is_chief is False)
    config = read(request.eval_config)
    normal = normalise(config, has_baseline=bool(request.baseline))
    spec = to_spec(config, has_baseline=bool(request.baseline))
    question = ask(spec, spec.models)

    if request.vertex:
        names = [b.metric.name for b in question.shown]
        vertex.check(names, request.vertex_kind, has_overall=SlicingSpec() in spec.slices)

    # TensorFlow from here on; what is above refuses a wrong config in milliseconds.
    from assay.artifacts import output
    from assay.engine import Engine
    from assay.progress import Progress
    from assay.spread import spread

    started = time.perf_counter()
    if own.is_chief is not False:
        output.prepare(request)
    engine = Engine(request, spec, question)
    log.info("%s", engine.plan.route)

    def begin(is_done: bool) -> None:
        # Finished artifacts of this very evaluation are written again, each in its place, and never missing.
        if not is_done:
            part.writes = True
            output.clear(request)

    def conclude(state: State, notes: Sequence[str]) -> Outcome:
        told = unique([engine.plan.route, *engine.notes, *notes])
        return _conclude(request, spec, engine, state, normal, part, told, time.perf_counter() - started)

    with Progress(engine.files, engine.records.mean_bytes, on=progress) as show:
        return spread(request, normal, own, engine, part, show, begin, conclude)


def _task(request: Request) -> Task:
    """This process's task; a Beam pipeline has one launcher, whatever the environment names."""
    own = task(os.environ) if request.execution.runner == "loop" else Task()
    if request.execution.strategy == "multi_worker" and own.is_chief is None:
        raise RequestError(
            "strategy multi_worker: neither TF_CONFIG nor CLUSTER_SPEC names a cluster of several processes; "
            "set one, or leave the strategy at auto and give every process the same state_dir"
        )
    if not request.state_dir and (own.workers > 1 or request.execution.runner == "beam"):
        raise RequestError("several workers need a folder in common: set state_dir, or an output")
    return own


def _conclude(
    request: Request,
    spec: EvaluationSpec,
    engine: Any,
    state: State,
    config: Any,
    part: Part,
    notes: Sequence[str],
    seconds: float,
) -> Outcome:
    """Proves the sums, then: sums to values, values to a verdict, both to the artifacts."""
    import tensorflow as tf

    from assay import examples, inputs
    from assay.artifacts import output

    for file in engine.files:
        examples.check_unchanged(file)
        examples.check_whole(file, state.bytes_read.get(file.uri, 0))
    prove(state)
    question, models = engine.question, engine.models
    baseline = next((m.spec.name for m in models if m.spec.is_baseline), "")
    weight_column = 1 if question.weighted and question.weighted[0] == 0 else 0
    every = finalize.slice_values(state, question.bound, baseline, weight_column, _shown(request, question))
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
            stale_baseline=engine.stale,
        ),
        question.checks,
        request.policy,
    )
    rows = sum(state.rows_counted.values())
    execution = {
        "runner": request.execution.runner,
        "strategy": type(engine.distribution).__name__,
        "replicas": engine.replicas,
        "devices": list(engine.distribution.extended.worker_devices),
        "batch_size": engine.batch_size,
        "global_batch_size": engine.batch_size * engine.replicas,
        "padded_batch_size": inputs.physical(engine.batch_size),
        "shards": part.shards,
        "shards_found": part.found,
        "seconds": round(seconds, 3),
        "loop_seconds": round(part.seconds, 3),
        "rows_per_second": round(part.rows / part.seconds, 1) if part.seconds else 0.0,
        "versions": {
            "assay": __version__,
            "tensorflow": tf.__version__,
            "python": platform.python_version(),
        },
    }
    report = Report(
        slices=slices,
        cross_slices=[pair for pairs in cross.values() for pair in pairs],
        hidden=hidden,
        rows=rows,
        weight=next((s.weight for s in every if not s.key), float(rows)),
        files=state.rows_counted,
        proof={
            "rows_read": sum(state.rows_read.values()),
            "rows_counted": rows,
            "fingerprint_read": f"{state.fingerprint_read:016x}",
            "fingerprint_counted": f"{state.fingerprint_counted:016x}",
            "bytes_read": sum(state.bytes_read.values()),
        },
        fingerprint=f"{state.fingerprint_counted:016x}",
        models={m.spec.name or CANDIDATE: {"uri": m.uri, "signature": m.signature} for m in models},
        baseline_name=baseline,
        notes=notes,
        execution=execution,
    )
    output.write(request, report, verdict, config, {m.spec.name: m.uri for m in models})
    return Outcome(report, verdict)


def _shown(request: Request, question: Question) -> Sequence[finalize.Bound]:
    """What the artifacts asked for show beside the metrics: areas of a thousand slices take seconds."""
    if request.vertex:
        return question.shown
    return [b for b in question.shown if request.classification_metrics and b.metric.name in kfp.SHOWN]


def _withdraw(request: Request) -> None:
    """Removes what an earlier run left, so that a failed one leaves nothing that looks finished."""
    places = (*request.folders, *request.single_files)
    if any("://" in place or os.path.exists(place) for place in places):
        with contextlib.suppress(Exception):  # the failure that led here is the one to tell
            with stderr_unless_it_fails():
                from assay.artifacts import output
            output.clear(request)


__all__ = ["Outcome", "run"]
