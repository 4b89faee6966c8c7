"""gate: every rule with its mirror image: what must be refused, and the nearest thing that must not.

The last tests run the stock validator on the same numbers, where we differ from it on purpose.
"""

from __future__ import annotations

import json
import math

import pytest

from assay.gate import NO_EXAMPLES, NO_THRESHOLDS, Check, Evidence, judge
from assay.report import Report, to_json
from assay.request import Policy
from assay.spec import (
    BASELINE,
    CANDIDATE,
    ChangeThreshold,
    CrossSlicingSpec,
    Direction,
    MetricKey,
    SlicingSpec,
    Threshold,
    ValueThreshold,
)
from assay.values import CrossSliceValues, SliceValues, Undefined

AUC = MetricKey("auc")
PAIRED = MetricKey("auc", CANDIDATE)
HIGHER, LOWER = Direction.HIGHER_IS_BETTER, Direction.LOWER_IS_BETTER
OVERALL, CASH, CARD, TINY = (), (("pay", b"Cash"),), (("pay", b"Card"),), (("pay", b"Tiny"),)
BY_PAY = SlicingSpec(("pay",))
ONLY_CASH = SlicingSpec((), (("pay", "Cash"),))
CASH_TO_CARD = CrossSlicingSpec(ONLY_CASH, (SlicingSpec((), (("pay", "Card"),)),))


def at_least(bound, **more):
    return Check(AUC, Threshold(ValueThreshold(bound), **more))


def slices(**values):
    """One slice a keyword, 100 rows each, with one value of `auc`."""
    keys = {"overall": OVERALL, "cash": CASH, "card": CARD, "tiny": TINY}
    return [SliceValues(keys[name], 100, 100.0, {AUC: value}, {}) for name, value in values.items()]


def verdict(found, *checks, policy=None, **more):
    return judge(Evidence(found, **more), checks, policy or Policy())


def paired(candidate, baseline, threshold, policy=None, **more):
    """The verdict on one slice of a candidate and its baseline."""
    values = {PAIRED: candidate, PAIRED.of(BASELINE): baseline}
    values[PAIRED.diff()] = (
        candidate if isinstance(candidate, Undefined)
        else Undefined("baseline: none") if isinstance(baseline, Undefined)
        else candidate - baseline
    )  # fmt: skip
    found = [SliceValues(OVERALL, 100, 100.0, values, {})]
    return verdict(found, Check(PAIRED, threshold), policy=policy, baseline_name=BASELINE, **more)


def change(direction=HIGHER, **bounds):
    return Threshold(change=ChangeThreshold(direction, **bounds))


@pytest.mark.parametrize(
    "value,low,high,blessed",
    [
        (0.7, 0.7, None, True),  # bounds are inclusive
        (0.7, None, 0.7, True),
        (0.7, 0.7, 0.7, True),
        (math.nextafter(0.7, 0), 0.7, None, False),
        (math.nextafter(0.7, 1), None, 0.7, False),
        (0.5, 0.4, 0.6, True),
        (-1.0, -2.0, -0.5, True),
        (0.0, 0.0, 0.0, True),
        (0.3, 0.4, 0.6, False),
        (0.7, 0.4, 0.6, False),
        (math.nan, 0.4, None, False),
        (math.nan, None, 0.6, False),
        (math.inf, 0.4, None, False),
        (-math.inf, None, 0.6, False),
        (Undefined("no positive example"), -9.0, None, False),
    ],
)
def test_value_bounds(value, low, high, blessed):
    found = verdict(slices(overall=value), Check(AUC, Threshold(ValueThreshold(low, high))))
    assert found.blessed is blessed
    assert [f.ok for f in found.findings] == [blessed]
    assert len(found.reasons) == (0 if blessed else 1)


@pytest.mark.parametrize(
    "value,reason",
    [
        (Undefined("no positive example"), "undefined: no positive example"),
        (math.nan, "undefined: the metric is nan"),
        (0.5, "below the bound"),
    ],
)
def test_a_failure_says_metric_slice_value_bound_and_why(value, reason):
    (finding,) = verdict(slices(overall=value), at_least(0.6)).findings
    shown = "0.5" if value == 0.5 else "undefined"
    assert finding.sentence == f"auc on Overall: {shown}, asked >= 0.6 ({reason})"
    assert finding.observed == (0.5 if value == 0.5 else None)


def test_a_failure_that_rounds_to_the_bound_shows_all_its_digits():
    (reason,) = verdict(slices(overall=0.8499999), at_least(0.85)).reasons
    assert reason == "auc on Overall: 0.8499999, asked >= 0.85 (below the bound)"
    (reason,) = verdict(slices(overall=1.0), at_least(1.0000001)).reasons
    assert reason == "auc on Overall: 1, asked >= 1.0000001 (below the bound)"


def test_a_metric_that_was_not_computed_fails():
    other = [SliceValues(OVERALL, 100, 100.0, {MetricKey("recall"): 1.0}, {})]
    (reason,) = verdict(other, at_least(0.0)).reasons
    assert "auc on Overall: undefined" in reason and "not computed on this slice" in reason


def test_metrics_without_a_threshold_are_ignored():
    values = {AUC: 0.9, MetricKey("recall"): Undefined("no example is positive")}
    assert verdict([SliceValues(OVERALL, 9, 9.0, values, {})], at_least(0.5)).blessed


def test_no_thresholds():
    found = verdict(slices(overall=1.0))
    assert (found.blessed, found.reasons, found.missing_thresholds) == (False, (NO_THRESHOLDS,), True)
    found = verdict(slices(overall=1.0), at_least(0.0))
    assert (found.blessed, found.reasons, found.missing_thresholds) == (True, (), False)


@pytest.mark.parametrize("checks", [(), (at_least(0.0),)])
def test_no_examples(checks):
    for empty in ([], [SliceValues(OVERALL, 0, 0.0, {AUC: 0.9}, {})]):
        found = verdict(empty, *checks)
        assert not found.blessed and NO_EXAMPLES in found.reasons


def test_one_reason_for_each_failure():
    # Case 72: two bounds missed and one slice that is not there.
    checks = [
        Check(AUC, Threshold(ValueThreshold(0.8, 0.9))),
        at_least(0.65, slicing_specs=(ONLY_CASH,)),
        at_least(0.1, slicing_specs=(SlicingSpec((), (("pay", "Cheque"),)),)),
    ]
    found = verdict(slices(overall=0.85, cash=0.6), *checks)
    assert found.reasons == (
        "auc on pay=Cash: 0.6, asked >= 0.8 and <= 0.9 (below the bound)",
        "auc on pay=Cash: 0.6, asked >= 0.65 (below the bound)",
        "auc on pay=Cheque: undefined, asked >= 0.1 (no row falls into such a slice)",
    )
    assert [f.ok for f in found.findings] == [True, False, False, False]
    assert len(found.failures) == 3


def test_a_slice_that_two_specs_match_is_told_once():
    # Case: the same threshold on several matching specs.
    both = at_least(0.8, slicing_specs=(BY_PAY, ONLY_CASH))
    found = verdict(slices(overall=0.9, cash=0.7), both)
    assert len(found.reasons) == 1
    assert len(json.loads(to_json(Report([]), found))["verdict"]["findings"]) == 1
    assert verdict(slices(overall=0.9, cash=0.8), both).blessed


# ── slices ────────────────────────────────────────────────────────────────────────────────────


def test_a_threshold_without_slices_is_on_every_slice():
    good = slices(overall=0.9, cash=0.8, card=0.8)
    assert verdict(good, at_least(0.8)).blessed
    assert len(verdict(good, at_least(0.8)).findings) == 3
    assert not verdict(slices(overall=0.9, cash=0.8, card=0.7), at_least(0.8)).blessed


def test_a_threshold_on_a_slice_leaves_the_others_alone():
    on_cash = at_least(0.8, slicing_specs=(ONLY_CASH,))
    assert verdict(slices(overall=0.1, cash=0.8, card=0.1), on_cash).blessed
    assert not verdict(slices(overall=0.9, cash=0.7, card=0.9), on_cash).blessed
    on_each = at_least(0.8, slicing_specs=(BY_PAY,))
    assert verdict(slices(overall=0.1, cash=0.8, card=0.8), on_each).blessed
    assert not verdict(slices(overall=0.9, cash=0.8, card=0.7), on_each).blessed


@pytest.mark.parametrize("overall,blessed", [(0.9, True), (0.7, False)])
def test_a_threshold_on_the_overall_slice_alone(overall, blessed):
    on_overall = at_least(0.8, slicing_specs=(SlicingSpec(),))
    assert verdict(slices(overall=overall, cash=0.1), on_overall).blessed is blessed


def test_without_the_overall_slice_an_unsliced_threshold_fails():
    # Case 30.
    found = verdict(slices(cash=0.9), at_least(0.5))
    assert not found.blessed
    assert found.reasons == (
        "auc on Overall: undefined, asked >= 0.5 (the overall slice is not evaluated; add {} to "
        "slicing_specs)",
    )
    assert found.failures[0].spec == SlicingSpec() and found.failures[0].slice_key is None
    assert verdict(slices(overall=0.9, cash=0.9), at_least(0.5)).blessed
    assert verdict(slices(cash=0.9), at_least(0.5, slicing_specs=(BY_PAY,))).blessed


@pytest.mark.parametrize("kind", [int, float, bytes])
def test_a_fixed_value_matches_by_value_whatever_its_type(kind):
    value = {int: 5, float: 5.0, bytes: b"5"}[kind]
    found = [SliceValues((("hour", value),), 10, 10.0, {AUC: 0.9}, {})]
    on_five = at_least(0.8, slicing_specs=(SlicingSpec((), (("hour", "5"),)),))
    on_six = at_least(0.8, slicing_specs=(SlicingSpec((), (("hour", "6"),)),))
    assert verdict(found, on_five).blessed
    assert not verdict(found, on_six).blessed


def test_a_hidden_slice_is_skipped_by_an_unsliced_threshold_and_said():
    found = verdict(slices(overall=0.9, cash=0.9), at_least(0.8), hidden=[(TINY, 3)], min_slice_size=10)
    assert found.blessed
    assert found.notes == ("hidden by min_slice_size 10: pay=Tiny (3 rows)",)


@pytest.mark.parametrize("spec", [BY_PAY, SlicingSpec((), (("pay", "Tiny"),))])
def test_a_hidden_slice_fails_a_threshold_of_its_own(spec):
    check = at_least(0.8, slicing_specs=(spec,))
    found = verdict(slices(overall=0.9, cash=0.9), check, hidden=[(TINY, 3)], min_slice_size=10)
    (failure,) = found.failures
    assert failure.slice_key == TINY
    assert "the slice has 3 rows and is hidden by min_slice_size 10" in found.reasons[0]
    assert verdict(slices(overall=0.9, cash=0.9, tiny=0.9), check, min_slice_size=10).blessed


def test_with_every_slice_hidden_nothing_is_blessed():
    found = verdict([], at_least(0.0), hidden=[(OVERALL, 3), (CASH, 3)], min_slice_size=10)
    assert not found.blessed
    (reason,) = found.reasons
    assert "auc on Overall" in reason and "3 rows and is hidden by min_slice_size 10" in reason


@pytest.mark.parametrize("how_many,told", [(5, "Z4 (1 rows)"), (6, "and 1 more")])
def test_many_hidden_slices_are_counted(how_many, told):
    hidden = [((("pay", b"Z%d" % n),), 1) for n in range(how_many)]
    (note,) = verdict(slices(overall=1.0), at_least(0.5), hidden=hidden).notes
    assert note.endswith(told)


# ── cross slices ──────────────────────────────────────────────────────────────────────────────


def crossed(value, bound, key=AUC, **more):
    pair = CrossSliceValues(CASH, CARD, {key: value} if value is not None else {})
    check = Check(key, Threshold(bound, cross_slicing_specs=(CASH_TO_CARD,)))
    return verdict(slices(overall=0.1), check, cross_specs={CASH_TO_CARD: [pair]}, **more)


@pytest.mark.parametrize(
    "value,blessed", [(0.02, True), (-0.05, True), (0.05, True), (0.06, False), (None, False)]
)
def test_a_cross_slice_threshold_is_checked(value, blessed):
    found = crossed(value, ValueThreshold(-0.05, 0.05))
    assert found.blessed is blessed
    assert found.findings[0].place == "pay=Cash minus pay=Card"
    assert found.findings[0].slice_key == (CASH, CARD)


def test_an_undefined_cross_slice_value_fails():
    found = crossed(Undefined("comparison slice: no positive example"), ValueThreshold(-1.0, 1.0))
    assert not found.blessed and "comparison slice: no positive example" in found.reasons[0]


def test_a_cross_slice_threshold_that_no_pair_meets_fails():
    check = Check(AUC, Threshold(ValueThreshold(-1.0), cross_slicing_specs=(CASH_TO_CARD,)))
    found = verdict(slices(overall=0.9), check, cross_specs={CASH_TO_CARD: []})
    assert not found.blessed and "no pair of slices matches" in found.reasons[0]


def test_an_unsliced_threshold_is_not_on_cross_slices():
    pair = CrossSliceValues(CASH, CARD, {AUC: -0.4})
    assert verdict(
        slices(overall=0.9, cash=0.9, card=0.9), at_least(0.8), cross_specs={CASH_TO_CARD: [pair]}
    ).blessed


# ── change ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "candidate,baseline,direction,bounds,blessed",
    [
        (0.75, 0.5, HIGHER, {"absolute": 0.25}, True),  # inclusive
        (0.75, 0.5, HIGHER, {"absolute": 0.26}, False),
        (0.5, 0.75, HIGHER, {"absolute": -0.25}, True),
        (0.5, 0.75, HIGHER, {"absolute": -0.24}, False),
        (0.5, 0.75, LOWER, {"absolute": -0.25}, True),
        (0.5, 0.75, LOWER, {"absolute": -0.26}, False),
        (0.75, 0.5, LOWER, {"absolute": 0.25}, True),
        (0.75, 0.5, LOWER, {"absolute": 0.24}, False),
        (0.75, 0.5, HIGHER, {"relative": 0.5}, True),
        (0.75, 0.5, HIGHER, {"relative": 0.51}, False),
        (0.375, 0.5, LOWER, {"relative": -0.25}, True),
        (0.375, 0.5, LOWER, {"relative": -0.26}, False),
        # A negative baseline: the sign is that of the change, not of the quotient.
        (-0.5, -1.0, HIGHER, {"relative": 0.5}, True),
        (-0.5, -1.0, HIGHER, {"relative": 0.51}, False),
        (-1.5, -1.0, HIGHER, {"relative": 0.1}, False),
        (-1.5, -1.0, LOWER, {"relative": -0.5}, True),
        (-1.5, -1.0, LOWER, {"relative": -0.51}, False),
        (-0.5, -1.0, LOWER, {"relative": -0.1}, False),
        # Both must hold.
        (0.75, 0.5, HIGHER, {"absolute": 0.25, "relative": 0.5}, True),
        (0.75, 0.5, HIGHER, {"absolute": 0.26, "relative": 0.5}, False),
        (0.75, 0.5, HIGHER, {"absolute": 0.25, "relative": 0.51}, False),
        (0.375, 0.5, LOWER, {"absolute": -0.125, "relative": -0.25}, True),
        (0.375, 0.5, LOWER, {"absolute": -0.13, "relative": -0.25}, False),
        (0.375, 0.5, LOWER, {"absolute": -0.125, "relative": -0.26}, False),
        # Against nothing.
        (0.5, 0.0, HIGHER, {"relative": -9.0}, False),
        (-0.5, 0.0, LOWER, {"relative": 9.0}, False),
        (0.5, -0.0, HIGHER, {"relative": -9.0}, False),
        (0.5, 0.0, HIGHER, {"absolute": 0.5}, True),
        (0.5, 5e-324, HIGHER, {"relative": 1.0}, True),
        # No number.
        (math.nan, 0.5, HIGHER, {"absolute": -9.0}, False),
        (0.5, math.nan, HIGHER, {"absolute": -9.0}, False),
        (math.nan, 0.5, LOWER, {"relative": 9.0}, False),
        (0.5, math.nan, LOWER, {"relative": 9.0}, False),
        (math.inf, 0.5, HIGHER, {"relative": 0.0}, False),
        (Undefined("one class"), 0.5, HIGHER, {"absolute": -9.0}, False),
        (0.5, Undefined("one class"), HIGHER, {"absolute": -9.0}, False),
    ],
)
def test_change_bounds(candidate, baseline, direction, bounds, blessed):
    found = paired(candidate, baseline, change(direction, **bounds))
    assert found.blessed is blessed
    assert len(found.findings) == 1 and len(found.reasons) == (not blessed)
    assert found.rubber_stamp is False


def test_a_relative_change_against_zero_says_so():
    assert "(baseline is zero)" in paired(0.5, 0.0, change(relative=0.0)).reasons[0]


def test_a_failed_change_shows_both_models_and_the_change():
    (finding,) = paired(0.5, 0.75, change(absolute=-0.1)).findings
    assert (finding.candidate, finding.baseline, finding.observed) == (0.5, 0.75, -0.25)
    assert finding.sentence == (
        "change of auc on Overall: -0.25, asked change >= -0.1; baseline 0.75 "
        "(the absolute change is on the wrong side of the bound)"
    )
    (finding,) = paired(0.5, 0.625, change(relative=-0.1)).findings
    assert "asked relative change >= -0.1; baseline 0.625 (the relative change, -0.2, " in finding.sentence


def test_a_change_that_was_not_computed_fails():
    found = [SliceValues(OVERALL, 9, 9.0, {PAIRED: 0.9}, {})]
    done = verdict(found, Check(PAIRED, change(absolute=-9.0)), baseline_name=BASELINE)
    assert not done.blessed and "the change was not computed on this slice" in done.reasons[0]


@pytest.mark.parametrize(
    "candidate,blessed,failed", [(0.8, True, 0), (0.7, False, 1), (0.6, False, 2), (0.65, False, 2)]
)
def test_value_and_change_of_one_threshold_are_two_demands(candidate, blessed, failed):
    both = Threshold(ValueThreshold(0.7), ChangeThreshold(HIGHER, absolute=-0.05))
    found = paired(candidate, 0.8, both)
    assert found.blessed is blessed
    assert (len(found.findings), len(found.reasons)) == (2, failed)


@pytest.mark.parametrize("overall,cash,blessed", [(0.0, 0.0, True), (0.1, -0.1, False)])
def test_a_change_threshold_is_on_every_slice(overall, cash, blessed):
    def found(key, diff):
        values = {PAIRED: 0.5 + diff, PAIRED.of(BASELINE): 0.5, PAIRED.diff(): diff}
        return SliceValues(key, 10, 10.0, values, {})

    both = [found(OVERALL, overall), found(CASH, cash)]
    check = Check(PAIRED, change(absolute=0.0))
    assert verdict(both, check, baseline_name=BASELINE).blessed is blessed


# ── the baseline that is not there, or cannot be run ──────────────────────────────────────────

BOTH = Threshold(ValueThreshold(0.7), ChangeThreshold(HIGHER, absolute=0.0))


@pytest.mark.parametrize("value,blessed", [(0.7, True), (0.6, False)])
@pytest.mark.parametrize("first_model", ["refuse", "bless"])
def test_without_a_baseline_the_value_decides(value, blessed, first_model):
    # Case 28 (a).
    found = verdict(slices(overall=value), Check(AUC, BOTH), policy=Policy(first_model=first_model))
    assert (found.blessed, found.rubber_stamp, found.missing_thresholds) == (blessed, True, False)
    assert [f.is_change for f in found.findings] == [False]
    assert found.notes == ("1 change threshold(s) not checked: there is no baseline to compare with",)


def test_only_change_thresholds_and_no_baseline():
    # Case 28 (b).
    only = Check(AUC, change(absolute=0.0))
    refused = verdict(slices(overall=0.9), only)
    assert (refused.blessed, refused.missing_thresholds, refused.rubber_stamp) == (False, True, True)
    assert refused.reasons == (
        'only change thresholds, and no baseline; policy first_model="bless" blesses a first model',
    )
    blessed = verdict(slices(overall=0.9), only, policy=Policy(first_model="bless"))
    assert (blessed.blessed, blessed.reasons, blessed.rubber_stamp) == (True, (), True)


def test_blessing_a_first_model_is_no_pass_for_anything_else():
    policy = Policy(first_model="bless")
    only = Check(AUC, change(absolute=0.0))
    assert not verdict([], only, policy=policy).blessed
    assert not verdict(slices(overall=0.9), policy=policy).blessed
    assert not verdict(slices(overall=0.9), only, at_least(0.95), policy=policy).blessed
    assert paired(0.9, 0.8, change(absolute=0.0), policy).blessed
    assert not paired(0.7, 0.8, change(absolute=0.0), policy).blessed


@pytest.mark.parametrize(
    "policy,value,blessed",
    [("fail", 0.9, False), ("fail", 0.1, False), ("ignore", 0.9, True), ("ignore", 0.1, False)],
)
def test_a_stale_baseline(policy, value, blessed):
    # Case 70.
    found = verdict(
        slices(overall=value),
        Check(AUC, BOTH),
        policy=Policy(stale_baseline=policy),
        stale_baseline="it has no signature 'x'",
    )
    assert found.blessed is blessed
    told = "the baseline could not be evaluated: it has no signature 'x'"
    assert told in (found.reasons if policy == "fail" else found.notes)
    assert [f.is_change for f in found.findings] == [False]


@pytest.mark.parametrize("first_model,blessed", [("refuse", False), ("bless", True)])
def test_an_ignored_stale_baseline_is_a_missing_one(first_model, blessed):
    policy = Policy(stale_baseline="ignore", first_model=first_model)
    only = Check(AUC, change(absolute=0.0))
    assert verdict(slices(overall=0.9), only, policy=policy, stale_baseline="gone").blessed is blessed
    strict = Policy(stale_baseline="fail", first_model=first_model)
    assert not verdict(slices(overall=0.9), only, policy=strict, stale_baseline="gone").blessed


# ── what stock does with the same numbers ─────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def stock():
    """Returns a function: slice key, values by (model name, is_diff), MetricConfig → stock's verdict."""
    from google.protobuf import json_format
    from tensorflow_model_analysis.evaluators import metrics_validator
    from tensorflow_model_analysis.metrics import metric_types
    from tensorflow_model_analysis.proto import config_pb2

    def validate(key, values, metric, models=("",), slicing=({},)):
        config = {
            "modelSpecs": [{"name": m, "isBaseline": m == BASELINE} for m in models],
            "slicingSpecs": list(slicing),
            "metricsSpecs": [{"metrics": [{"className": "AUC", **metric}], "modelNames": list(models)}],
        }
        message = json_format.ParseDict(config, config_pb2.EvalConfig())
        found = {
            metric_types.MetricKey("auc", model, is_diff=diff, example_weighted=False): value
            for (model, diff), value in values.items()
        }
        result = metrics_validator.validate_metrics((key, found), message)
        missing = metrics_validator.get_missing_slices(result.validation_details.slicing_details, message)
        return result, missing

    return validate


def both(candidate, baseline):
    return {
        (CANDIDATE, False): candidate,
        (BASELINE, False): baseline,
        (CANDIDATE, True): candidate - baseline,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "candidate,baseline,ours,theirs",
    [(0.75, 0.5, True, True), (-0.5, -1.0, True, False), (-1.5, -1.0, False, True), (0.5, 0.0, False, False)],
)
def test_stock_flips_the_sign_of_a_relative_change_below_zero(stock, candidate, baseline, ours, theirs):
    threshold = {"changeThreshold": {"direction": "HIGHER_IS_BETTER", "relative": 0.1}}
    result, _ = stock((), both(candidate, baseline), {"threshold": threshold}, (CANDIDATE, BASELINE))
    assert result.validation_ok is theirs
    assert paired(candidate, baseline, change(relative=0.1)).blessed is ours


@pytest.mark.slow
@pytest.mark.parametrize("value,ours", [(0.02, True), (0.06, False)])
def test_stock_passes_no_cross_slice_threshold(stock, value, ours):
    spec = {
        "baselineSpec": {"featureValues": {"pay": "Cash"}},
        "slicingSpecs": [{"featureValues": {"pay": "Card"}}],
    }
    threshold = {"valueThreshold": {"lowerBound": -0.05, "upperBound": 0.05}}
    result, missing = stock(
        ((("pay", "Cash"),), (("pay", "Card"),)),
        {("", False): value},
        {"crossSliceThresholds": [{"crossSlicingSpecs": [spec], "threshold": threshold}]},
    )
    assert result.validation_ok is ours and missing, "checked, and then reported missing all the same"
    assert crossed(value, ValueThreshold(-0.05, 0.05)).blessed is ours


@pytest.mark.slow
def test_stock_fails_a_hidden_slice(stock):
    # To its validator a slice below min_slice_size is one whose metrics are gone.
    result, _ = stock((("pay", "Tiny"),), {}, {"threshold": {"valueThreshold": {"lowerBound": 0.8}}})
    assert not result.validation_ok
    assert result.metric_validations_per_slice[0].failures[0].message == "Metric not found."
    assert verdict(slices(overall=0.9), at_least(0.8), hidden=[(TINY, 3)], min_slice_size=10).blessed


@pytest.mark.slow
@pytest.mark.parametrize("value", [0.8, 0.79, math.nan])
@pytest.mark.parametrize("bound", [{"lowerBound": 0.8}, {"upperBound": 0.79}])
def test_stock_agrees_on_value_bounds(stock, value, bound):
    result, _ = stock((), {("", False): value}, {"threshold": {"valueThreshold": bound}})
    ours = Threshold(ValueThreshold(bound.get("lowerBound"), bound.get("upperBound")))
    assert verdict(slices(overall=value), Check(AUC, ours)).blessed is result.validation_ok
