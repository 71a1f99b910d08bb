"""FreeU: skips carry less of the coarse structure, the backbone more (Si et al. 2023)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Half width, in frequencies, of what is dampened in the skips.
LOW_FREQUENCIES = 1


def dampen_low_frequencies(x: Tensor, scale: float, threshold: int = LOW_FREQUENCIES) -> Tensor:
    """`x` [batch, channels, h, w] with the lowest frequencies times `scale`."""
    spectrum = torch.fft.fftshift(torch.fft.fftn(x.float(), dim=(-2, -1)), dim=(-2, -1))
    row, column = x.shape[-2] // 2, x.shape[-1] // 2
    spectrum[..., row - threshold : row + threshold, column - threshold : column + threshold] *= scale
    return torch.fft.ifftn(torch.fft.ifftshift(spectrum, dim=(-2, -1)), dim=(-2, -1)).real.to(x.dtype)


def _structure(h: Tensor) -> Tensor:
    """The mean over channels, brought to 0..1 for each picture: [batch, 1, h, w]."""
    mean = h.mean(dim=1, keepdim=True)
    low, high = mean.amin(dim=(1, 2, 3), keepdim=True), mean.amax(dim=(1, 2, 3), keepdim=True)
    return (mean - low) / (high - low)


def output_block_patch(
    factors: dict[int, tuple[float, float]], by_structure: bool
) -> Callable[[Tensor, Tensor, dict[str, Any]], tuple[Tensor, Tensor]]:
    """A patch (h, skip, options) -> both. factors: channels of h -> (factor of the first half of h's channels, factor
    of the skip's low frequencies). by_structure: the second version, where the backbone's factor follows its own
    structure."""

    def patch(h: Tensor, skip: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
        if h.shape[1] not in factors:
            return h, skip
        backbone, low = factors[h.shape[1]]
        half = h.shape[1] // 2
        factor = (backbone - 1) * _structure(h) + 1 if by_structure else backbone
        h = torch.cat([h[:, :half] * factor, h[:, half:]], dim=1)
        return h, dampen_low_frequencies(skip, low)

    return patch
