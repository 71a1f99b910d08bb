"""Re-exports; see `nodes`."""

from nodes.latent_math import (
    LatentAdd,
    LatentApplyOperation,
    LatentApplyOperationCFG,
    LatentBatch,
    LatentBatchSeedBehavior,
    LatentConcat,
    LatentCut,
    LatentCutToBatch,
    LatentInterpolate,
    LatentMultiply,
    LatentOperationSharpen,
    LatentOperationTonemapReinhard,
    LatentSubtract,
    ReplaceVideoLatentFrames,
)

__all__ = [
    "LatentAdd",
    "LatentApplyOperation",
    "LatentApplyOperationCFG",
    "LatentBatch",
    "LatentBatchSeedBehavior",
    "LatentConcat",
    "LatentCut",
    "LatentCutToBatch",
    "LatentInterpolate",
    "LatentMultiply",
    "LatentOperationSharpen",
    "LatentOperationTonemapReinhard",
    "LatentSubtract",
    "ReplaceVideoLatentFrames",
]
