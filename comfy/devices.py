"""Which device and which number format each part of a model uses, and how much memory a device has.

The choices follow the command line (comfy.cli_args) and what the hardware does well. On a CPU everything is
computed in float32: half precision there is slower or missing. Weights nevertheless rest in the dtype of
their file (see `unet_dtype`), so that a float16 checkpoint stays a view of the mapped file;
`comfy.ops.manual_cast` casts each layer as it runs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from enum import Enum
from typing import Any

import torch

from comfy.cli_args import args
from comfy.device_memory import OOM_EXCEPTION, memory_of

FLOAT8_DTYPES: tuple[torch.dtype, ...] = tuple(
    getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu") if hasattr(torch, name)
)
INFERENCE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class VRAMState(Enum):
    """How the memory of the accelerator is used."""

    DISABLED = 0
    NO_VRAM = 1
    LOW_VRAM = 2
    NORMAL_VRAM = 3
    HIGH_VRAM = 4
    SHARED = 5


class CPUState(Enum):
    GPU = 0
    CPU = 1
    MPS = 2


def _cpu_state() -> CPUState:
    if args.cpu:
        return CPUState.CPU
    if torch.cuda.is_available():
        return CPUState.GPU
    if torch.backends.mps.is_available():
        return CPUState.MPS
    return CPUState.CPU


def _vram_state() -> VRAMState:
    if cpu_state == CPUState.CPU:
        return VRAMState.DISABLED
    if cpu_state == CPUState.MPS:
        return VRAMState.SHARED
    if args.novram:
        return VRAMState.NO_VRAM
    if args.lowvram:
        return VRAMState.LOW_VRAM
    if args.highvram or args.gpu_only:
        return VRAMState.HIGH_VRAM
    return VRAMState.NORMAL_VRAM


cpu_state: CPUState = _cpu_state()
vram_state: VRAMState = _vram_state()


# --- devices


def get_torch_device() -> torch.device:
    """Where models run."""
    if cpu_state == CPUState.GPU:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("mps" if cpu_state == CPUState.MPS else "cpu")


def get_all_torch_devices(exclude_current: bool = False) -> list[torch.device]:
    """Every device models could run on."""
    if cpu_state != CPUState.GPU:
        return [] if exclude_current else [get_torch_device()]
    devices = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    return [d for d in devices if not exclude_current or d != get_torch_device()]


def get_torch_device_name(device: torch.device) -> str:
    """Such as "cuda:0 NVIDIA H200" or "cpu"."""
    device = torch.device(device)
    if device.type == "cuda":
        return f"{device} {torch.cuda.get_device_name(device)}"
    return str(device)


def is_device_type(device: torch.device | None, kind: str) -> bool:
    return getattr(device, "type", None) == kind


def is_device_cpu(device: torch.device | None) -> bool:
    return is_device_type(device, "cpu")


def is_device_mps(device: torch.device | None) -> bool:
    return is_device_type(device, "mps")


def is_device_cuda(device: torch.device | None) -> bool:
    return is_device_type(device, "cuda")


def is_device_xpu(device: torch.device | None) -> bool:
    return is_device_type(device, "xpu")


def is_nvidia() -> bool:
    return cpu_state == CPUState.GPU and torch.version.cuda is not None


def is_amd() -> bool:
    return cpu_state == CPUState.GPU and torch.version.hip is not None


def is_intel_xpu() -> bool:
    return False


def is_directml_enabled() -> bool:
    return False


def cpu_mode() -> bool:
    return cpu_state == CPUState.CPU


def mps_mode() -> bool:
    return cpu_state == CPUState.MPS


def intermediate_device() -> torch.device:
    """Where tensors that pass between nodes live."""
    return get_torch_device() if args.gpu_only else torch.device("cpu")


def intermediate_dtype() -> torch.dtype:
    return torch.float16 if args.fp16_intermediates else torch.float32


def to_intermediate(value: Any) -> Any:
    """A tensor (or nested tensor) of numbers as it passes between nodes: on the device for that, and with
    `--fp16-intermediates` in float16; else in the dtype it has."""
    dtype = {"dtype": torch.float16} if args.fp16_intermediates else {}
    return value.to(device=intermediate_device(), **dtype)


def _offload_device() -> torch.device:
    return get_torch_device() if vram_state == VRAMState.HIGH_VRAM else torch.device("cpu")


def unet_offload_device() -> torch.device:
    """Where a diffusion model waits while it is not used."""
    return _offload_device()


def unet_inital_load_device(parameters: int, dtype: torch.dtype) -> torch.device:
    """Where a diffusion model goes when it is read from disk: on the CPU, mapped, until it is needed."""
    return get_torch_device() if vram_state == VRAMState.HIGH_VRAM else torch.device("cpu")


def text_encoder_device() -> torch.device:
    """Where text encoders run."""
    if vram_state in (VRAMState.HIGH_VRAM, VRAMState.NORMAL_VRAM, VRAMState.SHARED):
        return get_torch_device()
    return torch.device("cpu")


def text_encoder_offload_device() -> torch.device:
    return get_torch_device() if args.gpu_only else torch.device("cpu")


def text_encoder_initial_device(
    load_device: torch.device, offload_device: torch.device, model_size: int = 0
) -> torch.device:
    return offload_device


def vae_device() -> torch.device:
    return torch.device("cpu") if args.cpu_vae else get_torch_device()


def vae_offload_device() -> torch.device:
    return get_torch_device() if args.gpu_only else torch.device("cpu")


def get_autocast_device(dev: torch.device | None) -> str:
    return getattr(dev, "type", "cuda")


def device_supports_non_blocking(device: torch.device) -> bool:
    return args.force_non_blocking or is_device_cuda(torch.device(device))


def supports_cast(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether tensors of `dtype` may live on `device` at all."""
    return not (is_device_mps(device) and (dtype in FLOAT8_DTYPES or dtype == torch.float64))


# --- number formats


def dtype_size(dtype: torch.dtype) -> int:
    """Bytes per value."""
    return dtype.itemsize


def should_use_fp16(
    device: torch.device | None = None,
    model_params: int = 0,
    prioritize_performance: bool = True,
    manual_cast: bool = False,
) -> bool:
    """Whether float16 is a good choice to compute in."""
    if args.force_fp32:
        return False
    if args.force_fp16:
        return True
    device = get_torch_device() if device is None else torch.device(device)
    if is_device_cuda(device):
        # Without tensor cores, or on the one series whose half precision gives wrong results, float32 wins.
        capable = is_amd() or torch.cuda.get_device_capability(device)[0] >= 7
        return capable and not torch.cuda.get_device_name(device).startswith("NVIDIA GeForce GTX 16")
    return is_device_mps(device)


def should_use_bf16(
    device: torch.device | None = None,
    model_params: int = 0,
    prioritize_performance: bool = True,
    manual_cast: bool = False,
) -> bool:
    """Whether bfloat16 is a good choice to compute in."""
    if args.force_fp32:
        return False
    device = get_torch_device() if device is None else torch.device(device)
    if is_device_cuda(device):
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return False


def _runs_on(dtype: torch.dtype, device: torch.device | None) -> bool:
    if dtype == torch.float16:
        return should_use_fp16(device)
    if dtype == torch.bfloat16:
        return should_use_bf16(device)
    return dtype in (torch.float32, torch.float64)


def _asked_for(pairs: Sequence[tuple[str, str]]) -> torch.dtype | None:
    for flag, name in pairs:
        if getattr(args, flag) and hasattr(torch, name):
            return getattr(torch, name)
    return None


def unet_dtype(
    device: torch.device | None = None,
    model_params: int = 0,
    supported_dtypes: Sequence[torch.dtype] = INFERENCE_DTYPES,
    weight_dtype: torch.dtype | None = None,
) -> torch.dtype:
    """The dtype a diffusion model's weights rest in: what a flag says, else the file's own - except float32
    on a device that computes well in half precision. weight_dtype: that of the file, None if unknown."""
    asked = _asked_for(
        (
            ("fp32_unet", "float32"),
            ("fp64_unet", "float64"),
            ("bf16_unet", "bfloat16"),
            ("fp16_unet", "float16"),
            ("fp8_e4m3fn_unet", "float8_e4m3fn"),
            ("fp8_e5m2_unet", "float8_e5m2"),
            ("fp8_e8m0fnu_unet", "float8_e8m0fnu"),
        )
    )
    if asked is not None:
        return asked
    if weight_dtype in (torch.float16, torch.bfloat16, *FLOAT8_DTYPES):
        return weight_dtype
    return next((d for d in supported_dtypes if _runs_on(d, device)), torch.float32)


def unet_manual_cast(
    weight_dtype: torch.dtype | None,
    inference_device: torch.device,
    supported_dtypes: Sequence[torch.dtype] = INFERENCE_DTYPES,
) -> torch.dtype | None:
    """The dtype to compute in when it is not the one the weights rest in; None when it is."""
    if weight_dtype in supported_dtypes and _runs_on(weight_dtype, inference_device):
        return None
    if weight_dtype in (torch.float32, torch.float64):
        return None
    return next((d for d in supported_dtypes if _runs_on(d, inference_device)), torch.float32)


def text_encoder_asked_dtype() -> torch.dtype | None:
    """The dtype that a flag asks text encoders to be kept in."""
    return _asked_for(
        (
            ("fp8_e4m3fn_text_enc", "float8_e4m3fn"),
            ("fp8_e5m2_text_enc", "float8_e5m2"),
            ("fp16_text_enc", "float16"),
            ("bf16_text_enc", "bfloat16"),
            ("fp32_text_enc", "float32"),
        )
    )


def text_encoder_dtype(device: torch.device | None = None) -> torch.dtype:
    """The dtype text encoders are kept in when their file does not say."""
    asked = text_encoder_asked_dtype()
    if asked is not None:
        return asked
    return torch.float32 if is_device_cpu(device) else torch.float16


def vae_dtype(device: torch.device | None = None, allowed_dtypes: Sequence[torch.dtype] = ()) -> torch.dtype:
    """The dtype an autoencoder computes in; float16 overflows in some, so it is never chosen by itself unless
    `allowed_dtypes` lists it first."""
    asked = _asked_for((("fp16_vae", "float16"), ("bf16_vae", "bfloat16"), ("fp32_vae", "float32")))
    if asked is not None:
        return asked
    usable = (d for d in allowed_dtypes if d != torch.float32 and _runs_on(d, device))
    return next(usable, torch.bfloat16 if should_use_bf16(device) else torch.float32)


def pick_weight_dtype(
    dtype: torch.dtype | None, fallback_dtype: torch.dtype, device: torch.device | None = None
) -> torch.dtype:
    """`dtype` if tensors of it may live on `device`, else the fallback."""
    if dtype is None or (device is not None and not supports_cast(torch.device(device), dtype)):
        return fallback_dtype
    return dtype


def force_upcast_attention_dtype() -> dict[torch.dtype, torch.dtype] | None:
    """Which dtypes attention is computed in instead of the given ones, None for no change."""
    return {torch.float16: torch.float32} if args.force_upcast_attention else None


def attention_dtype(dtype: torch.dtype, wanted: torch.dtype | None) -> torch.dtype:
    """What attention of inputs in `dtype` is computed in. wanted: what the model asks for, as half precision overflows
    in some; `--dont-upcast-attention` does without."""
    if args.dont_upcast_attention:
        return dtype
    return (force_upcast_attention_dtype() or {}).get(dtype, wanted or dtype)


def pytorch_attention_enabled() -> bool:
    return True


XFORMERS_IS_AVAILABLE = False  # torch picks attention kernels that are as fast


def xformers_enabled() -> bool:
    return False


def xformers_enabled_vae() -> bool:
    return False


def sage_attention_enabled() -> bool:
    return False


def flash_attention_enabled() -> bool:
    return False


# --- memory


def module_size(module: torch.nn.Module) -> int:
    """Bytes of all tensors of a module; of one with several names once."""
    tensors = [*module.parameters(), *module.buffers()]
    return sum(t.nelement() * t.element_size() for t in tensors)


def get_total_memory(dev: torch.device | None = None, torch_total_too: bool = False) -> int | tuple[int, int]:
    """Bytes of memory of a device; with `torch_total_too` also what torch has reserved of it."""
    memory = memory_of(get_torch_device() if dev is None else dev)
    total = memory.total()
    return (total, memory.reserved()) if torch_total_too else total


def get_free_memory(dev: torch.device | None = None, torch_free_too: bool = False) -> int | tuple[int, int]:
    """Bytes that can still be used on a device, counting what torch has reserved but not given out; with
    `torch_free_too` also that part alone."""
    memory = memory_of(get_torch_device() if dev is None else dev)
    free = memory.free()
    return (free, free if memory.is_host else memory.unused()) if torch_free_too else free


def extra_reserved_memory() -> int:
    """Bytes of the accelerator left to other programs (--reserve-vram), and what --vram-headroom adds."""
    by_system = 0.6 if os.name == "nt" else 0.4
    gigabytes = by_system if args.reserve_vram is None else args.reserve_vram
    return int((gigabytes + args.vram_headroom) * 1024**3)


def minimum_inference_memory() -> int:
    """Bytes kept free for the tensors of a running model, whatever it estimates."""
    return int(0.8 * 1024**3) + extra_reserved_memory()


def soft_empty_cache(force: bool = False) -> None:
    """Give memory that torch holds but does not use back to the device."""
    memory_of(get_torch_device()).release_unused()


def is_oom(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, on an accelerator or in RAM."""
    if isinstance(error, (OOM_EXCEPTION, MemoryError)):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)


def raise_non_oom(error: BaseException) -> None:
    """Raise `error` again unless it says that memory ran out."""
    if not is_oom(error):
        raise error


def synchronize() -> None:
    """Wait until the device has done what it was given."""
    with contextlib.suppress(RuntimeError):
        if cpu_state == CPUState.GPU:
            torch.cuda.synchronize()
        elif cpu_state == CPUState.MPS:
            torch.mps.synchronize()
