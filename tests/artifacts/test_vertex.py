"""What Vertex AI imports: its own field names, overall first, thresholds 0.00 to 0.99."""

import json
import math

import made
import numpy as np
import pytest
from google.cloud.aiplatform_v1.types import ModelEvaluationSlice
from google.protobuf import json_format, struct_pb2
from sklearn import metrics as sk

from assay.artifacts import vertex
from assay.report import Report
from assay.spec import RequestError
from assay.values import ConfusionMatrices, SliceValues, Undefined

# Names in the schemas classification_metrics_1.0.0 and regression_metrics_1.0.0, and in the metadata of
# google.ClassificationMetrics and google.RegressionMetrics.
CLASSIFICATION_FIELDS = {"auPrc", "auRoc", "logLoss", "confidenceMetrics", "confusionMatrix"}
CONFIDENCE_FIELDS = {
    "confidenceThreshold", "maxPredictions", "recall", "precision", "falsePositiveRate", "f1Score",
    "accuracy", "truePositiveCount", "falsePositiveCount", "falseNegativeCount", "trueNegativeCount",
}  # fmt: skip
THRESHOLDS = [
    0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9,
    0.95, 0.96, 0.97, 0.98, 0.99,
]  # fmt: skip


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(7)
    labels = rng.integers(0, 2, 300)
    # Never on a threshold: float32 has no 0.05.
    scores = (np.floor(np.clip(rng.normal(0.35 + 0.3 * labels, 0.2), 0, 0.999) * 64) + 0.5) / 64
    return [
        {"label": float(y), "score": float(s), "hour": int(h), "country": c}
        for y, s, h, c in zip(
            labels, scores, rng.integers(0, 2, 300), rng.choice(["a", "b"], 300), strict=True
        )
    ]


def evaluated(tmp_path, rows, *metrics, kind="classification"):
    return made.evaluate(
        made.examples(tmp_path / "x", rows),
        made.model(tmp_path / "m"),
        made.config(*metrics, slices=[{}, {"featureKeys": ["country"]}, {"featureKeys": ["hour"]}]),
        shown=(tmp_path / "shown", kind),
    ).report


def test_classification_is_what_scikit_learn_finds(tmp_path, rows):
    report = evaluated(tmp_path, rows, "AUC", "BinaryCrossentropy")
    record = json.loads(vertex.to_json(report, "classification"))
    assert list(record) == ["slicedMetrics"]
    first, *others = record["slicedMetrics"]
    assert first["singleOutputSlicingSpec"] == {}
    found = first["metrics"]["classification"]
    assert set(found) == CLASSIFICATION_FIELDS
    y, s = np.array([r["label"] for r in rows]), np.array([r["score"] for r in rows])
    assert found["auRoc"] == pytest.approx(sk.roc_auc_score(y, s), abs=1e-12)
    assert found["logLoss"] == pytest.approx(sk.log_loss(y, s), rel=1e-6)
    assert found["auPrc"] == pytest.approx(sk.average_precision_score(y, s), abs=0.02)
    assert found["confusionMatrix"] == {
        "annotationSpecs": [{"id": "0", "displayName": "negative"}, {"id": "1", "displayName": "positive"}],
        "rows": sk.confusion_matrix(y, s > 0.5).tolist(),
    }
    assert [p["confidenceThreshold"] for p in found["confidenceMetrics"]] == THRESHOLDS
    for point in found["confidenceMetrics"]:
        up = s >= point["confidenceThreshold"]
        tn, fp, fn, tp = sk.confusion_matrix(y, up, labels=[0, 1]).ravel().tolist()
        assert set(point) == CONFIDENCE_FIELDS - (set() if tp + fp else {"precision"})
        counts = ("trueNegativeCount", "falsePositiveCount", "falseNegativeCount", "truePositiveCount")
        assert [point[n] for n in counts] == [tn, fp, fn, tp]
        assert point["maxPredictions"] == 2147483647
        assert point["recall"] == pytest.approx(sk.recall_score(y, up), abs=1e-15)
        assert point["f1Score"] == pytest.approx(sk.f1_score(y, up), abs=1e-15)
        assert point["accuracy"] == pytest.approx(sk.accuracy_score(y, up), abs=1e-15)
        assert point["falsePositiveRate"] == pytest.approx(fp / (fp + tn), abs=1e-15)
        if tp + fp:
            assert point["precision"] == pytest.approx(sk.precision_score(y, up), abs=1e-15)
    assert vertex.metadata(report, "classification") == found
    assert len(others) == 4
    by_hour = next(o for o in others if o["singleOutputSlicingSpec"]["value"] == "hour=1")
    y, s = (np.array([r[n] for r in rows if r["hour"] == 1]) for n in ("label", "score"))
    assert by_hour["metrics"]["classification"]["auRoc"] == pytest.approx(sk.roc_auc_score(y, s), abs=1e-12)


def test_slices_are_read_by_vertex_own_types(tmp_path, rows):
    record = json.loads(vertex.to_json(evaluated(tmp_path, rows, "AUC"), "classification"))
    specs = [one["singleOutputSlicingSpec"] for one in record["slicedMetrics"][1:]]
    assert specs[0] == {
        "dimension": "slice",
        "value": "country=a",
        "slicingSpec": {"configs": {"country": {"value": {"stringValue": "a"}}}},
    }
    read = [ModelEvaluationSlice.Slice.SliceSpec.from_json(json.dumps(s["slicingSpec"])) for s in specs]
    assert [r.configs["country"].value.string_value for r in read[:2]] == ["a", "b"]
    assert [r.configs["hour"].value.float_value for r in read[2:]] == [0.0, 1.0]
    # The importer turns every metrics record into a protobuf Value, which has no NaN.
    for one in record["slicedMetrics"]:
        json_format.ParseDict(one["metrics"]["classification"], struct_pb2.Value())


def test_regression_is_what_scikit_learn_finds(tmp_path, rows):
    report = evaluated(tmp_path, rows, "MeanSquaredError", "MeanAbsoluteError", kind="regression")
    first, *others = json.loads(vertex.to_json(report, "regression"))["slicedMetrics"]
    y, s = np.array([r["label"] for r in rows]), np.array([r["score"] for r in rows])
    found = first["metrics"]["regression"]
    assert found == pytest.approx(
        {
            "rootMeanSquaredError": math.sqrt(sk.mean_squared_error(y, s)),
            "meanAbsoluteError": sk.mean_absolute_error(y, s),
        },
        rel=1e-12,
    )
    assert vertex.metadata(report, "regression") == found
    assert len(others) == 4


def shown(key, **values) -> SliceValues:
    return SliceValues(key, 2, 2.0, {}, {}, values)


def test_what_is_undefined_is_left_out_and_overall_is_always_first():
    one_class = {"auc": Undefined("no positive example"), "matrix": Undefined("no positive example")}
    report = Report(
        [shown((), **one_class), shown((("c", b"\xff"),), auc=0.5), shown((("c", b"b"),), **one_class)]
    )
    records = json.loads(vertex.to_json(report, "classification"))["slicedMetrics"]
    assert records[0] == {"singleOutputSlicingSpec": {}, "metrics": {"classification": {}}}
    assert [r["singleOutputSlicingSpec"].get("value") for r in records] == [None, "c=\\xff"]


def test_weighted_counts_are_rounded():
    matrix = ConfusionMatrices(*(np.array([v]) for v in (0.5, 1.6, 2.4, 3.2, 4.5)))
    found = vertex.metadata(Report([shown((), matrix=matrix)]), "classification")
    assert found["confusionMatrix"]["rows"] == [[2, 3], [4, 2]]
    assert all(isinstance(v, int) for row in found["confusionMatrix"]["rows"] for v in row)


@pytest.mark.parametrize(
    ("names", "kind", "message"),
    [
        (["auc"], "regression", "no regression metric for Vertex AI; add one of MeanSquaredError, MeanAbs"),
        ([], "classification", "add one of AUC, BinaryCrossentropy, BinaryAccuracy"),
        (["auc"], "clasification", "classification"),
    ],
)
def test_a_kind_without_metrics_is_refused_by_name(names, kind, message):
    with pytest.raises(RequestError, match=message):
        vertex.check(names, kind, has_overall=True)


def test_a_kind_with_metrics_passes():
    vertex.check(["auc"], "classification", has_overall=True)
    vertex.check(["mean_squared_error"], "regression", has_overall=True)


def test_without_the_overall_slice_there_is_nothing_to_import():
    with pytest.raises(RequestError, match="slicing_specs leave out the overall slice"):
        vertex.check(["auc"], "classification", has_overall=False)
