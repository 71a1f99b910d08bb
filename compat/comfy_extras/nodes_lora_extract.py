"""Re-exports; see `nodes`."""

from nodes.lora_tools import LoraSave

__all__ = ["LoraSave"]
