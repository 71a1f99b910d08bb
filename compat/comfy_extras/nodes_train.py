"""Re-exports; see `nodes`."""

from nodes.lora_tools import LoraModelLoader, SaveLoRA

__all__ = ["LoraModelLoader", "SaveLoRA"]
