"""Re-exports; see `nodes`."""

from nodes.model_patches import ModelPatchLoader, QwenImageDiffsynthControlnet, USOStyleReference

__all__ = ["ModelPatchLoader", "QwenImageDiffsynthControlnet", "USOStyleReference"]
