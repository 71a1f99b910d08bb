"""Where and when a conditioning acts: areas, masks, feathered edges, ranges of the run.

An area is (size per axis..., offset per axis...) in latent cells, or ("percentage", sizes..., offsets...) in
fractions. Rules: goldens, section 6.
"""

from __future__ import annotations

import math
from collections import namedtuple
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from comfy.sampling.solvers.common import host_sigma
from comfy.state_dicts import repeat_to_batch_size

MIN_MASK_AREA = 8
FEATHER = 8

# What one conditioning entry contributes to one evaluation. `mult` broadcasts over `input_x`.
CondEntry = namedtuple("cond_obj", ["input_x", "mult", "conditioning", "area", "control", "patches", "uuid", "hooks"])


def absolute_area(area: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """`area` in cells with as many axes as `shape`; axes it does not name (time) are taken whole."""
    if area[0] == "percentage":
        fractions = area[1:]
        axes = len(fractions) // 2
        own = shape[len(shape) - axes :]
        sizes = [max(1, round(fractions[i] * own[i])) for i in range(axes)]
        offsets = [round(fractions[i + axes] * own[i]) for i in range(axes)]
    else:
        axes = len(area) // 2
        sizes, offsets = list(area[:axes]), list(area[axes:])
    missing = len(shape) - axes
    if missing > 0:
        sizes, offsets = [*shape[:missing], *sizes], [0] * missing + offsets
    return (*sizes, *offsets)


def bounding_area(mask: Tensor) -> tuple[int, int, int, int]:
    """The box around the non-zero part of `mask` [batch, h, w], at least 8x8; an empty mask: 8x8 at 0, 0."""
    height, width = mask.shape[-2:]
    used = (mask.reshape(-1, height, width) != 0).any(dim=0).cpu()
    rows, columns = used.any(dim=1).nonzero(), used.any(dim=0).nonzero()
    if len(rows) == 0:
        return MIN_MASK_AREA, MIN_MASK_AREA, 0, 0
    top, left = int(rows[0]), int(columns[0])
    box_height = max(MIN_MASK_AREA, int(rows[-1]) - top + 1)
    box_width = max(MIN_MASK_AREA, int(columns[-1]) - left + 1)
    return box_height, box_width, top, left


def resolve_areas_and_cond_masks_multidim(conditions: list[dict[str, Any]], dims: tuple[int, ...], device: Any) -> None:
    """Areas to cells and masks to the latent's size, in place in the list (the entries are copied).

    `dims`: the latent's axes after batch and channels. Host work, done once per run.
    """
    for i, entry in enumerate(conditions):
        entry = entry.copy()
        if entry.get("area") is not None:
            entry["area"] = absolute_area(entry["area"], tuple(dims))
        if entry.get("mask") is not None:
            mask = entry["mask"].to(device=device)
            if mask.ndim == len(dims):
                mask = mask.unsqueeze(0)
            if tuple(mask.shape[1:]) != tuple(dims):
                if mask.ndim < 4:
                    size = tuple(dims[-2:])
                    mask = functional.interpolate(mask.unsqueeze(1), size=size, mode="bilinear").squeeze(1)
                else:
                    mask = functional.interpolate(mask, size=tuple(dims[-2:]), mode="bilinear")
            if entry.get("set_area_to_bounds", False):
                entry["area"] = absolute_area(bounding_area(mask), tuple(dims))
            entry["mask"] = mask
        conditions[i] = entry


def resolve_areas_and_cond_masks(conditions: list[dict[str, Any]], h: int, w: int, device: Any) -> None:
    """As resolve_areas_and_cond_masks_multidim for an image latent of h x w cells."""
    resolve_areas_and_cond_masks_multidim(conditions, (h, w), device)


def calculate_start_end_timesteps(model: Any, conds: list[dict[str, Any]]) -> None:
    """Percent ranges to sigmas, in place in the list: `timestep_start` >= sigma >= `timestep_end`.

    Values are rounded to float32, so that a range that starts at a step's own sigma includes it.
    """
    percent_to_sigma = model.model_sampling.percent_to_sigma
    for i, entry in enumerate(conds):
        update = {}
        for name, percent in (("timestep_start", "start_percent"), ("timestep_end", "end_percent")):
            if percent in entry:
                update[name] = _float32(percent_to_sigma(entry[percent]))
        keyframed = entry.get("clip_start_percent"), entry.get("clip_end_percent")
        if keyframed[0] is not None:
            start, end = (_float32(percent_to_sigma(max(p, 0.0))) for p in keyframed)
            update["timestep_start"] = min(start, update.get("timestep_start", math.inf))
            update["timestep_end"] = max(end, update.get("timestep_end", 0.0))
        if update:
            conds[i] = {**entry, **update}


def _float32(value: float) -> float:
    return torch.tensor(float(value), dtype=torch.float32).item()


@lru_cache(maxsize=64)
def _feather(area: tuple[int, ...], full: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Ramps at those borders of `area` that are not borders of the latent; [1, 1, sizes...]."""
    axes = len(area) // 2
    weight = torch.ones((1, 1) + (1,) * axes, dtype=dtype)
    for axis in range(axes):
        size, offset = area[axis], area[axis + axes]
        ramp_length = min(FEATHER, size // 4)
        ramp = torch.ones(size, dtype=dtype)
        for t in range(ramp_length):
            if offset != 0:
                ramp[t] *= (t + 1) / ramp_length
            if offset + size < full[axis]:
                ramp[size - 1 - t] *= (t + 1) / ramp_length
        weight = weight * ramp.reshape((1, 1) + (1,) * axis + (size,) + (1,) * (axes - axis - 1))
    return weight.to(device)


def crop(tensor: Tensor, area: tuple[int, ...], first_axis: int = 2) -> Tensor:
    """The view of `tensor` on `area`, whose axes start at `first_axis`."""
    axes = len(area) // 2
    for i in range(axes):
        tensor = tensor.narrow(first_axis + i, area[axes + i], area[i])
    return tensor


def is_active(conds: dict[str, Any], timestep: Tensor) -> bool:
    """Whether the present sigma lies in the entry's range; both ends belong to it."""
    if "timestep_start" not in conds and "timestep_end" not in conds:
        return True
    sigma = host_sigma(timestep)
    return conds.get("timestep_end", -math.inf) <= sigma <= conds.get("timestep_start", math.inf)


def get_area_and_mult(conds: dict[str, Any], x_in: Tensor, timestep_in: Tensor) -> CondEntry | None:
    """The part of `x_in` that the entry sees and the weight of what it predicts; None when not active."""
    if not is_active(conds, timestep_in):
        return None
    input_x, strength = x_in, conds.get("strength", 1.0)
    area = conds.get("area")
    if area is not None:
        axes = len(area) // 2
        offsets = area[axes:]
        sizes = [min(x_in.shape[i + 2] - offsets[i], area[i]) for i in range(axes)]
        area = (*sizes, *offsets)
        input_x = crop(x_in, area)

    if "mask" in conds:
        mask = conds["mask"].to(device=x_in.device, dtype=x_in.dtype)
        if area is not None:
            # a mask without a time axis holds for every frame
            skipped = len(area) // 2 - (mask.ndim - 1)
            axes = len(area) // 2
            mask = crop(mask, (*area[max(skipped, 0) : axes], *area[axes + max(skipped, 0) :]), 1)
        mask = mask * (conds.get("mask_strength", 1.0) * strength)
        mask = mask.unsqueeze(1)
        if mask.ndim < input_x.ndim:
            mask = mask.unsqueeze(2)
        mult = repeat_to_batch_size(mask, input_x.shape[0]) if mask.shape[0] != 1 else mask
    elif area is not None:
        mult = _feather(area, tuple(x_in.shape[2:]), x_in.device, x_in.dtype) * strength
    else:
        mult = x_in.new_full((1,) * x_in.ndim, strength)

    conditioning = {
        name: cond.process_cond(batch_size=x_in.shape[0], area=area) for name, cond in conds["model_conds"].items()
    }
    patches = None
    if "gligen" in conds:
        kind, gligen_model, *position = conds["gligen"]
        patcher = gligen_model.model
        set_position = patcher.set_position if kind == "position" else patcher.set_empty
        arguments = (
            (input_x.shape, *position, input_x.device)
            if kind == "position"
            else (
                input_x.shape,
                input_x.device,
            )
        )
        patches = {"middle_patch": [set_position(*arguments)]}
    return CondEntry(
        input_x,
        mult,
        conditioning,
        area,
        conds.get("control"),
        patches,
        conds.get("uuid"),
        conds.get("hooks"),
    )
