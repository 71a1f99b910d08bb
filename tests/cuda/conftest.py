"""Tests here run on a simulated CUDA device: see `simulation`."""

import gc

import pytest
import torch

from comfy import device_memory, devices, ledger
from comfy.loaded_models import unload_all_models
from tests.cuda.simulation import DEVICE, SimulatedCuda, is_possible


@pytest.fixture
def cuda(monkeypatch):
    """The device, of 24 GB, in use as the server uses one."""
    if not is_possible():
        pytest.skip("this build of torch cannot be given a device")
    monkeypatch.setattr(devices, "cpu_state", devices.CPUState.GPU)
    monkeypatch.setattr(devices, "vram_state", devices.VRAMState.NORMAL_VRAM)
    known = [(book, book.pop(DEVICE, None)) for book in (device_memory._memories, ledger._ledgers)]
    with SimulatedCuda() as device, torch.inference_mode():
        yield device
        unload_all_models()
        gc.collect()
    for book, entry in known:
        book.pop(DEVICE, None)
        if entry is not None:
            book[DEVICE] = entry
