"""Parts of different families put together: the error says which part is wrong, and why."""

from __future__ import annotations

import pytest
import torch

import comfy.sd
import nodes
from comfy.controlnet import load_controlnet_state_dict
from comfy.mismatch import MismatchedParts, explained, find_mismatch
from comfy.model_patcher import ModelPatcher
from tests.addons.recorded_addons import host, weights
from tests.families.models import family_model
from tests.networks.checkpoints import write
from tests.networks.golden import Golden

FAMILIES = [
    *("unet_sd1", "unet_sd2_v", "mmdit_sd3", "flux_dev", "flux2", "chroma"),
    *("auraflow", "pixart_sigma", "lumina2", "z_image", "qwen_image", "wan21_t2v"),
]


def patcher(name: str) -> ModelPatcher:
    return ModelPatcher(family_model(Golden(name)), torch.device("cpu"), torch.device("cpu"))


def sampled(model, width: int, vector: int | None = None, channels: int | None = None, **options):
    latent_format = model.model.latent_format
    frames = [1] if latent_format.latent_dimensions == 3 else []
    latent = torch.zeros(1, channels or latent_format.latent_channels, *frames, 8, 8)
    if vector is not None:
        options["pooled_output"] = torch.zeros(1, vector)
    cond = [[torch.zeros(1, 7, width), options]]
    return nodes.common_ksampler(model, 1, 1, 3.0, "euler", "normal", cond, cond, {"samples": latent})


@pytest.mark.parametrize("name", FAMILIES)
def test_text_of_another_family(name):
    golden = Golden(name)
    width = golden.inputs["context"].shape[-1]
    vector = golden.inputs["y"].shape[-1] if "y" in golden.inputs else None
    with pytest.raises(MismatchedParts, match=rf"is {width + 8} wide, and \w+ takes {width}: .*text encoder"):
        sampled(patcher(name), width + 8, vector)


def test_vector_of_another_family():
    golden = Golden("mmdit_sd3")
    width, vector = (golden.inputs[name].shape[-1] for name in ("context", "y"))
    with pytest.raises(MismatchedParts, match=rf"vector has {vector + 8} values, and SD3 takes {vector}"):
        sampled(patcher("mmdit_sd3"), width, vector + 8)


def test_control_of_another_family():
    net = load_controlnet_state_dict(weights("controlnet_sd1.safetensors"))
    flux = Golden("flux_dev")
    control = net.copy().set_cond_hint(torch.rand(1, 3, 64, 64))
    width, vector = (flux.inputs[name].shape[-1] for name in ("context", "y"))
    with pytest.raises(MismatchedParts, match="this control net takes 24"):
        sampled(patcher("flux_dev"), width + 8, vector, control=control, control_apply_to_uncond=True)

    class Other:
        """Tensors of a net for another size."""

        def __getattr__(self, name):
            return getattr(control, name)

        def get_control(self, x, *args):
            return {"output": [torch.zeros(x.shape[0], 5, 8, 8)] * 12}

    model, golden = host("sd1")
    with pytest.raises(MismatchedParts, match="what a control adds does not fit the layers of SD15"):
        sampled(model, golden.inputs["context"].shape[-1], control=Other(), control_apply_to_uncond=True)


def test_other_errors_stay_what_they_are():
    network = patcher("unet_sd1").model.diffusion_model
    x, context = torch.zeros(1, 4, 8, 8), torch.zeros(1, 7, network.config.context_dim)
    for error in (RuntimeError("kernel failed"), torch.OutOfMemoryError("no room"), ValueError("value")):
        with pytest.raises(type(error), match=str(error)), explained(network, "SD15", x, {"context": context}):
            raise error
    too_wide = {"context": torch.zeros(1, 7, 5)}
    with pytest.raises(torch.OutOfMemoryError), explained(network, "SD15", x, too_wide):
        raise torch.OutOfMemoryError("no room")
    assert find_mismatch(torch.nn.Linear(2, 2), "a pack's network", x, context, context, False) is None
    assert "4 channels" in find_mismatch(patcher("flux_dev").model.diffusion_model, "Flux", x, None, None, False)


@pytest.mark.parametrize("part, name", [("vae", "decoder.conv_out.weight"), ("clip", "layers.0.mlp.fc1.weight")])
def test_a_missing_tensor_is_named(part, name, tmp_path):
    from safetensors.torch import load_file, save_file

    path = write(tmp_path / "half.safetensors")
    save_file({k: v for k, v in load_file(path).items() if not k.endswith(name)}, path)
    with pytest.raises(comfy.sd.UnknownModelError, match=rf"half\.safetensors .*the file lacks \S*{name}$"):
        comfy.sd.load_checkpoint_guess_config(path)


def test_a_checkpoint_is_no_text_encoder(tmp_path):
    with pytest.raises(comfy.sd.UnknownModelError, match="it looks like a whole checkpoint"):
        comfy.sd.load_clip([write(tmp_path / "whole.safetensors")])
