"""What a spec comes to: the sums to add up, the values to compute from them, the checks to make.

Runs on the host, before any data is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from assay.finalize import Bound
from assay.gate import Check
from assay.metrics import build, shown
from assay.spec import EvaluationSpec, MetricKey, ModelSpec, RequestError


@dataclass(frozen=True)
class Question:
    """A spec as the loop and the formulas need it.

    models: those that are evaluated, candidate first; sums: what the replicas add up; bound: every
    metric of every model; checks: every threshold, on the candidate's keys; shown: what Kubeflow and
    Vertex show of the candidate beside them.
    """

    models: Sequence[ModelSpec]
    sums: Sequence[Any]
    weighted: Sequence[int]
    bound: Sequence[Bound]
    checks: Sequence[Check]
    shown: Sequence[Bound] = ()


def ask(spec: EvaluationSpec, models: Sequence[ModelSpec]) -> Question:
    """Returns what has to be summed and computed for the models given, candidate first.

    Raises:
      RequestError: two metrics of one name, a metric without a label or weight that it needs.
    """
    from assay.step import Sum  # late: a wrong config is refused before TensorFlow is loaded

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
        if wanted.thresholds and all(
            n not in places or ordered[places[n]].is_baseline for n in wanted.model_names
        ):
            raise RequestError(
                f"metric {wanted.class_name!r} has a threshold, and model_names leave out the candidate: "
                "it would never be checked"
            )
    beside = _shown(found)
    sums = list(dict.fromkeys(s for _, _, s in (*found, *beside) if s is not None))

    def bind(key: MetricKey, metric: Any, item: Any) -> Bound:
        place = places[key.model_name]
        return Bound(
            key=key,
            metric=metric,
            leaf=None if item is None else 1 + sums.index(item),
            weight=1 + weighted.index(place) if key.example_weighted else 0,
            invalid=None if item is None else 1 + len(weighted) + sums.index(item),
            model=place,
        )

    return Question(
        models=ordered,
        sums=sums,
        weighted=weighted,
        bound=[bind(*item) for item in found],
        checks=list(dict.fromkeys(checks)),
        shown=[bind(*item) for item in beside],
    )


def _shown(found: Sequence[tuple[MetricKey, Any, Any]]) -> list[tuple[MetricKey, Any, Any]]:
    """One of each name, of weighted sums where there are both."""
    named: dict[str, tuple[MetricKey, Any, Any]] = {}
    for key, _, item in sorted(found, key=lambda f: not f[0].example_weighted):
        for metric in shown(item.statistics) if item is not None and item.model == 0 else ():
            own = (
                dataclasses.replace(key, name=metric.name),
                metric,
                dataclasses.replace(item, statistics=metric.statistics),
            )
            named.setdefault(metric.name, own)
    return list(named.values())


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
