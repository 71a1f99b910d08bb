"""Version 0.0.2 of the node interface: what `latest` was when it was fixed."""

from comfy_api.latest import (
    IO,
    UI,
    ComfyAPI,
    ComfyAPISync,
    ComfyExtension,
    Input,
    InputImpl,
    Types,
    io,
    ui,
)

__all__ = ["IO", "UI", "ComfyAPI", "ComfyAPISync", "ComfyExtension", "Input", "InputImpl", "Types", "io", "ui"]
