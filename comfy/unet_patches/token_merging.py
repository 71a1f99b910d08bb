"""Token merging for diffusion: queries that are alike are computed once (Bolya & Hoffman 2023)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# In each square of so many tokens one is kept to merge others into.
STRIDE = 2
# Attention at lower resolutions is cheap: it is left alone.
MAX_DOWNSAMPLE = 1

Reshape = Callable[[Tensor], Tensor]


def _unchanged(x: Tensor) -> Tensor:
    return x


class TokenMerging:
    """Two patches of self-attention that belong together: `merge` its queries, `unmerge` its output.

    ratio: share of tokens to merge away, at most three quarters of them.
    """

    def __init__(self, ratio: float):
        self.ratio = ratio
        self._unmerge: Reshape = _unchanged

    def merge(self, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        merge, self._unmerge = self._functions(q, options["original_shape"])
        return merge(q), k, v

    def unmerge(self, out: Tensor, options: dict[str, Any]) -> Tensor:
        unmerge, self._unmerge = self._unmerge, _unchanged
        return unmerge(out)

    def _functions(self, tokens: Tensor, shape: list[int]) -> tuple[Reshape, Reshape]:
        rows, columns = shape[-2:]
        downsample = math.ceil(math.sqrt(rows * columns // tokens.shape[1]))
        if downsample > MAX_DOWNSAMPLE:
            return _unchanged, _unchanged
        count = int(tokens.shape[1] * self.ratio)
        return matching(tokens, math.ceil(rows / downsample), math.ceil(columns / downsample), count)


def matching(metric: Tensor, rows: int, columns: int, count: int) -> tuple[Reshape, Reshape]:
    """(merge, unmerge) for tokens [batch, rows * columns, c]: the `count` tokens most like one of the kept ones are
    merged into it. Which token of each square is kept is random."""
    if count <= 0 or rows == 1 or columns == 1:
        return _unchanged, _unchanged
    order, kept = _order(rows, columns, metric.device)
    others_at, kept_at = order[:, kept:], order[:, :kept]

    def parts(x: Tensor) -> tuple[Tensor, Tensor]:
        return _gathered(x, others_at.expand(x.shape[0], -1, 1)), _gathered(x, kept_at.expand(x.shape[0], -1, 1))

    normed = metric / metric.norm(dim=-1, keepdim=True)
    others, targets = parts(normed)
    score, best = (others @ targets.transpose(-1, -2)).max(dim=-1)
    count = min(others.shape[1], count)
    ranked = score.argsort(dim=-1, descending=True)[..., None]
    merged_at, single_at = ranked[:, :count], ranked[:, count:]
    into = torch.gather(best[..., None], dim=1, index=merged_at)

    def merge(x: Tensor) -> Tensor:
        others, targets = parts(x)
        merged = _gathered(others, merged_at)
        index = into.expand(-1, -1, x.shape[-1])
        targets = targets.scatter_reduce(1, index, merged, reduce="mean")
        return torch.cat([_gathered(others, single_at), targets], dim=1)

    def unmerge(x: Tensor) -> Tensor:
        singles, targets = x[:, : single_at.shape[1]], x[:, single_at.shape[1] :]
        out = x.new_zeros(x.shape[0], rows * columns, x.shape[-1])
        places = others_at.expand(x.shape[0], -1, 1)
        for index, values in (
            (kept_at.expand(x.shape[0], -1, 1), targets),
            (torch.gather(places, 1, single_at), singles),
            (torch.gather(places, 1, merged_at), _gathered(targets, into)),
        ):
            out.scatter_(1, index.expand(-1, -1, x.shape[-1]), values)
        return out

    return merge, unmerge


def _order(rows: int, columns: int, device: torch.device) -> tuple[Tensor, int]:
    """(indices of all tokens [1, n, 1], the kept ones first; how many are kept)."""
    down, across = rows // STRIDE, columns // STRIDE
    drawn = torch.randint(STRIDE * STRIDE, size=(down, across, 1), device=device)
    marks = torch.zeros(down, across, STRIDE * STRIDE, device=device, dtype=torch.int64)
    marks.scatter_(2, drawn, -1)
    marks = marks.view(down, across, STRIDE, STRIDE).transpose(1, 2).reshape(down * STRIDE, across * STRIDE)
    # What does not fill a square is never kept.
    full = torch.zeros(rows, columns, device=device, dtype=torch.int64)
    full[: down * STRIDE, : across * STRIDE] = marks
    return full.reshape(1, -1, 1).argsort(dim=1, stable=True), down * across


def _gathered(x: Tensor, index: Tensor) -> Tensor:
    return torch.gather(x, 1, index.expand(-1, -1, x.shape[-1]))
