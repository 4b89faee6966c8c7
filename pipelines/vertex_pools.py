"""One evaluation by several machines of a Vertex AI custom job: every pool runs the same command.

    python -m pipelines.vertex_pools --image IMAGE --bucket BUCKET --helpers 3 --output job.json

The machines share work through the state folder alone. The one in pool 0 writes the artifacts.
Nothing is submitted: `google.cloud.aiplatform.CustomJob` takes the pools.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def worker_pools(image: str, bucket: str, helpers: int) -> list[dict[str, Any]]:
    """Returns the pools: one machine that writes, and so many that help it."""
    root = f"gs://{bucket}"
    arguments = [
        "evaluate",
        f"--examples={root}/examples",
        f"--model={root}/model",
        f"--eval-config=/gcs/{bucket}/eval_config.json",
        f"--output={root}/evaluation",
        f"--state-dir={root}/evaluation-state",
    ]
    pool = {
        "machine_spec": {
            "machine_type": "n1-standard-8",
            "accelerator_type": "NVIDIA_TESLA_T4",
            "accelerator_count": 1,
        },
        "container_spec": {"image_uri": image, "args": arguments},
    }
    return [{**pool, "replica_count": count} for count in (1, helpers)]


def main() -> None:
    """Writes the pools as JSON."""
    parser = argparse.ArgumentParser(description="Writes the worker pools.")
    parser.add_argument("--image", required=True)
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--helpers", type=int, default=1)
    parser.add_argument("--output", default="job.json")
    arguments = parser.parse_args()
    pools = worker_pools(arguments.image, arguments.bucket, arguments.helpers)
    Path(arguments.output).write_text(json.dumps(pools, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
