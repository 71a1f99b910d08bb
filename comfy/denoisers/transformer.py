"""Diffusion transformers conditioned on text tokens, pooled vectors and masks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import comfy.conds
from comfy.model_base import BaseModel

Conds = dict[str, comfy.conds.CONDRegular]


def add_references(model: BaseModel, out: Conds, conditioning: dict[str, Any]) -> None:
    """Put the pictures to look at into `out`, as latents in the network's scale, and how they are to be placed."""
    latents = conditioning.get("reference_latents")
    if latents is None:
        return
    out["ref_latents"] = comfy.conds.CONDList([model.process_latent_in(latent) for latent in latents])
    if (method := conditioning.get("reference_latents_method")) is not None:
        out["ref_latents_method"] = comfy.conds.CONDConstant(method)


def add_mask(out: Conds, conditioning: dict[str, Any]) -> None:
    """Put the text encoder's mask (which tokens are words) into `out`."""
    if (mask := conditioning.get("attention_mask")) is not None:
        out["attention_mask"] = comfy.conds.CONDRegular(mask)


class SD3(BaseModel):
    """Stable Diffusion 3 and 3.5: text tokens, and the pooled vectors of both CLIP encoders as `y`."""

    def encode_adm(self, **kwargs: Any) -> Tensor | None:
        return kwargs.get("pooled_output")


class AuraFlow(BaseModel):
    """Text tokens only."""


class PixArt(BaseModel):
    """Text tokens and their mask; for alpha, the size it is told, if the conditioning has one."""

    def extra_conds(self, **kwargs: Any) -> Conds:
        out = super().extra_conds(**kwargs)
        add_mask(out, kwargs)
        return out


class PixArtAlpha(PixArt):
    """PixArt-alpha: told height, width and aspect ratio in pixels."""

    def extra_conds(self, **kwargs: Any) -> Conds:
        out = super().extra_conds(**kwargs)
        width, height = kwargs.get("width"), kwargs.get("height")
        if width and height:
            out["c_size"] = comfy.conds.CONDRegular(torch.tensor([[float(height), float(width)]]))
            ratio = float(kwargs.get("aspect_ratio", height / width))
            out["c_ar"] = comfy.conds.CONDRegular(torch.tensor([[ratio]]))
        return out


class Lumina2(BaseModel):
    """Lumina-Image 2.0 and Z-Image. Text tokens only: all of them are looked at, whatever a mask says."""


class QwenImage(BaseModel):
    """Text tokens and their mask; for editing, reference latents."""

    def extra_conds(self, **kwargs: Any) -> Conds:
        out = super().extra_conds(**kwargs)
        add_mask(out, kwargs)
        add_references(self, out, kwargs)
        return out


class HiDream(BaseModel):
    """T5 tokens, hidden states of Llama's layers, and CLIP's pooled vectors as `y`."""

    def encode_adm(self, **kwargs: Any) -> Tensor | None:
        return kwargs.get("pooled_output")

    def extra_conds(self, **kwargs: Any) -> Conds:
        out = super().extra_conds(**kwargs)
        if (llama := kwargs.get("conditioning_llama3")) is not None:
            out["encoder_hidden_states_llama3"] = comfy.conds.CONDRegular(llama)
        return out
