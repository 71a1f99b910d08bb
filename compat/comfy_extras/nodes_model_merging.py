"""Re-exports; see `nodes`."""

from nodes.model_merging import (
    CLIPMergeAdd,
    CLIPMergeSimple,
    CLIPMergeSubtract,
    ModelMergeAdd,
    ModelMergeBlocks,
    ModelMergeSimple,
    ModelMergeSubtract,
)
from nodes.model_saving import (
    CheckpointSave,
    CLIPSave,
    ModelSave,
    VAESave,
)

__all__ = [
    "CLIPMergeAdd",
    "CLIPMergeSimple",
    "CLIPMergeSubtract",
    "CLIPSave",
    "CheckpointSave",
    "ModelMergeAdd",
    "ModelMergeBlocks",
    "ModelMergeSimple",
    "ModelMergeSubtract",
    "ModelSave",
    "VAESave",
]
