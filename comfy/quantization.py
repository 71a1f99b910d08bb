"""Quantised weights: how what a file stores becomes numbers, and numbers what a file stores.

A `Quantization` belongs to a layer. Stored values and scales stay as they are in the file, in memory and on the device;
each call of the layer computes the numbers (`comfy.ops`), and so does whoever patches, mixes or extracts weights.

Formats: float8 and int8 with one scale or one for each row; int8 whose inputs are rotated, so that no column stands
out (ConvRot); MXFP8 (OCP Microscaling Formats 1.0) and NVFP4 (NVIDIA), whose blocks of 32 and 16 columns have scales of
their own, in the order in which cuBLAS wants them. Arithmetic as of the library comfy-kitchen (Apache 2.0), which
defines these files.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Names of a layer's buffers.
SCALE, BLOCK_SCALE = "scale_weight", "block_scale"
Scales = Mapping[str, Tensor]

INT8_LIMIT = 127
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # magnitudes of NVFP4; the fourth bit is the sign
_E8M0_BIAS, _E8M0_NAN = 127, 255


class Quantization:
    """How one layer's weight is stored.

    marker: the JSON by which a file names the format. names: buffers of the layer -> what their names in a file end on.
    """

    names: Mapping[str, str] = {SCALE: "weight_scale"}

    def __init__(self, marker: Mapping[str, Any]) -> None:
        self.marker = dict(marker)

    def shape(self, stored: torch.Size | tuple[int, ...]) -> tuple[int, ...]:
        """The weight's shape, by that of the stored tensor."""
        return tuple(stored)

    def values(self, stored: Tensor, scales: Scales, dtype: torch.dtype) -> Tensor:
        """The weight's numbers, on the device of `stored`."""
        raise NotImplementedError

    def rows(self, stored: Tensor, scales: Scales, index: Tensor, dtype: torch.dtype) -> Tensor:
        """Some rows of the numbers [rows, columns]: those of `index` [any shape] -> [*that shape, columns]."""
        raise NotImplementedError

    def linear(self, x: Tensor, stored: Tensor, scales: Scales, bias: Tensor | None) -> Tensor:
        """`x @ weight.T + bias` for x [..., columns], all on its device."""
        return F.linear(x, self.values(stored, scales, x.dtype), bias)

    def store(self, values: Tensor, stored: Tensor, scales: Scales) -> tuple[Tensor, dict[str, Tensor]]:
        """What stands for other numbers (float32), and its scales; `stored` and `scales` are those of before, which
        tell dtypes and shapes."""
        raise NotImplementedError


class Scaled(Quantization):
    """Numbers are the stored values times a scale: one, or one for each row (float8, int8)."""

    def values(self, stored: Tensor, scales: Scales, dtype: torch.dtype) -> Tensor:
        return self._product(stored, scales, dtype)

    def _product(self, stored: Tensor, scales: Scales, dtype: torch.dtype) -> Tensor:
        scale = scales[SCALE].to(stored.device)
        if stored.dtype == torch.int8:  # half precision has no room for its scales
            return (stored.float() * scale.float()).to(dtype)
        return stored.to(dtype) * scale.to(dtype)

    def linear(self, x: Tensor, stored: Tensor, scales: Scales, bias: Tensor | None) -> Tensor:
        """int8 is exact in bfloat16 and float32: there the product is scaled instead of the weight, which is larger and
        would be rounded. In float16 the product could overflow."""
        if stored.dtype != torch.int8 or x.dtype == torch.float16:
            return F.linear(x, self._product(stored, scales, x.dtype), bias)
        out = F.linear(x, stored.to(x.dtype)) * scales[SCALE].to(x).flatten()
        return out if bias is None else out + bias

    def rows(self, stored: Tensor, scales: Scales, index: Tensor, dtype: torch.dtype) -> Tensor:
        scale = scales[SCALE].to(stored.device)
        picked = {**scales, SCALE: scale if scale.nelement() == 1 else scale[index.flatten()]}
        found = self.values(stored[index.flatten()], picked, dtype)
        return found.reshape(*index.shape, found.shape[-1])

    def store(self, values: Tensor, stored: Tensor, scales: Scales) -> tuple[Tensor, dict[str, Tensor]]:
        """At the scales of before, or at larger ones where the numbers have outgrown them."""
        scale = scales[SCALE].to(values)
        whole = scale.nelement() == 1
        largest = values.abs().max() if whole else values.abs().amax(dim=tuple(range(1, values.ndim)), keepdim=True)
        fitting = torch.maximum(scale, largest.reshape(scale.shape) / _limit(stored.dtype))
        return to_dtype(values / fitting, stored.dtype), {SCALE: fitting.to(scales[SCALE].dtype)}


class Rotated(Scaled):
    """int8 of a weight whose columns were turned, in groups, by a Hadamard matrix."""

    def __init__(self, marker: Mapping[str, Any], group: int) -> None:
        super().__init__(marker)
        self.group = group

    def values(self, stored: Tensor, scales: Scales, dtype: torch.dtype) -> Tensor:
        return self._turned(self._product(stored, scales, torch.float32)).to(dtype)

    def linear(self, x: Tensor, stored: Tensor, scales: Scales, bias: Tensor | None) -> Tensor:
        """The inputs are turned instead of the weight."""
        return super().linear(self._turned(x.float()).to(x.dtype), stored, scales, bias)

    def store(self, values: Tensor, stored: Tensor, scales: Scales) -> tuple[Tensor, dict[str, Tensor]]:
        return super().store(self._turned(values), stored, scales)

    def _turned(self, rows: Tensor) -> Tensor:
        """Rows [..., columns], turned there or back: the matrix is its own inverse."""
        matrix = hadamard(self.group, rows.device)
        return (rows.unflatten(-1, (-1, self.group)) @ matrix).flatten(-2)


class BlockScaled(Quantization):
    """Rows of blocks, each with a scale of its own."""

    block: int

    def values(self, stored: Tensor, scales: Scales, dtype: torch.dtype) -> Tensor:
        rows = self.shape(stored.shape)[0]
        return self._numbers(stored, self._block_scales(stored, scales)[:rows], dtype)

    def rows(self, stored: Tensor, scales: Scales, index: Tensor, dtype: torch.dtype) -> Tensor:
        chosen = index.flatten()
        found = self._numbers(stored[chosen], self._block_scales(stored, scales)[chosen], dtype)
        return found.reshape(*index.shape, found.shape[-1])

    def _block_scales(self, stored: Tensor, scales: Scales) -> Tensor:
        """float32 [rows, blocks]."""
        raise NotImplementedError

    def _numbers(self, stored: Tensor, block_scales: Tensor, dtype: torch.dtype) -> Tensor:
        raise NotImplementedError

    def _blocks(self, values: Tensor) -> Tensor:
        return values.float().unflatten(-1, (-1, self.block))

    def _blocks_of(self, stored: Tensor) -> tuple[int, int]:
        rows, columns = self.shape(stored.shape)
        return rows, columns // self.block


class MXFP8(BlockScaled):
    """float8 values; blocks of 32 are scaled by powers of two."""

    names = {BLOCK_SCALE: "weight_scale"}
    block = 32

    def _block_scales(self, stored: Tensor, scales: Scales) -> Tensor:
        exponents = scales[BLOCK_SCALE].to(stored.device).view(torch.uint8)
        exponents = unswizzled(exponents, *self._blocks_of(stored)).float()
        return torch.where(exponents == _E8M0_NAN, math.nan, torch.exp2(exponents - _E8M0_BIAS))

    def _numbers(self, stored: Tensor, block_scales: Tensor, dtype: torch.dtype) -> Tensor:
        return (self._blocks(stored) * block_scales[..., None]).flatten(-2).to(dtype)

    def store(self, values: Tensor, stored: Tensor, scales: Scales) -> tuple[Tensor, dict[str, Tensor]]:
        blocks = self._blocks(values)
        largest = blocks.abs().amax(-1) / torch.finfo(stored.dtype).max
        exponents = torch.where(largest > 0, torch.log2(largest).ceil() + _E8M0_BIAS, torch.zeros_like(largest))
        exponents = exponents.clamp(0, _E8M0_NAN - 1)
        small = blocks / torch.exp2(exponents - _E8M0_BIAS)[..., None]
        block_scale = scales[BLOCK_SCALE]
        kept = swizzled(exponents.to(torch.uint8)).reshape(block_scale.shape).view(block_scale.dtype)
        return to_dtype(small.flatten(-2), stored.dtype), {BLOCK_SCALE: kept}


class NVFP4(BlockScaled):
    """Two numbers of four bits in a byte, the first one in its upper half; blocks of 16 are scaled in float8, and the
    whole by one float32."""

    names = {BLOCK_SCALE: "weight_scale", SCALE: "weight_scale_2"}
    block = 16

    def shape(self, stored: torch.Size | tuple[int, ...]) -> tuple[int, ...]:
        return (*stored[:-1], stored[-1] * 2)

    def _block_scales(self, stored: Tensor, scales: Scales) -> Tensor:
        of_blocks = unswizzled(scales[BLOCK_SCALE].to(stored.device), *self._blocks_of(stored))
        return of_blocks.float() * scales[SCALE].to(of_blocks.device).float()

    def _numbers(self, stored: Tensor, block_scales: Tensor, dtype: torch.dtype) -> Tensor:
        halves = torch.stack([stored >> 4, stored & 15], dim=-1).flatten(-2)
        return (self._blocks(_e2m1(stored.device)[halves.int()]) * block_scales[..., None]).flatten(-2).to(dtype)

    def store(self, values: Tensor, stored: Tensor, scales: Scales) -> tuple[Tensor, dict[str, Tensor]]:
        blocks = self._blocks(values)
        of_blocks, largest = scales[BLOCK_SCALE], blocks.abs().amax(-1)
        scale = (largest.max() / (_limit(of_blocks.dtype) * _E2M1[-1])).clamp(min=torch.finfo(torch.float32).tiny)
        kept = to_dtype(largest / (_E2M1[-1] * scale), of_blocks.dtype)
        divisor = kept.float() * scale
        small = blocks / torch.where(divisor > 0, divisor, 1)[..., None]
        codes = _nearest_e2m1(small.flatten(-2))
        packed = (codes[..., 0::2] << 4) | codes[..., 1::2]
        new_scales = {BLOCK_SCALE: swizzled(kept).reshape(of_blocks.shape), SCALE: scale.to(scales[SCALE].dtype)}
        return packed, {**new_scales, SCALE: new_scales[SCALE].reshape(scales[SCALE].shape)}


@functools.lru_cache(maxsize=8)
def hadamard(size: int, device: torch.device) -> Tensor:
    """The symmetric, orthogonal matrix [size, size] of a power of 4, whose rows all have the same sum."""
    with torch.inference_mode(False):
        four = torch.ones(4, 4) - 2 * torch.eye(4).flip(1)
        matrix = four
        while matrix.shape[0] < size:
            matrix = torch.kron(matrix, four)
        if matrix.shape[0] != size:
            raise ValueError(f"weights are rotated in groups of {size}; a power of 4 was expected")
        return (matrix / math.sqrt(size)).to(device)


def swizzled(scales: Tensor) -> Tensor:
    """Scales of blocks [rows, blocks] as cuBLAS wants them: in tiles of 128 rows and 4 blocks, filled up with zeros; of
    a tile, rows 0, 32, 64 and 96 come first, then 1, 33, ... ("block scaling factors layout" in its documentation)."""
    rows, blocks = scales.shape
    bits = scales.view(torch.uint8)  # float8 cannot be filled up or moved about everywhere
    bits = F.pad(bits, (0, -blocks % 4, 0, -rows % 128))
    tiles = bits.unflatten(1, (-1, 4)).unflatten(0, (-1, 4, 32))  # [row tiles, 4, 32, block tiles, 4]
    return tiles.permute(0, 3, 2, 1, 4).reshape(bits.shape).contiguous().view(scales.dtype)


def unswizzled(scales: Tensor, rows: int, blocks: int) -> Tensor:
    """The scales [rows, blocks] out of what `swizzled` gives, of any shape with as many values."""
    tall, wide = math.ceil(rows / 128), math.ceil(blocks / 4)
    bits = scales.contiguous().view(torch.uint8).reshape(tall, wide, 32, 4, 4)
    flat = bits.permute(0, 3, 2, 1, 4).reshape(tall * 128, wide * 4)
    return flat[:rows, :blocks].contiguous().view(scales.dtype)


@functools.lru_cache(maxsize=8)
def _e2m1(device: torch.device) -> Tensor:
    """The numbers of the 16 codes."""
    with torch.inference_mode(False):
        return torch.tensor([*_E2M1, *(-value for value in _E2M1)], device=device)


def _nearest_e2m1(values: Tensor) -> Tensor:
    """The codes of the nearest numbers, of two equally near the one with an even code."""
    magnitudes = _e2m1(values.device)[:8]
    middles = (magnitudes[1:] + magnitudes[:-1]) / 2
    size = values.abs().contiguous()
    low, high = torch.bucketize(size, middles), torch.bucketize(size, middles, right=True)
    code = torch.where(low % 2 == 0, low, high)
    return (code + 8 * torch.signbit(values)).to(torch.uint8)


def _limit(dtype: torch.dtype) -> float:
    return INT8_LIMIT if dtype == torch.int8 else torch.finfo(dtype).max


def to_dtype(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """`weight` in `dtype`; what one byte cannot hold becomes its largest number, not NaN."""
    if dtype == torch.int8:
        return weight.round().clamp(-INT8_LIMIT, INT8_LIMIT).to(dtype)
    if dtype.itemsize == 1 and dtype.is_floating_point:
        limit = torch.finfo(dtype).max
        if limit < torch.finfo(weight.dtype).max:  # float8_e8m0fnu holds more than float16
            weight = weight.clamp(-limit, limit)
    return weight.to(dtype)
