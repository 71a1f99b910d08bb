"""Running a function over an image tile by tile and blending the overlaps.

Each tile counts fully in its middle and less and less, in equal steps, over the overlap; the sum is divided
by the sum of these weights. Results of VAE tiles: goldens/models, section "tiny/: VAE".
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Scale = float | Callable[[int], float]


def get_tiled_scale_steps(width: int, height: int, tile_x: int, tile_y: int, overlap: int) -> int:
    """Number of tiles that `tiled_scale` will compute."""
    return len(_starts(width, tile_x, overlap)) * len(_starts(height, tile_y, overlap))


def tiled_scale(
    samples: Tensor,
    function: Callable[[Tensor], Tensor],
    tile_x: int = 64,
    tile_y: int = 64,
    overlap: int = 8,
    upscale_amount: Scale = 4,
    out_channels: int = 3,
    output_device: torch.device | str = "cpu",
    pbar: Any = None,
) -> Tensor:
    """`tiled_scale_multidim` for images [B,C,H,W], tile size given as x, y."""
    return tiled_scale_multidim(
        samples,
        function,
        (tile_y, tile_x),
        overlap=overlap,
        upscale_amount=upscale_amount,
        out_channels=out_channels,
        output_device=output_device,
        pbar=pbar,
    )


@torch.no_grad()  # not inference mode: outside of it nobody could write to the result
def tiled_scale_multidim(
    samples: Tensor,
    function: Callable[[Tensor], Tensor],
    tile: Sequence[int] = (64, 64),
    overlap: int | Sequence[int] = 8,
    upscale_amount: Scale | Sequence[Scale] = 4,
    out_channels: int = 3,
    output_device: torch.device | str = "cpu",
    downscale: bool = False,
    index_formulas: Scale | Sequence[Scale] | None = None,
    pbar: Any = None,
) -> Tensor:
    """Apply `function` to overlapping tiles of samples [B,C,...] and blend.

    tile, overlap, upscale_amount: in input cells, one per spatial dimension (or one for all). upscale_amount
    is the factor between output and input size (its inverse with `downscale`), or a function size -> size.
    index_formulas: the same for positions, where it differs from sizes. pbar.update(1) after each tile.
    """
    dims = len(tile)
    overlaps = _per_dimension(overlap, dims)
    scales = _per_dimension(upscale_amount, dims)
    positions = scales if index_formulas is None else _per_dimension(index_formulas, dims)

    def size_out(dim: int, value: int) -> int:
        return _scaled(scales[dim], value, downscale)

    def position_out(dim: int, value: int) -> int:
        return _scaled(positions[dim], value, downscale)

    shape = [size_out(d, samples.shape[d + 2]) for d in range(dims)]
    output = torch.empty([samples.shape[0], out_channels, *shape], device=output_device)
    starts = [_starts(samples.shape[d + 2], tile[d], overlaps[d]) for d in range(dims)]

    for index in range(samples.shape[0]):
        item = samples[index : index + 1]
        if all(len(s) == 1 for s in starts):
            output[index : index + 1] = function(item).to(output_device)
            if pbar is not None:
                pbar.update(1)
            continue
        total = torch.zeros([1, out_channels, *shape], device=output_device)
        weight = torch.zeros([1, 1, *shape], device=output_device)
        for corner in itertools.product(*starts):
            part, place = item, []
            for d, start in enumerate(corner):
                # The last tile moves back so far that it still covers the overlap.
                start = max(0, min(samples.shape[d + 2] - overlaps[d], start))
                part = part.narrow(d + 2, start, min(tile[d], samples.shape[d + 2] - start))
                place.append(position_out(d, start))
            result = function(part).to(output_device)
            mask = _feathered(result, [size_out(d, overlaps[d]) for d in range(dims)])
            into, into_weight = total, weight
            for d, start in enumerate(place):
                into = into.narrow(d + 2, start, result.shape[d + 2])
                into_weight = into_weight.narrow(d + 2, start, result.shape[d + 2])
            into.add_(result * mask)
            into_weight.add_(mask)
            if pbar is not None:
                pbar.update(1)
        output[index : index + 1] = total / weight
    return output


def _starts(size: int, tile: int, overlap: int) -> list[int]:
    if size <= tile:
        return [0]
    if not 0 <= overlap < tile:
        raise ValueError(f"tiles of {tile} cannot overlap by {overlap}; less than the tile was expected")
    return list(range(0, size - overlap, tile - overlap))


def _per_dimension(value: Any, dims: int) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value] * dims


def _scaled(scale: Scale, value: int, downscale: bool) -> int:
    if callable(scale):
        return int(scale(value))
    return round(value / scale) if downscale else round(value * scale)


def _feathered(tile: Tensor, overlaps: Sequence[int]) -> Tensor:
    """Weights [1,1,...] of one tile: 1 in the middle, k/overlap for the k-th cell from each border."""
    mask = torch.ones([1, 1, *tile.shape[2:]], device=tile.device, dtype=torch.float32)
    for d, overlap in enumerate(overlaps):
        size = tile.shape[d + 2]
        if overlap <= 0 or overlap >= size:
            continue
        ramp = torch.ones(size, device=tile.device)
        steps = torch.arange(1, overlap + 1, device=tile.device, dtype=torch.float32) / overlap
        ramp[:overlap] *= steps
        ramp[size - overlap :] *= steps.flip(0)
        mask = mask * ramp.view([-1 if i == d else 1 for i in range(len(overlaps))])
    return mask
