"""Re-exports; see `nodes`."""

from nodes.model_patches import ModelPatchLoader, QwenImageDiffsynthControlnet

__all__ = ["ModelPatchLoader", "QwenImageDiffsynthControlnet"]
