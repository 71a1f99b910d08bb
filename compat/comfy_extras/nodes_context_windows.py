"""Re-exports; see `nodes`."""

from nodes.context_windows import ContextWindowsManual

__all__ = ["ContextWindowsManual"]
