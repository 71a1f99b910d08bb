"""Wan's networks that look at pictures and videos, against what diffusers' put out (see record_wan.py)."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open

from comfy import model_detection
from comfy.conds import CONDRegular
from comfy.context_windows import (
    IndexListContextHandler,
    IndexListContextWindow,
    get_matching_context_schedule,
    get_matching_fuse_method,
)
from comfy.denoisers.wan import WAN21_Camera, WAN21_Vace
from comfy.model_base import BaseModel, UnfitConditioning
from comfy.models import wan, wan_camera, wan_vace
from comfy.models.wan import Wan
from comfy.models.wan_camera import WanCamera
from comfy.models.wan_vace import WanVace
from tests.addons.transformer_controls import drawn, random
from tests.architectures.record_wan import FILE, PICTURE_TOKENS, VACE_STRENGTH, inputs, published_name, weights
from tests.networks.golden import LIMIT, error

WINDOWS = get_matching_context_schedule("standard_static"), get_matching_fuse_method("flat")

with safe_open(FILE, "pt") as f:
    OUT = {key: f.get_tensor(key) for key in f.keys()}  # noqa: SIM118
    SHAPES = json.loads(f.metadata()["shapes"])


def tensors(name: str) -> dict[str, torch.Tensor]:
    """The drawn weights as a published file names them."""
    return {published_name(k): v for k, v in weights(SHAPES[name]).items()}


def network(name: str) -> Wan:
    architecture, kind = (wan_vace, WanVace) if name == "vace" else (wan, Wan)
    config = architecture.config_from_state_dict(tensors(name), num_heads=2)
    net = kind(config, device="meta")
    net.load_state_dict(tensors(name), assign=True)
    return net.eval()


@pytest.mark.parametrize("name", ["picture", "first_last"])
def test_numbers_are_those_of_diffusers(name):
    assert error(network(name)(**inputs(name)), OUT[name]) < LIMIT


def test_only_the_first_of_two_pictures():
    """Its tokens have their places all the same."""
    net, given = network("first_last"), inputs("first_last")
    seen = given.pop("clip_fea")[:, :PICTURE_TOKENS]
    placed = seen + net.img_emb.emb_pos[:, :PICTURE_TOKENS]
    expected = net(**given, clip_fea=seen)
    net.img_emb.emb_pos = None
    assert error(net(**given, clip_fea=placed), expected) < LIMIT
    assert error(net(**given, clip_fea=seen), expected) > 1e-3


def test_without_a_picture():
    given = inputs("picture")
    del given["clip_fea"]
    out = network("picture")(**given)
    assert out.shape == OUT["picture"].shape and error(out, OUT["picture"]) > 1e-3


# --- VACE


def vace_inputs() -> dict:
    given = inputs("vace")
    return {**given, "vace_context": given.pop("shown").unsqueeze(1)}


def test_vace_is_that_of_diffusers():
    assert error(network("vace")(**vace_inputs(), vace_strength=[VACE_STRENGTH]), OUT["vace"]) < LIMIT


def test_several_videos_of_vace():
    net, given = network("vace"), vace_inputs()
    twice = {**given, "vace_context": given["vace_context"].expand(-1, 2, -1, -1, -1, -1)}
    half = net(**twice, vace_strength=[VACE_STRENGTH / 2] * 2)
    assert error(half, OUT["vace"]) < LIMIT
    # Without any, and at strength 0, it is the plain model.
    plain = net(**{**given, "vace_context": None})
    assert error(net(**given, vace_strength=[0.0]), plain) < 1e-6
    assert error(plain, OUT["vace"]) > 1e-2


def family(sd: dict[str, torch.Tensor], **overrides) -> BaseModel:
    """The model as a file of these tensors gives it."""
    unet_config = {**model_detection.detect_unet_config(sd, ""), "num_heads": 2, **overrides}
    config = model_detection.model_config_from_unet_config(unet_config, sd)
    config.set_inference_dtype(torch.float32, None)
    return config.get_model(sd, "", device="meta").load_model_weights(dict(sd))


def conds(model: BaseModel, **conditioning) -> dict:
    noise = torch.zeros(1, 16, 2, 4, 6)
    return {k: v.cond for k, v in model.extra_conds(noise=noise, device=noise.device, **conditioning).items()}


def test_vace_of_a_conditioning():
    model = family(tensors("vace"))
    assert isinstance(model, WAN21_Vace) and type(model.model_config).__name__ == "WAN21_Vace"
    video, mask = random("video", 1, 32, 2, 4, 6), random("mask", 1, 64, 2, 4, 6)
    made = conds(model, vace_frames=[video] * 2, vace_mask=[mask] * 2, vace_strength=[0.5, 0.2])
    assert made["vace_context"].shape == (1, 2, 96, 2, 4, 6) and made["vace_strength"] == [0.5, 0.2]
    for part, latent in zip(made["vace_context"][:, 1].split([16, 16, 64], dim=1), (*video.split(16, dim=1), None)):
        assert torch.equal(part, mask if latent is None else model.process_latent_in(latent))
    # A plain text: nothing is shown, all is to be made.
    made = conds(model)
    nothing = model.process_latent_in(torch.zeros(1, 16, 2, 4, 6))
    assert all(torch.equal(part, nothing) for part in made["vace_context"][:, 0, :32].split(16, dim=1))
    assert (made["vace_context"][:, :, 32:] == 1).all()
    assert made["vace_strength"] == [1.0]
    with pytest.raises(UnfitConditioning, match="3x4x6 and 2x4x6 cells"):
        conds(model, vace_frames=[torch.zeros(1, 32, 3, 4, 6)], vace_mask=[torch.zeros(1, 64, 3, 4, 6)])


def test_windows_see_their_part_of_vaces_videos():
    handler = IndexListContextHandler(*WINDOWS, context_length=2, dim=2)
    x, videos = torch.zeros(1, 16, 5, 4, 6), random("videos", 1, 2, 96, 5, 4, 6)
    window = IndexListContextWindow([2, 3], dim=2, total_frames=5)
    part = handler._cond_of(CONDRegular(videos), x, window).cond
    cells = window.cells
    assert len(cells) < 5 and torch.equal(part, videos[:, :, :, cells])


# --- camera


def camera_tensors() -> dict[str, torch.Tensor]:
    """A network of text and picture with the layers that take the camera's path."""
    sd = tensors("picture")
    sd["patch_embedding.weight"] = random("patch", 32, 32, 1, 2, 2) * 0.1
    added = {"conv.weight": (32, 24 * 64, 2, 2), "conv.bias": (32,)}
    for conv in ("conv1", "conv2"):
        added |= {f"residual_blocks.0.{conv}.weight": (32, 32, 3, 3), f"residual_blocks.0.{conv}.bias": (32,)}
    return sd | {f"control_adapter.{k}": v for k, v in drawn(added).items()}


def test_camera_is_added_to_the_tokens():
    """Against the same sums written out, token by token."""
    sd = camera_tensors()
    net = WanCamera(wan_camera.config_from_state_dict(sd, num_heads=2), device="meta")
    net.load_state_dict(sd, assign=True)
    rays = random("rays", 1, 24, 2, 32, 48)
    out = net.control_adapter(rays)
    assert out.shape == (1, 32, 2, 2, 3)
    # The last token of the second frame: 2 x 2 cells of 8 x 8 pixels.
    weight = sd["control_adapter.conv.weight"].unflatten(1, (24, 8, 8))
    pixels = rays[0, :, 1, 16:, 32:].reshape(24, 2, 8, 2, 8)
    last = torch.einsum("oikluv,iukvl->o", weight, pixels) + sd["control_adapter.conv.bias"]
    net.control_adapter.residual_blocks = torch.nn.Identity()
    assert torch.allclose(net.control_adapter(rays)[0, :, 1, 1, 2], last, atol=1e-4)


def test_camera_of_a_conditioning():
    model = family(camera_tensors())
    assert isinstance(model, WAN21_Camera) and type(model.model_config).__name__ == "WAN21_Camera"
    rays = random("rays", 1, 24, 2, 32, 48)
    made = conds(model, camera_conditions=rays, concat_latent_image=torch.zeros(1, 16, 2, 4, 6))
    assert made["c_concat"].shape == (1, 16, 2, 4, 6) and torch.equal(made["camera_conditions"], rays)
    call = {"c_concat": made["c_concat"], "c_crossattn": random("context", 1, 7, 12)}
    x, sigma = random("x", 1, 16, 2, 4, 6), torch.tensor([0.5])
    still = model.apply_model(x, sigma, **call)
    assert error(model.apply_model(x, sigma, camera_conditions=rays, **call), still) > 1e-3
    with pytest.raises(UnfitConditioning, match="3x32x48 instead of 2x32x48"):
        conds(model, camera_conditions=random("rays", 1, 24, 3, 32, 48))


def test_camera_of_wan22():
    sd = camera_tensors()
    sd["patch_embedding.weight"] = random("patch", 32, 36, 1, 2, 2)
    sd = {k: v for k, v in sd.items() if not k.startswith("img_emb") and "_img." not in k}
    assert type(family(sd).model_config).__name__ == "WAN22_Camera"


# --- a reference frame


def test_reference_frame_comes_first():
    """As a frame before the video whose tokens are made by a convolution of its own."""
    plain = {k: v for k, v in tensors("picture").items() if not k.startswith("img_emb") and "_img." not in k}
    sd = plain | {"ref_conv.weight": plain["patch_embedding.weight"][:, :, 0]}
    sd["ref_conv.bias"] = plain["patch_embedding.bias"]
    net = Wan(wan.config_from_state_dict(sd, num_heads=2), device="meta")
    net.load_state_dict(sd, assign=True)
    given = inputs("picture")
    del given["clip_fea"]
    frame = random("frame", 1, 36, 4, 6)
    longer = net(**{**given, "x": torch.cat([frame.unsqueeze(2), given["x"]], dim=2)})
    assert error(net(**given, reference_latent=frame), longer[:, :, 1:]) < LIMIT
    assert error(net(**given), longer[:, :, 1:]) > 1e-3
