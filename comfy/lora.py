"""The face of weight patches. `calculate_weight` is looked up here on each call, so that packs can replace it."""

from __future__ import annotations

from comfy.weight_patches import calculate_weight

__all__ = ["calculate_weight"]
