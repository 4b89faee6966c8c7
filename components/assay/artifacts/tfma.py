"""The ModelEvaluation folder, as TFMA's own writers leave it and its loaders read it.

Metrics, plots and attributions: one record a slice; one ValidationResult; eval_config.json.
Runs on the host.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from google.protobuf.message import Message

from assay.gate import Finding, Verdict
from assay.protos import config_pb2, metrics_for_slice_pb2, validation_result_pb2
from assay.report import Report
from assay.spec import CrossSlicingSpec, MetricKey, SliceKey, SlicingSpec, unique, value_text
from assay.values import CalibrationBuckets, ConfusionMatrices, Plot, Undefined

SHARD = "00000-of-00001"
FILE_FORMAT = "tfrecord"
# Plots of these names share one entry without a name, which the viewers look for.
UNNAMED_PLOTS = ("calibration_plot", "confusion_matrix_plot")


def write(
    folder: str,
    report: Report,
    verdict: Verdict,
    eval_config: Message,
    model_locations: Mapping[str, str],
    version: str,
) -> None:
    """Writes the evaluation into `folder`; files of these names are replaced.

    eval_config: the normalised EvalConfig. model_locations: URI by model name. version: any text
    but an empty one, which TFMA's loader refuses.

    Raises:
      tf.errors.OpError: the folder cannot be written.
    """
    tf.io.gfile.makedirs(folder)
    _records(folder, f"metrics-{SHARD}", metrics_records(report))
    _records(folder, f"plots-{SHARD}", plots_records(report))
    _records(folder, f"attributions-{SHARD}", attributions_records(report))
    _records(folder, "validations", [validation_result(verdict)])
    run = config_pb2.EvalRun(
        eval_config=eval_config,
        version=version,
        data_location=", ".join(unique([os.path.dirname(uri) for uri in sorted(report.files)])),
        file_format=FILE_FORMAT,
        model_locations=dict(model_locations),
    )
    with tf.io.gfile.GFile(os.path.join(folder, "eval_config.json"), "w") as file:
        file.write(json_format.MessageToJson(run) + "\n")


def _records(folder: str, name: str, messages: Iterable[Message]) -> None:
    with tf.io.TFRecordWriter(os.path.join(folder, f"{name}.tfrecord")) as writer:
        for message in messages:
            writer.write(message.SerializeToString())


def metrics_records(report: Report) -> Iterator[Message]:
    """Yields one MetricsForSlice a slice, then one a cross slice; an undefined value is NaN."""
    for place, values in _places(report):
        record = metrics_for_slice_pb2.MetricsForSlice(**place)
        for key, value in sorted(values.items(), key=lambda item: _order(item[0])):
            number = float("nan") if isinstance(value, Undefined) else value
            record.metric_keys_and_values.add(key=metric_key(key), value={"double_value": {"value": number}})
        yield record


def plots_records(report: Report) -> Iterator[Message]:
    """Yields one PlotsForSlice a slice and a cross slice, holding its key alone if it has none."""
    for found in report.slices:
        record = metrics_for_slice_pb2.PlotsForSlice(slice_key=slice_key(found.key))
        # TFMA's viewer shows the last entry of a model: the one with both default plots.
        plots = sorted(found.plots.items(), key=lambda item: (item[0].name in UNNAMED_PLOTS, _order(item[0])))
        entries: dict[tuple[str, str, bool], Any] = {}
        for key, plot in plots:
            name = "" if key.name in UNNAMED_PLOTS else key.name
            place = (name, key.model_name, key.example_weighted)
            if place not in entries:
                entry = record.plot_keys_and_values.add()
                entry.key.name, entry.key.model_name = name, key.model_name
                entry.key.example_weighted.value = key.example_weighted
                entries[place] = entry.value
            _draw(plot, entries[place])
        yield record
    for cross in report.cross_slices:
        yield metrics_for_slice_pb2.PlotsForSlice(
            cross_slice_key=_cross_key(cross.baseline_key, cross.comparison_key)
        )


def attributions_records(report: Report) -> Iterator[Message]:
    """Yields one AttributionsForSlice a slice and a cross slice; it holds the key alone."""
    for place, _ in _places(report):
        yield metrics_for_slice_pb2.AttributionsForSlice(**place)


def _places(
    report: Report,
) -> Iterator[tuple[dict[str, Message], Mapping[MetricKey, float | Undefined]]]:
    for found in report.slices:
        yield {"slice_key": slice_key(found.key)}, found.values
    for cross in report.cross_slices:
        yield (
            {"cross_slice_key": _cross_key(cross.baseline_key, cross.comparison_key)},
            cross.values,
        )


def _order(key: MetricKey) -> tuple[str, str, bool, bool]:
    return key.name, key.model_name, key.example_weighted, key.is_diff


def metric_key(key: MetricKey) -> Message:
    """Returns TFMA's MetricKey; its example_weighted is there even when it is false."""
    return metrics_for_slice_pb2.MetricKey(
        name=key.name,
        model_name=key.model_name,
        is_diff=key.is_diff,
        example_weighted={"value": key.example_weighted},
    )


def slice_key(key: SliceKey) -> Message:
    """Returns TFMA's SliceKey; bytes that are not UTF-8 are escaped, or its loader would fail."""
    result = metrics_for_slice_pb2.SliceKey()
    for feature, value in key:
        single = result.single_slice_keys.add(column=feature)
        if isinstance(value, bytes):
            single.bytes_value = value_text(value).encode()
        elif isinstance(value, int):
            single.int64_value = value
        else:
            single.float_value = value
    return result


def _cross_key(baseline: SliceKey, comparison: SliceKey) -> Message:
    return metrics_for_slice_pb2.CrossSliceKey(
        baseline_slice_key=slice_key(baseline), comparison_slice_key=slice_key(comparison)
    )


def _draw(plot: Plot, data: Any) -> None:
    if isinstance(plot, ConfusionMatrices):
        data.confusion_matrix_at_thresholds.CopyFrom(confusion_matrices(plot))
    else:
        data.calibration_histogram_buckets.CopyFrom(calibration_buckets(plot))


def confusion_matrices(plot: ConfusionMatrices) -> Message:
    """Returns the counts and rates at each threshold, with what TFMA puts where nothing divides.

    Precision is 1 where nothing is predicted positive, recall 0 where nothing is positive; the
    other rates are NaN there. Thresholds have six decimals.
    """
    tp, tn, fp, fn = plot.tp, plot.tn, plot.fp, plot.fn
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(tp + fp > 0, tp / (tp + fp), 1.0)
        recall = np.where(tp + fn > 0, tp / (tp + fn), 0.0)
        rates = {
            "precision": precision,
            "recall": recall,
            "f1": 2 * precision * recall / (precision + recall),
            "accuracy": (tp + tn) / (tp + tn + fp + fn),
            "false_positive_rate": fp / (tn + fp),
            "false_omission_rate": fn / (tn + fn),
        }
    columns = {
        "threshold": [round(float(t), 6) for t in plot.thresholds],
        "true_positives": tp,
        "true_negatives": tn,
        "false_positives": fp,
        "false_negatives": fn,
        **rates,
    }
    result = metrics_for_slice_pb2.ConfusionMatrixAtThresholds()
    for row in zip(*columns.values(), strict=True):
        result.matrices.add(**dict(zip(columns, map(float, row), strict=True)))
    return result


def calibration_buckets(plot: CalibrationBuckets) -> Message:
    """Returns the buckets with their bounds and weighted sums."""
    result = metrics_for_slice_pb2.CalibrationHistogramBuckets()
    bounds = zip(plot.edges[:-1], plot.edges[1:], strict=True)
    sums = zip(plot.weights, plot.labels, plot.predictions, strict=True)
    for (low, high), (weight, label, prediction) in zip(bounds, sums, strict=True):
        result.buckets.add(
            lower_threshold_inclusive=float(low),
            upper_threshold_exclusive=float(high),
            num_weighted_examples={"value": float(weight)},
            total_weighted_label={"value": float(label)},
            total_weighted_refined_prediction={"value": float(prediction)},
        )
    return result


def validation_result(verdict: Verdict) -> Message:
    """Returns the verdict as TFMA's ValidationResult.

    Failures by slice, with their reason as message and NaN where there is no value; specs that no
    slice matched; and how many slices each spec was checked on (thresholds without slices count
    under the overall spec, as in TFMA).
    """
    result: Any = validation_result_pb2.ValidationResult(
        validation_ok=verdict.blessed,
        missing_thresholds=verdict.missing_thresholds and not verdict.blessed,
        rubber_stamp=verdict.rubber_stamp,
    )
    by_slice: dict[Any, list[Finding]] = {}
    checked: dict[SlicingSpec | CrossSlicingSpec, set[Any]] = {}
    missing = []
    for finding in verdict.findings:
        if finding.slice_key is None:
            missing.append(finding.spec)
            continue
        checked.setdefault(finding.spec or SlicingSpec(), set()).add(finding.slice_key)
    for finding in verdict.failures:
        if finding.slice_key is not None:
            by_slice.setdefault((finding.is_cross, finding.slice_key), []).append(finding)
    for (is_cross, key), failures in by_slice.items():
        place = {"cross_slice_key": _cross_key(*key)} if is_cross else {"slice_key": slice_key(key)}
        result.metric_validations_per_slice.add(**place, failures=map(_failure, failures))
    for spec in unique(missing):
        if isinstance(spec, CrossSlicingSpec):
            result.missing_cross_slices.append(_cross_spec(spec))
        elif spec is not None:
            result.missing_slices.append(_slicing_spec(spec))
    for spec, keys in checked.items():
        detail = result.validation_details.slicing_details.add(num_matching_slices=len(keys))
        if isinstance(spec, CrossSlicingSpec):
            detail.cross_slicing_spec.CopyFrom(_cross_spec(spec))
        else:
            detail.slicing_spec.CopyFrom(_slicing_spec(spec))
    return result


def _failure(finding: Finding) -> Message:
    observed = float("nan") if finding.observed is None else finding.observed
    return validation_result_pb2.ValidationFailure(
        metric_key=metric_key(finding.key.diff() if finding.is_change else finding.key),
        metric_threshold=_threshold(finding),
        metric_value={"double_value": {"value": observed}},
        message=finding.reason,
    )


def _threshold(finding: Finding) -> Message:
    """The half of the threshold that the finding is about."""
    result: Any = config_pb2.MetricThreshold()
    value, change = finding.threshold.value, finding.threshold.change
    if finding.is_change and change is not None:
        result.change_threshold.direction = config_pb2.MetricDirection.Value(change.direction.name)
        _set(result.change_threshold, absolute=change.absolute, relative=change.relative)
    elif value is not None:
        _set(result.value_threshold, lower_bound=value.lower_bound, upper_bound=value.upper_bound)
    return result


def _set(message: Any, **bounds: float | None) -> None:
    message.SetInParent()
    for field, bound in bounds.items():
        if bound is not None:
            getattr(message, field).value = bound


def _slicing_spec(spec: SlicingSpec) -> Message:
    return config_pb2.SlicingSpec(feature_keys=spec.feature_keys, feature_values=dict(spec.feature_values))


def _cross_spec(spec: CrossSlicingSpec) -> Message:
    return config_pb2.CrossSlicingSpec(
        baseline_spec=_slicing_spec(spec.baseline_spec),
        slicing_specs=[_slicing_spec(s) for s in spec.slicing_specs],
    )
