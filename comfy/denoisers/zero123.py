"""Stable Zero123 (Stability AI 2023, after Liu et al. 2023, "Zero-1-to-3"): other views of a thing in a picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import comfy.conds
import comfy.ops
from comfy.denoisers.unet import IP2P
from comfy.model_base import BaseModel, load_assigned

PROJECTION = "cc_projection."


class Stable_Zero123(IP2P, BaseModel):
    """The picture's latent goes beside the noisy one; its vector and the camera's place [batch, 1, 772] are brought to
    the width of a text (`cc_projection`)."""

    def __init__(self, model_config: Any, *args: Any, **kwargs: Any):
        super().__init__(model_config, *args, **kwargs)
        self.cc_projection: torch.nn.Module | None = None

    def take_projection(self, sd: Mapping[str, Tensor]) -> None:
        """The layer, from a checkpoint."""
        own = {k.removeprefix(PROJECTION): v for k, v in sd.items() if k.startswith(PROJECTION)}
        out, width = own["weight"].shape
        layer = comfy.ops.manual_cast.Linear(width, out, device="meta", dtype=own["weight"].dtype)
        load_assigned(layer, own, "cc_projection")
        self.cc_projection = layer

    def extra_conds(self, **kwargs: Any) -> dict[str, Any]:
        out = super().extra_conds(**kwargs)
        context = kwargs.get("cross_attn")
        if context is not None and context.shape[-1] == self.cc_projection.in_features:
            projected = self.cc_projection(context.to(kwargs["device"]))
            out["c_crossattn"] = comfy.conds.CONDCrossAttn(projected)
        return out

    def state_dict_for_saving(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        out = super().state_dict_for_saving(*args, **kwargs)
        return {**out, **{PROJECTION + k: v for k, v in self.cc_projection.state_dict().items()}}
