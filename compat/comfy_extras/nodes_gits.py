"""Re-exports; see `nodes`."""

from nodes.tabled_schedulers import GITSScheduler

__all__ = ["GITSScheduler"]
