"""Classes and modules under the names that packs know: the same things, also for isinstance and for patches."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import comfy.faces
import comfy.ldm.modules.attention as attention_names
import comfy.models.attention
import comfy.models.unet
import comfy.sdxl_clip
from comfy.ldm.common_dit import pad_to_patch_size, rms_norm
from comfy.ldm.flux.layers import EmbedND
from comfy.ldm.flux.layers import timestep_embedding as flux_embedding
from comfy.ldm.flux.math import apply_rope, rope
from comfy.ldm.modules.attention import BasicTransformerBlock, SpatialTransformer
from comfy.ldm.modules.diffusionmodules import openaimodel
from comfy.ldm.modules.diffusionmodules.mmdit import RMSNorm
from comfy.ldm.modules.diffusionmodules.util import timestep_embedding, zero_module
from comfy.models.rope import apply_rope as apply_table
from comfy.models.rope import rope_table
from comfy.text_encoders import sdxl

SMALL = {
    "in_channels": 4,
    "model_channels": 32,
    "out_channels": 4,
    "num_res_blocks": 1,
    "channel_mult": [1, 2],
    "num_heads": 2,
    "context_dim": 8,
    "transformer_depth": [1, 0],
}


def random_weights(module: nn.Module, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.1)
    return module


def test_a_patch_of_a_module_reaches_the_network(monkeypatch):
    seen = []

    def apply_control(h, control, name):
        seen.append(name)
        return h

    monkeypatch.setattr(openaimodel, "apply_control", apply_control)
    assert comfy.models.unet.apply_control is apply_control
    net = random_weights(openaimodel.UNetModel(**SMALL))
    net(torch.zeros(1, 4, 8, 8), torch.zeros(1), torch.zeros(1, 3, 8))
    assert set(seen) == {"input", "middle", "output"}


def test_a_patch_of_a_class_reaches_the_network(monkeypatch):
    monkeypatch.setattr(BasicTransformerBlock, "forward", lambda self, x, context=None, transformer_options={}: x + 1)
    block = SpatialTransformer(32, 2, 16, operations=nn)
    random_weights(block)
    assert torch.isfinite(block(torch.zeros(1, 32, 4, 4))).all()
    assert comfy.models.attention.BasicTransformerBlock is BasicTransformerBlock


def test_a_module_shows_what_is_behind_it():
    assert attention_names.optimized_attention is comfy.models.attention.optimized_attention
    assert "SpatialTransformer" in dir(attention_names) and "attention_split" in dir(attention_names)
    with pytest.raises(AttributeError, match=r"comfy\.ldm\.modules\.attention"):
        _ = attention_names.no_such_name


def test_a_new_name_stays_with_the_module(monkeypatch):
    monkeypatch.setattr(openaimodel, "original_apply_control", 1, raising=False)
    assert not hasattr(comfy.models.unet, "original_apply_control")


def test_a_unet_from_numbers():
    net = openaimodel.UNetModel(image_size=32, **SMALL)
    config = comfy.models.unet.UNetConfig(
        model_channels=32, num_res_blocks=(1, 1), channel_mult=(1, 2), num_heads=2, context_dim=8,
        transformer_depth=(1, 0), transformer_depth_output=(1, 1, 0, 0), transformer_depth_middle=0,
    )  # fmt: skip
    assert net.config == config
    plain = comfy.models.unet.UNetModel(config)
    plain.load_state_dict(random_weights(net).state_dict())
    args = torch.ones(1, 4, 8, 8), torch.ones(1), torch.ones(1, 3, 8)
    assert torch.equal(net(*args), plain(*args))
    assert isinstance(plain, openaimodel.UNetModel) and isinstance(net, comfy.models.unet.UNetModel)
    assert issubclass(comfy.models.unet.UNetModel, openaimodel.UNetModel)


def test_a_subclass_is_not_its_face():
    class Mine(openaimodel.UNetModel):
        pass

    plain = comfy.models.unet.UNetModel(openaimodel.UNetModel(**SMALL).config)
    assert not isinstance(plain, Mine) and isinstance(Mine(**SMALL), openaimodel.UNetModel)
    Mine.extra = 1
    assert not hasattr(comfy.models.unet.UNetModel, "extra")


def test_what_is_assigned_to_a_face_goes_to_its_base():
    class Base:
        def run(self):
            return 1

    class Shown(Base, metaclass=comfy.faces.Face):
        face = True

    Shown.run = lambda self: 2
    assert Base().run() == 2


@pytest.mark.parametrize(
    ("options", "name"),
    [({"dims": 3}, "dims"), ({"resblock_updown": True}, "resblock_updown"), ({"num_classes": 10}, "num_classes")],
)
def test_a_unet_that_is_not_to_be_had(options, name):
    with pytest.raises(openaimodel.UnsupportedUNet, match=name):
        openaimodel.UNetModel(**SMALL, **options)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_resizing_blocks(dims):
    x = torch.arange(4.0**dims).reshape(1, 1, *(4,) * dims)
    kept = (4,) if dims == 3 else ()
    changed = dims - len(kept)
    down, up = openaimodel.Downsample(1, False, dims), openaimodel.Upsample(1, False, dims)
    assert down(x).shape[2:] == (*kept, *(2,) * changed) and up(x).shape[2:] == (*kept, *(8,) * changed)
    assert down(up(x)).equal(x)
    assert openaimodel.Downsample(1, True, dims, operations=nn)(x).shape == down(x).shape
    assert openaimodel.Upsample(1, True, dims, out_channels=2, operations=nn)(x).shape[1] == 2


def test_resizing_blocks_refuse():
    with pytest.raises(ValueError, match="3"):
        openaimodel.Downsample(2, False, out_channels=3)
    with pytest.raises(ValueError, match="4"):
        openaimodel.Upsample(2, True, dims=4)


def test_variants_of_the_transformer_block():
    x, context = torch.randn(1, 5, 8), torch.randn(1, 3, 6)

    def block(**options):
        return random_weights(BasicTransformerBlock(8, 2, 4, operations=nn, **options))

    plain = block(disable_temporal_crossattention=True)
    assert plain.attn2 is None and plain(x).equal(plain(x, context))
    switched = block(context_dim=6, switch_temporal_ca_to_sa=True)
    assert switched(x).equal(switched(x, context))
    looks = block(context_dim=6, disable_self_attn=True)
    assert not looks(x, context).equal(looks(x, context + 1))
    assert block(ff_in=True, disable_temporal_crossattention=True).ff_in is not None
    wide = block(ff_in=True, inner_dim=16, disable_temporal_crossattention=True)
    assert wide.attn1.to_q.in_features == 16 and wide(x).shape == x.shape
    ungated = block(gated_ff=False, disable_temporal_crossattention=True)
    assert ungated.ff.net[2].in_features == ungated.ff.net[0][0].out_features
    with pytest.raises(ValueError, match="switch_temporal_ca_to_sa"):
        block(disable_temporal_crossattention=True, switch_temporal_ca_to_sa=True)


def test_patched_variants_compute_the_same():
    x, context = torch.randn(1, 5, 8), torch.randn(1, 3, 6)
    noop = {"patches": {"middle_patch": [lambda h, options: h]}}
    for options in ({}, {"disable_self_attn": True}, {"ff_in": True}, {"switch_temporal_ca_to_sa": True}):
        made = random_weights(BasicTransformerBlock(8, 2, 4, context_dim=6, operations=nn, **options))
        assert made(x, context).equal(made(x, context, noop))


def test_encoders_from_a_device_and_a_dtype():
    with torch.device("meta"):
        made = comfy.sdxl_clip.SDXLClipG("meta", layer="last")
    assert made.layer == "last" and made.layer_idx is None and isinstance(made, sdxl.SDXLClipG)
    assert comfy.sdxl_clip.SDXLClipG("meta").layer_idx == -2
    model = sdxl.SDXLClipModel(device="meta")
    assert isinstance(model, comfy.sdxl_clip.SDXLClipModel)
    assert not isinstance(model, comfy.sdxl_clip.SDXLRefinerClipModel)
    with pytest.raises(ValueError, match="middle"):
        comfy.sdxl_clip.SDXLClipG("meta", layer="middle")


def test_embeddings():
    t = torch.tensor([0.0, 0.25])
    out = flux_embedding(t, 6)
    assert torch.allclose(out[1, :3], torch.cos(250 * torch.exp(-math.log(10000) * torch.arange(3) / 3)), atol=1e-4)
    assert flux_embedding(t.bfloat16(), 7).dtype == torch.bfloat16 and flux_embedding(t, 7).shape == (2, 7)
    assert timestep_embedding(t, 4).equal(comfy.models.unet.timestep_embedding(t, 4))
    assert timestep_embedding(t, 3, repeat_only=True).equal(t[:, None].repeat(1, 3))


def test_rotations_in_both_forms():
    ids = torch.stack([torch.arange(6.0), torch.arange(6.0) * 2], dim=-1).unsqueeze(0)
    rotations = EmbedND(8, 10000, [4, 4])(ids)
    table = rope_table(ids, (4, 4), 10000)
    q, k = torch.randn(2, 1, 3, 6, 8)
    for pe in (rotations, table):
        out_q, out_k = apply_rope(q, k, pe)
        assert torch.allclose(out_q, apply_table(q, table), atol=1e-6)
        assert torch.allclose(out_k, apply_table(k, table), atol=1e-6)
    assert rotations.shape == (1, 1, 6, 4, 2, 2)
    turned = rope(torch.tensor([[0.0, 1.0]]), 2, 10000)[0, 1, 0]
    assert torch.allclose(turned, torch.tensor([[math.cos(1), -math.sin(1)], [math.sin(1), math.cos(1)]]))


def test_norms_and_padding():
    x = torch.tensor([[3.0, 4.0]])
    expected = x / math.sqrt(12.5)
    assert torch.allclose(rms_norm(x), expected, atol=1e-5)
    assert torch.allclose(rms_norm(x, torch.tensor([2.0, 1.0])), expected * torch.tensor([2.0, 1.0]), atol=1e-5)
    assert torch.allclose(RMSNorm(2)(x), expected, atol=1e-5) and not list(RMSNorm(2).parameters())
    assert RMSNorm(2, elementwise_affine=True).weight.shape == (2,)
    assert pad_to_patch_size(img=torch.zeros(1, 1, 3, 5)).shape == (1, 1, 4, 6)


def test_zeroing():
    assert all(p.abs().sum() == 0 for p in zero_module(nn.Linear(2, 2)).parameters())
