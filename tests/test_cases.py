"""Public reports of faults that a distributed evaluation can have, as inputs with right answers."""

from __future__ import annotations

import keras
import made
import numpy as np
import pytest
import tensorflow as tf

from assay.gate import NO_THRESHOLDS
from assay.spec import RequestError


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
def test_several_outputs_give_the_same_error_on_any_replicas(tmp_path, replicas):
    # Case 40: 12 rows, one input, ten outputs, mse.
    random = np.random.default_rng(5)
    labels = random.normal(size=[12, 10]).astype(np.float32)
    inputs = keras.Input([1], name="x")
    built = keras.Model(inputs, keras.layers.Dense(10, kernel_initializer="ones")(inputs))
    built.export(str(tmp_path / "model"), verbose=False)
    rows = [{"x": float(i), "label": [float(v) for v in labels[i]]} for i in range(12)]
    made.examples(tmp_path / "examples", rows)
    text = made.config("MeanSquaredError", "MeanAbsoluteError")
    outcome = made.evaluate(tmp_path / "examples", tmp_path / "model", text, replicas=replicas, batch=3)
    off = labels.astype(float) - np.arange(12.0)[:, None]
    assert made.values(outcome) == pytest.approx(
        {"mean_squared_error": np.mean(off**2), "mean_absolute_error": np.mean(abs(off))}, rel=1e-12
    )


def test_labels_and_predictions_of_different_sizes_are_refused_with_both_shapes(tmp_path):
    made.examples(tmp_path / "examples", [{"label": [1.0, 2.0, 3.0], "score": [1.0, 2.0]}])
    made.model(tmp_path / "model", made.Parsing(size=2))
    with pytest.raises(RequestError, match=r"labels are \(64, 3\), predictions \(64, 2\)"):
        made.evaluate(tmp_path / "examples", tmp_path / "model", made.config("MeanSquaredError"))
    with pytest.raises(RequestError, match="needs one label a row; the label has 3 values"):
        made.evaluate(tmp_path / "examples", tmp_path / "model", made.config("AUC"))


@pytest.mark.parametrize("kind", ["keras file", "export"])
def test_an_identity_model_has_a_finite_error_on_two_devices(tmp_path, kind):
    # Case 39: Keras metrics went NaN under MirroredStrategy, over 50 steps.
    inputs = keras.Input([1], name="x")
    built = keras.Model(inputs, keras.layers.Identity()(inputs))
    path = tmp_path / ("model.keras" if kind == "keras file" else "model")
    built.save(path) if kind == "keras file" else built.export(str(path), verbose=False)
    made.examples(tmp_path / "examples", [{"x": i / 100, "label": i / 100 + 0.5} for i in range(100)])
    text = made.config("MeanSquaredError", "ExampleCount")
    one = made.values(made.evaluate(tmp_path / "examples", path, text, batch=1))
    two = made.values(made.evaluate(tmp_path / "examples", path, text, replicas=2, batch=1))
    assert one == two and two["mean_squared_error"] == pytest.approx(0.25, rel=1e-6)


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
def test_auc_is_right_and_bounded_on_any_replicas(tmp_path, replicas):
    # Case 42: AUC came out above 1 where replicas were summed twice.
    rows = [{"label": y, "score": p} for y, p in ((0, 0.1), (0, 0.4), (1, 0.35), (1, 0.8))]
    made.examples(tmp_path / "examples", rows)
    made.model(tmp_path / "model")
    outcome = made.evaluate(
        tmp_path / "examples", tmp_path / "model", made.config("AUC"), replicas=replicas, batch=1
    )
    assert made.values(outcome)["auc"] == 0.75


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Examples and two models, the second's scores being 0.8 times the first's."""
    root = tmp_path_factory.mktemp("pair")
    random = np.random.default_rng(3)
    labels = random.integers(0, 2, 300)
    scores = np.clip(random.normal(0.4 + 0.2 * labels, 0.2), 0.01, 0.99).astype(np.float32)
    rows = [
        {"label": int(y), "score": float(p), "side": "lr"[i % 2]}
        for i, (y, p) in enumerate(zip(labels, scores, strict=True))
    ]
    made.examples(root / "examples", rows, files=2)
    made.model(root / "candidate", made.Parsing(factor=1.0))
    made.model(root / "baseline", made.Parsing(factor=0.8))
    return root, labels.astype(float), scores


METRICS = ("BinaryAccuracy", "MeanPrediction", "MeanSquaredError", "AUC")


@pytest.mark.parametrize("replicas", [1, 3])
def test_candidate_and_baseline_see_the_same_rows_in_one_pass(pair, replicas):
    root, labels, scores = pair
    text = made.config(*METRICS, slices=[{}, {"featureKeys": ["side"]}])
    outcome = made.evaluate(
        root / "examples", root / "candidate", text, baseline=root / "baseline", replicas=replicas
    )
    assert outcome.report.rows == 300
    for key, rows in (
        ((), slice(None)),
        ((("side", b"l"),), slice(0, None, 2)),
        ((("side", b"r"),), slice(1, None, 2)),
    ):
        found = next(s for s in outcome.report.slices if s.key == key).values
        y = labels[rows]
        p = scores[rows].astype(float)
        q = (scores[rows] * np.float32(0.8)).astype(float)
        for name, of in (
            ("binary_accuracy", lambda s, y=y: np.mean((s > 0.5) == y)),
            ("mean_prediction", lambda s: s.mean()),
            ("mean_squared_error", lambda s, y=y: np.mean((y - s) ** 2)),
        ):
            by_role = {("diff" if k.is_diff else k.model_name): v for k, v in found.items() if k.name == name}
            assert by_role["candidate"] == pytest.approx(of(p), rel=1e-12)
            assert by_role["baseline"] == pytest.approx(of(q), rel=1e-12)
            assert by_role["diff"] == by_role["candidate"] - by_role["baseline"]


def test_a_model_against_itself_differs_by_nothing(pair):
    root, _, _ = pair
    outcome = made.evaluate(
        root / "examples", root / "candidate", made.config(*METRICS), baseline=root / "candidate"
    )
    (found,) = outcome.report.slices
    assert [v for k, v in found.values.items() if k.is_diff] == [0.0] * len(METRICS)


def test_change_thresholds_hold_against_the_baseline(pair):
    root, _, _ = pair

    def verdict(bound):
        change = {"direction": "LOWER_IS_BETTER", "absolute": bound}
        metric = {"className": "MeanPrediction", "threshold": {"changeThreshold": change}}
        return made.evaluate(
            root / "examples", root / "candidate", made.config(metric), baseline=root / "baseline"
        ).verdict

    assert verdict(0.2).blessed
    refused = verdict(0.05)
    assert not refused.blessed and "change of mean_prediction on Overall" in refused.reasons[0]


def test_a_baseline_that_cannot_be_run_leaves_the_candidates_numbers(pair, tmp_path):
    class Other(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 1], tf.float32, name="gone")])
        def serve(self, gone):
            return {"output": gone}

    root, _, scores = pair
    stale = made.model(tmp_path / "stale", Other())
    metric = {"className": "MeanPrediction", "threshold": {"valueThreshold": {"lowerBound": 0.1}}}
    outcome = made.evaluate(root / "examples", root / "candidate", made.config(metric), baseline=stale)
    assert made.values(outcome)["mean_prediction"] == pytest.approx(scores.astype(float).mean(), rel=1e-12)
    assert not outcome.verdict.blessed and "'gone'" in outcome.verdict.reasons[0]
    ignored = made.evaluate(
        root / "examples",
        root / "candidate",
        made.config(metric),
        baseline=stale,
        policy=made.Policy(stale_baseline="ignore"),
    )
    assert ignored.verdict.blessed


def test_no_thresholds_is_not_blessed_and_says_so(pair):
    # Case 27.
    root, _, _ = pair
    outcome = made.evaluate(root / "examples", root / "candidate", made.config("BinaryAccuracy"))
    assert not outcome.verdict.blessed and outcome.verdict.reasons == (NO_THRESHOLDS,)


def test_cross_slices_are_computed_and_checked(pair):
    root, _, scores = pair
    cross = {
        "baselineSpec": {"featureValues": {"side": "l"}},
        "slicingSpecs": [{"featureValues": {"side": "r"}}],
    }

    def run(bound):
        threshold = {
            "crossSlicingSpecs": [cross],
            "threshold": {"valueThreshold": {"upperBound": bound, "lowerBound": -bound}},
        }
        metric = {"className": "MeanPrediction", "crossSliceThresholds": [threshold]}
        text = made.config(metric, slices=[{}, {"featureKeys": ["side"]}], crossSlicingSpecs=[cross])
        return made.evaluate(root / "examples", root / "candidate", text)

    outcome = run(0.5)
    (pair_values,) = outcome.report.cross_slices
    (difference,) = pair_values.values.values()
    exact = scores.astype(float)
    assert difference == pytest.approx(exact[::2].mean() - exact[1::2].mean(), rel=1e-9)
    assert outcome.verdict.blessed and not run(abs(difference) / 2).verdict.blessed
