"""Conditioning made ready for a run: what can be computed before the first step is computed here, once."""

from __future__ import annotations

import logging
import uuid
from typing import Any

from torch import Tensor

from comfy.sampling.areas import calculate_start_end_timesteps, resolve_areas_and_cond_masks_multidim

log = logging.getLogger(__name__)

Conds = dict[str, list[dict[str, Any]]]


def convert_cond(cond: list[Any]) -> list[dict[str, Any]]:
    """CONDITIONING ([[tensor, options], ...]) to a run's entries; `cross_attn` holds the tensor."""
    entries = []
    for tensor, options in cond:
        entry = options.copy()
        model_conds = dict(entry.get("model_conds", {}))
        if tensor is not None:
            entry["cross_attn"] = tensor
        entry["model_conds"] = model_conds
        entry["uuid"] = uuid.uuid4()
        entries.append(entry)
    return entries


def encode_model_conds(
    model_function: Any,
    conds: list[dict[str, Any]],
    noise: Tensor,
    device: Any,
    prompt_type: str,
    **kwargs: Any,
) -> list[dict[str, Any]]:
    """Ask the model (`extra_conds`) what it wants to be fed for each entry; stored in `model_conds`."""
    encoded = []
    for entry in conds:
        params = entry.copy()
        params["device"] = device
        params["noise"] = noise
        default_width = noise.shape[3] * 8 if noise.ndim >= 4 else None
        params["width"] = params.get("width", default_width)
        params["height"] = params.get("height", noise.shape[2] * 8)
        params["prompt_type"] = params.get("prompt_type", prompt_type)
        for name, value in kwargs.items():
            params.setdefault(name, value)
        model_conds = dict(entry["model_conds"])
        made = model_function(**params) or {}
        # Once a run: a value that lies elsewhere would be copied, and waited for, in each evaluation.
        model_conds.update({k: c.to(device) if hasattr(c, "to") else c for k, c in made.items()})
        encoded.append({**entry, "model_conds": model_conds})
    return encoded


def _contains(outer: tuple[int, ...], inner: tuple[int, ...]) -> bool:
    axes = len(outer) // 2
    return all(
        outer[axes + i] <= inner[axes + i] and outer[axes + i] + outer[i] >= inner[axes + i] + inner[i]
        for i in range(axes)
    )


def _cells(area: tuple[int, ...]) -> int:
    cells = 1
    for size in area[: len(area) // 2]:
        cells *= size
    return cells


def create_cond_with_same_area_if_none(conds: list[dict[str, Any]], c: dict[str, Any]) -> None:
    """Give the other side (`conds`, appended in place) an entry for the area of `c`.

    The copy keeps c's area, strength and mask and takes its tensors from the smallest entry of `conds` that
    contains the area (one without an area contains everything). Nothing is added when that entry has the very
    same rectangle, or when no entry contains it.
    """
    area = c.get("area")
    if area is None:
        return
    smallest = None
    for entry in conds:
        own = entry.get("area")
        if own is None:
            if smallest is None:
                smallest = entry
        elif _contains(own, area):
            best = smallest.get("area") if smallest is not None else None
            if best is None or _cells(best) > _cells(own):
                smallest = entry
    if smallest is None or smallest.get("area") == area:
        return
    copied = {**c, "model_conds": smallest["model_conds"]}
    if "uuid" in smallest:
        copied["uuid"] = uuid.uuid4()
    conds.append(copied)


def apply_empty_x_to_equal_area(
    conds: list[dict[str, Any]], uncond: list[dict[str, Any]], name: str, uncond_fill: Any
) -> None:
    """Give every negative (in place) what the positives have under `name`, as `uncond_fill` makes it.

    Entries of the same kind (with or without an area) are matched by position, cycling over the positives. A
    negative that has its own value keeps it, and is then doubled with the filled one.
    """
    with_value = [c[name] for c in conds if "area" not in c and c.get(name) is not None]
    if not with_value:
        return
    places = [(i, c) for i, c in enumerate(uncond) if "area" not in c]
    if not places:
        return
    # those without an own value come first: they are to be filled before any is doubled
    own = [(c.get(name), i) for i, c in places]
    own.sort(key=lambda pair: pair[0] is not None)
    for k in range(len(with_value)):
        present, index = own[k % len(own)]
        filled = {**uncond[index], name: uncond_fill(with_value, k)}
        if present is None and k < len(own):
            uncond[index] = filled
        else:
            uncond.append(filled)


def pre_run_control(model: Any, conds: list[dict[str, Any]]) -> None:
    """Let each control net compute its range of sigmas."""
    percent_to_sigma = model.model_sampling.percent_to_sigma
    for entry in conds:
        if "control" in entry and entry["control"] is not None:
            entry["control"].pre_run(model, percent_to_sigma)


def process_conds(
    model: Any,
    noise: Tensor,
    conds: Conds,
    device: Any,
    latent_image: Tensor | None = None,
    denoise_mask: Tensor | None = None,
    seed: int | None = None,
    latent_shapes: list[Any] | None = None,
) -> Conds:
    """All that does not change during a run: areas, masks, ranges, model inputs, matching areas, controls."""
    for name in conds:
        conds[name] = list(conds[name])
        resolve_areas_and_cond_masks_multidim(conds[name], noise.shape[2:], device)
    for name in conds:
        calculate_start_end_timesteps(model, conds[name])
    if hasattr(model, "extra_conds"):
        for name in conds:
            conds[name] = encode_model_conds(
                model.extra_conds,
                conds[name],
                noise,
                device,
                name,
                latent_image=latent_image,
                denoise_mask=denoise_mask,
                seed=seed,
                latent_shapes=latent_shapes,
            )
    # an area on one side needs a counterpart on every other, or its guidance would have nothing to compare
    originals = {name: list(entries) for name, entries in conds.items()}
    for name, entries in originals.items():
        for entry in entries:
            for other in conds:
                if other != name:
                    create_cond_with_same_area_if_none(conds[other], entry)
    for entries in conds.values():
        pre_run_control(model, entries)

    positive = conds.get("positive")
    if positive is not None:
        for name, entries in conds.items():
            if name == "positive":
                continue
            apply_empty_x_to_equal_area(
                [c for c in positive if c.get("control_apply_to_uncond", False)],
                entries,
                "control",
                lambda values, i: values[i],
            )
            apply_empty_x_to_equal_area(positive, entries, "gligen", lambda values, i: values[i])
    return conds
