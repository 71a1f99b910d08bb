"""The face of the small tools that nodes and packs use: weight files, state dicts, resizing, tiling,
progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from comfy.interrupt import throw_exception_if_processing_interrupted
from comfy.models.diffusers_names import UNET_MAP_BASIC
from comfy.resize import bislerp, common_upscale, lanczos, reshape_mask
from comfy.state_dicts import (
    calculate_parameters,
    copy_to_param,
    get_attr,
    pack_latents,
    repeat_to_batch_size,
    resize_to_batch_size,
    set_attr,
    set_attr_param,
    state_dict_key_replace,
    state_dict_prefix_replace,
    unpack_latents,
    weight_dtype,
)
from comfy.tiling import get_tiled_scale_steps, tiled_scale, tiled_scale_multidim
from comfy.weights import load_torch_file, safetensors_header, save_torch_file

__all__ = [
    "PROGRESS_BAR_ENABLED",
    "PROGRESS_BAR_HOOK",
    "UNET_MAP_BASIC",
    "ProgressBar",
    "bislerp",
    "calculate_parameters",
    "common_upscale",
    "copy_to_param",
    "get_attr",
    "get_tiled_scale_steps",
    "lanczos",
    "load_torch_file",
    "pack_latents",
    "repeat_to_batch_size",
    "reshape_mask",
    "resize_to_batch_size",
    "safetensors_header",
    "save_torch_file",
    "set_attr",
    "set_attr_param",
    "set_progress_bar_enabled",
    "set_progress_bar_global_hook",
    "state_dict_key_replace",
    "state_dict_prefix_replace",
    "tiled_scale",
    "tiled_scale_multidim",
    "unpack_latents",
    "weight_dtype",
]

PROGRESS_BAR_ENABLED: bool = True
PROGRESS_BAR_HOOK: Callable[..., None] | None = None

MIN_INTERVAL_S = 0.1
MIN_FRACTION = 0.005


def set_progress_bar_enabled(enabled: bool) -> None:
    """Whether loops draw a bar on the console."""
    global PROGRESS_BAR_ENABLED
    PROGRESS_BAR_ENABLED = enabled


def set_progress_bar_global_hook(function: Callable[..., None] | None) -> None:
    """Who gets the updates of every ProgressBar made from now on: function(value, total, preview,
    node_id=...)."""
    global PROGRESS_BAR_HOOK
    PROGRESS_BAR_HOOK = function


class ProgressBar:
    """Reports how far a node has come.

    Throttled (websocket spec): the first update, the last, and any with a preview are sent at once, others
    only when 0.1 s and 0.5 % of the total have passed since the last one sent. An interruption is noticed
    when an update is sent.
    """

    def __init__(self, total: float, node_id: str | None = None):
        self.total = total
        self.current: float = 0
        self.node_id = node_id
        self.hook = PROGRESS_BAR_HOOK
        self._sent_value: float | None = None
        self._sent_at = 0.0

    def update_absolute(self, value: float, total: float | None = None, preview: Any = None) -> None:
        """Set the progress to `value`; values above the total are cut to it."""
        if total is not None:
            self.total = total
        self.current = min(value, self.total)
        if self.hook is None or not self._is_due(preview):
            return
        throw_exception_if_processing_interrupted()
        self._sent_value = self.current
        self._sent_at = time.monotonic()
        self.hook(self.current, self.total, preview, node_id=self.node_id)

    def update(self, value: float) -> None:
        """Advance by `value`."""
        self.update_absolute(self.current + value)

    def _is_due(self, preview: Any) -> bool:
        if self._sent_value is None or preview is not None or self.current >= self.total:
            return True
        return (
            self.current - self._sent_value >= self.total * MIN_FRACTION
            and time.monotonic() - self._sent_at >= MIN_INTERVAL_S
        )
