import gc

import pytest
import torch

import comfy.model_management
from comfy.device_memory import MB, SimulatedMemory, simulated
from tests.families.models import family_model
from tests.networks.golden import Golden

PAPER = torch.device("cpu", 0)
HOST = torch.device("cpu")


@pytest.fixture(autouse=True)
def nothing_stays_loaded():
    yield
    comfy.model_management.unload_all_models()
    gc.collect()


@pytest.fixture
def device(monkeypatch):
    """A simulated device of 256 MB, of which nothing is kept free."""
    monkeypatch.setattr("comfy.loaded_models.minimum_inference_memory", lambda: 0)
    monkeypatch.setattr("comfy.devices.extra_reserved_memory", lambda: 0)
    with simulated(SimulatedMemory(256 * MB, PAPER)) as memory:
        yield memory


@pytest.fixture
def unet():
    """A small Stable Diffusion 1 UNet with recorded weights, behind a patcher for the simulated device."""
    from comfy.model_patcher import ModelPatcher

    return ModelPatcher(family_model(Golden("unet_sd1")), PAPER, HOST)
