"""The artifact types that TFX does not have: those that Kubeflow and Vertex show.

`TYPE_NAME` is the schema title under which they know them.
"""

from __future__ import annotations

from tfx.types import artifact


class HTML(artifact.Artifact):
    """A folder with report.html and report.json."""

    TYPE_NAME = "system.HTML"


class Metrics(artifact.Artifact):
    """Scalar metrics as custom properties, and metrics.json."""

    TYPE_NAME = "system.Metrics"


class ClassificationMetrics(artifact.Artifact):
    """A ROC curve and a confusion matrix as custom properties; all slices in classification_metrics.json."""

    TYPE_NAME = "system.ClassificationMetrics"


TYPES = (HTML, Metrics, ClassificationMetrics)
