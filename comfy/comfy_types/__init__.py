"""Types for writing V1 node classes (spec node-api.md 2.5)."""

from comfy.comfy_types.node_typing import (
    IO,
    CheckLazyMixin,
    ComfyNodeABC,
    FileLocator,
    InputTypeDict,
    InputTypeOptions,
    StrEnum,
)

__all__ = ["IO", "CheckLazyMixin", "ComfyNodeABC", "FileLocator", "InputTypeDict", "InputTypeOptions", "StrEnum"]
