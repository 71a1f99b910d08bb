"""Small helpers that custom node packs import by this name (spec: custom-node-surface.md)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from comfy.cli_args import args


def conditioning_set_values(conditioning: list, values: dict | None = None, append: bool = False) -> list:
    """A copy of a CONDITIONING with options set on every entry.

    conditioning: list of [tensor, options].
    values: option name -> value.
    append: add to what the option already holds (`old + new`, for lists) instead of replacing it.
    The tensors are shared with the input; the option dicts are new.
    """
    result = []
    for tensor, options, *rest in conditioning:
        options = dict(options)
        for key, value in (values or {}).items():
            if append and options.get(key) is not None:
                value = options[key] + value
            options[key] = value
        result.append([tensor, options, *rest])
    return result


def conditioning_set_values_with_timestep_range(
    conditioning: list, values: dict | None = None, start_percent: float = 0.0, end_percent: float = 1.0
) -> list:
    """Like `conditioning_set_values`, but only for the part of sampling between two fractions (0 = begin, 1 = end).

    Entries that are also valid outside the range are split: before, within (with the values), and after.
    Ranges of zero length are left out.
    """
    result = []
    for tensor, options, *rest in conditioning:
        begin, end = options.get("start_percent", 0.0), options.get("end_percent", 1.0)
        inner_begin, inner_end = max(begin, start_percent), min(end, end_percent)
        if inner_begin >= inner_end:
            result.append([tensor, dict(options), *rest])
            continue
        pieces = [(begin, inner_begin, {}), (inner_begin, inner_end, values or {}), (inner_end, end, {})]
        for first, last, extra in pieces:
            if first < last:
                piece = {**options, **extra, "start_percent": first, "end_percent": last}
                result.append([tensor, piece, *rest])
    return result


def pillow(fn: Callable[[Any], Any], arg: Any) -> Any:
    """`fn(arg)` for a Pillow function; once more with Pillow's leniency about truncated files if that fails.

    Packs use it as `pillow(Image.open, path)`, `pillow(ImageOps.exif_transpose, image)`.
    """
    from PIL import ImageFile, UnidentifiedImageError

    try:
        return fn(arg)
    except (OSError, UnidentifiedImageError, ValueError):
        # A process-wide switch of Pillow: put back whatever happens.
        previous = ImageFile.LOAD_TRUNCATED_IMAGES
        ImageFile.LOAD_TRUNCATED_IMAGES = True
        try:
            return fn(arg)
        finally:
            ImageFile.LOAD_TRUNCATED_IMAGES = previous


def hasher() -> Callable:
    """The hash constructor chosen with `--default-hashing-function`."""
    return getattr(hashlib, args.default_hashing_function)


def string_to_torch_dtype(name: str) -> Any:
    """ "fp32", "fp16" or "bf16" -> torch dtype; None for any other text."""
    import torch

    return {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}.get(name)


def image_alpha_fix(destination: Any, source: Any) -> tuple[Any, Any]:
    """Bring source [B,H,W,C] to destination's channel count: alpha is dropped, or added as fully opaque.

    Returns (destination, source).
    """
    import torch

    missing = destination.shape[-1] - source.shape[-1]
    if missing < 0:
        source = source[..., : destination.shape[-1]]
    elif missing > 0:
        source = torch.nn.functional.pad(source, (0, missing), value=1.0)
    return destination, source
