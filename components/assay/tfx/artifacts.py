"""The artifact type that TFX does not have: a page that Kubeflow and Vertex show."""

from __future__ import annotations

from tfx.types import artifact


class HTML(artifact.Artifact):
    """A folder with report.html and report.json.

    `TYPE_NAME` is the schema title under which Kubeflow and Vertex know a page.
    """

    TYPE_NAME = "system.HTML"
