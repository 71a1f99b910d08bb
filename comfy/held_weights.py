"""Weights that belong to no network of their own: the tensors of a LoRA that runs beside a model's layers.

Held in layers without a forward, behind a patcher, they are a model as far as memory goes: `comfy.loaded_models` counts
them, takes them off for others, and streams what does not fit.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import comfy.model_management
from comfy.model_patcher import ModelPatcher
from comfy.ops import CastWeights, cast_bias_weight
from comfy.weights import source_of


class Held(CastWeights, nn.Module):
    """A weight and a bias (either may be missing), on the host, on the device, or on the way."""

    def __init__(self, weight: Tensor | None, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weight = None if weight is None else nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def values(self, dtype: torch.dtype, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
        """Weight and bias as one call needs them."""
        return cast_bias_weight(self, dtype=dtype, device=device)


class HeldWeights(nn.Module):
    """Any number of `Held`; its subclasses give reports a name."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        self.weights_file: str | None = None

    def add(self, weight: Tensor | None, bias: Tensor | None = None) -> Held:
        """Hold these tensors, in the dtype they have."""
        tensors = [tensor for tensor in (weight, bias) if tensor is not None]
        self.weights_file = self.weights_file or source_of(tensors)
        held = Held(weight, bias)
        self.layers.append(held)
        return held


def patcher_for(model: nn.Module, load_device: torch.device | None = None) -> ModelPatcher:
    """A patcher for a network that belongs to a diffusion model: it runs and waits where these do."""
    management = comfy.model_management
    return ModelPatcher(model, load_device or management.get_torch_device(), management.unet_offload_device())
