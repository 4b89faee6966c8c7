"""The three routes from examples to a model, and where labels, weights and slices come from."""

from __future__ import annotations

import logging

import apache_beam as beam
import made
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam
from tensorflow_transform.tf_metadata import dataset_metadata, schema_utils

from assay import examples as located
from assay import inputs, shards
from assay.plan import Plan
from assay.request import Policy
from assay.spec import RequestError

STATUS = ("BROKEN", "NORMAL", "RECOVERING")
ROWS = [
    {
        "miles": float(i % 13) / 3,
        "fare": 2.5 + i,
        "status": STATUS[i % 3],
        "payment": ["Cash", "Card"][i % 2] if i % 5 else None,
        "weight": float(1 + i % 3),
    }
    for i in range(150)
]

RAW_SPEC = {
    "miles": tf.io.FixedLenFeature([], tf.float32),
    "fare": tf.io.FixedLenFeature([], tf.float32),
    "status": tf.io.FixedLenFeature([], tf.string),
    "payment": tf.io.VarLenFeature(tf.string),
    "weight": tf.io.FixedLenFeature([], tf.float32),
}


def preprocess(raw):
    """`miles` keeps its name and changes its values; status becomes an id; the label is made."""
    payment = tft.sparse_tensor_to_dense_with_shape(raw["payment"], [None, 1], "none")
    return {
        "miles": tft.scale_to_z_score(raw["miles"])[:, None],
        "log_fare": tf.math.log1p(raw["fare"])[:, None],
        "status_id": tft.compute_and_apply_vocabulary(raw["status"], vocab_filename="status")[:, None],
        "payment": tft.compute_and_apply_vocabulary(payment, num_oov_buckets=1),
        "label": tf.cast(raw["fare"] > 70.0, tf.int64)[:, None],
        "doubled": (raw["weight"] * 2.0)[:, None],
    }


class Trained(tf.Module):
    """Signatures over transformed features by name, and over serialized raw examples."""

    def __init__(self, graph):
        super().__init__()
        self.layer = graph.transform_features_layer()
        self.scale = tf.Variable(0.3)
        columns = {n: tf.TensorSpec([None, 1], tf.float32, name=n) for n in ("miles", "log_fare")}

        @tf.function(input_signature=[columns])
        def named(features):
            score = features["log_fare"] - 3.9 + self.scale * features["miles"]
            return {"output": tf.sigmoid(3.0 * score)}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
        def serialized(examples):
            found = self.layer(tf.io.parse_example(examples, RAW_SPEC))
            return named({name: found[name] for name in ("miles", "log_fare")})

        self.named, self.serialized = named, serialized


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Raw and transformed examples, the transform graph, and a model with both signatures."""
    root = tmp_path_factory.mktemp("inputs")
    metadata = dataset_metadata.DatasetMetadata(schema_utils.schema_from_feature_spec(RAW_SPEC))
    rows = [{**r, "payment": [r["payment"]] if r["payment"] else []} for r in ROWS]
    options = beam.options.pipeline_options.PipelineOptions([])
    written = str(root / "transformed" / "Split-eval" / "data")
    with beam.Pipeline(options=options) as pipeline, tft_beam.Context(temp_dir=str(root / "tmp")):
        raw = (pipeline | beam.Create(rows), metadata)
        (data, out), fn = raw | tft_beam.AnalyzeAndTransformDataset(preprocess)
        fn | tft_beam.WriteTransformFn(str(root / "graph"))
        encode = tft.coders.ExampleProtoCoder(out.schema).encode
        data | beam.Map(encode) | beam.io.WriteToTFRecord(written, file_name_suffix=".gz")
    made.examples(root / "raw", ROWS, files=2)
    module = Trained(tft.TFTransformOutput(str(root / "graph")))
    signatures = {"serving_default": module.serialized, "named": module.named}
    tf.saved_model.save(module, str(root / "model"), signatures=signatures)
    return root


METRICS = ("ExampleCount", "BinaryCrossentropy", "AUC", "MeanLabel", "MeanPrediction")


def run(root, examples, *, signature, label="label", replicas=2, slices=({},), metrics=METRICS, **more):
    models = [{"labelKey": label, "signatureName": signature, **more.pop("model", {})}]
    text = made.config(*metrics, slices=slices, models=models)
    more.setdefault("transform_graph", root / "graph")
    return made.evaluate(root / examples, root / "model", text, replicas=replicas, **more)


@pytest.fixture(scope="module")
def expected():
    """The numbers by NumPy, from the definition of preprocess."""
    miles = np.array([r["miles"] for r in ROWS], np.float32).astype(float)
    fare = np.array([r["fare"] for r in ROWS])
    z = (miles - miles.mean()) / miles.std()
    p = 1 / (1 + np.exp(-3 * (np.log1p(fare) - 3.9 + 0.3 * z)))
    y = (fare > 70).astype(float)
    loss = -(y * np.log(p) + (1 - y) * np.log(1 - p))
    return {
        "example_count": 150.0,
        "mean_label": y.mean(),
        "mean_prediction": p.mean(),
        "binary_crossentropy": loss.mean(),
    }


ROUTES = {
    "a": ("raw", "named", "Transform runs in the input pipeline, once per row"),
    "b": ("transformed", "named", "takes raw features by name"),
    "c": ("raw", "serving_default", "parses the serialized examples by itself"),
}


@pytest.mark.parametrize("route", sorted(ROUTES))
@pytest.mark.parametrize("replicas", [1, 2])
def test_each_route_gives_the_numbers(root, expected, route, replicas, caplog):
    # Cases 50 and 51: the label exists only after Transform.
    examples, signature, said = ROUTES[route]
    with caplog.at_level(logging.INFO, "assay"):
        outcome = run(root, examples, signature=signature, replicas=replicas)
    found = made.values(outcome)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-5), name
    assert said in caplog.text


def test_the_routes_agree(root):
    found = [made.values(run(root, e, signature=s)) for e, s, _ in ROUTES.values()]
    assert found[0] == pytest.approx(found[1], rel=1e-6) and found[0] == pytest.approx(found[2], rel=1e-6)


def test_the_model_sees_the_transformed_value_and_slices_the_raw_one(root, expected):
    # Case 52: `miles` and `payment` exist raw and transformed, with other types.
    outcome = run(root, "raw", signature="named", slices=[{}, {"featureKeys": ["payment"]}])
    assert made.values(outcome)["mean_prediction"] == pytest.approx(expected["mean_prediction"], rel=1e-5)
    counts = {s.key: s.rows for s in outcome.report.slices}
    assert counts == {(): 150, (("payment", b"Cash"),): 60, (("payment", b"Card"),): 60}


def test_slices_from_the_transformed_features_by_policy(root):
    outcome = run(
        root,
        "raw",
        signature="named",
        slices=[{"featureKeys": ["payment"]}],
        policy=Policy(slice_features="transformed"),
    )
    counts = {s.key: s.rows for s in outcome.report.slices}
    assert sorted(counts.values()) == [30, 60, 60]
    assert all(isinstance(value, int) for ((_, value),) in counts)


def test_labels_and_weights_come_from_the_transformed_features_first(root):
    outcome = run(
        root,
        "raw",
        signature="named",
        label="miles",
        metrics=["MeanLabel", "WeightedExampleCount"],
        model={"exampleWeightKey": "doubled"},
    )
    found = made.values(outcome)
    miles = np.array([r["miles"] for r in ROWS])
    weights = np.array([2 * r["weight"] for r in ROWS])
    z = (miles - miles.mean()) / miles.std()
    assert found["weighted_example_count"] == weights.sum()
    assert found["mean_label"] == pytest.approx(np.average(z, weights=weights), abs=1e-6)


def test_an_id_from_the_vocabulary_is_a_label(root):
    # Case 50: NORMAL, RECOVERING, BROKEN become 0 … 2.
    outcome = run(root, "raw", signature="named", label="status_id", metrics=["MeanLabel"])
    assert made.values(outcome)["mean_label"] == 1.0


def test_a_raw_string_label_is_refused_with_the_way_out(root):
    with pytest.raises(RequestError, match=r"label_key 'status' is a string feature.*Transform"):
        run(root, "raw", signature="named", label="status")


def test_a_named_input_without_the_transform_graph(root):
    with pytest.raises(RequestError, match=r"'log_fare'.*is the transform graph missing"):
        run(root, "raw", signature="named", label="miles", transform_graph="")


def test_several_artifacts_and_splits(root, tmp_path):
    made.examples(tmp_path / "one", ROWS[:20], split="eval")
    made.examples(tmp_path / "one", ROWS[20:50], split="test")
    made.examples(tmp_path / "two", ROWS[50:60], split="eval")
    made.examples(tmp_path / "two", ROWS[60:61], split="test")
    made.model(tmp_path / "model", made.Parsing("fare"))
    text = made.config("ExampleCount", "MeanLabel", models=[{"labelKey": "fare"}])
    both = [tmp_path / "one", tmp_path / "two"]
    for splits, rows in ((("eval",), 30), (("test",), 31), (("eval", "test"), 61)):
        outcome = made.evaluate(both, tmp_path / "model", text, splits=splits)
        assert made.values(outcome)["example_count"] == rows
        assert outcome.report.rows == rows


@pytest.mark.parametrize("compression", ["", "GZIP"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_compression_is_found_in_the_file_not_in_its_name(tmp_path, compression, suffix):
    made.write(tmp_path / "data" / f"part{suffix}", ROWS[:9], compression)
    made.model(tmp_path / "model", made.Parsing("fare"))
    text = made.config("ExampleCount", models=[{"labelKey": "fare"}])
    outcome = made.evaluate(tmp_path / "data", tmp_path / "model", text)
    assert made.values(outcome)["example_count"] == 9


def test_plain_and_gzip_files_and_an_empty_one_side_by_side(tmp_path):
    made.write(tmp_path / "data" / "a", ROWS[:5], "")
    made.write(tmp_path / "data" / "b", ROWS[5:12], "GZIP")
    made.write(tmp_path / "data" / "c", [], "")
    made.model(tmp_path / "model", made.Parsing("fare"))
    text = made.config("ExampleCount", models=[{"labelKey": "fare"}])
    outcome = made.evaluate(str(tmp_path / "data" / "*"), tmp_path / "model", text, replicas=3, batch=2)
    assert [rows for _, rows in sorted(outcome.report.files.items())] == [5, 7, 0]


def test_batches_are_static_full_and_cover_each_row_once(tmp_path):
    made.write(tmp_path / "data" / "a", [{"n": i, "label": 0} for i in range(150)])
    files = located.locate([str(tmp_path / "data")], ("eval",))
    records = located.peek(files, {})
    plan = Plan(None, (), ((("raw", "n")),), (None,), {}, (1,), types=records.types)
    made_pipeline = inputs.pipeline(files, plan, [inputs.SlicingSpec()], batch_size=50, replicas=4)
    made_pipeline.aim([shards.Range(number) for number in range(len(files))])
    batches = list(made_pipeline.dataset)
    assert len(batches) == 1 and made_pipeline.dataset.element_spec["count"].shape == [256]
    (batch,) = batches
    real = batch["count"].numpy() == 1
    assert real.reshape(4, 64).sum(1).tolist() == [50, 50, 50, 0]
    assert sorted(batch["label_0"].numpy()[real]) == list(range(150))
    assert (batch["slots"].numpy()[~real] == -1).all()


def test_a_schema_gives_types_that_the_first_records_do_not_show(tmp_path):
    rows = [{"label": 1, "score": 0.5, **({"rare": "yes"} if i == 1500 else {})} for i in range(1501)]
    made.write(tmp_path / "data" / "a", rows)
    made.model(tmp_path / "model")
    text = made.config("ExampleCount", slices=[{}, {"featureKeys": ["rare"]}])
    with pytest.raises(RequestError, match="unknown slice feature 'rare'"):
        made.evaluate(tmp_path / "data", tmp_path / "model", text)
    (tmp_path / "schema.pbtxt").write_text('feature { name: "rare" type: BYTES }')
    outcome = made.evaluate(tmp_path / "data", tmp_path / "model", text, schema=tmp_path / "schema.pbtxt")
    assert {s.key: s.rows for s in outcome.report.slices} == {(): 1501, (("rare", b"yes"),): 1}
