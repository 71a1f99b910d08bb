"""Re-exports; see `nodes`."""

from nodes.controlnet import ControlNetInpaintingAliMamaApply, SetUnionControlNetType

__all__ = ["ControlNetInpaintingAliMamaApply", "SetUnionControlNetType"]
