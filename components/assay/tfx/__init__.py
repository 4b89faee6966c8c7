"""Assay as a component of TFX pipelines."""

from assay.tfx.component import DistributedEvaluator

__all__ = ["DistributedEvaluator"]
