"""Assay as a component of Kubeflow pipelines; kfp is loaded when a component is made, never to run one."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name in __all__:
        from assay.kfp import component

        return getattr(component, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["distributed_evaluator", "local_evaluator"]
