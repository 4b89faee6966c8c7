"""A Kubeflow pipeline that promotes a model only if its evaluation blesses it.

    python -m pipelines.gate_kfp --image IMAGE --accelerator gpu --output gate.yaml

Nothing here runs a model: it writes what `kfp.Client` or the Kubeflow UI takes.
"""

import argparse
from typing import Any

from kfp import compiler, dsl, kubernetes

from assay.kfp import distributed_evaluator

# Names of resources and nodes as Google Kubernetes Engine has them; yours may differ.
ACCELERATORS = {
    "gpu": ("nvidia.com/gpu", 1, {"cloud.google.com/gke-accelerator": "nvidia-l4"}),
    "tpu": (
        "google.com/tpu",
        4,
        {
            "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
            "cloud.google.com/gke-tpu-topology": "2x2",
        },
    ),
}
STRATEGIES = {"none": "auto", "gpu": "mirrored", "tpu": "tpu"}


def gate(image: str, accelerator: str = "none") -> Any:
    """Returns the pipeline whose steps run in the image, the evaluation on none, GPUs or a TPU slice."""

    @dsl.container_component
    def push(model: dsl.Input[dsl.Artifact], pushed: dsl.Output[dsl.Model]):  # type: ignore[no-untyped-def]
        """Stands for what promotion means to you: here, a copy among the pipeline's artifacts."""
        script = 'mkdir -p "$1" && cp -r "$0/." "$1"'
        return dsl.ContainerSpec(image=image, command=["sh", "-c", script], args=[model.path, pushed.path])

    @dsl.pipeline(name="gate", description="Evaluates a model and promotes it only if it is blessed.")
    def gate(  # type: ignore[no-untyped-def]
        examples_uri: str,
        model_uri: str,
        baseline_uri: str,
        eval_config: str,
        state_dir: str = "",
    ):
        def imported(uri: Any, name: str) -> Any:
            return dsl.importer(artifact_uri=uri, artifact_class=dsl.Artifact).set_display_name(name).output

        model = imported(model_uri, "model")
        evaluation = distributed_evaluator(image)(
            examples=imported(examples_uri, "examples"),
            model=model,
            baseline_model=imported(baseline_uri, "baseline"),
            eval_config=eval_config,
            strategy=STRATEGIES[accelerator],
            # A retry gets new output folders; what is finished is found here.
            state_dir=state_dir,
        )
        evaluation.set_cpu_limit("4").set_memory_limit("16G")
        evaluation.set_retry(num_retries=2, backoff_duration="60s", backoff_factor=2.0)
        # The same inputs give the same verdict; artifacts and report come from the cache, too.
        evaluation.set_caching_options(True)
        if accelerator != "none":
            kind, count, nodes = ACCELERATORS[accelerator]
            evaluation.set_accelerator_type(kind).set_accelerator_limit(count)
            for label, value in nodes.items():
                kubernetes.add_node_selector(evaluation, label_key=label, label_value=value)
        with dsl.If(evaluation.outputs["blessed"] == "true", name="blessed"):
            push(model=model).set_caching_options(False)

    return gate


def main() -> None:
    """Writes the pipeline's YAML."""
    parser = argparse.ArgumentParser(description="Compiles the pipeline.")
    parser.add_argument("--image", required=True)
    parser.add_argument("--accelerator", choices=list(STRATEGIES), default="none")
    parser.add_argument("--output", default="gate.yaml")
    arguments = parser.parse_args()
    compiler.Compiler().compile(gate(arguments.image, arguments.accelerator), arguments.output)


if __name__ == "__main__":
    main()
