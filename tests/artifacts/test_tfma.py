"""tfma: what is written is read back by TFMA's own loaders, and what TFMA itself writes."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow_model_analysis as tfma
from tensorflow_model_analysis.evaluators import metrics_validator
from tensorflow_model_analysis.metrics import binary_confusion_matrices, metric_types
from tensorflow_model_analysis.writers import metrics_plots_and_validations_writer as stock

from assay import gate
from assay.artifacts import tfma as ours
from assay.finalize import cross_values, with_diffs
from assay.protos import config_pb2, metrics_for_slice_pb2, validation_result_pb2
from assay.report import Report
from assay.request import Policy
from assay.spec import (
    ChangeThreshold,
    CrossSlicingSpec,
    Direction,
    MetricKey,
    SlicingSpec,
    Threshold,
    ValueThreshold,
)
from assay.values import CalibrationBuckets, ConfusionMatrices, SliceValues, Undefined

CONFIG = config_pb2.EvalConfig(
    model_specs=[{"label_key": "tips"}],
    metrics_specs=[{"metrics": [{"class_name": "AUC"}], "model_names": [""]}],
)
TWO_MODELS = config_pb2.EvalConfig(
    model_specs=[{"name": "candidate"}, {"name": "baseline", "is_baseline": True}],
    metrics_specs=[{"metrics": [{"class_name": "AUC"}], "model_names": ["candidate", "baseline"]}],
)
PASSED = gate.Verdict(True)
CASH = (("payment_type", b"Cash"),)


def one(values, key=(), plots=None, rows=10) -> SliceValues:
    return SliceValues(key, rows, float(rows), values, plots or {})


def written(folder: Path, report: Report, verdict=PASSED, config=CONFIG, locations=None) -> str:
    ours.write(
        str(folder),
        report,
        verdict,
        config,
        {"": "/models/6"} if locations is None else locations,
        "0.1.0",
    )
    return str(folder)


def test_files_and_eval_config(tmp_path: Path) -> None:
    report = Report([one({})], files={"/in/a.gz": 1, "/in/b.gz": 2})
    folder = written(tmp_path / "new", report)
    assert sorted(os.listdir(folder)) == [
        "attributions-00000-of-00001.tfrecord",
        "eval_config.json",
        "metrics-00000-of-00001.tfrecord",
        "plots-00000-of-00001.tfrecord",
        "validations.tfrecord",
    ]
    text = (tmp_path / "new" / "eval_config.json").read_text()
    assert text.endswith("}\n")
    assert json.loads(text) == {
        "evalConfig": {
            "modelSpecs": [{"labelKey": "tips"}],
            "metricsSpecs": [{"metrics": [{"className": "AUC"}], "modelNames": [""]}],
        },
        "version": "0.1.0",
        "dataLocation": "/in",
        "fileFormat": "tfrecord",
        "modelLocations": {"": "/models/6"},
    }
    result = tfma.load_eval_result(folder)
    assert result.config == CONFIG and result.model_location == "/models/6"


def test_values_read_back(tmp_path: Path) -> None:
    values = {
        MetricKey("auc"): 0.875,
        MetricKey("zero"): 0.0,
        MetricKey("recall", example_weighted=True): Undefined("no example is positive"),
    }
    folder = written(tmp_path, Report([one(values), one({MetricKey("auc"): 0.25}, CASH)]))
    overall, cash = tfma.load_eval_result(folder).slicing_metrics
    assert overall[0] == () and cash[0] == (("payment_type", "Cash"),)
    numbers = overall[1][""][""]
    assert numbers["auc"] == {"doubleValue": 0.875}
    assert numbers["zero"] == {"doubleValue": 0.0}
    assert math.isnan(float(numbers["recall"]["doubleValue"]))
    assert cash[1][""][""]["auc"] == {"doubleValue": 0.25}
    first = next(iter(tfma.load_metrics(folder)))
    assert first.HasField("slice_key")
    by_name = {item.key.name: item for item in first.metric_keys_and_values}
    assert by_name["zero"].value.WhichOneof("type") == "double_value"
    assert by_name["auc"].key.HasField("example_weighted") and not by_name["auc"].key.example_weighted.value
    assert by_name["recall"].key.example_weighted.value and math.isnan(
        by_name["recall"].value.double_value.value
    )


def test_two_models_and_their_difference(tmp_path: Path) -> None:
    auc = MetricKey("auc", "candidate")
    values = with_diffs({auc: 0.75, auc.of("baseline"): 1.0}, "baseline")
    folder = written(
        tmp_path,
        Report([one(values)], baseline_name="baseline"),
        config=TWO_MODELS,
        locations={"candidate": "/m/6", "baseline": "/m/4"},
    )
    found = next(iter(tfma.load_metrics(folder)))
    told = {
        (i.key.model_name, i.key.is_diff): i.value.double_value.value for i in found.metric_keys_and_values
    }
    assert told == {
        ("candidate", False): 0.75,
        ("candidate", True): -0.25,
        ("baseline", False): 1.0,
    }
    for name, value in (("candidate", 0.75), ("baseline", 1.0)):
        result = tfma.load_eval_result(folder, model_name=name)
        assert result.slicing_metrics[0][1][""][""]["auc"] == {"doubleValue": value}
        assert result.model_location == {"candidate": "/m/6", "baseline": "/m/4"}[name]


def test_a_stale_baseline_leaves_the_candidate_readable(tmp_path: Path) -> None:
    report = Report([one({MetricKey("auc", "candidate"): 0.5})])
    folder = written(tmp_path, report, config=TWO_MODELS, locations={"candidate": "/m/6"})
    result = tfma.load_eval_result(folder, model_name="candidate")
    assert result.slicing_metrics[0][1][""][""]["auc"] == {"doubleValue": 0.5}


def test_a_thousand_slices_of_every_kind(tmp_path: Path) -> None:
    keys = [(("b", f"v{i}".encode()),) for i in range(400)] + [(("i", i - 150),) for i in range(300)]
    keys += [(("f", i / 8), ("i", i)) for i in range(300)]
    folder = written(tmp_path, Report([one({MetricKey("auc"): n / 1000}, k) for n, k in enumerate(keys)]))
    found = {k: m[""][""]["auc"]["doubleValue"] for k, m in tfma.load_eval_result(folder).slicing_metrics}
    told = [tuple((f, v.decode() if isinstance(v, bytes) else v) for f, v in key) for key in keys]
    assert found == {key: n / 1000 for n, key in enumerate(told)}
    assert {type(v) for key in found for _, v in key} == {str, int, float}


def test_bytes_that_are_not_text_can_be_loaded(tmp_path: Path) -> None:
    folder = written(tmp_path, Report([one({MetricKey("auc"): 0.5}, (("b", b"caf\xe9"),))]))
    assert tfma.load_eval_result(folder).slicing_metrics[0][0] == (("b", "caf\\xe9"),)


def cross_report() -> Report:
    slices = [
        one({MetricKey("auc"): 0.75}, CASH),
        one({MetricKey("auc"): 0.5}, (("payment_type", b"Card"),)),
    ]
    spec = CrossSlicingSpec(
        SlicingSpec(feature_values=(("payment_type", "Cash"),)), (SlicingSpec(("payment_type",)),)
    )
    pairs = cross_values(slices, [spec])[spec]
    return Report(slices, cross_slices=pairs)


def test_cross_slices(tmp_path: Path) -> None:
    folder = written(tmp_path, cross_report())
    *_, last = tfma.load_eval_result(folder).slicing_metrics
    assert last == (
        ((("payment_type", "Cash"),), (("payment_type", "Card"),)),
        {"": {"": {"auc": {"doubleValue": 0.25}}}},
    )
    record = list(tfma.load_metrics(folder))[-1]
    assert record.WhichOneof("slicing_spec_oneof") == "cross_slice_key"
    assert len(list(tfma.load_plots(folder))) == 3


MATRICES = ConfusionMatrices(
    thresholds=np.array([-1e-6, 0.0, 0.5, 1.0]),
    tp=np.array([3.0, 3.0, 2.0, 0.0]),
    tn=np.array([0.0, 1.0, 4.0, 5.0]),
    fp=np.array([5.0, 4.0, 1.0, 0.0]),
    fn=np.array([0.0, 0.0, 1.0, 3.0]),
)
BUCKETS = CalibrationBuckets(
    edges=np.array([-np.inf, 0.0, 0.5, 1.0, np.inf]),
    weights=np.array([0.0, 3.0, 5.0, 0.0]),
    labels=np.array([0.0, 1.0, 4.0, 0.0]),
    predictions=np.array([0.0, 0.75, 3.5, 0.0]),
)


def test_plots_of_default_names_share_one_entry(tmp_path: Path) -> None:
    plots = {
        MetricKey("confusion_matrix_plot"): MATRICES,
        MetricKey("calibration_plot"): BUCKETS,
        MetricKey("mine"): BUCKETS,
    }
    folder = written(tmp_path, Report([one({}, plots=plots), one({}, CASH)]))
    record, empty = tfma.load_plots(folder)
    assert [p.key.name for p in record.plot_keys_and_values] == ["mine", ""]
    assert not empty.plot_keys_and_values and empty.slice_key.single_slice_keys[0].column == "payment_type"
    data = record.plot_keys_and_values[1].value
    matrix = data.confusion_matrix_at_thresholds.matrices[2]
    assert (matrix.threshold, matrix.true_positives, matrix.false_negatives) == (0.5, 2.0, 1.0)
    assert (matrix.precision, matrix.recall) == pytest.approx((2 / 3, 2 / 3))
    buckets = data.calibration_histogram_buckets.buckets
    assert (buckets[0].lower_threshold_inclusive, buckets[-1].upper_threshold_exclusive) == (
        -np.inf,
        np.inf,
    )
    assert [b.num_weighted_examples.value for b in buckets] == [0, 3, 5, 0]
    assert [b.total_weighted_refined_prediction.value for b in buckets] == [0, 0.75, 3.5, 0]
    shown = tfma.load_eval_result(folder).plots[0][1][""][""]
    assert len(shown["confusionMatrixAtThresholds"]["matrices"]) == 4
    assert len(shown["calibrationHistogramBuckets"]["buckets"]) == 4


def stock_key(key: MetricKey) -> metric_types.MetricKey:
    return metric_types.MetricKey(
        key.name, key.model_name, example_weighted=key.example_weighted, is_diff=key.is_diff
    )


def undefined_alike(record):
    """Returns a plots record whose rates of 0/0 are NaN, which TFMA 0.47 writes and 0.52 writes as 0."""
    for item in record.plot_keys_and_values:
        for m in item.value.confusion_matrix_at_thresholds.matrices:
            for rate, whole in (
                ("false_positive_rate", m.true_negatives + m.false_positives),
                ("false_omission_rate", m.true_negatives + m.false_negatives),
                ("f1", m.precision + m.recall),
            ):
                if not whole:
                    setattr(m, rate, math.nan)
    return record


def same(a, b) -> bool:
    """Whether two messages are equal, NaN being equal to NaN."""
    return a.SerializeToString(deterministic=True) == b.SerializeToString(deterministic=True)


@pytest.mark.parametrize("key", [(), CASH, (("f", 0.1), ("i", -3), ("s", "é".encode()))])
def test_records_equal_those_of_the_stock_writer(key) -> None:
    auc = MetricKey("auc", "candidate", example_weighted=True)
    values = with_diffs({auc: 0.75, auc.of("baseline"): 0.5}, "baseline")
    plots = {
        MetricKey("calibration_plot", "candidate"): BUCKETS,
        MetricKey("confusion_matrix_plot", "candidate"): MATRICES,
    }
    report = Report([one({**values, MetricKey("r"): float("nan"), MetricKey("z"): 0.0}, key, plots)])
    # Strings arrive at the stock writer as text.
    texts = tuple((f, v.decode() if isinstance(v, bytes) else v) for f, v in key)
    mine = next(ours.metrics_records(report))
    theirs = stock.convert_slice_metrics_to_proto(
        (texts, {stock_key(k): v for k, v in report.slices[0].values.items()}), None
    )
    assert same(mine.slice_key, theirs.slice_key) and mine.HasField("slice_key") == theirs.HasField(
        "slice_key"
    )
    flat = [
        sorted(i.SerializeToString(deterministic=True) for i in r.metric_keys_and_values)
        for r in (mine, theirs)
    ]
    assert flat[0] == flat[1]
    matrices = binary_confusion_matrices.Matrices(
        thresholds=list(MATRICES.thresholds),
        tp=list(MATRICES.tp),
        tn=list(MATRICES.tn),
        fp=list(MATRICES.fp),
        fn=list(MATRICES.fn),
    )
    with np.errstate(all="ignore"):
        stock_matrices = matrices.to_proto().confusion_matrix_at_thresholds
    drawn = {
        "calibration_plot": ours.calibration_buckets(BUCKETS),
        "confusion_matrix_plot": stock_matrices,
    }
    theirs = stock.convert_slice_plots_to_proto(
        (
            texts,
            {metric_types.PlotKey(n, "candidate", example_weighted=False): p for n, p in drawn.items()},
        ),
        None,
    )
    assert same(undefined_alike(next(ours.plots_records(report))), undefined_alike(theirs))


def judged(thresholds, slices=None, name="auc") -> gate.Verdict:
    slices = slices or [one({MetricKey("auc"): 0.75}), one({MetricKey("auc"): 0.5}, CASH)]
    return gate.judge(gate.Evidence(slices), [gate.Check(MetricKey(name), t) for t in thresholds], Policy())


def test_validation_passes(tmp_path: Path) -> None:
    verdict = judged([Threshold(ValueThreshold(0.4))])
    result = tfma.load_validation_result(written(tmp_path, Report([one({})]), verdict))
    assert result.validation_ok and not result.metric_validations_per_slice and not result.missing_thresholds
    assert [(d.num_matching_slices, d.slicing_spec) for d in result.validation_details.slicing_details] == [
        (2, config_pb2.SlicingSpec())
    ]


def test_validation_fails_with_bound_and_value(tmp_path: Path) -> None:
    verdict = judged([Threshold(ValueThreshold(0.6, 0.9))])
    result = tfma.load_validation_result(written(tmp_path, Report([one({})]), verdict))
    assert not result.validation_ok
    (found,) = result.metric_validations_per_slice
    assert found.slice_key.single_slice_keys[0].bytes_value == b"Cash"
    (failure,) = found.failures
    assert failure.metric_key.name == "auc" and failure.metric_key.HasField("example_weighted")
    assert failure.metric_value.double_value.value == 0.5
    assert failure.metric_threshold.value_threshold.lower_bound.value == 0.6
    assert failure.metric_threshold.value_threshold.upper_bound.value == 0.9
    assert failure.message == "below the bound"


def test_validation_says_what_is_missing() -> None:
    spec = SlicingSpec(("company",), (("hour", "3"),))
    cross = CrossSlicingSpec(SlicingSpec(), (spec,))
    verdict = judged(
        [
            Threshold(ValueThreshold(0.1), slicing_specs=(spec,)),
            Threshold(ValueThreshold(0.1), cross_slicing_specs=(cross,)),
        ]
    )
    result = ours.validation_result(verdict)
    wanted = config_pb2.SlicingSpec(feature_keys=["company"], feature_values={"hour": "3"})
    assert not result.validation_ok
    assert list(result.missing_slices) == [wanted]
    assert list(result.missing_cross_slices) == [
        config_pb2.CrossSlicingSpec(baseline_spec=config_pb2.SlicingSpec(), slicing_specs=[wanted])
    ]
    assert not result.validation_details.slicing_details


def test_no_thresholds_are_missing_ones() -> None:
    result = ours.validation_result(judged([]))
    assert result.missing_thresholds and not result.validation_ok and not result.rubber_stamp


@pytest.mark.parametrize("first", ["refuse", "bless"])
def test_first_model(first: str) -> None:
    check = gate.Check(MetricKey("auc"), Threshold(None, ChangeThreshold(Direction.HIGHER_IS_BETTER, 0.0)))
    verdict = gate.judge(gate.Evidence([one({MetricKey("auc"): 0.75})]), [check], Policy(first_model=first))
    result = ours.validation_result(verdict)
    assert result.validation_ok == (first == "bless") and result.missing_thresholds == (first == "refuse")
    assert result.rubber_stamp


def test_undefined_is_nan_with_its_reason() -> None:
    verdict = judged(
        [Threshold(ValueThreshold(0.1))],
        [one({MetricKey("auc"): Undefined("no positive example")})],
    )
    failure = ours.validation_result(verdict).metric_validations_per_slice[0].failures[0]
    assert math.isnan(failure.metric_value.double_value.value)
    assert failure.message == "undefined: no positive example"


def test_one_threshold_on_a_slice_of_two_specs_is_told_once() -> None:
    specs = (SlicingSpec(("payment_type",)), SlicingSpec((), (("payment_type", "Cash"),)))
    result = ours.validation_result(judged([Threshold(ValueThreshold(0.6), slicing_specs=specs)]))
    assert [len(m.failures) for m in result.metric_validations_per_slice] == [1]
    assert [d.num_matching_slices for d in result.validation_details.slicing_details] == [1, 1]


def test_cross_slice_failures() -> None:
    slices = cross_report().slices
    spec = CrossSlicingSpec(
        SlicingSpec(feature_values=(("payment_type", "Cash"),)), (SlicingSpec(("payment_type",)),)
    )
    check = gate.Check(MetricKey("auc"), Threshold(ValueThreshold(None, 0.1), cross_slicing_specs=(spec,)))
    evidence = gate.Evidence(slices, cross_specs=cross_values(slices, [spec]))
    result = ours.validation_result(gate.judge(evidence, [check], Policy()))
    (found,) = result.metric_validations_per_slice
    assert found.cross_slice_key.baseline_slice_key.single_slice_keys[0].bytes_value == b"Cash"
    assert found.cross_slice_key.comparison_slice_key.single_slice_keys[0].bytes_value == b"Card"
    assert found.failures[0].metric_value.double_value.value == 0.25
    (detail,) = result.validation_details.slicing_details
    assert detail.HasField("cross_slicing_spec") and detail.num_matching_slices == 1


def test_failures_equal_those_of_the_stock_validator() -> None:
    """Two models, both kinds of threshold; all but the message, which stock leaves empty."""
    auc = MetricKey("auc", "candidate")
    threshold = Threshold(ValueThreshold(0.8), ChangeThreshold(Direction.HIGHER_IS_BETTER, -0.1, -0.05))
    slices = [
        one(with_diffs({auc: 0.75, auc.of("baseline"): 1.0}, "baseline")),
        one(with_diffs({auc: 0.9, auc.of("baseline"): 0.9}, "baseline"), CASH),
    ]
    config = config_pb2.EvalConfig()
    config.CopyFrom(TWO_MODELS)
    config.metrics_specs[0].metrics[0].threshold.CopyFrom(
        config_pb2.MetricThreshold(
            value_threshold={"lower_bound": {"value": 0.8}},
            change_threshold={
                "absolute": {"value": -0.1},
                "relative": {"value": -0.05},
                "direction": "HIGHER_IS_BETTER",
            },
        )
    )
    mine = ours.validation_result(
        gate.judge(gate.Evidence(slices, baseline_name="baseline"), [gate.Check(auc, threshold)], Policy())
    )
    theirs = validation_result_pb2.ValidationResult(validation_ok=True)
    for found in slices:
        texts = tuple((f, v.decode()) for f, v in found.key)
        checked = metrics_validator.validate_metrics(
            (texts, {stock_key(k): v for k, v in found.values.items()}), config
        )
        theirs.validation_ok &= checked.validation_ok
        theirs.metric_validations_per_slice.extend(checked.metric_validations_per_slice)
        metrics_validator.merge_details(theirs, checked)
    for per_slice in mine.metric_validations_per_slice:
        for failure in per_slice.failures:
            assert failure.message
            failure.message = ""
    assert len(mine.metric_validations_per_slice[0].failures) == 2
    assert mine.metric_validations_per_slice[0].failures[1].metric_key.is_diff
    assert mine == theirs


@pytest.mark.slow
def test_layout_equals_that_of_a_stock_run(tmp_path: Path) -> None:
    """A stock evaluation is read into a report and written again: the same files and records."""
    import pandas as pd

    config = config_pb2.EvalConfig(
        model_specs=[{"label_key": "label", "prediction_key": "score"}],
        slicing_specs=[{}, {"feature_keys": ["pay"]}],
        cross_slicing_specs=[{"baseline_spec": {}, "slicing_specs": [{"feature_keys": ["pay"]}]}],
        metrics_specs=[
            {
                "metrics": [
                    {"class_name": "ExampleCount"},
                    {"class_name": "Calibration"},
                    {"class_name": "ConfusionMatrixPlot", "config": '"num_thresholds": 4'},
                    {"class_name": "CalibrationPlot", "config": '"num_buckets": 4'},
                ]
            }
        ],
    )
    frame = pd.DataFrame(
        {
            "label": [0.0, 1.0, 1.0, 0.0],
            "score": [0.25, 0.75, 1.0, 0.5],
            "pay": ["Cash", "Card", "Cash", "Cash"],
        }
    )
    theirs = str(tmp_path / "theirs")
    tfma.analyze_raw_data(frame, config, output_path=theirs)
    stock_config = tfma.load_eval_result(theirs).config
    report = report_of(list(tfma.load_metrics(theirs)), list(tfma.load_plots(theirs)))
    assert len(report.slices) == 3 and len(report.cross_slices) == 2
    verdict = gate.judge(gate.Evidence(report.slices), (), Policy())
    mine = written(tmp_path / "mine", report, verdict, stock_config)

    assert sorted(os.listdir(mine)) == sorted(os.listdir(theirs))
    assert set(json.loads(Path(mine, "eval_config.json").read_text())) == set(
        json.loads(Path(theirs, "eval_config.json").read_text())
    )
    assert records(tfma.load_metrics, mine) == records(tfma.load_metrics, theirs)
    assert records(tfma.load_plots, mine) == records(tfma.load_plots, theirs)
    assert records(tfma.load_attributions, mine) == records(tfma.load_attributions, theirs)
    assert tfma.load_validation_result(mine) == tfma.load_validation_result(theirs)


def records(load, folder: str) -> list[bytes]:
    """The records in an order of their own; Beam writes slices and metrics in any."""
    found = []
    for record in load(folder):
        if hasattr(record, "metric_keys_and_values"):
            record.metric_keys_and_values.sort(key=lambda item: item.key.name)
        if hasattr(record, "plot_keys_and_values"):
            record = undefined_alike(record)
        found.append(record.SerializeToString(deterministic=True))
    return sorted(found)


def report_of(metrics, plots) -> Report:
    """A report with the numbers in stock records."""

    def key_of(key):
        return tuple((s.column, s.bytes_value) for s in key.single_slice_keys)

    drawn = {}
    for record in plots:
        for item in record.plot_keys_and_values:
            m = item.value.confusion_matrix_at_thresholds.matrices
            names = (
                "threshold",
                "true_positives",
                "true_negatives",
                "false_positives",
                "false_negatives",
            )
            b = item.value.calibration_histogram_buckets.buckets
            edges = [b[0].lower_threshold_inclusive, *(x.upper_threshold_exclusive for x in b)]
            sums = (
                "num_weighted_examples",
                "total_weighted_label",
                "total_weighted_refined_prediction",
            )
            drawn[key_of(record.slice_key)] = {
                MetricKey("confusion_matrix_plot"): ConfusionMatrices(
                    *(np.array([getattr(x, n) for x in m]) for n in names)
                ),
                MetricKey("calibration_plot"): CalibrationBuckets(
                    np.array(edges), *(np.array([getattr(x, n).value for x in b]) for n in sums)
                ),
            }
    slices, cross = [], []
    for record in metrics:
        values = {
            MetricKey(i.key.name, example_weighted=i.key.example_weighted.value): i.value.double_value.value
            for i in record.metric_keys_and_values
        }
        if record.HasField("cross_slice_key"):
            pair = record.cross_slice_key
            cross.append(
                gate.CrossSliceValues(
                    key_of(pair.baseline_slice_key), key_of(pair.comparison_slice_key), values
                )
            )
        else:
            key = key_of(record.slice_key)
            slices.append(one(values, key, drawn[key]))
    return Report(slices, cross_slices=cross, files={"/in/a.gz": 4})


def test_messages_are_tfmas_own() -> None:
    assert metrics_for_slice_pb2.MetricKey is type(stock_key(MetricKey("a")).to_proto())
