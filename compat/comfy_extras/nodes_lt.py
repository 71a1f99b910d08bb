"""Re-exports; see `nodes`."""

from nodes.empty_latents import EmptyLTXVLatentVideo
from nodes.guiders import LTXVDualCFGGuider
from nodes.model_conditioning import LTXVConditioning
from nodes.model_sampling import ModelSamplingLTXV
from nodes.model_schedulers import LTXVScheduler
from nodes.video_compression import LTXVPreprocess

__all__ = [
    "EmptyLTXVLatentVideo",
    "LTXVConditioning",
    "LTXVDualCFGGuider",
    "LTXVPreprocess",
    "LTXVScheduler",
    "ModelSamplingLTXV",
]
