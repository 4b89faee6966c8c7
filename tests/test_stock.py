"""The stock evaluation of the same files and model agrees, where it is right."""

from __future__ import annotations

import json

import made
import numpy as np
import pytest
import tensorflow_model_analysis as tfma
from google.protobuf import json_format
from tensorflow_model_analysis.proto import config_pb2

SIZE = 400

# Their merge counts an accumulator twice (mean_squared_error and its kind); one file and one
# bundle leave nothing to merge, so even these can be compared.
METRICS = [
    "ExampleCount",
    "BinaryAccuracy",
    "BinaryCrossEntropy",
    "AUC",
    "AUCPrecisionRecall",
    "Precision",
    "Recall",
    "Calibration",
    "MeanLabel",
    "MeanPrediction",
    "MeanSquaredError",
    "MeanAbsoluteError",
    "ConfusionMatrixPlot",
    "CalibrationPlot",
]


def stock(folder, text, output):
    """Runs TFMA itself and returns its loaded result."""
    config = json_format.Parse(text, config_pb2.EvalConfig())
    models = tfma.default_eval_shared_model(str(folder / "model"), eval_config=config)
    import apache_beam as beam

    options = beam.options.pipeline_options.PipelineOptions(
        runner="DirectRunner", direct_running_mode="in_memory"
    )
    tfma.run_model_analysis(
        eval_shared_model=models,
        eval_config=config,
        data_location=str(folder / "data.tfrecord"),
        file_format="tfrecords",
        output_path=str(output),
        pipeline_options=options,
    )
    return tfma.load_eval_result(str(output))


def by_slice(result):
    """Returns {slice key: {metric name: number}} of a loaded result."""
    found = {}
    for key, outputs in result.slicing_metrics:
        found[key] = {name: v["doubleValue"] for name, v in outputs[""][""].items() if "doubleValue" in v}
    return found


@pytest.fixture(scope="module", params=[False, True], ids=["unweighted", "weighted"])
def both(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("stock")
    random = np.random.default_rng(2)
    rows = []
    for _ in range(SIZE):
        label = int(random.integers(2))
        rows.append(
            {
                "label": float(label),
                "score": float(np.clip(random.normal(0.4 + 0.2 * label, 0.3), 0.001, 0.999)),
                "weight": float(random.choice([0.25, 1.0, 2.0])),
                "pay": ["Cash", "Card"][int(random.integers(2))],
                "hour": int(random.integers(3)),
            }
        )
    made.write(root / "data.tfrecord", rows, "")
    made.model(root / "model")
    models = [{"labelKey": "label", "signatureName": "serving_default"}]
    if request.param:
        models[0]["exampleWeightKey"] = "weight"
    text = made.config(
        *METRICS,
        slices=[
            {},
            {"featureKeys": ["pay"]},
            {"featureKeys": ["hour"], "featureValues": {"pay": "Cash"}},
            {"featureValues": {"hour": "1"}},
        ],
        models=models,
        options={"includeDefaultMetrics": False},
    )
    theirs = stock(root, text, root / "theirs")
    made.evaluate(root / "data.tfrecord", root / "model", text, replicas=2, batch=50, output=root / "ours")
    ours = tfma.load_eval_result(str(root / "ours" / "evaluation"))
    return theirs, ours, request.param


def test_metrics_agree_on_every_slice(both):
    theirs, ours, weighted = both
    mine, stock_values = by_slice(ours), by_slice(theirs)
    assert set(mine) == set(stock_values) and len(mine) == 1 + 2 + 3 + 1
    for key, named in stock_values.items():
        assert set(named) == set(mine[key])
        for name, value in named.items():
            if name == "example_count" and weighted:
                continue  # theirs is the sum of weights there, ours is rows
            assert mine[key][name] == pytest.approx(value, abs=1e-6), (key, name)


def test_plots_agree(both):
    theirs, ours, _ = both
    mine, stock_plots = dict(ours.plots), dict(theirs.plots)
    assert set(mine) == set(stock_plots)
    for key, outputs in stock_plots.items():
        other = mine[key][""][""]
        (found,) = [outputs[""][""]]
        assert set(found) == set(other)
        matrices = found["confusionMatrixAtThresholds"]["matrices"]
        for left, right in zip(matrices, other["confusionMatrixAtThresholds"]["matrices"], strict=True):
            for name in {*left, *right}:
                assert right.get(name, 0.0) == pytest.approx(left.get(name, 0.0), abs=1e-6, nan_ok=True), (
                    key,
                    name,
                    left,
                    right,
                )
        buckets = {
            b.get("lowerThresholdInclusive", 0.0): b for b in found["calibrationHistogramBuckets"]["buckets"]
        }
        for bucket in other["calibrationHistogramBuckets"]["buckets"]:
            if bucket.get("numWeightedExamples"):
                stock_bucket = buckets[bucket.get("lowerThresholdInclusive", 0.0)]
                for name in ("numWeightedExamples", "totalWeightedLabel", "totalWeightedRefinedPrediction"):
                    assert bucket[name] == pytest.approx(stock_bucket[name], abs=1e-6)


def test_the_config_read_back_is_the_normalised_one(both):
    theirs, ours, _ = both
    left, right = (json.loads(json_format.MessageToJson(r.config)) for r in (theirs, ours))
    assert left == right
