"""Rows fall into the slices that their features say, each once, whatever the values look like."""

from __future__ import annotations

import made
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from assay import slicing
from assay.slicing import Column, Vocabulary, parse, part_text, slice_keys
from assay.spec import RequestError, SlicingSpec


def column(rows, dtype):
    ragged = tf.ragged.constant(rows, dtype=dtype, ragged_rank=1)
    return Column(ragged.to_tensor(), ragged.row_lengths())


def keys(specs, columns, rows):
    """Returns the set of slice keys of each row; a key twice in a row would show as a count."""
    made_keys = slice_keys(specs, columns, tf.constant(rows))
    texts = made_keys.texts.numpy().tolist()
    found = []
    for row in made_keys.places.numpy().tolist():
        parsed = [parse(texts[p], slicing.features(specs)) for p in row if p >= 0 and texts[p] != b"-"]
        assert len(parsed) == len(set(parsed)), "a row counts once in a slice"
        found.append(set(parsed))
    return found


PAY = column([["Cash"], ["Card"], [], ["Cash", "Card", "Cash"]], tf.string)
HOUR = column([[7], [8], [7], [7]], tf.int64)
MILES = column([[0.1], [-0.0], [1e10], [np.float32(1) / 3]], tf.float32)
ALL = {"pay": PAY, "hour": HOUR, "miles": MILES}


def test_overall_holds_every_row():
    assert keys([SlicingSpec()], {}, 3) == [{()}] * 3


def test_feature_keys_make_a_slice_a_value_and_none_where_it_is_missing():
    cash, card = (("pay", b"Cash"),), (("pay", b"Card"),)
    assert keys([SlicingSpec(("pay",))], ALL, 4) == [{cash}, {card}, set(), {cash, card}]


def test_feature_values_pick_one_value_and_numbers_match_their_text():
    seven = (("hour", 7),)
    assert keys([SlicingSpec((), (("hour", "7"),))], ALL, 4) == [{seven}, set(), {seven}, {seven}]
    assert keys([SlicingSpec((), (("hour", "seven"),))], ALL, 4) == [set()] * 4
    tenth = (("miles", float(np.float32(0.1))),)
    assert keys([SlicingSpec((), (("miles", "0.1"),))], ALL, 4) == [{tenth}, set(), set(), set()]


def test_crosses_of_keys_and_values():
    spec = SlicingSpec(("pay",), (("hour", "7"),))
    cash, card = (("hour", 7), ("pay", b"Cash")), (("hour", 7), ("pay", b"Card"))
    assert keys([spec], ALL, 4) == [{cash}, set(), set(), {cash, card}]


def test_specs_that_make_the_same_slice_count_a_row_once():
    specs = [SlicingSpec(("pay",)), SlicingSpec((), (("pay", "Cash"),)), SlicingSpec((), (("pay", "Card"),))]
    cash, card = (("pay", b"Cash"),), (("pay", b"Card"),)
    assert keys(specs, ALL, 4) == [{cash}, {card}, set(), {cash, card}]
    assert keys(specs[1:], ALL, 4) == [{cash}, {card}, set(), {cash, card}]


def test_floats_keep_their_float32_value_and_minus_zero_is_zero():
    found = keys([SlicingSpec(("miles",))], ALL, 4)
    assert [dict(next(iter(k)))["miles"] for k in found] == [
        float(np.float32(0.1)),
        0.0,
        1e10,
        float(np.float32(1) / np.float32(3)),
    ]


def test_a_string_and_an_int_of_the_same_text_are_different_slices():
    assert part_text(0, b"5") != part_text(0, 5)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=12),
            st.integers(-(2**63), 2**63 - 1),
            st.floats(width=32, allow_nan=False, allow_infinity=False),
        ),
        max_size=4,
    )
)
def test_any_key_survives_its_text(values):
    # Bytes may hold digits, colons, NUL, or be no UTF-8 at all.
    names = [f"f{i}" for i in range(len(values))]
    text = b"".join(part_text(i, v) for i, v in enumerate(values))
    expected = tuple((n, v + 0.0 if isinstance(v, float) else v) for n, v in zip(names, values, strict=True))
    assert parse(text, names) == expected


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=6), min_size=1, max_size=8), st.integers(-(2**63), 2**63 - 1))
def test_the_graph_writes_what_the_host_reads(values, number):
    specs = [SlicingSpec(("a", "b"))]
    columns = {"a": column([values], tf.string), "b": column([[number]], tf.int64)}
    assert keys(specs, columns, 1) == [{(("a", v), ("b", number)) for v in values}]


def test_the_vocabulary_numbers_keys_as_they_appear_and_keeps_them():
    vocabulary = Vocabulary()
    first = vocabulary.slots(tf.constant(["x", "-", "y", "x"]))
    second = vocabulary.slots(tf.constant(["z", "y", "-"]))
    assert first.numpy().tolist() == [0, -1, 1, 0]
    assert second.numpy().tolist() == [2, 1, -1]


def test_a_nan_feature_makes_no_slice():
    column_of_nan = {"x": column([[float("nan")], [1.5]], tf.float32)}
    assert keys([SlicingSpec(("x",))], column_of_nan, 2) == [set(), {(("x", 1.5),)}]
    assert keys([SlicingSpec(("x", "hour"))], {**column_of_nan, "hour": column([[7], [7]], tf.int64)}, 2) == [
        set(),
        {(("hour", 7), ("x", 1.5))},
    ]


def test_crosses_of_many_distinct_values():
    random = np.random.default_rng(0)
    rows = {n: random.integers(-(2**62), 2**62, 500) for n in ("a", "b", "c", "d", "e", "f")}
    columns = {n: column([[int(v)] for v in values], tf.int64) for n, values in rows.items()}
    found = keys([SlicingSpec(tuple(rows))], columns, 500)
    assert found == [{tuple((n, int(rows[n][i])) for n in rows)} for i in range(500)]


def test_a_feature_named_twice_is_refused():
    with pytest.raises(RequestError, match="'pay' is named twice"):
        SlicingSpec(("pay",), (("pay", "Cash"),))


@pytest.mark.parametrize("replicas", [1, 3])
def test_slices_of_all_kinds_through_the_loop(tmp_path, replicas):
    rows = [
        {"label": 1, "score": 0.5, "tags": ["a", "b"], "n": 5, "s": "5", "x": 0.1},
        {"label": 0, "score": 0.5, "tags": [], "n": 5, "s": b"\xff\x00", "x": 0.1},
        {"label": 1, "score": 0.5, "tags": ["b", "b"], "n": -7, "s": "é"},
    ]
    made.examples(tmp_path / "examples", rows)
    made.model(tmp_path / "model")
    text = made.config(
        "ExampleCount",
        "MeanLabel",
        slices=[{}, *({"featureKeys": [f]} for f in ("tags", "n", "s", "x")), {"featureKeys": ["n", "tags"]}],
    )
    outcome = made.evaluate(tmp_path / "examples", tmp_path / "model", text, replicas=replicas)
    counts = {s.key: s.rows for s in outcome.report.slices}
    tenth = float(np.float32(0.1))
    assert counts == {
        (): 3,
        (("tags", b"a"),): 1,
        (("tags", b"b"),): 2,
        (("n", 5),): 2,
        (("n", -7),): 1,
        (("s", b"5"),): 1,
        (("s", b"\xff\x00"),): 1,
        (("s", "é".encode()),): 1,
        (("x", tenth),): 2,
        (("n", 5), ("tags", b"a")): 1,
        (("n", 5), ("tags", b"b")): 1,
        (("n", -7), ("tags", b"b")): 1,
    }
    assert made.values(outcome, (("tags", b"b"),))["mean_label"] == 1.0


def test_many_slices_grow_the_state(tmp_path):
    rows = [{"label": i % 2, "score": 0.25, "id": i} for i in range(700)]
    made.examples(tmp_path / "examples", rows, files=2)
    made.model(tmp_path / "model")
    text = made.config("ExampleCount", "MeanLabel", "AUC", slices=[{}, {"featureKeys": ["id"]}])
    outcome = made.evaluate(tmp_path / "examples", tmp_path / "model", text, replicas=2)
    assert len(outcome.report.slices) == 701
    for i in (0, 1, 350, 699):
        assert made.values(outcome, (("id", i),))["mean_label"] == i % 2
