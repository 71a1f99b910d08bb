"""Layers for inference: built without initial values, with weights that may rest in another dtype or place.

Two families, each a namespace of layer classes:

* `disable_weight_init`: the torch layers without their random initialisation, for weights that are about to
  be overwritten by a file. With the weight in the dtype of the input they behave exactly like torch's.
* `manual_cast`: the same layers, but every call casts weight and bias to dtype and device of the input. A
  model can then rest in float16 (half the memory, and it may stay a view of the memory-mapped file) and
  compute in float32.

A layer also carries two lists, `weight_function` and `bias_function`: callables applied to the cast tensor on
each call, for patches that should not be baked into the stored weight.

To train a network built from these layers call `init_weights(module)` first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comfy.acceleration import fp8_linear, uses_fp8_products
from comfy.quantization import SCALE, Quantization, Scaled
from comfy.quantized_files import INPUT_SCALE

if TYPE_CHECKING:
    from comfy.streaming import Streamer


def cast_to(
    weight: Tensor,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    non_blocking: bool = False,
    copy: bool = False,
) -> Tensor:
    """`weight` in the given dtype and on the given device; the same tensor when nothing has to change (unless
    `copy`)."""
    return weight.to(device=device, dtype=dtype, non_blocking=non_blocking, copy=copy)


def cast_to_input(weight: Tensor, input: Tensor, non_blocking: bool = False, copy: bool = True) -> Tensor:
    """`weight` in dtype and on the device of `input`."""
    return cast_to(weight, input.dtype, input.device, non_blocking=non_blocking, copy=copy)


def resting_weights(layer: nn.Module, device: torch.device | None) -> tuple[Tensor | None, Tensor | None]:
    """Weight and bias of `layer` as they rest, on a device (None: where they are)."""
    streamer = getattr(layer, "streamer", None)
    weight, bias = (layer.weight, layer.bias) if streamer is None else streamer.fetch(layer)
    weight = None if weight is None else cast_to(weight, device=device)
    return weight, None if bias is None else cast_to(bias, device=device)


def cast_bias_weight(
    layer: nn.Module,
    input: Tensor | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    bias_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of `layer` as one call needs them: cast to `dtype`/`device` (default: those of
    `input`), then passed through the layer's `weight_function` and `bias_function` lists."""
    if input is not None:
        dtype = dtype or input.dtype
        device = device or input.device
    weight, bias = resting_weights(layer, device)
    quantization = getattr(layer, "quantization", None)  # layers of packs may not know of it
    if quantization is not None:
        weight = quantization.values(weight, layer._buffers, dtype)
    elif weight is not None:
        weight = cast_to(weight, dtype)
    bias = cast_to(bias, bias_dtype or dtype) if bias is not None else None
    for function in layer.weight_function:
        weight = function(weight)
    for function in layer.bias_function:
        bias = function(bias)
    return weight, bias


def uncast_bias_weight(layer: nn.Module, weight: Tensor, bias: Tensor | None, offload_stream=None) -> None:
    """Counterpart of `cast_bias_weight`. Nothing to give back: the cast tensors are ordinary temporaries."""


class CastWeights:
    """What all layers here share: no initialisation, and a forward that chooses between torch's own and the
    casting one."""

    comfy_cast_weights: bool = False
    # How the stored weight becomes numbers, where it is not those itself (comfy.quantization).
    quantization: Quantization | None = None
    # Set while the weights wait on the host: fetches them for one call (comfy.streaming).
    streamer: Streamer | None = None
    weight_function: list[Callable[[Tensor], Tensor]] = []
    bias_function: list[Callable[[Tensor], Tensor]] = []

    def reset_parameters(self) -> None:
        return None

    def forward(self, input: Tensor, *args, **kwargs) -> Tensor:
        if self.comfy_cast_weights or self.weight_function or self.bias_function:
            return self.forward_comfy_cast_weights(input, *args, **kwargs)
        return super().forward(input, *args, **kwargs)

    def forward_comfy_cast_weights(self, input: Tensor, *args, **kwargs) -> Tensor:
        raise NotImplementedError


class disable_weight_init:
    """Torch's layers without initialisation."""

    class Linear(CastWeights, nn.Linear):
        def forward_comfy_cast_weights(self, input: Tensor) -> Tensor:
            if self.quantization is not None and not self.weight_function and not self.bias_function:
                weight, bias = resting_weights(self, input.device)
                bias = None if bias is None else bias.to(input.dtype)
                return self.quantization.linear(input, weight, self._buffers, bias)
            weight, bias = cast_bias_weight(self, input)
            return F.linear(input, weight, bias)

    class Conv1d(CastWeights, nn.Conv1d):
        def forward_comfy_cast_weights(self, input: Tensor) -> Tensor:
            weight, bias = cast_bias_weight(self, input)
            return self._conv_forward(input, weight, bias)

    class Conv2d(CastWeights, nn.Conv2d):
        def forward_comfy_cast_weights(self, input: Tensor) -> Tensor:
            weight, bias = cast_bias_weight(self, input)
            return self._conv_forward(input, weight, bias)

    class Conv3d(CastWeights, nn.Conv3d):
        def forward_comfy_cast_weights(self, input: Tensor) -> Tensor:
            weight, bias = cast_bias_weight(self, input)
            return self._conv_forward(input, weight, bias)

    class ConvTranspose1d(CastWeights, nn.ConvTranspose1d):
        def forward_comfy_cast_weights(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
            return _conv_transpose(self, F.conv_transpose1d, input, output_size, 1)

    class ConvTranspose2d(CastWeights, nn.ConvTranspose2d):
        def forward_comfy_cast_weights(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
            return _conv_transpose(self, F.conv_transpose2d, input, output_size, 2)

    class GroupNorm(CastWeights, nn.GroupNorm):
        def forward_comfy_cast_weights(self, input: Tensor) -> Tensor:
            weight, bias = cast_bias_weight(self, input)
            return F.group_norm(input, self.num_groups, weight, bias, self.eps)

    class LayerNorm(CastWeights, nn.LayerNorm):
        def forward_comfy_cast_weights(self, input: Tensor) -> Tensor:
            weight, bias = cast_bias_weight(self, input)
            return F.layer_norm(input, self.normalized_shape, weight, bias, self.eps)

    class RMSNorm(CastWeights, nn.RMSNorm):
        bias = None

        def forward_comfy_cast_weights(self, input: Tensor) -> Tensor:
            weight, _ = cast_bias_weight(self, input)
            return F.rms_norm(input, self.normalized_shape, weight, self.eps)

    class Embedding(CastWeights, nn.Embedding):
        bias = None

        def forward(self, input: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
            """Look the rows up first and cast only them: a whole table is far larger than a prompt."""
            weight, place = self.weight, input.device
            if self.quantization is not None:
                rows = self._rows_of_quantized(weight, input.to(weight.device), out_dtype or torch.float32)
                return rows.to(place)
            for function in self.weight_function:
                weight = function(weight)
            if weight.device != place:  # the table waits on the host: look up there
                input = input.to(weight.device)
            rows = F.embedding(
                input,
                weight,
                self.padding_idx,
                self.max_norm,
                self.norm_type,
                self.scale_grad_by_freq,
                self.sparse,
            ).to(place)
            return rows if out_dtype is None else rows.to(out_dtype)

        def _rows_of_quantized(self, weight: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
            if not self.weight_function:
                return self.quantization.rows(weight, self._buffers, index, dtype)
            weight = self.quantization.values(weight, self._buffers, dtype)
            for function in self.weight_function:
                weight = function(weight)
            return F.embedding(index, weight)

        def forward_comfy_cast_weights(self, input: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
            return self.forward(input, out_dtype)

    @classmethod
    def conv_nd(cls, dims: int, *args, **kwargs) -> nn.Module:
        """The convolution over `dims` dimensions (2 or 3)."""
        layers = {2: cls.Conv2d, 3: cls.Conv3d}
        if dims not in layers:
            raise ValueError(f"no convolution over {dims} dimensions; 2 or 3 expected")
        return layers[dims](*args, **kwargs)


class manual_cast(disable_weight_init):
    """The same layers, casting weight and bias to the input's dtype and device on every call."""

    class Linear(disable_weight_init.Linear):
        comfy_cast_weights = True

    class Conv1d(disable_weight_init.Conv1d):
        comfy_cast_weights = True

    class Conv2d(disable_weight_init.Conv2d):
        comfy_cast_weights = True

    class Conv3d(disable_weight_init.Conv3d):
        comfy_cast_weights = True

    class ConvTranspose1d(disable_weight_init.ConvTranspose1d):
        comfy_cast_weights = True

    class ConvTranspose2d(disable_weight_init.ConvTranspose2d):
        comfy_cast_weights = True

    class GroupNorm(disable_weight_init.GroupNorm):
        comfy_cast_weights = True

    class LayerNorm(disable_weight_init.LayerNorm):
        comfy_cast_weights = True

    class RMSNorm(disable_weight_init.RMSNorm):
        comfy_cast_weights = True

    class Embedding(disable_weight_init.Embedding):
        comfy_cast_weights = True


def _conv_transpose(layer, function, input: Tensor, output_size: list[int] | None, dims: int) -> Tensor:
    padding = layer._output_padding(
        input, output_size, layer.stride, layer.padding, layer.kernel_size, dims, layer.dilation
    )
    weight, bias = cast_bias_weight(layer, input)
    return function(input, weight, bias, layer.stride, layer.padding, padding, layer.groups, layer.dilation)


class fp8_matrix_products(manual_cast):
    """As `manual_cast`, but products of matrices are computed in float8 where that is possible."""

    class Linear(manual_cast.Linear):
        def forward_comfy_cast_weights(self, input: Tensor) -> Tensor:
            plain = not self.weight_function and not self.bias_function
            if plain and (self.quantization is None or type(self.quantization) is Scaled):
                streamer = self.streamer
                weight, bias = streamer.fetch(self) if streamer is not None else (self.weight, self.bias)
                out = fp8_linear(input, weight, bias, self._buffers.get(SCALE), self._buffers.get(INPUT_SCALE))
                if out is not None:
                    return out
            return super().forward_comfy_cast_weights(input)


def pick_operations(
    weight_dtype: torch.dtype | None,
    compute_dtype: torch.dtype | None,
    load_device: torch.device | None = None,
) -> type[disable_weight_init]:
    """The layer family for weights resting in `weight_dtype` and computing in `compute_dtype` (None: the
    same)."""
    if uses_fp8_products(weight_dtype, load_device):
        return fp8_matrix_products
    if compute_dtype is None or weight_dtype == compute_dtype:
        return disable_weight_init
    return manual_cast


def init_weights(module: nn.Module, seed: int | None = None) -> nn.Module:
    """Give every layer below `module` torch's usual random values, for training from scratch.

    A module built on the meta device must be given memory first: `init_weights(net.to_empty(device="cpu"))`.
    Layers that should start at zero (last layer of a residual branch) are the trainer's business.
    """
    if seed is not None:
        torch.manual_seed(seed)
    kinds = (
        nn.Linear,
        nn.Conv1d,
        nn.Conv2d,
        nn.Conv3d,
        nn.ConvTranspose1d,
        nn.ConvTranspose2d,
        nn.GroupNorm,
        nn.LayerNorm,
        nn.RMSNorm,
        nn.Embedding,
    )
    for layer in module.modules():
        for kind in kinds:
            if isinstance(layer, kind):
                # Past `CastWeights.reset_parameters`, which does nothing, to torch's own.
                kind.reset_parameters(layer)
                break
    return module
