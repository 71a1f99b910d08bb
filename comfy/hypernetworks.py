"""Hypernetworks: small networks that change what an attention's keys and values are made of.

Source: the files and training code of AUTOMATIC1111's stable-diffusion-webui (a pickle: width of the context -> state
dicts of the two networks, and how they are built). They act on all attentions of that width, in self-attention too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from comfy.held_weights import patcher_for
from comfy.ops import manual_cast
from comfy.weights import WeightsFileError, load_torch_file

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "linear": nn.Identity,
    "relu": nn.ReLU,
    "leakyrelu": nn.LeakyReLU,
    "elu": nn.ELU,
    "swish": nn.Hardswish,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "softsign": nn.Softsign,
    "mish": nn.Mish,
}


class HypernetworkFileError(WeightsFileError):
    """A weight file is readable, but holds no hypernetwork that can be built."""


class HypernetworkLayers(nn.ModuleList):
    """All networks of a file, as the one model they are in memory."""


class Hypernetwork:
    """Networks for keys and for values, by the width of the context they change. To be used as an attention patch
    (q, k, v, options) -> the three.

    patcher: loads the networks; hang it on the model that is patched (`set_additional_models`). Without it each layer
    brings its weights to the device on each call.
    """

    def __init__(self, networks: Mapping[int, tuple[nn.Module, nn.Module]], strength: float):
        self.networks = dict(networks)
        self.strength = strength
        self.patcher = patcher_for(HypernetworkLayers(net for pair in self.networks.values() for net in pair))

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, options: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        pair = self.networks.get(k.shape[-1])
        if pair is None:
            return q, k, v
        for_keys, for_values = pair
        return q, k + for_keys(k) * self.strength, v + for_values(v) * self.strength

    def to(self, device_or_dtype: Any) -> Hypernetwork:
        """Layers cast their weights to what they are called with: nothing has to move."""
        return self


@torch.inference_mode(False)
def load_hypernetwork(path: str, strength: float = 1.0) -> Hypernetwork:
    """Raises WeightsFileError naming the file when it cannot be read or used."""
    content = load_torch_file(path)
    size = os.path.getsize(path)
    activation = content.get("activation_func") or "linear"
    if activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise HypernetworkFileError(path, size, f"its activation {activation!r} is none of {known}")
    networks = {}
    for width, pair in content.items():
        if not str(width).isdigit():
            continue
        try:
            first, second = pair[0], pair[1]
            networks[int(width)] = (_network(first, activation, content), _network(second, activation, content))
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, StopIteration) as error:
            raise HypernetworkFileError(
                path, size, f"its networks for width {width} are incomplete: {error}"
            ) from error
    if not networks:
        raise HypernetworkFileError(path, size, "it holds no hypernetwork (no networks by width)")
    hypernetwork = Hypernetwork(networks, strength)
    hypernetwork.patcher.model.weights_file = path
    return hypernetwork


def _network(sd: Mapping[str, Tensor], activation: str, facts: Mapping[Any, Any]) -> nn.Module:
    """Linear layers in the order of their numbers, each with its activation and norm. (Dropout is for training.)"""
    with_norm = bool(facts.get("is_layer_norm"))
    names = sorted((k.removesuffix(".weight") for k in sd if k.endswith(".weight")), key=_number)
    if not names:
        raise KeyError("no weights")
    layers: list[nn.Module] = []
    linears = [name for name in names if sd[f"{name}.weight"].ndim == 2]
    norms = iter([name for name in names if sd[f"{name}.weight"].ndim == 1])
    for name in linears:
        weight = sd[f"{name}.weight"]
        layers.append(_filled(manual_cast.Linear(weight.shape[1], weight.shape[0], device="meta"), sd, name))
        if activation != "linear" and (name != linears[-1] or facts.get("activate_output")):
            layers.append(ACTIVATIONS[activation]())
        if with_norm:
            layers.append(_filled(manual_cast.LayerNorm(weight.shape[0], device="meta"), sd, next(norms)))
    return nn.Sequential(*layers).eval().requires_grad_(False)


def _filled(layer: nn.Module, sd: Mapping[str, Tensor], name: str) -> nn.Module:
    layer.load_state_dict({kind: sd[f"{name}.{kind}"].float() for kind in ("weight", "bias")}, assign=True)
    return layer


def _number(name: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", name)]
