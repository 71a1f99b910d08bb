"""Working on named tensors: prefixes, counts, renaming, access by dotted name."""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor


def state_dict_prefix_replace(
    state_dict: MutableMapping[str, Tensor], replace_prefix: Mapping[str, str], filter_keys: bool = False
) -> MutableMapping[str, Tensor]:
    """Move keys that start with an old prefix to the new one. In place; with `filter_keys` the moved keys go
    into a new dict (and leave the old one)."""
    out = {} if filter_keys else state_dict
    for old, new in replace_prefix.items():
        for key in [k for k in state_dict if k.startswith(old)]:
            out[new + key[len(old) :]] = state_dict.pop(key)
    return out


def state_dict_key_replace(
    state_dict: MutableMapping[str, Tensor], keys_to_replace: Mapping[str, str]
) -> MutableMapping[str, Tensor]:
    """Rename single keys in place."""
    for old, new in keys_to_replace.items():
        if old in state_dict:
            state_dict[new] = state_dict.pop(old)
    return state_dict


def calculate_parameters(sd: Mapping[str, Tensor], prefix: str = "") -> int:
    """Number of values in the tensors whose key starts with `prefix`."""
    return sum(v.nelement() for k, v in sd.items() if k.startswith(prefix))


def weight_dtype(sd: Mapping[str, Tensor], prefix: str = "") -> torch.dtype | None:
    """The dtype that most values below `prefix` have; None if there is no tensor. Integers, which stand for other
    numbers or for none, count only where there is nothing else."""
    counts: dict[torch.dtype, int] = {}
    for key, value in sd.items():
        if key.startswith(prefix) and isinstance(value, Tensor):
            counts[value.dtype] = counts.get(value.dtype, 0) + value.nelement()
    return max(counts, key=lambda dtype: (dtype.is_floating_point, counts[dtype])) if counts else None


def get_attr(obj: Any, attr: str) -> Any:
    """`obj.a.b.c` for attr "a.b.c". Raises AttributeError."""
    for name in attr.split("."):
        obj = getattr(obj, name)
    return obj


def set_attr(obj: Any, attr: str, value: Any) -> Any:
    """Set `obj.a.b.c`; returns what was there."""
    *path, last = attr.split(".")
    owner = get_attr(obj, ".".join(path)) if path else obj
    previous = getattr(owner, last)
    setattr(owner, last, value)
    return previous


def set_attr_param(obj: Any, attr: str, value: Tensor) -> Any:
    """As `set_attr`, with the tensor wrapped as a parameter that takes no gradient, unless it is a parameter."""
    if not isinstance(value, torch.nn.Parameter):
        value = torch.nn.Parameter(value, requires_grad=False)
    return set_attr(obj, attr, value)


def copy_to_param(obj: Any, attr: str, value: Tensor) -> None:
    """Overwrite the values of the parameter `attr` in place."""
    get_attr(obj, attr).data.copy_(value)


def repeat_to_batch_size(tensor: Tensor, batch_size: int, dim: int = 0) -> Tensor:
    """Cut or repeat `tensor` along `dim` to exactly `batch_size` entries."""
    size = tensor.shape[dim]
    if size >= batch_size:
        return tensor.narrow(dim, 0, batch_size)
    repeats = [1] * tensor.ndim
    repeats[dim] = -(-batch_size // size)
    return tensor.repeat(repeats).narrow(dim, 0, batch_size)


def resize_to_batch_size(tensor: Tensor, batch_size: int) -> Tensor:
    """Pick `batch_size` entries spread evenly over the first dimension (repeating when there are fewer)."""
    count = tensor.shape[0]
    if count == batch_size:
        return tensor
    if batch_size <= 1:
        return tensor[:batch_size]
    if batch_size < count:
        scale = (count - 1) / (batch_size - 1)
        index = [min(round(i * scale), count - 1) for i in range(batch_size)]
    else:
        scale = count / batch_size
        index = [min(int((i + 0.5) * scale), count - 1) for i in range(batch_size)]
    return tensor[torch.tensor(index, device=tensor.device)]


def pack_latents(latents: Sequence[Tensor]) -> tuple[Tensor, list[torch.Size]]:
    """Latents of different shapes (one batch size) as one [batch, 1, values], and their shapes."""
    return torch.cat([t.reshape(t.shape[0], 1, -1) for t in latents], dim=-1), [t.shape for t in latents]


def unpack_latents(combined_latent: Tensor, latent_shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """The latents again; the batch size is that of `combined_latent`."""
    sizes = [math.prod(shape[1:]) for shape in latent_shapes]
    parts = combined_latent.split(sizes, dim=-1)
    return [p.reshape(p.shape[0], *shape[1:]) for p, shape in zip(parts, latent_shapes)]
