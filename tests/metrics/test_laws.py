"""Every metric through the laws of an additive state, to the byte."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
import sums
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.metrics import CLASSES
from assay.spec import OVERALL
from assay.state import State, from_bytes, merge, to_bytes

NAMES = sorted(CLASSES)
quick = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))


def encoded(state: State) -> bytes:
    return to_bytes(state)


@pytest.mark.parametrize("name", NAMES)
def test_zero_is_the_identity(name):
    metric = sums.metric(name)
    one = sums.state(metric, *sums.rows(sums.kind(name), 40))
    zero = State(one.layout)
    assert encoded(merge(one, zero)) == encoded(one) == encoded(merge(zero, one))


@pytest.mark.parametrize("name", NAMES)
@quick
@given(data=st.data())
def test_any_split_and_any_order_give_the_same_bytes(name, data):
    size = data.draw(st.integers(2, 150))
    cut = data.draw(st.integers(1, size - 1))
    batch = data.draw(st.sampled_from([1, 7, 63, 64]))
    labels, predictions, weights = sums.rows(sums.kind(name), size, data.draw(st.integers(0, 99)))
    order = np.array(data.draw(st.permutations(range(size))))
    metric = sums.metric(name)
    whole = sums.state(metric, labels, predictions, weights)
    left = sums.state(metric, *(a[order][:cut] for a in (labels, predictions, weights)), batch=batch)
    right = sums.state(metric, *(a[order][cut:] for a in (labels, predictions, weights)))
    assert encoded(merge(left, right)) == encoded(whole) == encoded(merge(right, left))


@pytest.mark.parametrize("name", NAMES)
def test_merge_is_associative(name):
    metric = sums.metric(name)
    a, b, c = (sums.state(metric, *sums.rows(sums.kind(name), 30, seed)) for seed in (1, 2, 3))
    assert encoded(merge(merge(a, b), c)) == encoded(merge(a, merge(b, c)))


@pytest.mark.parametrize("name", NAMES)
def test_weight_zero_is_absent_from_everything_but_the_row_count(name):
    metric = sums.metric(name)
    labels, predictions, weights = sums.rows(sums.kind(name), 60, 5)
    nan = np.full_like(predictions[:9], np.nan)  # a row of weight 0 may be anything
    with_ghosts = sums.state(
        metric,
        np.concatenate([labels, labels[:9]]),
        np.concatenate([predictions, nan]),
        np.concatenate([weights, np.zeros(9)]),
    )
    without = sums.state(metric, labels, predictions, weights)
    if name == "ExampleCount":
        assert sums.value(metric, with_ghosts) == sums.value(metric, without) + 9 == 69.0
    else:
        assert repr(sums.value(metric, with_ghosts)) == repr(sums.value(metric, without))
    ghost_rows = with_ghosts.slices[OVERALL][0][0, 0] - without.slices[OVERALL][0][0, 0]
    assert ghost_rows == 9


@pytest.mark.parametrize("name", NAMES)
def test_states_survive_pickle_and_bytes(name):
    one = sums.state(sums.metric(name), *sums.rows(sums.kind(name), 33))
    assert encoded(pickle.loads(pickle.dumps(one))) == encoded(one)
    assert encoded(from_bytes(encoded(one))) == encoded(one)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_low_precision_predictions_are_widened_before_any_sum(name, dtype):
    metric = sums.metric(name)
    labels, predictions, weights = sums.rows(sums.kind(name), 50)
    low = predictions.astype(dtype)
    direct = sums.state(metric, labels, low, weights)
    widened = sums.state(metric, labels, low.astype(np.float64), weights)
    assert encoded(direct) == encoded(widened)


@pytest.mark.parametrize("name", NAMES)
def test_merging_other_sums_is_refused(name):
    one = sums.state(sums.metric(name), *sums.rows(sums.kind(name), 10))
    other = dataclasses.replace(one, layout=(*one.layout, one.layout[0]))
    with pytest.raises(ValueError, match="different layouts"):
        merge(one, other)


def test_damaged_bytes_are_refused():
    data = encoded(sums.state(sums.metric("AUC"), *sums.rows("binary", 10)))
    for broken in (data[:-1], data[:40] + bytes([data[40] ^ 1]) + data[41:]):
        with pytest.raises(ValueError, match="damaged"):
            from_bytes(broken)
