"""A LoRA out of the difference between two models: each layer's change as the product of two thin matrices that comes
nearest to it (Eckart & Young 1936)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from comfy.quantized_layers import numbers_of

# Above this many columns and rows a full decomposition takes too long; the few largest values are approximated.
LARGE = 1024
OVERSAMPLING = 8
# A change all of whose values are smaller is none.
NO_CHANGE = 1e-6

LORA_TYPES = ("standard", "full_diff")
UNET_PREFIX, TEXT_PREFIX = "diffusion_model.", ""
UNET_OUT, TEXT_OUT = "diffusion_model.", "text_encoders."


def differences(patcher: Any, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """(name, value) of the weights below `prefix` that have patches, one at a time, with them. The patcher is a
    difference of two models, so the values are what changes."""
    for key, weight in patcher.model_state_dict(prefix).items():
        if key in patcher.patches:
            original = numbers_of(patcher.model, key, patcher.backup.get(key, weight), patcher.backup)
            work = original.to(torch.float32, copy=True)
            yield key, patcher.calculate_weight(patcher.patches[key], work, key).float()


def low_rank(diff: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """(up [out, rank, 1...], down [rank, in, ...]) whose product is nearest to `diff` [out, in, ...]. A rank above the
    sides' is cut to them."""
    matrix = diff.float().flatten(1)
    rank = min(rank, *matrix.shape)
    if min(matrix.shape) > LARGE and rank + OVERSAMPLING < LARGE // 4:
        torch.manual_seed(0)
        left, values, right = torch.svd_lowrank(matrix, q=rank + OVERSAMPLING, niter=4)
        right = right.T
    else:
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    # Half of the scale to each side, so that both fit float16 well.
    root = values[:rank].sqrt()
    up, down = left[:, :rank] * root, right[:rank] * root[:, None]
    spatial = diff.shape[2:]
    return up.reshape(*up.shape, *([1] * len(spatial))), down.reshape(rank, diff.shape[1], *spatial)


def extract(
    patcher: Any, prefix: str, out_prefix: str, rank: int, lora_type: str, with_biases: bool
) -> dict[str, Tensor]:
    """The tensors of a LoRA file, contiguous and in float16, for the weights of a difference of two models below
    `prefix`.

    lora_type: `standard` (thin matrices) or `full_diff` (whole differences). with_biases: also changes of biases and
    of other vectors.
    """
    out: dict[str, Tensor] = {}
    for key, diff in differences(patcher, prefix):
        if diff.abs().max() < NO_CHANGE:
            continue
        name = out_prefix + key.removeprefix(prefix)
        if name.endswith(".weight"):
            layer = name.removesuffix(".weight")
            if lora_type == "standard" and diff.ndim > 1:
                up, down = low_rank(diff, rank)
                out[f"{layer}.lora_up.weight"] = up.contiguous().half()
                out[f"{layer}.lora_down.weight"] = down.contiguous().half()
            elif lora_type == "full_diff" or with_biases:
                out[f"{layer}.diff"] = diff.contiguous().half()
        elif name.endswith(".bias") and with_biases:
            out[f"{name.removesuffix('.bias')}.diff_b"] = diff.contiguous().half()
    return out
