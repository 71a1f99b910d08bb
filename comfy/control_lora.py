"""Control LoRA (Stability AI 2023): a ControlNet kept as a low-rank change of the model's own encoder.

What the file holds is a model in memory of its own; the rest of the net is the diffusion model's: each layer looks its
weight up where that model has it, and adds its change as it runs. So the net takes no second copy of the encoder, and
sees the weights the model has at the moment, LoRAs and all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import comfy.ops
from comfy.held_weights import Held, HeldWeights
from comfy.model_base import WeightsMismatch
from comfy.models.control_unet import ControlNetUNet
from comfy.ops import cast_bias_weight
from comfy.weights import source_of

UP, DOWN, WEIGHT, BIAS = ".up", ".down", ".weight", ".bias"


class ControlLoraWeights(HeldWeights):
    """The tensors of a file: `NAME.up` and `NAME.down` of changed layers, `NAME.weight` and `NAME.bias` where the net
    has its own."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.weights_file = source_of(tensors.values())
        self.own: dict[str, Held] = {}
        self.changes: dict[str, tuple[Held, Held]] = {}
        for name in dict.fromkeys(key.rpartition(".")[0] for key in tensors):
            if name + WEIGHT in tensors or name + BIAS in tensors:
                self.own[name] = self.add(tensors.get(name + WEIGHT), tensors.get(name + BIAS))
            if name + UP in tensors and name + DOWN in tensors:
                up, down = tensors[name + UP].flatten(1), tensors[name + DOWN].flatten(1)
                self.changes[name] = (self.add(up), self.add(down))

    def largest_change(self) -> int:
        """Values of the largest product of an up and a down."""
        sizes = (up.weight.shape[0] * down.weight.shape[1] for up, down in self.changes.values())
        return max(sizes, default=0)


class _Composed:
    """Stands in a layer's place for a streamer: puts its weight together on each call."""

    def __init__(
        self,
        base: nn.Module | None,
        own: Held | None,
        change: tuple[Held, Held] | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.base, self.own, self.change = base, own, change
        self.dtype, self.device = dtype, device

    def fetch(self, layer: nn.Module) -> tuple[Tensor | None, Tensor | None]:
        """Weight and bias of the layer on the device."""
        weight = bias = None
        if self.base is not None:
            weight, bias = cast_bias_weight(self.base, dtype=self.dtype, device=self.device)
        if self.change is not None:
            up, down = (part.values(self.dtype, self.device)[0] for part in self.change)
            weight = weight + (up @ down).reshape(weight.shape)
        if self.own is not None:
            own_weight, own_bias = self.own.values(self.dtype, self.device)
            weight = weight if own_weight is None else own_weight
            bias = bias if own_bias is None else own_bias
        return weight, bias


def control_lora_network(model: Any, weights: ControlLoraWeights, device: torch.device) -> ControlNetUNet:
    """The net for a run of `model` on `device`; it holds no weights itself.

    Raises WeightsMismatch when the tensors are not made for the model.
    """
    base = dict(model.diffusion_model.named_modules())
    dtype = model.get_dtype_inference()
    hint = weights.own.get("input_hint_block.0")
    if hint is None or hint.weight is None:
        raise WeightsMismatch("control LoRA: the file lacks input_hint_block.0.weight")
    network = ControlNetUNet(
        model.diffusion_model.config,
        hint_channels=hint.weight.shape[1],
        dtype=dtype,
        device="meta",
        operations=comfy.ops.manual_cast,
    )
    for name, layer in network.named_modules():
        if not isinstance(layer, comfy.ops.CastWeights):
            continue
        composed = _Composed(base.get(name), weights.own.get(name), weights.changes.get(name), dtype, device)
        _check(name, layer, composed)
        layer.streamer = composed
    return network.eval()


def _check(name: str, layer: nn.Module, composed: _Composed) -> None:
    """Raises WeightsMismatch where a tensor of the layer has no source, or one of another shape."""
    own, base = composed.own, composed.base
    if isinstance(layer, nn.Embedding):
        raise WeightsMismatch(f"control LoRA: there are none for models with a table {name}")
    for kind in ("weight", "bias"):
        wanted = layer._parameters.get(kind)
        sources = [found for part in (own, base) if (found := getattr(part, kind, None)) is not None]
        if wanted is None:
            continue
        if not sources:
            raise WeightsMismatch(f"control LoRA: neither the file nor the model has {name}.{kind}")
        if sources[0].shape != wanted.shape:
            shapes = f"{tuple(sources[0].shape)}, the net's is {tuple(wanted.shape)}"
            raise WeightsMismatch(f"control LoRA: the shape of {name}.{kind} is {shapes}")
    if composed.change is not None:
        up, down = (part.weight for part in composed.change)
        rows, columns = layer.weight.shape[0], layer.weight[0].numel()
        if (up.shape[0], up.shape[1], down.shape[1]) != (rows, down.shape[0], columns) or base is None:
            shapes = f"{tuple(up.shape)} and {tuple(down.shape)} for {tuple(layer.weight.shape)}"
            raise WeightsMismatch(f"control LoRA: the change of {name} does not fit: {shapes}")
