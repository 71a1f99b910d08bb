"""Every family's network on a CUDA device, in half precision, as a whole and streamed: the recorded results."""

import pytest
import torch

import comfy.loaded_models
import comfy.sample
import comfy.sd
from comfy import devices, model_detection
from comfy.loaded_models import load_models_gpu
from comfy.model_patcher import ModelPatcher
from tests.cuda.simulation import DEVICE
from tests.families.models import HEADS_AND_AXES, MORE
from tests.families.test_denoisers import GOLDENS, denoised
from tests.memory.test_quantized import FORMATS, quantized
from tests.networks.golden import Golden, error

HOST = torch.device("cpu")
# Of the spread of the results. The recorded networks have random weights, which makes much of roundings.
LIMITS = {torch.float16: 0.03, torch.bfloat16: 0.2}


def on_device(golden: Golden, dtype: torch.dtype) -> ModelPatcher:
    """The recorded network with its weights in `dtype`, as a loader makes it for the device."""
    unet_config = model_detection.detect_unet_config(golden.weights, golden.prefix)
    recorded = golden.config["unet_config"]
    unet_config.update({key: recorded[key] for key in (*HEADS_AND_AXES, *MORE) if key in recorded})
    config = model_detection.model_config_from_unet_config(unet_config, golden.weights)
    supported = config.supported_inference_dtypes
    dtype = dtype if dtype in supported else torch.bfloat16
    config.set_inference_dtype(dtype, devices.unet_manual_cast(dtype, DEVICE, supported))
    weights = {key: tensor.to(dtype) for key, tensor in golden.weights.items()}
    model = config.get_model(weights, golden.prefix, device="meta").load_model_weights(weights, golden.prefix)
    return ModelPatcher(model, DEVICE, HOST)


def moved(golden: Golden) -> Golden:
    golden.inputs = {name: tensor.to(DEVICE) for name, tensor in golden.inputs.items()}
    return golden


@pytest.mark.parametrize("name", GOLDENS)
def test_whole_and_streamed(cuda, monkeypatch, name):
    golden = moved(Golden(name))
    patcher = on_device(golden, torch.float16)
    load_models_gpu([patcher])
    model = patcher.model
    assert model.get_dtype_inference() in LIMITS
    whole = denoised(model, golden)
    assert whole.device == DEVICE and whole.dtype == torch.float32
    assert error(whole.cpu(), golden.out["denoised"]) < LIMITS[model.get_dtype_inference()]
    before = len(cuda.reads)
    denoised(model, golden)
    assert cuda.reads[before:] == [], "a step never waits for the device"
    comfy.loaded_models.unload_all_models()
    monkeypatch.setattr(comfy.loaded_models, "_budget", lambda entry, reserve: entry.model_memory() // 2)
    load_models_gpu([patcher])
    for _ in range(2):  # in the first run the order of the layers is learnt
        assert torch.equal(denoised(model, golden).cpu(), whole.cpu())
    patcher.cleanup()


@pytest.mark.parametrize("name", FORMATS)
def test_quantized_weights(cuda, monkeypatch, name):
    """They stay packed on the device, whole and streamed, and become numbers without a wait."""
    golden = Golden("z_image")
    stored, plain = quantized(golden.weights, name)
    options = {"load_device": DEVICE, "offload_device": HOST}
    patcher, written_out = (
        comfy.sd.load_diffusion_model_state_dict(part, model_options=options) for part in (stored, plain)
    )
    moved(golden)
    load_models_gpu([written_out])
    expected = denoised(written_out.model, golden).cpu()
    comfy.loaded_models.unload_all_models()
    load_models_gpu([patcher])
    whole = denoised(patcher.model, golden)
    assert error(whole.cpu(), expected) < LIMITS[torch.bfloat16]
    before = len(cuda.reads)
    denoised(patcher.model, golden)
    assert cuda.reads[before:] == []
    assert patcher.loaded_size() == patcher.model_size() < 0.75 * written_out.model_size()
    comfy.loaded_models.unload_all_models()
    monkeypatch.setattr(comfy.loaded_models, "_budget", lambda entry, reserve: entry.model_memory() // 2)
    load_models_gpu([patcher])
    for _ in range(2):
        assert torch.equal(denoised(patcher.model, golden).cpu(), whole.cpu())
    patcher.cleanup()
