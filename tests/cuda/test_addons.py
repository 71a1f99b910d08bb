"""Add-ons on a CUDA device: the tests of the recordings, in float32, with the model's inputs on the device.

What nodes hand over (hints, conditioning, weights of files) stays on the host, as in the server.
"""

import gc

import pytest
import torch

import comfy.sd
import tests.addons.test_controlnet_recordings as controls
import tests.addons.test_lora_recordings as loras
import tests.addons.test_model_patch_recordings as patches
from comfy.cli_args import args
from comfy.model_patcher import ModelPatcher
from tests.addons import recorded_addons
from tests.cuda.simulation import DEVICE
from tests.networks.golden import Golden, error

HOST = torch.device("cpu")


def on_device(values: dict[str, torch.Tensor], *names: str) -> dict[str, torch.Tensor]:
    """The inputs with these names (all, if none is named) on the device."""
    return {k: v.to(DEVICE) if not names or k in names else v for k, v in values.items()}


def host(name: str) -> tuple[ModelPatcher, Golden]:
    """As `recorded_addons.host`, but the model's place to run is the device."""
    patcher, golden = recorded_addons.host.__wrapped__(name)  # one of its own: the shared one stays on the host
    patcher = ModelPatcher(patcher.model, DEVICE, HOST)
    moved = Golden.__new__(Golden)
    moved.__dict__ = {**golden.__dict__, "inputs": on_device(golden.inputs)}
    return patcher, moved


@pytest.fixture(autouse=True)
def tested_on_device(cuda, monkeypatch):
    monkeypatch.setattr(args, "force_fp32", True)
    for module in (controls, loras, patches):
        monkeypatch.setattr(module, "host", host)
        monkeypatch.setattr(module, "error", lambda actual, expected: error(actual.cpu(), expected.cpu()))
    monkeypatch.setattr(patches, "STEP", on_device(patches.STEP, "in.x", "in.sigma"))
    yield
    gc.collect()


@pytest.mark.parametrize("case", patches.NODES)
def test_patches(case):
    patches.test_guided_step_matches_recording(case)


@pytest.mark.parametrize("case", patches.GUIDANCE)
def test_guidance(case):
    patches.test_guidance_and_sampling_match_recording(case)


@pytest.mark.parametrize("case", loras.CASES)
def test_loras(case):
    loras.test_weights_and_output_match_recording(case)


CONTROLS = [
    (controls.test_output, "s1_resized_hint", "hint2", 1.0),
    (controls.test_chained,),
    (controls.test_global_average_pooling,),
    (controls.test_strength_that_grows_with_depth,),
    (controls.test_diffusers_layout,),
    (controls.test_control_lora,),
    (controls.test_t2i_adapter, "full"),
    (controls.test_t2i_adapter, "light"),
]


@pytest.mark.parametrize("case", CONTROLS, ids=lambda case: case[0].__name__)
def test_controls(case):
    patcher, golden = host("sd1")
    comfy.model_management.load_models_gpu([patcher])
    test, *arguments = case
    test(patcher.model, golden.inputs, *arguments)
