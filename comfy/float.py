"""Rounding to small number formats such that, on average, nothing is lost."""

from __future__ import annotations

import torch
from torch import Tensor

# Formats of which neighbouring values are so far apart that rounding to the nearest loses what a patch adds:
# bits of the mantissa behind the point, and the least exponent of a normal number.
_COARSE = {torch.float8_e4m3fn: (3, -6), torch.float8_e5m2: (2, -14)}


def stochastic_rounding(value: Tensor, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """`value` in `dtype`. For float8, each number goes to one of its two neighbours, the nearer one more often, so
    that the mean is right; infinities become the largest number. Other formats round to the nearest.

    seed: the same one gives the same result on one kind of device.
    """
    if dtype not in _COARSE:
        return value.to(dtype)
    mantissa, least = _COARSE[dtype]
    exact = value.float()
    exponent = (torch.frexp(exact)[1] - 1).clamp_(min=least)
    step = torch.ldexp(torch.ones_like(exact), exponent - mantissa)
    generator = torch.Generator(device=value.device).manual_seed(seed)
    dice = torch.rand(value.shape, generator=generator, device=value.device)
    rounded = torch.floor(exact / step + dice) * step
    limit = torch.finfo(dtype).max
    return rounded.clamp_(-limit, limit).to(dtype)
