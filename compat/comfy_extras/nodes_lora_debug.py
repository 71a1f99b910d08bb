"""Re-exports; see `nodes`."""

from nodes.lora_tools import LoraLoaderBypass, LoraLoaderBypassModelOnly

__all__ = ["LoraLoaderBypass", "LoraLoaderBypassModelOnly"]
