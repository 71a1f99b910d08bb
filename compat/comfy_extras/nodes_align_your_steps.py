"""Re-exports; see `nodes`."""

from nodes.tabled_schedulers import AlignYourStepsScheduler

__all__ = ["AlignYourStepsScheduler"]
