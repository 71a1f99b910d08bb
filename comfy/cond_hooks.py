"""Conditioning lists with hooks, masks and ranges set on all their entries, and joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from comfy.hooks import HookGroup

Conditioning = list[list[Any]]


def set_hooks_for_conditioning(
    cond: Conditioning, hooks: HookGroup | None, append_hooks: bool = True, cache: dict | None = None
) -> Conditioning:
    """A copy of a conditioning whose entries have these hooks, beside those they had or (`append_hooks=False`) in their
    place. cache: entries with the same old hooks share a new group through it."""
    if hooks is None:
        return cond
    cache = {} if cache is None else cache
    out = []
    for tensor, options, *rest in cond:
        old = options.get("hooks") if append_hooks else None
        key = (id(old), id(hooks))
        if key not in cache:
            # The groups are kept beside the result so that their ids stay theirs.
            cache[key] = (old, hooks, hooks if old is None else old.clone_and_combine(hooks))
        out.append([tensor, {**options, "hooks": cache[key][2]}, *rest])
    return out


def set_timesteps_for_conditioning(cond: Conditioning, timestep_range: tuple[float, float] | None) -> Conditioning:
    """A copy whose entries only count between two fractions of sampling; the same object for None."""
    if timestep_range is None:
        return cond
    start, end = timestep_range
    return _with_options(cond, {"start_percent": start, "end_percent": end})


def set_mask_for_conditioning(
    cond: Conditioning, mask: Tensor | None, set_cond_area: str = "default", strength: float = 1.0
) -> Conditioning:
    """A copy whose entries only count where the mask [batch, height, width] is; the same object for None."""
    if mask is None:
        return cond
    if mask.ndim < 3:
        mask = mask.unsqueeze(0)
    to_bounds = set_cond_area != "default"
    return _with_options(cond, {"mask": mask, "set_area_to_bounds": to_bounds, "mask_strength": strength})


def _with_options(cond: Conditioning, values: dict[str, Any]) -> Conditioning:
    return [[tensor, {**options, **values}, *rest] for tensor, options, *rest in cond]


def set_conds_props(
    conds: Sequence[Conditioning],
    strength: float,
    set_cond_area: str,
    mask: Tensor | None = None,
    hooks: HookGroup | None = None,
    timesteps_range: tuple[float, float] | None = None,
    append_hooks: bool = True,
) -> list[Conditioning]:
    """Copies of conditionings (positive, negative, ...) with hooks, mask and range set; all of them get one group."""
    cache: dict = {}
    out = []
    for cond in conds:
        cond = set_hooks_for_conditioning(cond, hooks, append_hooks, cache)
        cond = set_mask_for_conditioning(cond, mask, set_cond_area, strength)
        out.append(set_timesteps_for_conditioning(cond, timesteps_range))
    return out


def set_conds_props_and_combine(
    conds: Sequence[Conditioning],
    new_conds: Sequence[Conditioning],
    strength: float = 1.0,
    set_cond_area: str = "default",
    mask: Tensor | None = None,
    hooks: HookGroup | None = None,
    timesteps_range: tuple[float, float] | None = None,
    append_hooks: bool = True,
) -> list[Conditioning]:
    """Each of `conds` followed by the new one of the same place with these properties."""
    made = set_conds_props(new_conds, strength, set_cond_area, mask, hooks, timesteps_range, append_hooks)
    return [cond + new for cond, new in zip(conds, made)]


def set_default_conds_and_combine(
    conds: Sequence[Conditioning],
    new_conds: Sequence[Conditioning],
    hooks: HookGroup | None = None,
    timesteps_range: tuple[float, float] | None = None,
    append_hooks: bool = True,
) -> list[Conditioning]:
    """Each of `conds` followed by the new one of the same place, which counts where no other entry does."""
    cache: dict = {}
    out = []
    for cond, new in zip(conds, new_conds):
        new = set_hooks_for_conditioning(new, hooks, append_hooks, cache)
        new = set_timesteps_for_conditioning(new, timesteps_range)
        out.append(cond + _with_options(new, {"default": True}))
    return out
