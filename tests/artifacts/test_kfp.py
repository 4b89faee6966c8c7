"""What Kubeflow shows: flat finite numbers, a curve of a few hundred points, a confusion matrix."""

import json
import math

import made
import numpy as np
import pytest
from sklearn import metrics as sk

from assay import curves, gate
from assay.artifacts import kfp
from assay.finalize import with_diffs
from assay.report import Report
from assay.spec import MetricKey
from assay.values import ConfusionMatrices, SliceValues, Undefined

BLESSED = gate.Verdict(True, (), (), ())


def report(values, baseline="", **more) -> Report:
    named = {MetricKey(name, model): v for (name, model), v in values.items()}
    overall = SliceValues((), 30, 30.0, with_diffs(named, baseline), {}, more.pop("shown", {}))
    return Report([overall, *more.pop("others", ())], rows=30, baseline_name=baseline, **more)


def scored(labels, scores) -> ConfusionMatrices:
    """Confusion matrices of rows at or above each of 1/16 steps, counted one by one."""
    y, s = np.asarray(labels), np.asarray(scores)
    thresholds = np.append(np.arange(17) / 16, 1.0)
    cut = [*(s >= t for t in thresholds[:-1]), np.zeros(len(s), bool)]
    return ConfusionMatrices(
        thresholds,
        *(
            np.array([float(np.sum((y == a) & (c == b))) for c in cut])
            for a, b in ((1, 1), (0, 0), (0, 1), (1, 0))
        ),
    )


def test_metrics_are_the_overall_numbers_and_the_verdict():
    found = kfp.metrics(report({("auc", ""): 0.875, ("accuracy", ""): 0.5}), BLESSED)
    assert found == {"rows": 30, "blessed": 1, "auc": 0.875, "accuracy": 0.5}
    lost = gate.Verdict(False, (), (), ("auc is too low",))
    assert kfp.metrics(report({}), lost) == {"rows": 30, "blessed": 0}


def test_a_baseline_and_the_change_stand_beside_the_candidate():
    found = kfp.metrics(report({("auc", "new"): 0.875, ("auc", "old"): 0.75}, baseline="old"), BLESSED)
    assert found == {"rows": 30, "blessed": 1, "auc": 0.875, "auc_baseline": 0.75, "auc_diff": 0.125}


def test_an_undefined_metric_is_left_out_and_the_others_stay():
    found = kfp.metrics(report({("precision", ""): Undefined("0/0"), ("accuracy", ""): 0.85}), BLESSED)
    assert found == {"rows": 30, "blessed": 1, "accuracy": 0.85}


def test_names_are_plain_short_unique_and_nobody_elses():
    awkward = {
        ("my metric", ""): 1.0,
        ("my/metric", ""): 2.0,
        ("display_name", ""): 3.0,
        ("store_session_info", ""): 4.0,
        ("Ω", ""): 5.0,
        ("x" * 300, ""): 6.0,
        ("x" * 301, ""): 7.0,
        ("rows", ""): 8.0,
    }
    found = kfp.metrics(report(awkward), BLESSED)
    assert [found[n] for n in ("my_metric", "my_metric_2", "display_name_2", "store_session_info_2")] == [
        1,
        2,
        3,
        4,
    ]
    assert found["metric"] == 5.0 and found["rows"] == 30 and found["rows_2"] == 8.0
    assert found["x" * 100] == 6.0 and found["x" * 98 + "_2"] == 7.0
    assert all(len(name) <= 100 and name.replace("_", "a").isalnum() for name in found)


def test_a_thousand_metrics_are_cut_to_what_people_read():
    assert len(kfp.metrics(report({(f"m{i}", ""): float(i) for i in range(1000)}), BLESSED)) == kfp.SCALARS


def test_the_curve_of_four_examples_is_finite_and_ends_at_both_corners():
    """kubeflow/pipelines#10208: a first threshold of infinity is no JSON."""
    labels, scores = [0, 0, 1, 1], [0.125, 0.375, 0.3125, 0.75]
    curve = scored(labels, scores)
    found = kfp.classification_metrics(report({}, shown={"curve": curve}))["confidenceMetrics"]
    fall_out, recall, _ = sk.roc_curve(labels, scores, drop_intermediate=False)
    points = [(p["falsePositiveRate"], p["recall"]) for p in found]
    assert list(dict.fromkeys(points)) == list(zip(fall_out, recall, strict=True))
    assert (points[0], points[-1]) == ((0.0, 0.0), (1.0, 1.0))
    thresholds = [p["confidenceThreshold"] for p in found]
    assert thresholds == sorted(thresholds, reverse=True)
    assert all(math.isfinite(v) for p in found for v in p.values())
    json.dumps(found, allow_nan=False)


def test_the_confusion_matrix_has_a_row_for_each_true_class():
    labels, scores = [0, 0, 0, 1, 1, 1], [0.2, 0.6, 0.7, 0.1, 0.9, 0.8]
    y, up = np.asarray(labels), np.asarray(scores) > 0.5
    tn, fp, fn, tp = sk.confusion_matrix(y, up).ravel()
    matrix = ConfusionMatrices(*(np.array([float(v)]) for v in (0.5, tp, tn, fp, fn)))
    found = kfp.classification_metrics(report({}, shown={"matrix": matrix}))
    assert found == {
        "confusionMatrix": {
            "annotationSpecs": [{"displayName": "negative"}, {"displayName": "positive"}],
            "rows": [{"row": list(map(float, row))} for row in sk.confusion_matrix(y, up)],
        }
    }
    assert found["confusionMatrix"]["rows"] == [{"row": [1.0, 2.0]}, {"row": [1.0, 2.0]}]


@pytest.mark.parametrize(
    "shown", [{}, {"curve": Undefined("no positive example"), "matrix": Undefined("no")}]
)
def test_without_a_binary_classifier_or_with_one_class_there_is_nothing(shown):
    assert kfp.classification_metrics(report({}, shown=shown)) == {}


def test_without_an_overall_slice_there_are_only_rows_and_verdict():
    """slicing_specs that leave the overall slice out leave out its numbers, too."""
    part = SliceValues((("a", 1),), 30, 30.0, {MetricKey("auc"): 0.5}, {})
    only = Report([part], rows=30)
    assert kfp.metrics(only, BLESSED) == {"rows": 30, "blessed": 1}
    assert kfp.classification_metrics(only) == {}


def test_a_million_scores_come_to_a_few_hundred_points_and_less_than_a_megabyte():
    """kubeflow/pipelines#11949: the metadata service takes four megabytes."""
    steps = 1_000_000
    down = np.arange(steps, -1, -1, dtype=float)
    tp, fp = np.sqrt(down * steps), down
    curve = ConfusionMatrices(np.arange(steps + 1) / steps, tp, steps - fp, fp, steps - tp)
    thin = kfp.classification_metrics(report({}, shown={"curve": curve}))["confidenceMetrics"]
    assert 200 <= len(thin) <= 300
    assert len(json.dumps(thin)) < 1_000_000
    # The area under the thinned curve is that of the whole one: 2/3 for recall = sqrt(fall-out).
    area = sk.auc([p["falsePositiveRate"] for p in thin], [p["recall"] for p in thin])
    assert area == pytest.approx(2 / 3, abs=1e-4)
    gaps = np.abs(np.diff([[p["falsePositiveRate"], p["recall"]] for p in thin], axis=0)).sum(axis=1)
    assert gaps.max() <= 2 / 199 + 2e-3


def test_the_file_holds_every_slice_and_every_point():
    """kubeflow/pipelines#8117, #10250: the SDK's sliced metrics cannot be used; here they are a file."""
    matrix = ConfusionMatrices(*(np.array([v]) for v in (0.5, 1.0, 1.0, 1.0, 1.0)))
    curve = scored([0, 0, 1, 1], [0.125, 0.375, 0.3125, 0.75])
    others = [
        SliceValues((("country", b"a"),), 2, 2.0, {}, {}, {"matrix": matrix, "curve": curves.thin(curve)}),
        SliceValues((("country", b"b"),), 2, 2.0, {}, {}, {"matrix": Undefined("no positive example")}),
    ]
    whole = report({}, shown={"matrix": matrix, "curve": curve}, others=others)
    record = json.loads(kfp.classification_file(whole, BLESSED))
    assert record["metadata"] == kfp.classification_metrics(whole)
    assert [s["key"] for s in record["slices"]] == [[], [["country", "a"]]]
    assert len(record["slices"][0]["confidenceMetrics"]) == 18
    assert record["slices"][1]["confusionMatrix"]["rows"] == [{"row": [1.0, 1.0]}, {"row": [1.0, 1.0]}]


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 2, 400)
    scores = np.round(np.clip(rng.normal(0.35 + 0.3 * labels, 0.2), 0, 1) * 64) / 64
    return [
        {"label": float(y), "score": float(s), "w": float(w), "country": c}
        for y, s, w, c in zip(
            labels, scores, rng.integers(0, 4, 400), rng.choice(["a", "b"], 400), strict=True
        )
    ]


def weighted(rows):
    return (np.array([r[n] for r in rows]) for n in ("label", "score", "w"))


def test_an_evaluation_shows_what_scikit_learn_finds(tmp_path, rows):
    outcome = made.evaluate(
        made.examples(tmp_path / "x", rows, files=2),
        made.model(tmp_path / "m"),
        made.config(
            "AUC",
            slices=[{}, {"featureKeys": ["country"]}],
            models=[{"labelKey": "label", "exampleWeightKey": "w"}],
        ),
        shown=(tmp_path / "shown", "classification"),
    )
    shown = kfp.classification_metrics(outcome.report)
    y, s, w = weighted(rows)
    fall_out, recall, _ = sk.roc_curve(y, s, sample_weight=w, drop_intermediate=False)
    points = dict.fromkeys((p["falsePositiveRate"], p["recall"]) for p in shown["confidenceMetrics"])
    whole = np.array(list(zip(fall_out, recall, strict=True)))
    # 65 distinct scores: fewer than the points kept, so every corner of the curve is there.
    np.testing.assert_allclose(np.array(list(points)), np.unique(whole, axis=0), atol=1e-12)
    matrix = [r["row"] for r in shown["confusionMatrix"]["rows"]]
    np.testing.assert_array_equal(matrix, sk.confusion_matrix(y, s > 0.5, sample_weight=w))
    part = next(x for x in outcome.report.slices if x.key == (("country", b"a"),))
    y, s, w = weighted([r for r in rows if r["country"] == "a"])
    np.testing.assert_array_equal(
        curves.table(part.shown["matrix"]), sk.confusion_matrix(y, s > 0.5, sample_weight=w)
    )
    assert part.shown["auc"] == pytest.approx(sk.roc_auc_score(y, s, sample_weight=w), abs=1e-12)


def test_accuracy_alone_brings_the_matrix_and_no_curve(tmp_path, rows):
    outcome = made.evaluate(
        made.examples(tmp_path / "x", rows),
        made.model(tmp_path / "m"),
        made.config("BinaryAccuracy"),
        shown=(tmp_path / "shown", ""),
    )
    shown = kfp.classification_metrics(outcome.report)
    assert list(shown) == ["confusionMatrix"]
    y, s, _ = weighted(rows)
    assert [r["row"] for r in shown["confusionMatrix"]["rows"]] == sk.confusion_matrix(y, s > 0.5).tolist()


def test_a_baseline_and_other_names_do_not_change_what_is_shown(tmp_path, rows):
    config = made.config(
        {"className": "AUC", "config": json.dumps({"name": "area", "num_thresholds": 50})},
        models=[
            {"name": "new", "labelKey": "label"},
            {"name": "old", "labelKey": "label", "isBaseline": True},
        ],
    )
    outcome = made.evaluate(
        made.examples(tmp_path / "x", rows),
        made.model(tmp_path / "m"),
        config,
        baseline=made.model(tmp_path / "b", made.Parsing(factor=0.5)),
        shown=(tmp_path / "shown", "classification"),
    )
    y, s, _ = weighted(rows)
    assert outcome.report.slices[0].shown["auc"] == pytest.approx(sk.roc_auc_score(y, s), abs=1e-12)
    assert set(kfp.metrics(outcome.report, outcome.verdict)) == {
        "rows", "blessed", "area", "area_baseline", "area_diff"
    }  # fmt: skip


def test_nothing_is_computed_that_no_artifact_shows(tmp_path, rows):
    """Areas under ten thousand points, for a thousand slices, would take longer than the evaluation."""
    given = (made.examples(tmp_path / "x", rows), made.model(tmp_path / "m"), made.config("AUC"))
    for shown, names in ((None, set()), ((tmp_path / "s", ""), {"curve", "matrix"})):
        assert set(made.evaluate(*given, shown=shown).report.slices[0].shown) == names


def test_rates_of_weighted_rows_stay_within_0_and_1(tmp_path):
    rng = np.random.default_rng(9)
    rows = [
        {"label": float(i % 2), "score": float(s), "w": float(w)}
        for i, (s, w) in enumerate(zip(rng.random(500), rng.random(500) / 3, strict=True))
    ]
    outcome = made.evaluate(
        made.examples(tmp_path / "x", rows),
        made.model(tmp_path / "m"),
        made.config("AUC", models=[{"labelKey": "label", "exampleWeightKey": "w"}]),
        shown=(tmp_path / "shown", ""),
    )
    for point in kfp.classification_metrics(outcome.report)["confidenceMetrics"]:
        assert 0.0 <= point["recall"] <= 1.0 and 0.0 <= point["falsePositiveRate"] <= 1.0
