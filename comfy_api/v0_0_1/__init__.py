"""Version 0.0.1 of the node interface: without schema based nodes."""

from comfy_api.latest import ComfyAPI, ComfyAPISync, Input, InputImpl, Types

__all__ = ["ComfyAPI", "ComfyAPISync", "Input", "InputImpl", "Types"]
