"""The face of device and memory management.

Nodes and packs look everything up here, and some replace functions here (`unet_dtype`); callers in this program
therefore go through this module too. The parts live in `comfy.devices` (choices and figures) and
`comfy.loaded_models` (what is on a device).
"""

from __future__ import annotations

import torch

from comfy.acceleration import apply_flags, supports_fp8_compute
from comfy.cli_args import args
from comfy.device_memory import MB
from comfy.devices import (
    FLOAT8_DTYPES,
    INFERENCE_DTYPES,
    OOM_EXCEPTION,
    XFORMERS_IS_AVAILABLE,
    CPUState,
    VRAMState,
    cpu_mode,
    cpu_state,
    device_supports_non_blocking,
    dtype_size,
    extra_reserved_memory,
    flash_attention_enabled,
    force_upcast_attention_dtype,
    get_all_torch_devices,
    get_autocast_device,
    get_free_memory,
    get_torch_device,
    get_torch_device_name,
    get_total_memory,
    intermediate_device,
    intermediate_dtype,
    is_amd,
    is_device_cpu,
    is_device_cuda,
    is_device_mps,
    is_device_type,
    is_device_xpu,
    is_directml_enabled,
    is_intel_xpu,
    is_nvidia,
    is_oom,
    minimum_inference_memory,
    module_size,
    mps_mode,
    pick_weight_dtype,
    pytorch_attention_enabled,
    raise_non_oom,
    sage_attention_enabled,
    should_use_bf16,
    should_use_fp16,
    soft_empty_cache,
    supports_cast,
    synchronize,
    text_encoder_asked_dtype,
    text_encoder_device,
    text_encoder_dtype,
    text_encoder_initial_device,
    text_encoder_offload_device,
    to_intermediate,
    unet_dtype,
    unet_inital_load_device,
    unet_manual_cast,
    unet_offload_device,
    vae_device,
    vae_dtype,
    vae_offload_device,
    vram_state,
    xformers_enabled,
    xformers_enabled_vae,
)
from comfy.interrupt import (
    InterruptProcessingException,
    interrupt_current_processing,
    processing_interrupted,
    throw_exception_if_processing_interrupted,
)
from comfy.loaded_models import (
    LoadedModel,
    cleanup_models,
    cleanup_models_gc,
    current_loaded_models,
    free_memory,
    load_model_gpu,
    load_models_gpu,
    loaded_models,
    unload_all_models,
    unload_model,
    unload_model_and_clones,
)
from comfy.system_memory import system_memory

__all__ = [
    "DISABLE_SMART_MEMORY",
    "FLOAT8_DTYPES",
    "INFERENCE_DTYPES",
    "OOM_EXCEPTION",
    "XFORMERS_IS_AVAILABLE",
    "CPUState",
    "InterruptProcessingException",
    "LoadedModel",
    "VRAMState",
    "cast_to",
    "cast_to_device",
    "cleanup_models",
    "cleanup_models_gc",
    "cpu_mode",
    "cpu_state",
    "current_loaded_models",
    "device_supports_non_blocking",
    "dtype_size",
    "extra_reserved_memory",
    "flash_attention_enabled",
    "force_upcast_attention_dtype",
    "free_memory",
    "get_all_torch_devices",
    "get_autocast_device",
    "get_free_memory",
    "get_torch_device",
    "get_torch_device_name",
    "get_total_memory",
    "in_training",
    "intermediate_device",
    "intermediate_dtype",
    "interrupt_current_processing",
    "is_amd",
    "is_device_cpu",
    "is_device_cuda",
    "is_device_mps",
    "is_device_type",
    "is_device_xpu",
    "is_directml_enabled",
    "is_intel_xpu",
    "is_nvidia",
    "is_oom",
    "load_model_gpu",
    "load_models_gpu",
    "loaded_models",
    "minimum_inference_memory",
    "module_size",
    "mps_mode",
    "pick_weight_dtype",
    "processing_interrupted",
    "pytorch_attention_enabled",
    "raise_non_oom",
    "sage_attention_enabled",
    "should_use_bf16",
    "should_use_fp16",
    "soft_empty_cache",
    "supports_cast",
    "supports_fp8_compute",
    "synchronize",
    "text_encoder_asked_dtype",
    "text_encoder_device",
    "text_encoder_dtype",
    "text_encoder_initial_device",
    "text_encoder_offload_device",
    "throw_exception_if_processing_interrupted",
    "to_intermediate",
    "unet_dtype",
    "unet_inital_load_device",
    "unet_manual_cast",
    "unet_offload_device",
    "unload_all_models",
    "unload_model",
    "unload_model_and_clones",
    "vae_device",
    "vae_dtype",
    "vae_offload_device",
    "vram_state",
    "xformers_enabled",
    "xformers_enabled_vae",
    "xpu_available",
]

# Whether a training node is running; it makes casts keep their gradients.
in_training: bool = False
xpu_available: bool = False
DISABLE_SMART_MEMORY: bool = bool(args.disable_smart_memory)


def cast_to(
    weight: torch.Tensor,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    non_blocking: bool = False,
    copy: bool = False,
    stream: object = None,
    r: torch.Tensor | None = None,
) -> torch.Tensor:
    """`weight` in another dtype or place; written into `r` when that is given."""
    if r is not None:
        r.copy_(weight, non_blocking=non_blocking)
        return r
    return weight.to(device=device, dtype=dtype, non_blocking=non_blocking, copy=copy)


def cast_to_device(
    tensor: torch.Tensor, device: torch.device, dtype: torch.dtype | None, copy: bool = False
) -> torch.Tensor:
    """`tensor` on a device in a dtype."""
    return cast_to(tensor, dtype, device, non_blocking=device_supports_non_blocking(device), copy=copy)


def __getattr__(name: str) -> float:
    """`total_vram` and `total_ram`, in MB, which packs show or choose a size by; asked for when they are looked at, as
    a device is not to be started by an import."""
    if name == "total_vram":
        return get_total_memory(get_torch_device()) / MB
    if name == "total_ram":
        return system_memory().total / MB
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


apply_flags()
