"""Re-exports; see `nodes`."""

from nodes.model_advanced import TorchCompileModel

__all__ = ["TorchCompileModel"]
