"""The newest version of the node interface (spec node-api.md section 3).

from comfy_api.latest import ComfyAPI, ComfyAPISync, ComfyExtension, io, ui
"""

from __future__ import annotations

from comfy_api.internal import synchronous
from comfy_api.latest import _input as Input
from comfy_api.latest import _input_impl as InputImpl
from comfy_api.latest import _types as Types
from comfy_api.latest import io, ui
from comfy_api.latest._api import Caching, ComfyAPI, ComfyExtension

IO = io
UI = ui
ComfyAPISync = synchronous(ComfyAPI)

__all__ = [
    "IO",
    "UI",
    "Caching",
    "ComfyAPI",
    "ComfyAPISync",
    "ComfyExtension",
    "Input",
    "InputImpl",
    "Types",
    "io",
    "ui",
]
