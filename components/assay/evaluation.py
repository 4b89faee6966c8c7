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
from assay.finalize import Bound
from assay.gate import Check, Evidence, Verdict, judge
from assay.metrics import build
from assay.report import Report
from assay.spec import CANDIDATE, EvaluationSpec, MetricKey, ModelSpec, Request, RequestError

log = logging.getLogger("assay")


@dataclass(frozen=True)
class Outcome:
    """What an evaluation came to."""

    report: Report
    verdict: Verdict


@dataclass(frozen=True)
class Question:
    """A spec as the loop and the formulas need it.

    models: those that are evaluated, candidate first; sums: what the replicas add up; bound: every
    metric of every model; checks: every threshold, on the candidate's keys.
    """

    models: Sequence[ModelSpec]
    sums: Sequence[Any]
    weighted: Sequence[int]
    bound: Sequence[Bound]
    checks: Sequence[Check]


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
    from assay.state import prove
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
    pipeline = inputs.pipeline(
        files, plan, spec.slices, batch_size=request.execution.batch_size, replicas=replicas
    )
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
    except tf.errors.OpError as error:
        raise explain(error, files, plan, models) from error
    looped = time.perf_counter() - looped
    for file, size in zip(files, pipeline.bytes_read.numpy().tolist(), strict=True):
        examples.check_whole(file, size)
    prove(state)

    baseline = next((m.spec.name for m in models if m.spec.is_baseline), "")
    weight_column = 1 if question.weighted and question.weighted[0] == 0 else 0
    all_slices = finalize.slice_values(state, question.bound, baseline, weight_column)
    slices, hidden = finalize.hide_small(all_slices, spec.min_slice_size)
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
    seconds = time.perf_counter() - started
    rows = sum(state.rows_counted.values())
    report = Report(
        slices=slices,
        cross_slices=[pair for pairs in cross.values() for pair in pairs],
        hidden=hidden,
        rows=rows,
        weight=next((s.weight for s in all_slices if not s.key), float(rows)),
        files=state.rows_counted,
        fingerprint=f"{state.fingerprint_counted:016x}",
        models={
            m.spec.name or CANDIDATE: {"uri": m.uri, "signature": m.signature} for m in models
        },
        baseline_name=baseline,
        notes=[plan.route, *spec.notes],
        execution={
            "strategy": type(distribution).__name__,
            "replicas": replicas,
            "devices": list(distribution.extended.worker_devices),
            "batch_size": request.execution.batch_size,
            "global_batch_size": request.execution.batch_size * replicas,
            "padded_batch_size": inputs.physical(request.execution.batch_size),
            "seconds": round(seconds, 3),
            "loop_seconds": round(looped, 3),
            "rows_per_second": round(rows / looped, 1),
            "versions": {
                "assay": __version__,
                "tensorflow": tf.__version__,
                "python": platform.python_version(),
            },
        },
    )
    outcome = Outcome(report, verdict)
    locations = {m.spec.name: m.uri for m in models}
    output.write(request, report, verdict, normalise(config, has_baseline=bool(request.baseline)), locations)
    return outcome


def _withdraw(request: Request) -> None:
    """Removes what an earlier run left, so that a failed one leaves nothing that looks finished."""
    folders = [f for f in (request.evaluation, request.blessing, request.report) if f]
    if any("://" in f or os.path.exists(f) for f in folders):
        from assay.artifacts import output

        with contextlib.suppress(Exception):  # the failure that led here is the one to tell
            output.clear(request)


def ask(spec: EvaluationSpec, models: Sequence[ModelSpec]) -> Question:
    """Returns what has to be summed and computed for the models given, candidate first.

    Raises:
      RequestError: two metrics of one name, a metric without a label or weight that it needs.
    """
    from assay.step import Sum

    ordered = sorted(models, key=lambda m: m.is_baseline)
    places = {m.name: place for place, m in enumerate(ordered)}
    weighted = [place for place, m in enumerate(ordered) if m.example_weight_key]
    found: list[tuple[MetricKey, Any, Any]] = []
    named: dict[MetricKey, Any] = {}
    checks: list[Check] = []
    for wanted in spec.metrics:
        metric = build(wanted)
        for name in wanted.model_names:
            if name not in places:
                continue
            model = ordered[places[name]]
            key = _key(metric, wanted, model)
            if metric.statistics is not None and not model.label_key:
                raise RequestError(
                    f"metric {wanted.class_name!r} needs a label; set label_key in model_specs"
                )
            item = (
                key,
                metric,
                None
                if metric.statistics is None
                else Sum(metric.statistics, places[name], key.example_weighted),
            )
            same = (wanted.class_name, wanted.config)
            if key not in named:
                found.append(item)
            if named.setdefault(key, same) != same:
                raise RequestError(
                    f"metrics_specs: two metrics are named {key.label!r}; give one another name in config"
                )
            if not model.is_baseline:
                checks.extend(Check(key, t) for t in wanted.thresholds)
    sums = list(dict.fromkeys(s for _, _, s in found if s is not None))
    bound = [
        Bound(
            key=key,
            metric=metric,
            leaf=None if item is None else 1 + sums.index(item),
            weight=1 + weighted.index(places[key.model_name]) if key.example_weighted else 0,
            invalid=None if item is None else 1 + len(weighted) + sums.index(item),
        )
        for key, metric, item in found
    ]
    return Question(ordered, sums, weighted, bound, list(dict.fromkeys(checks)))


def _key(metric: Any, wanted: Any, model: ModelSpec) -> MetricKey:
    has_weights = bool(model.example_weight_key)
    if wanted.weighted and not has_weights and metric.weighted is None:
        raise RequestError(
            f"metric {wanted.class_name!r} is to be weighted; set example_weight_key in model_specs"
        )
    chosen = metric.weighted if metric.weighted is not None else wanted.weighted
    return MetricKey(
        metric.name,
        model.name,
        example_weighted=has_weights and chosen is not False,
        weights_apply=has_weights and metric.weighted is None,
    )


def _load(
    request: Request, question: Question, records: Any, graph: Any, distribution: Any, spec: EvaluationSpec
) -> tuple[list[Any], str]:
    """The loaded models, candidate first, and why the baseline cannot be evaluated, if so."""
    from assay import model
    from assay.plan import plan as make_plan
    from assay.step import rehearse

    loaded: list[Any] = []
    for place, wanted in enumerate(question.models):
        uri = model.resolve(request.baseline if wanted.is_baseline else request.model)
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


__all__ = ["Outcome", "Question", "ask", "run"]
