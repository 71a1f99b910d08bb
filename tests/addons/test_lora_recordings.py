"""LoRA files of every naming and kind against recorded weights and outputs."""

from pathlib import Path

import pytest
import torch

import comfy.utils
from comfy.lora import load_lora_for_models
from tests.addons.recorded_addons import ADDONS, denoised, host, recorded, weights
from tests.networks.golden import LIMIT, error

CASES = sorted(p.name.removesuffix(".io.safetensors") for p in Path(ADDONS).glob("lora_*.io.safetensors"))
# The recording program failed on this file and left the weight unchanged; what was meant is recorded beside it.
FAILED_IN_RECORDING = "lora_lokr_tucker"
# Makes the model take 16 more channels; what was put there is not part of the recording.
WIDENED = "lora_flux_bfl_control"
WEIGHT_LIMIT = 2e-5


def patched(case: str):
    tensors, config = recorded(case)
    patcher, golden = host(config["host"])
    for file, strength in zip(config["files"], config["strengths"]):
        patcher, _ = load_lora_for_models(patcher, None, weights(file), strength, 0)
    return tensors, config, patcher, golden


@pytest.mark.parametrize("case", CASES)
def test_weights_and_output_match_recording(case):
    tensors, config, patcher, golden = patched(case)
    assert sorted(patcher.patches) == config["patched"]
    inputs = {}
    if case == WIDENED:
        inputs["c_concat"] = torch.zeros_like(golden.inputs["x"])
    out = denoised(patcher, golden, **inputs)
    prefix = "intended.weight." if case == FAILED_IN_RECORDING else "out.weight."
    for key in [k for k in tensors if k.startswith(prefix)]:
        weight = comfy.utils.get_attr(patcher.model, key.removeprefix(prefix))
        assert error(weight, tensors[key]) < WEIGHT_LIMIT, key
    if case == FAILED_IN_RECORDING:
        assert error(out, tensors["out.denoised"]) > 10 * LIMIT
    elif case == WIDENED:
        inputs["c_concat"] = torch.ones_like(golden.inputs["x"])
        assert error(denoised(patcher, golden, **inputs), out) > 10 * LIMIT
    else:
        assert error(out, tensors["out.denoised"]) < LIMIT
    patcher.detach()
