"""Which number format is chosen, on a CPU and on a device that computes well in half precision."""

import pytest
import torch

import comfy.devices as devices
import comfy.model_management as management
from comfy.cli_args import args

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)


@pytest.fixture
def half_precision(monkeypatch):
    """A device of which all that matters is what it computes well in."""
    monkeypatch.setattr(devices, "should_use_fp16", lambda device=None, *a, **k: device != CPU)
    monkeypatch.setattr(devices, "should_use_bf16", lambda device=None, *a, **k: device != CPU)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, *devices.FLOAT8_DTYPES])
def test_a_cpu_keeps_the_files_format_and_computes_in_float32(dtype):
    assert management.unet_dtype(CPU, weight_dtype=dtype) == dtype
    cast = management.unet_manual_cast(dtype, CPU)
    assert cast == (None if dtype == torch.float32 else torch.float32)


def test_a_gpu_computes_in_half_precision(half_precision):
    assert management.unet_dtype(GPU, weight_dtype=torch.float32) == torch.float16
    assert management.unet_dtype(GPU, supported_dtypes=[torch.bfloat16, torch.float32]) == torch.bfloat16
    assert management.unet_manual_cast(torch.float16, GPU) is None
    only_bf16 = [torch.bfloat16, torch.float32]
    assert management.unet_manual_cast(torch.float16, GPU, only_bf16) == torch.bfloat16
    assert management.unet_manual_cast(torch.float8_e4m3fn, GPU) == torch.float16


@pytest.mark.parametrize(
    ("flag", "dtype"),
    [("fp16_unet", torch.float16), ("bf16_unet", torch.bfloat16), ("fp8_e5m2_unet", torch.float8_e5m2)],
)
def test_flags_win(monkeypatch, flag, dtype):
    monkeypatch.setattr(args, flag, True)
    assert management.unet_dtype(CPU, weight_dtype=torch.float32) == dtype


def test_vae_and_text_formats(monkeypatch, half_precision):
    assert management.vae_dtype(CPU) == torch.float32
    assert management.vae_dtype(GPU, [torch.bfloat16, torch.float32]) == torch.bfloat16
    monkeypatch.setattr(args, "fp32_vae", True)
    assert management.vae_dtype(GPU) == torch.float32
    assert management.text_encoder_dtype(CPU) == torch.float32
    monkeypatch.setattr(args, "fp16_text_enc", True)
    assert management.text_encoder_dtype(CPU) == torch.float16


def test_memory_figures_of_a_cpu():
    total, torch_total = management.get_total_memory(CPU, torch_total_too=True)
    free, torch_free = management.get_free_memory(CPU, torch_free_too=True)
    assert total == torch_total >= free == torch_free > 0


def test_running_out_of_memory_is_recognised():
    assert management.is_oom(management.OOM_EXCEPTION("x"))
    assert management.is_oom(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"))
    assert management.is_oom(MemoryError())
    management.raise_non_oom(MemoryError())
    with pytest.raises(ValueError, match="other"):
        management.raise_non_oom(ValueError("other out of memory"))


def test_casting():
    x = torch.ones(3)
    assert management.cast_to_device(x, CPU, torch.float16).dtype == torch.float16
    assert management.cast_to(x) is x
    assert management.cast_to(x, copy=True) is not x
    target = torch.zeros(3)
    assert management.cast_to(x, r=target) is target
    assert target.sum() == 3


def test_interruption_is_reachable_from_here():
    management.interrupt_current_processing(True)
    assert management.processing_interrupted()
    with pytest.raises(management.InterruptProcessingException):
        management.throw_exception_if_processing_interrupted()
    assert not management.processing_interrupted()
