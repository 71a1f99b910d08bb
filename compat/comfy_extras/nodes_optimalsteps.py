"""Re-exports; see `nodes`."""

from nodes.tabled_schedulers import OptimalStepsScheduler

__all__ = ["OptimalStepsScheduler"]
