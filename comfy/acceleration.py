"""What the flags for speed and for determinism switch in torch, and float8 matrix products (`--fast`)."""

from __future__ import annotations

import torch
from torch import Tensor

from comfy.cli_args import PerformanceFeature, args
from comfy.devices import CPUState, cpu_state, is_device_cuda

FP8 = torch.float8_e4m3fn


def apply_flags() -> None:
    """Switch what the command line asks for; once, after torch is there."""
    if args.deterministic:
        torch.use_deterministic_algorithms(True, warn_only=True)
    if cpu_state != CPUState.GPU:
        return
    if PerformanceFeature.Fp16Accumulation in args.fast and hasattr(
        torch.backends.cuda.matmul, "allow_fp16_accumulation"
    ):
        torch.backends.cuda.matmul.allow_fp16_accumulation = True
    if PerformanceFeature.CublasOps in args.fast:
        torch.backends.cuda.preferred_blas_library("cublaslt")
    if PerformanceFeature.AutoTune in args.fast:
        torch.backends.cudnn.benchmark = True


def supports_fp8_compute(device: torch.device | None = None) -> bool:
    """Whether a device multiplies matrices in float8."""
    if args.supports_fp8_compute:
        return True
    device = torch.device("cuda") if device is None and cpu_state == CPUState.GPU else device
    return is_device_cuda(device) and torch.cuda.get_device_capability(device) >= (8, 9)


def uses_fp8_products(weight_dtype: torch.dtype | None, device: torch.device | None) -> bool:
    """Whether layers with weights of that dtype multiply in float8 on that device."""
    wanted = PerformanceFeature.Fp8MatrixMultiplication in args.fast
    return wanted and weight_dtype == FP8 and supports_fp8_compute(device)


def fp8_linear(
    input: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor | None, input_scale: Tensor | None
) -> Tensor | None:
    """`input @ weight.T + bias` with the product in float8; None where that is not possible, as with a scale per row.

    input [..., in], weight [out, in] in float8_e4m3fn. The hardware wants both sizes to be multiples of 16. scale: of
    the weight; input_scale: what inputs are divided by before they are rounded.
    """
    if weight.dtype != FP8 or weight.ndim != 2 or input.shape[-1] % 16 or weight.shape[0] % 16:
        return None
    if input.dtype not in (torch.float16, torch.bfloat16) or (scale is not None and scale.ndim):
        return None
    one = torch.ones((), device=input.device, dtype=torch.float32)
    scale = one if scale is None else scale.to(one)
    input_scale = one if input_scale is None else input_scale.to(one)
    limit = torch.finfo(FP8).max
    rows = (input.reshape(-1, input.shape[-1]) / input_scale.to(input.dtype)).clamp(-limit, limit).to(FP8)
    bias = None if bias is None else bias.to(input.dtype)
    out = torch._scaled_mm(
        rows.contiguous(), weight.t(), scale_a=input_scale, scale_b=scale, bias=bias, out_dtype=input.dtype
    )
    return out.reshape(*input.shape[:-1], weight.shape[0])
