"""eval_config: TFMA's own normalisation as the oracle, both spellings of JSON, and what is made of it."""

from __future__ import annotations

import json

import pytest
from google.protobuf import json_format

from assay.eval_config import normalise, read, to_spec
from assay.question import ask
from assay.spec import (
    ChangeThreshold,
    CrossSlicingSpec,
    Direction,
    MetricSpec,
    ModelSpec,
    RequestError,
    SlicingSpec,
    Threshold,
    ValueThreshold,
)

VALUE = {"valueThreshold": {"lowerBound": 0.5}}
CHANGE = {"changeThreshold": {"direction": "HIGHER_IS_BETTER", "absolute": -0.01}}
LABEL = {"labelKey": "label"}
CASH = {"featureValues": {"pay": "Cash"}}
CROSS = {"baselineSpec": CASH, "slicingSpecs": [{"featureKeys": ["pay"]}]}


def metric(**more):
    return {"metrics": [{"className": "AUC", **more}]}


CONFIGS = {
    "nothing at all": {},
    "no model spec": {"metricsSpecs": [metric()]},
    "one without a name": {"modelSpecs": [LABEL], "metricsSpecs": [metric()]},
    "one with a name": {"modelSpecs": [{"name": "a", **LABEL}], "metricsSpecs": [metric()]},
    "one with a name that a metric names": {
        "modelSpecs": [{"name": "a", **LABEL}],
        "metricsSpecs": [{**metric(), "modelNames": ["a"]}],
    },
    "two": {
        "modelSpecs": [{"name": "candidate", **LABEL}, {"name": "baseline", "isBaseline": True, **LABEL}],
        "metricsSpecs": [metric(), {**metric(), "modelNames": ["baseline"]}],
    },
    "two, the baseline first": {
        "modelSpecs": [{"name": "old", "isBaseline": True, **LABEL}, {"name": "new", **LABEL}],
        "metricsSpecs": [metric(), {**metric(), "modelNames": ["new"]}],
    },
    "two under other names": {
        "modelSpecs": [{"name": "a", **LABEL}, {"name": "b", "isBaseline": True, "labelKey": "other"}],
        "metricsSpecs": [{**metric(), "modelNames": ["a", "b"]}],
    },
    "only a baseline": {
        "modelSpecs": [{"name": "b", "isBaseline": True, **LABEL}],
        "metricsSpecs": [{**metric(), "modelNames": ["b"]}],
    },
    "value and change": {"modelSpecs": [LABEL], "metricsSpecs": [metric(threshold={**VALUE, **CHANGE})]},
    "only change": {"modelSpecs": [LABEL], "metricsSpecs": [metric(threshold=CHANGE)]},
    "an empty threshold": {"modelSpecs": [LABEL], "metricsSpecs": [metric(threshold={})]},
    "change by slice": {
        "modelSpecs": [LABEL],
        "slicingSpecs": [{}, CASH],
        "metricsSpecs": [
            metric(perSliceThresholds=[{"slicingSpecs": [CASH], "threshold": {**VALUE, **CHANGE}}])
        ],
    },
    "change by cross slice": {
        "modelSpecs": [LABEL],
        "slicingSpecs": [{}, {"featureKeys": ["pay"]}],
        "crossSlicingSpecs": [CROSS],
        "metricsSpecs": [
            metric(crossSliceThresholds=[{"crossSlicingSpecs": [CROSS], "threshold": {**VALUE, **CHANGE}}])
        ],
    },
    "options": {
        "modelSpecs": [{**LABEL, "exampleWeightKey": "w", "signatureName": "serving_default"}],
        "metricsSpecs": [{**metric(), "exampleWeights": {"weighted": True, "unweighted": True}}],
        "options": {"minSliceSize": 10, "includeDefaultMetrics": False},
    },
}


@pytest.fixture(scope="module")
def stock():
    from tensorflow_model_analysis.utils.config_util import update_eval_config_with_defaults

    return update_eval_config_with_defaults


@pytest.mark.parametrize("has_baseline", [True, False])
@pytest.mark.parametrize("name", CONFIGS)
def test_normalised_as_by_tfma(stock, name, has_baseline):
    config = read(json.dumps(CONFIGS[name]))
    before = config.SerializeToString(deterministic=True)
    ours = normalise(config, has_baseline=has_baseline)
    assert ours == stock(config, has_baseline=has_baseline, rubber_stamp=True)
    assert config.SerializeToString(deterministic=True) == before, "the given one is left alone"


def test_tfmas_own_lists_of_metrics_are_read(stock):
    import tensorflow_model_analysis as tfma

    made = tfma.metrics.default_binary_classification_specs()
    specs = [json_format.MessageToDict(s) for s in made]
    spec = to_spec(read(json.dumps({"modelSpecs": [LABEL], "metricsSpecs": specs})), has_baseline=False)
    assert len(spec.metrics) == sum(len(s.metrics) for s in made) > 10


def test_what_keras_writes_down_is_read():
    # keras.metrics.AUC().get_config() of Keras 3.
    config = {
        "name": "auc",
        "dtype": "float32",
        "num_thresholds": 200,
        "curve": "ROC",
        "summation_method": "interpolation",
        "multi_label": False,
        "num_labels": None,
        "label_weights": None,
        "from_logits": False,
    }
    made = metric(module="keras.metrics", config=json.dumps(config))
    assert spec_of({"modelSpecs": [LABEL], "metricsSpecs": [made]}).metrics[0].config == config
    for argument, value in (("multi_label", True), ("from_logits", True), ("dtype", "float16")):
        made = metric(config=json.dumps({**config, argument: value}))
        with pytest.raises(RequestError, match=argument):
            spec_of({"modelSpecs": [LABEL], "metricsSpecs": [made]})


def spec_of(config, has_baseline=False):
    return to_spec(read(json.dumps(config)), has_baseline=has_baseline)


FULL = {
    "modelSpecs": [
        {
            "signatureName": "serving_default",
            "labelKey": "label",
            "predictionKey": "output",
            "exampleWeightKey": "w",
        }
    ],
    "slicingSpecs": [{}, {"featureKeys": ["hour"], "featureValues": {"pay": "Cash"}}, {}],
    "metricsSpecs": [
        {
            "metrics": [
                {
                    "className": "Precision",
                    "config": '"name": "p", "thresholds": [0.3]',
                    "threshold": {**VALUE, **CHANGE},
                }
            ],
            "exampleWeights": {"unweighted": True},
        }
    ],
    "options": {"minSliceSize": 7},
}
DEMAND = Threshold(ValueThreshold(0.5, None), ChangeThreshold(Direction.HIGHER_IS_BETTER, absolute=-0.01))


def test_a_whole_config():
    spec = spec_of(FULL)
    assert spec.models == (
        ModelSpec("", "serving_default", "label", prediction_key="output", example_weight_key="w"),
    )
    assert spec.slices == (SlicingSpec(), SlicingSpec(("hour",), (("pay", "Cash"),)))
    assert spec.metrics == (
        MetricSpec(
            "Precision",
            config={"name": "p", "thresholds": [0.3]},
            model_names=("",),
            weighted=False,
            thresholds=(DEMAND,),
        ),
    )
    assert spec.min_slice_size == 7


def test_a_baseline_gets_a_copy_of_the_one_spec():
    spec = spec_of(FULL, has_baseline=True)
    assert [(m.name, m.is_baseline, m.label_key) for m in spec.models] == [
        ("candidate", False, "label"),
        ("baseline", True, "label"),
    ]
    assert spec.metrics[0].model_names == ("candidate", "baseline")
    assert spec.candidate.name == "candidate" and spec.has_baseline


def test_both_spellings_of_json_mean_the_same():
    config = read(json.dumps(FULL))
    snake = json_format.MessageToJson(config, preserving_proto_field_name=True)
    assert "slicing_specs" in snake and "slicingSpecs" not in snake
    assert to_spec(read(snake), has_baseline=False) == spec_of(FULL)
    mixed = snake.replace("lower_bound", "lowerBound").replace("model_specs", "modelSpecs")
    assert to_spec(read(mixed), has_baseline=False) == spec_of(FULL)


@pytest.mark.parametrize(
    "text",
    ['{"thresholds": 0.3}', '"thresholds": 0.3', ' \n "thresholds": 0.3 ', '{ "thresholds":0.3 }', "", " "],
)
def test_the_braces_of_a_metrics_arguments_may_be_left_out(text):
    spec = spec_of(
        {"modelSpecs": [LABEL], "metricsSpecs": [{"metrics": [{"className": "Recall", "config": text}]}]}
    )
    assert spec.metrics[0].config == ({"thresholds": 0.3} if text.strip() else {})


@pytest.mark.parametrize("size,minimum", [({}, 1), ({"minSliceSize": 0}, 1), ({"minSliceSize": 50}, 50)])
def test_the_least_slice_size_is_one(size, minimum):
    spec = spec_of({"modelSpecs": [LABEL], "metricsSpecs": [metric()], "options": size})
    assert spec.min_slice_size == minimum


def test_without_slicing_specs_there_is_the_overall_slice_alone():
    assert spec_of({"metricsSpecs": [metric()]}).slices == (SlicingSpec(),)
    assert spec_of({"slicingSpecs": [CASH], "metricsSpecs": [metric()]}).slices == (
        SlicingSpec((), (("pay", "Cash"),)),
    )


@pytest.mark.parametrize(
    "given,flags",
    [
        (None, [None]),
        ({}, [None]),
        ({"weighted": True}, [True]),
        ({"unweighted": True}, [False]),
        ({"weighted": True, "unweighted": True}, [True, False]),
    ],
)
def test_weighted_and_unweighted(given, flags):
    specs = {**metric(), **({} if given is None else {"exampleWeights": given})}
    models = [{**LABEL, "exampleWeightKey": "w"}]
    spec = spec_of({"modelSpecs": models, "metricsSpecs": [specs]})
    assert [m.weighted for m in spec.metrics] == flags


def test_change_thresholds_stay_so_that_the_gate_can_say_what_it_left_out():
    spec = spec_of({"modelSpecs": [LABEL], "metricsSpecs": [metric(threshold=CHANGE)]})
    assert [t.change is not None for t in spec.metrics[0].thresholds] == [True]


def test_an_empty_threshold_is_none():
    assert (
        spec_of({"modelSpecs": [LABEL], "metricsSpecs": [metric(threshold={})]}).metrics[0].thresholds == ()
    )


def test_cross_slices():
    wanted = CrossSlicingSpec(SlicingSpec((), (("pay", "Cash"),)), (SlicingSpec(("pay",)),))
    spec = spec_of(CONFIGS["change by cross slice"])
    assert spec.cross_slices == (wanted,)
    assert spec.metrics[0].thresholds[0].cross_slicing_specs == (wanted,)


@pytest.mark.parametrize(
    "made,wanted,valid",
    [
        ({"featureKeys": ["pay"]}, CASH, True),
        (CASH, {"featureKeys": ["pay"]}, True),
        ({"featureValues": {"hour": "1"}}, {"featureValues": {"hour": "1.0"}}, True),
        ({}, CASH, False),
        ({"featureKeys": ["hour"]}, CASH, False),
        ({"featureValues": {"pay": "Card"}}, CASH, False),
        ({"featureKeys": ["pay", "hour"]}, CASH, False),
    ],
)
def test_a_slice_threshold_needs_a_slice(made, wanted, valid):
    per_slice = [{"slicingSpecs": [wanted], "threshold": VALUE}]
    config = {
        "modelSpecs": [LABEL],
        "slicingSpecs": [made],
        "metricsSpecs": [metric(perSliceThresholds=per_slice)],
    }
    if valid:
        assert spec_of(config)
    else:
        with pytest.raises(RequestError, match="slicing_specs do not make"):
            spec_of(config)


def test_the_same_metric_twice_is_one_with_the_demands_of_both():
    specs = [metric(threshold=VALUE), metric(threshold={"valueThreshold": {"upperBound": 0.9}}), metric()]
    spec = spec_of({"modelSpecs": [LABEL], "metricsSpecs": specs})
    question = ask(spec, spec.models)
    assert len(question.bound) == 1
    assert [c.threshold.value for c in question.checks] == [ValueThreshold(0.5), ValueThreshold(None, 0.9)]
