"""Helpers of UNets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from comfy.models import unet

__all__ = ["avg_pool_nd", "checkpoint", "timestep_embedding", "zero_module"]


def timestep_embedding(timesteps: Tensor, dim: int, max_period: float = 10000, repeat_only: bool = False) -> Tensor:
    """Sinusoids [n, dim] = cat(cos, sin) of timesteps [n]; with `repeat_only` the timesteps themselves, `dim` times."""
    if repeat_only:
        return timesteps[:, None].expand(-1, dim).clone()
    return unet.timestep_embedding(timesteps, dim, max_period)


def zero_module(module: nn.Module) -> nn.Module:
    """The module, its weights set to zero."""
    for p in module.parameters():
        p.detach().zero_()
    return module


def checkpoint(func: Callable[..., Any], inputs: Iterable[Any], params: Any, flag: bool) -> Any:
    """`func(*inputs)`. Saving memory by computing twice (`flag`) is for training, which nothing here does."""
    return func(*inputs)


def avg_pool_nd(dims: int, *args: Any, **kwargs: Any) -> nn.Module:
    """Mean pooling in 1, 2 or 3 dimensions; arguments as of `torch.nn.AvgPool2d`."""
    kinds = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}
    if dims not in kinds:
        raise ValueError(f"dims is {dims}, expected 1, 2 or 3")
    return kinds[dims](*args, **kwargs)
