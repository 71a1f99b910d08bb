"""What diffusion transformers have in common: patches, embedders, adaptive norms, and the hooks around a block.

Source: Peebles & Xie 2023 (DiT: adaLN modulation), Esser et al. 2024 (its use in two streams).

Hooks in `transformer_options`, keyed the way node packs do it: `patches_replace["dit"]` maps (kind, number),
such as ("double_block", 3), to a callable f(args, extra) -> dict of the same outputs; `args` holds the block's
tensors by name and `extra["original_block"]` runs the block itself on such a dict. While a block runs,
`transformer_options` carries `block_type`, `block_index` and `total_blocks`. `patches["double_block"]` lists callables
f(values) -> values, called after each block of that kind: values hold its outputs by name, `x` (the latent),
`block_index` and `transformer_options`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FREQUENCY_WIDTH = 256
MAX_PERIOD = 10000.0


Config = TypeVar("Config")


class FromDict:
    """For configurations: built from a mapping as detection makes it."""

    @classmethod
    def from_dict(cls: type[Config], values: Mapping[str, Any]) -> Config:
        """From a mapping that may hold more keys than this class knows (they are ignored)."""
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k in names})


@functools.lru_cache(maxsize=64)
def _frequencies(half: int, device: torch.device) -> Tensor:
    """10000^(-k / half) in float32, k = 0, 1, ... Computed on the host for every device: exponentials differ between
    devices in the last place, which an angle of 30000 (guidance 30) makes visible."""
    with torch.inference_mode(False):
        exponents = -math.log(MAX_PERIOD) * torch.arange(half, dtype=torch.float32) / half
        return exponents.exp().to(device)


def timestep_embedding(timesteps: Tensor, dim: int, factor: float = 1.0, scale: float = 1.0) -> Tensor:
    """Sinusoids [n, dim] = cat(cos, sin) of numbers [n] (floats) in float32; `dim` even.

    Frequencies are multiplied by `factor`, angles by `scale`. In exact arithmetic that is the same and could be done
    to the timesteps; architectures differ in which they do, and angles near 1000 show the difference.
    """
    angles = timesteps[:, None].float() * (_frequencies(dim // 2, timesteps.device) * factor)[None]
    angles = angles * scale if scale != 1.0 else angles
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def count_blocks(sd: Mapping[str, Any], pattern: str) -> int:
    """How many consecutive numbers, from 0, `pattern` (with one `{}`) gives a key of `sd` for."""
    count = 0
    while pattern.format(count) in sd:
        count += 1
    return count


def pad_to_patch_size(x: Tensor, patch_size: tuple[int, ...] = (2, 2), padding_mode: str = "circular") -> Tensor:
    """`x` [batch, channels, *spatial] padded at the end of each side to a multiple of the patch."""
    pad: list[int] = []
    for size, patch in zip(x.shape[2:], patch_size):
        pad = [0, -size % patch, *pad]
    return F.pad(x, pad, mode=padding_mode) if any(pad) else x


def patchify(x: Tensor, patch: int, channels_last: bool = False) -> Tensor:
    """[batch, c, height, width] -> [batch, rows * columns, patch vector].

    The vector runs over (c, row in patch, column in patch), with `channels_last` over (row, column, c).
    """
    batch, channels, height, width = x.shape
    x = x.reshape(batch, channels, height // patch, patch, width // patch, patch)
    order = (0, 2, 4, 3, 5, 1) if channels_last else (0, 2, 4, 1, 3, 5)
    return x.permute(order).flatten(3).flatten(1, 2)


def unpatchify(x: Tensor, rows: int, columns: int, patch: int, channels_last: bool = False) -> Tensor:
    """The inverse of `patchify`."""
    if channels_last:
        x = x.reshape(x.shape[0], rows, columns, patch, patch, -1).permute(0, 5, 1, 3, 2, 4)
    else:
        x = x.reshape(x.shape[0], rows, columns, -1, patch, patch).permute(0, 3, 1, 4, 2, 5)
    return x.reshape(*x.shape[:2], rows * patch, columns * patch)


def plain_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """LayerNorm over the last axis without weights."""
    return F.layer_norm(x, x.shape[-1:], eps=eps)


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """x * (1 + scale) + shift; shift and scale [batch, 1 or tokens, width]."""
    return torch.addcmul(shift, x, 1 + scale)


class Mlp(nn.Module):
    """Two linear layers with a GELU between (tanh approximation unless told otherwise)."""

    def __init__(self, width: int, hidden: int, operations, out: int | None = None, approximate="tanh", **factory):
        super().__init__()
        self.approximate = approximate
        self.fc1 = operations.Linear(width, hidden, **factory)
        self.fc2 = operations.Linear(hidden, out or width, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate=self.approximate))


class VectorEmbedder(nn.Module):
    """A vector to the model's width: Linear, SiLU, Linear (numbered 0 and 2 in files)."""

    def __init__(self, in_width: int, width: int, operations, out: int | None = None, **factory):
        super().__init__()
        self.mlp = nn.Sequential(
            operations.Linear(in_width, width, **factory),
            nn.SiLU(),
            operations.Linear(width, out or width, **factory),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(x)


class TimestepEmbedder(VectorEmbedder):
    """Sinusoids of the timestep, then a `VectorEmbedder`."""

    def __init__(self, width: int, operations, out: int | None = None, factor: float = 1.0, **factory):
        super().__init__(FREQUENCY_WIDTH, width, operations, out, **factory)
        self.factor = factor

    def forward(self, timesteps: Tensor, dtype: torch.dtype) -> Tensor:
        return self.mlp(timestep_embedding(timesteps, FREQUENCY_WIDTH, self.factor).to(dtype))


class BlockHooks:
    """Runs the blocks of one forward pass, each through its replacement where there is one."""

    def __init__(self, transformer_options: dict | None, total_blocks: int, latent: Tensor | None = None):
        """latent: what the network was called with, for patches that want to know its size."""
        self.options = {**(transformer_options or {}), "total_blocks": total_blocks}
        self.replacements = self.options.get("patches_replace", {}).get("dit", {})
        self.patches = self.options.get("patches", {})
        self.latent = latent

    def run(
        self, kind: str, number: int, block: Callable[[dict[str, Any]], dict[str, Tensor]], args: dict[str, Any]
    ) -> dict[str, Tensor]:
        """`block(args)`, unless `(kind, number)` is replaced; then what patches make of its tensors."""
        self.options["block_type"] = kind.removesuffix("_block")
        self.options["block_index"] = number
        replacement = self.replacements.get((kind, number))
        if replacement is None:
            out = block(args)
        else:
            out = replacement({**args, "transformer_options": self.options}, {"original_block": block})
        for patch in self.patches.get(kind, ()):
            given = {**out, "x": self.latent, "block_index": number, "transformer_options": self.options}
            out = {**out, **{name: value for name, value in patch(given).items() if name in out}}
        return out


def add_control(
    x: Tensor, control: dict[str, list[Tensor | None]] | None, name: str, number: int, start: int = 0
) -> Tensor:
    """`x` [batch, tokens, width] plus entry `number` of the control list `name`, if there is one. It covers the tokens
    from `start` on, as many as it has (reference images behind them get none)."""
    residuals = control.get(name) if control else None
    if not residuals or number >= len(residuals) or residuals[number] is None:
        return x
    residual = residuals[number].to(x.dtype)
    if residual.shape[1] == x.shape[1]:
        return x + residual
    x = x.clone()
    x[:, start : start + residual.shape[1]] += residual
    return x
