"""Re-exports; see `nodes`."""

from nodes.model_schedulers import AlignYourStepsScheduler

__all__ = ["AlignYourStepsScheduler"]
