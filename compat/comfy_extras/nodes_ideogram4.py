"""Re-exports; see `nodes`."""

from nodes.model_schedulers import Ideogram4Scheduler

__all__ = ["Ideogram4Scheduler"]
