"""HyperTile: self-attention within tiles, of changing size so that no seams stay (tfernd 2023)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MIN_TILE_CELLS = 4


class HyperTile:
    """Two patches of self-attention that belong together: `split` before it, `join` after it.

    tile_cells: smallest side of a tile in latent cells; swap_size: how many sizes are drawn from; max_depth: number of
    halvings at which attention is still tiled; scale_depth: tiles grow by 2 with each of them.
    """

    def __init__(self, tile_cells: int, swap_size: int, max_depth: int, scale_depth: bool):
        self.tile_cells = max(MIN_TILE_CELLS, tile_cells)
        self.swap_size = swap_size
        self.max_depth = max_depth
        self.scale_depth = scale_depth
        self._tiling: tuple[int, int, int, int] | None = None

    def split(self, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """[batch, tokens, c] to [batch * tiles, tokens of a tile, c]. Queries are cut into tiles, keys and values into
        as many stretches in reading order: this is how pictures made with this technique elsewhere come out."""
        self._tiling = None
        place = self._depth_and_size(q.shape[1], options["original_shape"])
        if place is None:
            return q, k, v
        depth, rows, columns = place
        smallest = self.tile_cells * (2**depth if self.scale_depth else 1)
        tiles_down, tiles_across = (_drawn_parts(n, smallest, self.swap_size) for n in (rows, columns))
        if tiles_down * tiles_across <= 1:
            return q, k, v
        self._tiling = (tiles_down, tiles_across, rows, columns)
        q = _tiled(q, *self._tiling)
        return q, k.reshape(q.shape[0], -1, k.shape[-1]), v.reshape(q.shape[0], -1, v.shape[-1])

    def join(self, out: Tensor, options: dict[str, Any]) -> Tensor:
        """Back to [batch, tokens, c]."""
        if self._tiling is None:
            return out
        tiling, self._tiling = self._tiling, None
        return _untiled(out, *tiling)

    def _depth_and_size(self, tokens: int, shape: list[int]) -> tuple[int, int, int] | None:
        """(halvings, rows, columns) of the feature map that has so many tokens, if it is to be tiled."""
        for depth in range(self.max_depth + 1):
            rows, columns = shape[-2] / 2**depth, shape[-1] / 2**depth
            if rows * columns == tokens and rows == int(rows) and columns == int(columns):
                return depth, int(rows), int(columns)
        return None


def _drawn_parts(size: int, smallest: int, choices: int) -> int:
    """A number of equal parts of `size`, drawn from the `choices` numbers whose parts are the smallest allowed."""
    smallest = min(smallest, size)
    counts = [size // part for part in range(smallest, size + 1) if size % part == 0][:choices]
    if len(counts) <= 1:
        return counts[0]
    # From the generator that the run's seed has set; the last of several is never drawn.
    return counts[int(torch.randint(low=0, high=len(counts) - 1, size=(1,)).item())]


def _tiled(x: Tensor, down: int, across: int, rows: int, columns: int) -> Tensor:
    batch, _, channels = x.shape
    x = x.reshape(batch, down, rows // down, across, columns // across, channels)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(batch * down * across, -1, channels)


def _untiled(x: Tensor, down: int, across: int, rows: int, columns: int) -> Tensor:
    channels = x.shape[-1]
    x = x.reshape(-1, down, across, rows // down, columns // across, channels)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(x.shape[0], rows * columns, channels)
