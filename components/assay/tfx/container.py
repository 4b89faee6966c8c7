"""The container's entry on Kubeflow and Vertex: `python -m assay.tfx.container`.

TFX's own entry, in a process that knows our artifact types. TFX takes a schema title that it does
not know for the import path of a class, and looks it up before it imports the executor.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from absl import app
from tfx.dsl.io import fileio
from tfx.orchestration.kubeflow.v2 import compiler_utils
from tfx.orchestration.kubeflow.v2.container import kubeflow_v2_run_executor
from tfx.utils import name_utils

from assay.tfx.artifacts import TYPES


def main(flags: Any) -> None:
    """Runs the executor named in TFX's flags and writes its output file.

    Raises:
      Exception: whatever the executor raised; then there is no output file.
    """
    for kind in TYPES:
        compiler_utils.TITLE_TO_CLASS_PATH[kind.TYPE_NAME] = name_utils.get_full_name(kind)
    kubeflow_v2_run_executor.main(flags)
    outputs = json.loads(flags[0].json_serialized_invocation_args)["outputs"]
    if "report" in outputs.get("artifacts", {}):
        _point_at_page(outputs["outputFile"])


def _point_at_page(output_file: str) -> None:
    """Kubeflow and Vertex show the file at an HTML artifact's URI; TFX gave it a folder."""
    with fileio.open(output_file, "r") as file:
        record = json.load(file)
    for artifact in record["artifacts"]["report"]["artifacts"]:
        artifact["uri"] = os.path.join(artifact["uri"], "report.html")
    with fileio.open(output_file, "w") as file:
        file.write(json.dumps(record))


def parse(argv: Sequence[str]) -> Any:
    """Returns TFX's flags and the Beam options behind them."""
    return kubeflow_v2_run_executor._parse_flags(list(argv))


if __name__ == "__main__":
    app.run(main, flags_parser=parse)
