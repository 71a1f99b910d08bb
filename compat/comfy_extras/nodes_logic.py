"""Re-exports; see `nodes`."""

from nodes.primitives import ComfyAndNode, ComfyNotNode, ComfyOrNode, ComfySwitchNode, CustomCombo

__all__ = ["ComfyAndNode", "ComfyNotNode", "ComfyOrNode", "ComfySwitchNode", "CustomCombo"]
