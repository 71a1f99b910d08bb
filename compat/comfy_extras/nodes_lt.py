"""Re-exports; see `nodes`."""

from nodes.empty_latents import EmptyLTXVLatentVideo
from nodes.model_conditioning import LTXVConditioning
from nodes.model_schedulers import LTXVScheduler

__all__ = ["EmptyLTXVLatentVideo", "LTXVConditioning", "LTXVScheduler"]
