"""ControlNets through the nodes, and through sampling with guidance."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

import folder_paths
import nodes
from comfy.controlnet import ControlBase, MissingVAE, broadcast_image_to, load_controlnet_state_dict
from comfy.controlnet_files import UnknownControlError
from comfy.models.union import UnknownUnionType
from comfy.weights import WeightsFileError
from nodes.controlnet import ControlNetInpaintingAliMamaApply, SetUnionControlNetType
from tests.addons.recorded_addons import ADDONS, host, recorded, weights

FILE = "controlnet_sd1.safetensors"
IMAGE = recorded("controlnet_sd1")[0]["in.hint"].movedim(1, -1)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    _, extensions = folder_paths.folder_names_and_paths["controlnet"]
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "controlnet", ([str(tmp_path)], extensions))
    (tmp_path / FILE).write_bytes((ADDONS / FILE).read_bytes())
    return tmp_path


@pytest.fixture
def net():
    return load_controlnet_state_dict(weights(FILE))


def conditioning(seed: int = 0, **options) -> list:
    return [[torch.randn(1, 13, 24, generator=torch.Generator().manual_seed(seed)), options]]


def sampled(model, positive, negative, cfg: float = 3.0) -> torch.Tensor:
    latent = {"samples": torch.zeros(1, 4, 16, 16)}
    return nodes.common_ksampler(model, 1, 3, cfg, "euler", "normal", positive, negative, latent)[0]["samples"]


def test_files_load_through_the_nodes(folder):
    (control,) = nodes.ControlNetLoader().load_controlnet(FILE)
    assert isinstance(control, ControlBase) and not control.global_average_pooling


def test_file_with_a_difference_gets_the_models_weights(folder):
    model, golden = host("sd1")
    own = {k.removeprefix("model.diffusion_model."): v for k, v in golden.weights.items()}
    whole = weights(FILE)
    names = {k: k.removeprefix("control_model.") for k in whole}
    difference = {k: v - own[names[k]] if names[k] in own else v for k, v in whole.items()}
    save_file({**difference, "difference": torch.zeros(0)}, folder / "difference.safetensors")
    (control,) = nodes.DiffControlNetLoader().load_controlnet(model, "difference.safetensors")
    for name, weight in control.control_model.state_dict().items():
        assert torch.allclose(weight, whole[f"control_model.{name}"], atol=1e-5), name


@pytest.mark.parametrize("content", [b"<html>", b""])
def test_broken_file_is_named(folder, content):
    (folder / "broken.safetensors").write_bytes(content)
    with pytest.raises(WeightsFileError, match=r"broken\.safetensors"):
        nodes.ControlNetLoader().load_controlnet("broken.safetensors")


def test_other_weights_are_no_control(folder):
    save_file({"decoder.conv_in.weight": torch.zeros(2)}, folder / "vae.safetensors")
    with pytest.raises(UnknownControlError, match=r"vae\.safetensors.*decoder\.conv_in"):
        nodes.ControlNetLoader().load_controlnet("vae.safetensors")
    incomplete = weights(FILE)
    del incomplete["control_model.time_embed.0.weight"]
    save_file(incomplete, folder / "part.safetensors")
    with pytest.raises(UnknownControlError, match=r"part\.safetensors.*time_embed\.0\.weight"):
        nodes.ControlNetLoader().load_controlnet("part.safetensors")


def test_entries_share_controls_with_the_same_history(net):
    positive, negative = conditioning(0) + conditioning(1), conditioning(2)
    positive, negative = nodes.ControlNetApplyAdvanced().apply_controlnet(positive, negative, net, IMAGE, 0.5, 0.1, 0.9)
    controls = [options["control"] for _, options in positive + negative]
    assert len({id(c) for c in controls}) == 1 and controls[0] is not net
    assert controls[0].strength == 0.5 and controls[0].timestep_percent_range == (0.1, 0.9)
    assert not positive[0][1]["control_apply_to_uncond"]
    again, _ = nodes.ControlNetApplyAdvanced().apply_controlnet(positive, negative, net, IMAGE, 1.0, 0.0, 1.0)
    assert again[0][1]["control"].previous_controlnet is controls[0]


def test_strength_zero_changes_nothing(net):
    positive, negative = conditioning(0), conditioning(1)
    assert nodes.ControlNetApply().apply_controlnet(positive, net, IMAGE, 0) == (positive,)
    out = nodes.ControlNetApplyAdvanced().apply_controlnet(positive, negative, net, IMAGE, 0, 0.0, 1.0)
    assert out == (positive, negative)


def test_sampling_is_steered_and_clean_afterwards(net):
    model, _ = host("sd1")
    positive, negative = conditioning(0), conditioning(1)
    plain = sampled(model, positive, negative)
    steered_by = nodes.ControlNetApplyAdvanced().apply_controlnet(positive, negative, net, IMAGE, 1.0, 0.0, 1.0)
    steered = sampled(model, *steered_by)
    assert (steered - plain).abs().max() > 0.01
    assert torch.equal(sampled(model, *steered_by), steered)
    control = steered_by[0][0][1]["control"]
    assert control.cond_hint is None and control.model_sampling_current is None
    assert torch.equal(sampled(model, positive, negative), plain)


def test_old_node_steers_both_sides(net):
    """On the positive side only it is handed over to the negative one."""
    model, _ = host("sd1")
    positive, negative = conditioning(0), conditioning(1)
    both = nodes.ControlNetApplyAdvanced().apply_controlnet(positive, negative, net, IMAGE, 1.0, 0.0, 1.0)
    (one,) = nodes.ControlNetApply().apply_controlnet(positive, net, IMAGE, 1.0)
    assert torch.allclose(sampled(model, one, negative), sampled(model, *both), atol=1e-5)


def test_control_lora_samples(folder):
    model, _ = host("sd1")
    control = load_controlnet_state_dict(weights("control_lora_sd1.safetensors"))
    positive, negative = conditioning(0), conditioning(1)
    plain = sampled(model, positive, negative)
    steered = nodes.ControlNetApplyAdvanced().apply_controlnet(positive, negative, control, IMAGE, 1.0, 0.0, 1.0)
    assert (sampled(model, *steered) - plain).abs().max() > 0.01


def test_pictures_of_a_batch():
    pictures = torch.arange(3.0).view(3, 1, 1, 1)
    assert broadcast_image_to(pictures[:1], 6, 2).shape[0] == 1
    assert broadcast_image_to(pictures, 6, 2).flatten().tolist() == [0, 1, 2, 0, 1, 2]
    assert broadcast_image_to(pictures[:2], 6, 2).flatten().tolist() == [0, 1, 0, 0, 1, 0]
    assert broadcast_image_to(pictures, 2, 1).flatten().tolist() == [0, 1]


def test_union_type_is_an_argument_of_a_copy(net):
    changed = SetUnionControlNetType.execute(net, "depth").result[0]
    assert changed is not net and changed.extra_args == {"control_type": [1]} and net.extra_args == {}
    assert SetUnionControlNetType.execute(net, "auto").result[0].extra_args == {"control_type": []}


def test_inpainting_puts_the_mask_beside(net):
    net.concat_mask = True
    mask = torch.zeros(1, 64, 64)
    mask[:, :, 32:] = 1.0
    positive, _ = ControlNetInpaintingAliMamaApply.execute(
        conditioning(0), conditioning(1), net, None, torch.ones(1, 128, 128, 3), mask, 1.0, 0.0, 1.0
    ).result
    control = positive[0][1]["control"]
    assert control.cond_hint_original[..., :60].min() == 1 and control.cond_hint_original[..., 68:].max() == 0
    (beside,) = control.extra_concat_orig
    assert torch.equal(beside[0, 0], 1 - mask[0])


def test_missing_vae_is_said(net):
    model, golden = host("sd1")
    net.latent_format = model.model.latent_format
    net.set_cond_hint(IMAGE.movedim(-1, 1))
    net.pre_run(model.model, model.model.model_sampling.percent_to_sigma)
    with pytest.raises(MissingVAE, match="needs a VAE"):
        net.get_control(golden.inputs["x"], golden.inputs["sigma"], {"c_crossattn": golden.inputs["context"]}, 1, {})


def test_union_net_depends_on_the_kind():
    """No recording: the shapes of the published net, and that the kind of picture matters."""
    from comfy.models.control_unet import ControlNetUNet

    network = load_controlnet_state_dict(weights(FILE)).control_model
    union = ControlNetUNet(network.config, union_types=6)
    generator = torch.Generator().manual_seed(0)
    sd = {k: torch.randn(v.shape, generator=generator) * 0.1 for k, v in union.state_dict().items()}
    published = {k.replace("attn.in_proj.", "attn.in_proj_"): v for k, v in sd.items()}
    assert published["transformer_layes.0.attn.in_proj_weight"].shape == (96, 32)
    control = load_controlnet_state_dict(published).control_model
    x, hint = torch.randn(1, 4, 8, 8, generator=generator), torch.rand(1, 3, 64, 64, generator=generator)
    context, timesteps = torch.randn(1, 5, 24, generator=generator), torch.tensor([500.0])
    outputs = [control(x, hint, timesteps, context, control_type=kind)["output"][0] for kind in ([], [0], [1])]
    assert (outputs[0] - outputs[1]).abs().max() > 1e-3 and (outputs[1] - outputs[2]).abs().max() > 1e-3
    # The larger net of the same makers has two more.
    with pytest.raises(UnknownUnionType, match=r"6 kinds.*kind 7"):
        control(x, hint, timesteps, context, control_type=[7])
