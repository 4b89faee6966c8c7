"""Assay evaluates a trained model exactly, on every replica, and says whether it may be promoted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from assay.api import evaluate

__all__ = ["__version__", "evaluate"]


def __getattr__(name: str) -> Any:
    # Looked up late, so that `import assay` stays fast and loads no TensorFlow.
    if name == "evaluate":
        from assay.api import evaluate

        return evaluate
    raise AttributeError(f"module 'assay' has no attribute {name!r}")
