"""SDXL's text side under the names that node packs import: `comfy.text_encoders.sdxl`."""

from __future__ import annotations

from typing import Any

import torch

import comfy.ops
from comfy.faces import Face
from comfy.text_encoders import sdxl
from comfy.text_encoders.sdxl import SDXLTokenizer

__all__ = ["SDXLClipG", "SDXLClipModel", "SDXLRefinerClipModel", "SDXLTokenizer"]

# The layer names of a constructor -> those of the encoder and a layer number.
_LAYERS = {"last": ("last", None), "penultimate": ("hidden", -2)}


def _operations(model_options: dict[str, Any] | None) -> Any:
    return (model_options or {}).get("custom_operations") or comfy.ops.manual_cast


class SDXLClipG(sdxl.SDXLClipG, metaclass=Face):
    """bigG. `layer`: `last`, `penultimate`, or `hidden` with `layer_idx`. Prompts are cut into chunks of 77 by the
    tokenizer, whatever `max_length` says; weights never learn, whatever `freeze` says."""

    face = True

    def __init__(
        self,
        device: torch.device | str = "cpu",
        max_length: int = 77,
        freeze: bool = True,
        layer: str = "penultimate",
        layer_idx: int | None = None,
        dtype: torch.dtype | None = None,
        model_options: dict[str, Any] | None = None,
    ):
        super().__init__(device=device, dtype=dtype, operations=_operations(model_options))
        kind, number = _LAYERS.get(layer, (layer, layer_idx))
        if kind not in self.LAYERS:
            raise ValueError(f"layer {layer!r}: one of {', '.join([*_LAYERS, *self.LAYERS])} expected")
        self._defaults = (kind, number, self.return_projected_pooled)
        self.reset_clip_options()


class SDXLClipModel(sdxl.SDXLClipModel, metaclass=Face):
    """Both encoders of SDXL."""

    face = True

    def __init__(
        self,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        model_options: dict[str, Any] | None = None,
    ):
        super().__init__(device=device, dtype=dtype, operations=_operations(model_options))


class SDXLRefinerClipModel(sdxl.SDXLRefinerClipModel, metaclass=Face):
    """The refiner's encoder."""

    face = True

    def __init__(
        self,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        model_options: dict[str, Any] | None = None,
    ):
        super().__init__(device=device, dtype=dtype, operations=_operations(model_options))
