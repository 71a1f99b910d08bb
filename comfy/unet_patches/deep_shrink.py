"""Deep shrink: early steps compute the deep blocks at a lower resolution, so that large pictures keep one composition
(kohya-ss 2023)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import comfy.utils
from comfy.sampling.solvers.common import host_sigma


class DeepShrink:
    """The patches `shrink` of the encoder and `grow` of the decoder.

    block: number of the encoder's block after which features get smaller by `factor`, while sigma is between
    `sigma_end` and `sigma_start`.
    """

    def __init__(
        self,
        block: int,
        factor: float,
        sigma_start: float,
        sigma_end: float,
        downscale_method: str,
        upscale_method: str,
    ):
        self.block = block
        self.factor = factor
        self.sigma_start = sigma_start
        self.sigma_end = sigma_end
        self.downscale_method = downscale_method
        self.upscale_method = upscale_method

    def shrink(self, h: Tensor, options: dict[str, Any]) -> Tensor:
        if options["block"][1] != self.block:
            return h
        if not self.sigma_end <= host_sigma(options["sigmas"]) <= self.sigma_start:
            return h
        height, width = (round(n / self.factor) for n in h.shape[-2:])
        return comfy.utils.common_upscale(h, width, height, self.downscale_method, "disabled")

    def grow(self, h: Tensor, skip: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """To the size of the skip that comes beside."""
        if h.shape[-2:] != skip.shape[-2:]:
            h = comfy.utils.common_upscale(h, skip.shape[-1], skip.shape[-2], self.upscale_method, "disabled")
        return h, skip
