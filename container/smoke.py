"""Runs in the image: a tiny evaluation by each of its three entries, read back as their launchers would.

    python smoke.py FOLDER

Makes its inputs, and needs nothing but what the image holds.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

CONFIG = json.dumps(
    {
        "modelSpecs": [{"labelKey": "label"}],
        "slicingSpecs": [{}, {"featureKeys": ["kind"]}],
        "metricsSpecs": [
            {
                "metrics": [
                    {"className": "BinaryAccuracy", "threshold": {"valueThreshold": {"lowerBound": 0.9}}},
                    {"className": "AUC"},
                ]
            }
        ],
    }
)
ROWS = 200


def main() -> None:
    """Checks the image and runs every entry; raises AssertionError where one is not as it should be."""
    folder = Path(sys.argv[1])
    surroundings()
    examples, good, bad = inputs(folder / "inputs")
    for name, model, blessed in (("good", good, True), ("bad", bad, False)):
        command(folder / name / "command", examples, model, blessed)
        kubeflow(folder / name / "kubeflow", examples, model, blessed)
        tfx(folder / name / "tfx", examples, model, blessed)
    wrong(folder / "wrong", examples, good)
    print("The image's three entries work.")


def surroundings() -> None:
    """The user is nobody special, may write where Kubeflow mounts, and finds no compiler and no kfp."""
    assert os.getuid() != 0, "the image runs as root"
    for mount in ("/gcs", "/s3", "/minio", "/oci"):
        assert os.access(mount, os.W_OK), f"{mount} cannot be written"
    found = [tool for tool in ("gcc", "g++", "cc", "make") if shutil.which(tool)]
    assert not found, f"the image holds {found}"
    installed = {d.metadata["Name"] for d in importlib.metadata.distributions()}
    assert "kfp" not in installed, "the image holds kfp"
    said(
        "assay, TFX, TensorFlow:",
        *(importlib.metadata.version(n) for n in ("tfx-assay", "tfx", "tensorflow")),
    )


def said(*words: object) -> None:
    """Prints a line at once."""
    print(*words, flush=True)


def inputs(folder: Path) -> tuple[Path, Path, Path]:
    """Returns an Examples artifact, a Model that ranks its rows rightly, and one that does not."""
    examples = folder / "examples"
    (examples / "Split-eval").mkdir(parents=True)
    with tf.io.TFRecordWriter(
        str(examples / "Split-eval" / "data_tfrecord-00000-of-00001.gz"), "GZIP"
    ) as file:
        for i in range(ROWS):
            feature = {
                "x": tf.train.Feature(float_list=tf.train.FloatList(value=[i / ROWS - 0.4975])),
                "label": tf.train.Feature(float_list=tf.train.FloatList(value=[float(i >= ROWS / 2)])),
                "kind": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"ab"[i % 2 : i % 2 + 1]])),
            }
            file.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())

    class Scorer(tf.Module):
        def __init__(self, slope: float) -> None:
            super().__init__()
            self.slope = tf.Variable(slope)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "examples")])
        def serve(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
            parsed = tf.io.parse_example(examples, {"x": tf.io.FixedLenFeature([1], tf.float32)})
            return {"score": tf.sigmoid(self.slope * parsed["x"])}

    for name, slope in (("good", 5.0), ("bad", -5.0)):
        scorer = Scorer(slope)
        path = str(folder / name / "Format-Serving")
        tf.saved_model.save(scorer, path, signatures={"serving_default": scorer.serve})
    return examples, folder / "good", folder / "bad"


def run(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs a command and returns what it wrote; it must end with the code."""
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True)
    assert done.returncode == code, (
        f"{arguments[:4]}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    )
    return done


def command(root: Path, examples: Path, model: Path, blessed: bool) -> None:
    """The `assay` command."""
    done = run(
        "assay", "evaluate", "--examples", examples, "--model", model,
        "--eval-config", CONFIG, "--output", root,
    )  # fmt: skip
    verdict = "BLESSED" if blessed else "NOT_BLESSED"
    assert done.stdout == f"{verdict} {root}\n", done.stdout
    said("assay evaluate:", verdict)


def artifact(uri: object, title: str, number: int = 0, *, by_schema: bool = False) -> dict[str, Any]:
    """Returns a RuntimeArtifact, its type by title (KFP) or by instance schema (TFX)."""
    kind = {"instanceSchema": f"title: {title}\ntype: object\n"} if by_schema else {"schemaTitle": title}
    return {"artifacts": [{"name": f"stores/default/artifacts/{number}", "uri": str(uri), "type": kind}]}


def launched(file: Path) -> Any:
    """Returns an output file as the launcher takes it: strict JSON into ExecutorOutput."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    text = file.read_text("utf-8")
    json.loads(text, parse_constant=refuse)
    return json_format.Parse(text, pipeline_spec_pb2.ExecutorOutput())


def shown(output: Any, name: str) -> dict[str, Any]:
    """Returns the metadata of an output artifact."""
    return json_format.MessageToDict(output.artifacts[name].artifacts[0].metadata)


def executor_input(root: Path, examples: object, model: object) -> dict[str, Any]:
    """Returns the executor input that the compiled component's `{{$}}` stands for."""
    titles = {
        "evaluation": "system.Artifact",
        "blessing": "system.Artifact",
        "metrics": "system.Metrics",
        "classification_metrics": "system.ClassificationMetrics",
        "report": "system.HTML",
    }
    return {
        "inputs": {
            "artifacts": {
                "examples": artifact(examples, "system.Artifact"),
                "model": artifact(model, "system.Artifact", 7),
            },
            "parameterValues": {"eval_config": CONFIG, "batch_size": 64},
        },
        "outputs": {
            "artifacts": {name: artifact(root / name, title) for name, title in titles.items()},
            "parameters": {n: {"outputFile": str(root / "parameters" / n)} for n in ("blessed", "reason")},
            "outputFile": str(root / "task" / "executor_output.json"),
        },
    }


def compiled() -> list[str]:
    """Returns the command line that the KFP compiler wrote into the ready component."""
    import yaml

    path = Path(importlib.import_module("assay").__file__ or "").parent / "kfp" / "component.yaml"
    executors = yaml.safe_load(path.read_text("utf-8"))["deploymentSpec"]["executors"]
    container = executors["exec-distributed-evaluator"]["container"]
    return [*container["command"], *container["args"]]


def kubeflow(root: Path, examples: Path, model: Path, blessed: bool) -> None:
    """The KFP component's command line, its placeholder filled in."""
    given = json.dumps(executor_input(root, examples, model))
    run(*(given if word == "{{$}}" else word for word in compiled()))
    output = launched(root / "task" / "executor_output.json")
    assert output.parameter_values["blessed"].string_value == ("true" if blessed else "false")
    assert set(output.artifacts) == {"evaluation", "blessing", "metrics", "classification_metrics", "report"}
    assert shown(output, "metrics")["rows"] == ROWS
    assert len(shown(output, "classification_metrics")["confidenceMetrics"]) > 100
    assert (root / "report").read_text("utf-8").startswith("<!")
    said("assay.kfp.entrypoint: blessed", output.parameter_values["blessed"].string_value)


def tfx(root: Path, examples: Path, model: Path, blessed: bool) -> None:
    """TFX's v2 entry, with an invocation that holds all five outputs."""
    titles = {
        "evaluation": "tfx.ModelEvaluation",
        "blessing": "tfx.ModelBlessing",
        "metrics": "system.Metrics",
        "classification_metrics": "system.ClassificationMetrics",
        "report": "system.HTML",
    }
    invocation = {
        "inputs": {
            "artifacts": {
                "examples": artifact(examples, "tfx.Examples", 1, by_schema=True),
                "model": artifact(model, "tfx.Model", 2, by_schema=True),
            },
            "parameterValues": {"eval_config": CONFIG, "example_splits": "null"},
        },
        "outputs": {
            "artifacts": {
                name: artifact(root / name, title, number, by_schema=True)
                for number, (name, title) in enumerate(titles.items(), 3)
            },
            "outputFile": str(root / "task" / "executor_output.json"),
        },
    }
    run(
        "python", "-m", "assay.tfx.container", "--executor_class_path", "assay.tfx.executor.Executor",
        "--json_serialized_invocation_args", json.dumps(invocation),
        "--json_serialized_inputs_spec_args", "{}",
    )  # fmt: skip
    output = launched(root / "task" / "executor_output.json")
    assert set(output.artifacts) == set(titles)
    blessing = shown(output, "blessing")
    assert blessing["blessed"] == int(blessed) and not isinstance(blessing["blessed"], bool)
    assert blessing["current_model_id"] == "stores/default/artifacts/2"
    assert shown(output, "metrics")["rows"] == ROWS
    assert len(shown(output, "classification_metrics")["confidenceMetrics"]) > 100
    assert Path(output.artifacts["report"].artifacts[0].uri).read_text("utf-8").startswith("<!")
    said("assay.tfx.container: blessed", int(blessing["blessed"]))


def wrong(root: Path, examples: Path, model: Path) -> None:
    """A wrong request: exit code 2, one line, no verdict."""
    given = executor_input(root, examples, "/no/such/model")
    done = run("python", "-m", "assay.kfp.entrypoint", "--executor_input", json.dumps(given), code=2)
    assert len(done.stderr.splitlines()) == 1 and "/no/such/model" in done.stderr, done.stderr
    assert not [p for p in root.rglob("*") if p.is_file()]
    said("a model that is not there:", done.stderr.strip())


if __name__ == "__main__":
    main()
