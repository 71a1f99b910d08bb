"""ControlNets of transformers: against what diffusers' networks put out, and through the nodes."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open

import nodes
from comfy.controlnet import ControlNet, MissingVAE, encoded_pictures, load_controlnet_state_dict
from comfy.controlnet_files import UnknownControlError, load_controlnet
from comfy.controlnet_transformers import edges_as_trained
from comfy.models import flux, mmdit
from comfy.models.control_flux import spread_over
from comfy.models.diffusers_layout import flux_config, renamed_for
from comfy.models.union import UnknownUnionType
from tests.addons.recorded_addons import host
from tests.addons.transformer_controls import FILE, NETS, SIZE, drawn, inputs, random
from tests.networks.golden import LIMIT, error

with safe_open(FILE, "pt") as f:
    RECORDED = {key: f.get_tensor(key) for key in f.keys()}  # noqa: SIM118
    SHAPES = json.loads(f.metadata()["shapes"])
_HINT_PLACES = {"conv_in": 0, **{f"blocks.{i}": 2 * (i + 1) for i in range(6)}, "conv_out": 14}


def file_of(name: str) -> dict[str, torch.Tensor]:
    """The tensors as the makers' files name them."""
    sd = drawn(SHAPES[name])
    if name == "flux_pixels":
        return _as_xlabs(sd)
    if name == "sd35_large":
        return _as_stability(sd)
    if NETS[name][0] == "sd3":
        sd["pos_embed.pos_embed"] = inputs(name)["table"]
    return sd


def _as_xlabs(sd: dict) -> dict:
    """The layout of FLUX.1's authors, and the picture's layers numbered through."""
    network = flux.Flux(flux_config({k: v.shape for k, v in sd.items()}), device="meta")
    out = renamed_for(network, sd)
    out = {k.replace("_norm.weight", "_norm.scale"): v for k, v in out.items()}
    for key, value in sd.items():
        layer, _, kind = key.rpartition(".")
        if layer.startswith("controlnet_blocks."):
            out[key] = value
        elif layer == "controlnet_x_embedder":
            out[f"pos_embed_input.{kind}"] = value
        elif layer.startswith("input_hint_block."):
            out[f"input_hint_block.{_HINT_PLACES[layer.removeprefix('input_hint_block.')]}.{kind}"] = value
    return out


def _as_stability(sd: dict) -> dict:
    """Blocks as in the model's own files."""
    out = {}
    renamed = ((".norm1.linear.", ".adaLN_modulation.1."), (".attn.to_out.0.", ".attn.proj."))
    renamed += ((".ff.net.0.proj.", ".mlp.fc1."), (".ff.net.2.", ".mlp.fc2."))
    for key, value in sd.items():
        name = key
        for other, own in renamed:
            name = name.replace(other, own)
        if ".attn.to_" in name:
            before, _, kind = name.rpartition(".")
            prefix = before.rpartition(".")[0]
            parts = [sd[f"{prefix}.to_{x}.{kind}"] for x in "qkv"]
            name, value = f"{prefix}.qkv.{kind}", torch.cat(parts)
        out[name] = value
    return out


def lender() -> mmdit.MMDiT:
    """A model whose first layers a net of Stability AI's borrows."""
    given = inputs("sd35_large")
    config = mmdit.MMDiTConfig(depth=1, hidden_size=256, context_dim=24, adm_in_channels=20, pos_embed_max_size=8)
    model = mmdit.MMDiT(config)
    model.x_embedder.proj.load_state_dict(given["lent"])
    model.pos_embed.copy_(given["table"])
    return model


def outputs(name: str, **more) -> dict[str, list[torch.Tensor]]:
    network = load_controlnet_state_dict(file_of(name)).control_model
    given = inputs(name)
    if name == "sd35_large":
        network.borrow_from(lender())
    family, x, hint = NETS[name][0], given["x"], given["hint"]
    if family == "qwen":
        x, hint = x.unsqueeze(2), hint.unsqueeze(2)
    if "mode" in given:
        more.setdefault("control_type", [2])
    hint = given.get("hint_pixels", hint)
    if name == "flux_pixels":
        hint = (hint + 1) / 2  # the net takes pictures 0..1 and doubles their range itself
    wanted = {"guidance": given["guidance"]} if family == "flux" else {}
    return network(x, hint, given["timesteps"], given["context"], y=given["y"], **wanted, **more)


def own_tensors(name: str) -> list[torch.Tensor]:
    return [RECORDED[f"{name}.{i}"] for i in range(sum(key.startswith(f"{name}.") for key in RECORDED))]


# Which of the net's tensors each block of the model gets: two-stream blocks, one-stream blocks.
@pytest.mark.parametrize(
    "name, places",
    {
        "flux": {"input": [i // 10 for i in range(19)], "output": [2 + i // 13 for i in range(38)]},
        "flux_union": {"input": [i // 10 for i in range(19)]},
        "flux_pixels": {"input": [i % 2 for i in range(19)]},
        "sd3": {"output": [0, 0, 1]},
        "sd3_inpaint": {"output": [0, 0, 1]},
        "sd35_large": {"output": [0, 0, 1, 1]},
        "qwen": {"input": [i // 30 for i in range(60)]},
        "qwen_inpaint": {"input": [i // 30 for i in range(60)]},
    }.items(),
)
def test_tensors_are_those_of_diffusers(name, places):
    made, expected = outputs(name), own_tensors(name)
    assert made.keys() == places.keys()
    for kind, numbers in places.items():
        assert len(made[kind]) == len(numbers)
        for tensor, number in zip(made[kind], numbers):
            assert error(tensor, expected[number]) < LIMIT, (kind, number)


@pytest.mark.parametrize("name", ["sd3", "flux", "qwen", "sd35_large"])
def test_output_layers_of_zeros_change_nothing(name):
    """So these nets start their training."""
    sd = {k: v * 0 if k.startswith(("controlnet_blocks", "controlnet_single")) else v for k, v in file_of(name).items()}
    network = load_controlnet_state_dict(sd).control_model
    given = inputs(name)
    if name == "sd35_large":
        network.borrow_from(lender())
    x, hint = given["x"], given["hint"]
    if name == "qwen":
        x, hint = x.unsqueeze(2), hint.unsqueeze(2)
    made = network(x, hint, given["timesteps"], given["context"], y=given["y"], guidance=given["guidance"])
    assert all(not tensor.any() for tensors in made.values() for tensor in tensors)


def test_mistoline():
    """No other implementation at hand: layers by the file's names, output layers with an activation."""
    sd = file_of("flux_pixels")
    for key in [k for k in sd if k.startswith("input_hint_block.")]:
        del sd[key]
    plain = {k: v for k, v in sd.items() if not k.startswith("controlnet_blocks.")}
    kernels = (3, 1, 3, 3, 3, 3, 3, 3, 1, 3)
    for place, kernel in enumerate(kernels):
        name = f"input_cond_block.encoder.{2 * place}"
        plain[f"{name}.weight"] = random(name, 16, 3 if place == 0 else 16, kernel, kernel) * 0.2
        plain[f"{name}.bias"] = torch.zeros(16)
    for i in range(2):
        plain[f"controlnet_blocks.{i}.linear.weight"] = sd[f"controlnet_blocks.{i}.weight"]
        plain[f"controlnet_blocks.{i}.linear.bias"] = sd[f"controlnet_blocks.{i}.bias"]
    network = load_controlnet_state_dict(plain).control_model
    given = inputs("flux_pixels")
    pixels = given["hint_pixels"].clamp(-1, 1) / 2 + 0.5
    out = network(given["x"], pixels, given["timesteps"], given["context"], y=given["y"], guidance=given["guidance"])
    assert len(out["input"]) == 19 and "output" not in out
    assert min(tensor.min() for tensor in out["input"]) > -0.3  # SiLU's lowest value
    assert out["input"][0].shape == (2, 6, out["input"][0].shape[-1])


def test_controls_made_of_the_files():
    latent = load_controlnet_state_dict(file_of("flux"))
    assert latent.latent_format.scale_factor == 0.3611 and latent.compression_ratio == 1 and not latent.concat_mask
    assert latent.extra_conds == ["y", "guidance"]
    sd3 = load_controlnet_state_dict(file_of("sd3_inpaint"))
    assert sd3.latent_format.shift_factor == 0 and sd3.concat_mask
    assert load_controlnet_state_dict(file_of("sd3")).concat_mask is False
    assert load_controlnet_state_dict(file_of("qwen_inpaint")).concat_mask
    pixels = load_controlnet_state_dict(file_of("flux_pixels"))
    assert pixels.latent_format is None and pixels.compression_ratio == 8


def test_kinds_of_stability_nets():
    picture = torch.rand(1, 3, 8, 8)
    sd = file_of("sd35_large")
    edges = load_controlnet_state_dict({**sd, "control_type": torch.tensor([1.0])})
    # What the autoencoder is given, once it has doubled the range.
    assert torch.allclose(edges.preprocess_image(picture) * 2 - 1, picture * 127.5 + 0.5, atol=1e-4)
    assert edges.preprocess_image is edges_as_trained
    depth = load_controlnet_state_dict({**sd, "control_type": torch.tensor([2.0])})
    assert torch.equal(depth.copy().preprocess_image(picture), 1 - picture)
    blur = load_controlnet_state_dict({**sd, "control_type": torch.tensor([0.0])})
    assert torch.equal(blur.preprocess_image(picture), picture)
    with pytest.raises(RuntimeError, match="first layers of a model"):
        outputs_without_lender(blur)


def outputs_without_lender(control: ControlNet):
    given = inputs("sd35_large")
    control.control_model(given["x"], given["hint"], given["timesteps"])


def test_net_that_embeds_the_vector_twice():
    """Made for the medium model: the model's embedder first, and blocks that do not follow one another."""
    sd = file_of("sd35_large")
    sd["time_text_embed.text_embedder.linear_1.weight"] = random("twice", 256, 256) * 0.05
    sd["pos_embed.proj.weight"], sd["pos_embed.proj.bias"] = random("own", 256, 16, 2, 2) * 0.1, torch.zeros(256)
    network = load_controlnet_state_dict(sd).control_model
    assert network.config.double_y_emb
    model, given = lender(), inputs("sd35_large")
    for parameter in model.y_embedder.parameters():
        parameter.copy_(random("y_embedder", *parameter.shape) * 0.05)
    network.borrow_from(model)
    y = random("y", 2, 20)
    made = network(given["x"], given["hint"], given["timesteps"], y=y)["output"]
    swapped = dict(sd)
    for part in [k for k in sd if k.startswith("transformer_blocks.0.")]:
        swapped[part] = sd[part] * 0.5
    other = load_controlnet_state_dict(swapped).control_model
    other.borrow_from(model)
    changed = other(given["x"], given["hint"], given["timesteps"], y=y)["output"]
    assert torch.equal(made[-1], changed[-1]) and not torch.equal(made[0], changed[0])
    assert not torch.equal(made[0], network(given["x"], given["hint"], given["timesteps"], y=y * 2)["output"][0])


def test_union_net_is_told_the_kind():
    auto, depth, other = (outputs("flux_union", control_type=kind)["input"][0] for kind in ([], [2], [3]))
    assert error(auto, depth) > 1e-3 and error(depth, other) > 1e-3
    with pytest.raises(UnknownUnionType, match=r"4 kinds.*kind 7"):
        outputs("flux_union", control_type=[7])


def test_spread():
    assert spread_over("ab", 5) == ["a", "a", "a", "b", "b"] and spread_over("ab", 5, True) == list("ababa")


class PictureVAE:
    """Stands in for an autoencoder: 16 channels of the picture's means."""

    def spacial_compression_encode(self) -> int:
        return 8

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        means = torch.nn.functional.avg_pool2d(pixels.movedim(-1, 1), 8).mean(1, keepdim=True)
        return means.expand(-1, 16, -1, -1).clone()


def control_of_host(strength: float = 1.0, vae=True, **options) -> tuple[ControlNet, SimpleNamespace]:
    control = load_controlnet_state_dict(file_of("flux"))
    control.set_cond_hint(torch.rand(1, 3, 50, 40), strength, vae=PictureVAE() if vae else None, **options)
    model = SimpleNamespace(model_sampling=_Flow(), diffusion_model=None)
    control.pre_run(model, lambda percent: 1.0 - percent)
    return control, model


class _Flow:
    def calculate_input(self, sigma, x):
        return x

    def timestep(self, sigma):
        return sigma


def made_by(control: ControlNet) -> dict:
    given = inputs("flux")
    cond = {"c_crossattn": given["context"], "y": given["y"], "guidance": given["guidance"]}
    return control.get_control(given["x"], given["timesteps"][:1].expand(2), cond, 1, {})


def test_picture_becomes_a_latent_in_the_models_scale():
    control, _ = control_of_host()
    made_by(control)
    assert control.cond_hint.shape == (1, 16, *SIZE)
    assert control.cond_hint.abs().max() < (1 - 0.1159) * 0.3611 + 1e-4
    with pytest.raises(MissingVAE):
        made_by(control_of_host(vae=False)[0])


def test_strength_is_a_factor():
    whole, half = made_by(control_of_host(1.0)[0]), made_by(control_of_host(0.5)[0])
    for kind in ("input", "output"):
        for a, b in zip(whole[kind], half[kind]):
            assert a.shape == b.shape
    torch.manual_seed(0)
    control, _ = control_of_host(1.0)
    first = made_by(control)
    control.strength = 0.25
    assert torch.allclose(made_by(control)["output"][7], first["output"][7] * 0.25)


def test_mask_beside_the_picture():
    control = load_controlnet_state_dict(file_of("sd3_inpaint"))
    mask = torch.zeros(1, 1, 48, 32)
    mask[..., 16:] = 1.0
    control.set_cond_hint(torch.rand(1, 3, 48, 32), vae=PictureVAE(), extra_concat=[mask])
    control.pre_run(SimpleNamespace(model_sampling=_Flow()), lambda percent: 1.0 - percent)
    given = inputs("sd3_inpaint")
    cond = {"c_crossattn": given["context"], "y": given["y"]}
    made = control.get_control(given["x"], given["timesteps"] / 1000, cond, 1, {})
    assert control.cond_hint.shape == (1, 17, *SIZE)
    assert control.cond_hint[0, 16, :, 0].tolist() == [0] * SIZE[0] and control.cond_hint[0, 16, 0, -1] == 1
    assert len(made["output"]) == 3


@pytest.mark.parametrize("name, kind", [("flux", "input"), ("flux", "output"), ("sd3", "output")])
def test_model_adds_them_after_the_block(name, kind):
    """A tensor for the last block moves the output; zeros and None do not."""
    patcher, golden = host(name)
    network, given = patcher.model.diffusion_model, golden.inputs
    wanted = {k: given[k] for k in ("timesteps", "context", "y", "guidance") if k in given}
    plain = network(given["x"], **wanted)
    depth = {"input": "depth", "output": "depth_single_blocks" if name == "flux" else "depth"}[kind]
    blocks = getattr(network.config, depth)
    rows, columns = (-(-n // 2) for n in given["x"].shape[-2:])
    tensor = random("control", given["x"].shape[0], rows * columns, network.config.hidden_size)
    nothing = network(given["x"], control={kind: [None] * (blocks - 1) + [tensor * 0]}, **wanted)
    assert torch.equal(nothing, plain)
    moved = network(given["x"], control={kind: [None] * (blocks - 1) + [tensor]}, **wanted)
    assert error(moved, plain) > 1e-3


def test_incomplete_file_is_named(tmp_path):
    from safetensors.torch import save_file

    sd = file_of("flux")
    del sd["transformer_blocks.1.attn.to_k.weight"]
    save_file(sd, tmp_path / "part.safetensors")
    with pytest.raises(UnknownControlError, match=r"part\.safetensors.*img_attn\.qkv\.weight"):
        load_controlnet(str(tmp_path / "part.safetensors"))


def test_union_type_through_the_node():
    control = load_controlnet_state_dict(file_of("flux_union"))
    changed = nodes.NODE_CLASS_MAPPINGS["SetUnionControlNetType"].execute(control, "depth").result[0]
    assert changed.extra_args["control_type"] == [1] and changed.control_model is control.control_model


def test_pictures_are_no_frames_of_a_video():
    class VideoVAE(PictureVAE):
        latent_dim = 3

        def encode(self, pixels):
            return super().encode(pixels).movedim(0, 1).unsqueeze(0)

    latents = encoded_pictures(VideoVAE(), torch.rand(3, 16, 24, 3))
    assert latents.shape == (3, 16, 1, 2, 3)
    assert encoded_pictures(PictureVAE(), torch.rand(3, 16, 24, 3)).shape == (3, 16, 2, 3)
