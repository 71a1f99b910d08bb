"""Names that few packs use: made the way packs make them, they are our own networks."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

import comfy.cldm.cldm
import comfy.sd
import comfy.text_encoders.sd3_clip as sd3_names
import comfy.utils
from comfy.controlnet import ControlBase, ControlNet
from comfy.ldm.flux.layers import DoubleStreamBlock, EmbedND, SingleStreamBlock
from comfy.ldm.modules.attention import optimized_attention
from comfy.ldm.modules.diffusionmodules.openaimodel import UnsupportedUNet
from comfy.ldm.wan import model as wan_names
from comfy.ldm.wan.model import WanI2VCrossAttention
from comfy.model_detection import convert_config, unet_config_from_diffusers_unet
from comfy.models import flux_layers, wan
from comfy.models.control_unet import ControlNetUNet
from comfy.models.diffusers_names import unet_names
from comfy.models.rope import rope_table
from comfy.models.unet import UNetConfig, UNetModel
from comfy.text_encoders import sd3
from comfy.text_encoders.clip import CLIPTextConfig
from comfy.text_encoders.sd1 import SD1ClipModel
from comfy.text_encoders.sdxl import SDXLClipModel
from tests.architectures.record_wan import inputs
from tests.architectures.test_wan_pictures import network
from tests.families.test_detection import DETECTED
from tests.networks.golden import Golden
from tests.surface.test_faces import SMALL, random_weights

TINY = CLIPTextConfig(
    vocab_size=16, max_position_embeddings=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
    num_attention_heads=2, eos_token_id=15,
)  # fmt: skip


def test_a_control_net_from_numbers():
    made = comfy.cldm.cldm.ControlNet(image_size=32, hint_channels=3, **{k: v for k, v in SMALL.items() if k[0] != "o"})
    plain = ControlNetUNet(made.config)
    plain.load_state_dict(random_weights(made).state_dict())
    args = torch.ones(1, 4, 8, 8), torch.ones(1, 3, 64, 64), torch.ones(1), torch.ones(1, 3, 8)
    ours, theirs = made(*args), plain(*args)
    assert all(torch.equal(a, b) for name in ours for a, b in zip(ours[name], theirs[name]))
    assert isinstance(plain, comfy.cldm.cldm.ControlNet)
    with pytest.raises(UnsupportedUNet, match="dims"):
        comfy.cldm.cldm.ControlNet(32, 4, 32, 3, 1, dims=3)


@pytest.mark.parametrize("gated", [True, False])
def test_blocks_of_flux_from_numbers(gated):
    """They take the rotations that the modules of this name make, and the tables of our own models."""
    ids = torch.arange(10.0).reshape(1, 5, 2)
    rotations, table = EmbedND(4, 10000, [2, 2])(ids), rope_table(ids, (2, 2), 10000)
    img, txt, vec = torch.randn(1, 3, 8), torch.randn(1, 2, 8), torch.randn(1, 1, 8)
    double = random_weights(DoubleStreamBlock(8, 2, 2.0, qkv_bias=True, mlp_silu_act=gated, operations=nn))
    single = random_weights(SingleStreamBlock(8, 2, 2.0, yak_mlp=gated, operations=nn))
    for ours, theirs in zip(double(img, txt, vec, pe=table), double(img, txt, vec, pe=rotations)):
        assert torch.allclose(ours, theirs, atol=1e-6)
    x = torch.cat([txt, img], dim=1)
    assert torch.allclose(single(x, vec, table), single(x, vec, rotations), atol=1e-6)
    assert double.img_mlp[0].out_features == (32 if gated else 16)
    assert issubclass(flux_layers.DoubleStreamBlock, DoubleStreamBlock)
    with pytest.raises(ValueError, match="qk_scale"):
        SingleStreamBlock(8, 2, qk_scale=1.0)


def test_encoders_of_sd3_on_no_device():
    with torch.device("meta"):
        whole = sd3_names.SD3ClipModel(clip_g=False, device="meta", dtype=torch.float32, dtype_t5=torch.bfloat16)
        only_clip = sd3_names.SD3ClipModel(t5=False, device="meta")
    assert whole.clip_g is None and isinstance(whole.t5xxl, sd3_names.T5XXLModel)
    assert next(whole.t5xxl.parameters()).dtype == torch.bfloat16 and whole.dtypes == {torch.float32, torch.bfloat16}
    assert only_clip.t5xxl is None and isinstance(only_clip, sd3.SD3ClipModel)


def test_weights_of_one_encoder():
    donor = random_weights(SD1ClipModel(TINY, dtype=torch.float32))
    file = dict(donor.clip_l.transformer.state_dict())
    model = SD1ClipModel(TINY, dtype=torch.float32)
    missing, unexpected = model.load_sd({**file, "logit_scale": torch.ones(())})
    assert missing == [] and unexpected == ["logit_scale"]
    assert torch.equal(model.clip_l.transformer.text_model.final_layer_norm.weight,
                       file["text_model.final_layer_norm.weight"])  # fmt: skip


def test_a_file_goes_to_the_encoder_it_is_of():
    deep = dataclasses.replace(TINY, num_hidden_layers=32, projection_dim=8)
    with torch.device("cpu"):
        both = SDXLClipModel(TINY, deep, dtype=torch.float32)
    file = dict(random_weights(SDXLClipModel(TINY, deep, dtype=torch.float32)).clip_g.transformer.state_dict())
    both.load_sd(file)
    assert torch.equal(both.clip_g.transformer.text_projection.weight, file["text_projection.weight"])
    with pytest.raises(ValueError, match="t5xxl"):
        both.load_sd({"encoder.block.0.layer.0.layer_norm.weight": torch.ones(1)})


def test_a_text_side_for_saving(tiny_checkpoint):
    _, clip, _, _ = tiny_checkpoint
    saved = clip.state_dict_for_saving()
    assert saved.keys() == clip.cond_stage_model.state_dict().keys()
    key = next(k for k in saved if k.endswith("q_proj.weight"))
    patched = clip.clone()
    patched.add_patches({key: (torch.ones_like(saved[key]),)}, 0.5)
    assert torch.allclose(patched.state_dict_for_saving()[key], saved[key] + 0.5, atol=1e-3)
    assert clip.load_sd({k: v.clone() for k, v in saved.items()}, full_model=True) == []


def test_configuration_of_a_unet_in_the_names_of_diffusers():
    config = UNetConfig(
        model_channels=32, num_res_blocks=(1, 1), channel_mult=(1, 2), num_heads=8, context_dim=8,
        transformer_depth=(1, 0), transformer_depth_output=(1, 1, 0, 0), transformer_depth_middle=1,
    )  # fmt: skip
    with torch.device("meta"):
        shapes = {k: v.shape for k, v in UNetModel(config, device="meta").state_dict().items()}
    theirs = {other: torch.empty(shapes[own], device="meta") for other, own in unet_names(shapes).items()
              if isinstance(own, str)}  # fmt: skip
    found = unet_config_from_diffusers_unet(theirs, torch.float16)
    assert found["dtype"] is torch.float16 and found["transformer_depth_output"] == [1, 1, 0, 0]
    assert UNetConfig.from_dict(found) == config
    assert unet_config_from_diffusers_unet({"x": torch.ones(1)}) is None


def test_names_of_diffusers_can_be_added():
    pair = ("conditioner.weight", "my_conditioner.weight")
    comfy.utils.UNET_MAP_BASIC.add(pair)
    try:
        assert unet_names({"conditioner.weight": (1,)})["my_conditioner.weight"] == "conditioner.weight"
    finally:
        comfy.utils.UNET_MAP_BASIC.remove(pair)


def test_a_control_says_which_conditionings_it_takes():
    assert ControlBase().extra_conds == [] and ControlNet().extra_conds == ["y"]


# Attributes of objects, by the number of packs that read or set them; methods are in the list of names.
MEMBERS = {
    "model": "model_options load_device offload_device object_patches weight_inplace_update backup model",
    "base": "diffusion_model latent_format model_config model_sampling manual_cast_dtype memory_usage_factor",
    "clip": "patcher layer_idx cond_stage_model use_clip_schedule tokenizer",
    "vae": "patcher first_stage_model downscale_ratio upscale_ratio latent_channels latent_dim vae_dtype output_device "
    "output_channels",
    "control": "latent_format load_device control_model manual_cast_dtype cond_hint cond_hint_original timestep_range "
    "previous_controlnet preprocess_image timestep_percent_range extra_args control_model_wrapped strength_type "
    "upscale_algorithm",
    "format": "latent_channels latent_rgb_factors latent_rgb_factors_bias latent_rgb_factors_reshape "
    "taesd_decoder_name",
    "sampling": "sigma_min sigma_max num_timesteps sigma_data",
}


@pytest.mark.parametrize("kind", MEMBERS)
def test_members(kind, tiny_checkpoint):
    model, clip, vae, _ = tiny_checkpoint
    objects = {
        "model": model, "base": model.model, "clip": clip, "vae": vae, "control": ControlNet(),
        "format": model.model.latent_format, "sampling": model.model.model_sampling,
    }  # fmt: skip
    missing = [name for name in MEMBERS[kind].split() if not hasattr(objects[kind], name)]
    assert not missing


def test_attentions_of_wan_are_patched_where_packs_patch_them():
    """As packs for negative guidance do: a forward of their own on a block's attention, called by known names."""
    net, given = network("picture"), inputs("picture")
    expected = net(**given)
    attention = net.blocks[0].cross_attn
    assert isinstance(attention, WanI2VCrossAttention) and attention.num_heads * attention.head_dim == attention.dim
    seen = []

    def forward(self, x, context, context_img_len, transformer_options=None, **kwargs):
        seen.append(context_img_len)
        context_img, context = context[:, :context_img_len], context[:, context_img_len:]
        q = self.norm_q(self.q(x))
        found = optimized_attention(q, self.norm_k(self.k(context)), self.v(context), heads=self.num_heads)
        k_img, v_img = self.norm_k_img(self.k_img(context_img)), self.v_img(context_img)
        return self.o(found + optimized_attention(q, k_img, v_img, heads=self.num_heads))

    attention.forward = forward.__get__(attention)
    assert torch.allclose(net(**given), expected, atol=1e-5)
    assert seen == [given["clip_fea"].shape[1]]


def test_other_names_of_wan():
    golden = Golden("wan21_t2v")
    net = wan.Wan(wan.config_from_state_dict(golden.weights, golden.prefix), device="meta")
    kinds = (wan_names.WanAttentionBlock, wan_names.WanSelfAttention, wan_names.WanT2VCrossAttention)
    block = net.blocks[0]
    assert isinstance(net, wan_names.WanModel)
    assert all(isinstance(part, kind) for part, kind in zip((block, block.self_attn, block.cross_attn), kinds))
    assert not isinstance(block.cross_attn, WanI2VCrossAttention)
    table = wan_names.sinusoidal_embedding_1d(8, torch.tensor([0, 3]))
    expected = torch.tensor([[10000 ** (-k / 4) * t for k in range(4)] for t in (0.0, 3.0)])
    assert torch.allclose(table, torch.cat([expected.cos(), expected.sin()], dim=1), atol=1e-6)
    with pytest.raises(ValueError, match="dim is 7"):
        wan_names.sinusoidal_embedding_1d(7, torch.tensor([0]))


def test_configurations_of_latent_diffusion():
    """Those of the published yaml files of Stable Diffusion 1 and XL, against what their tensors tell."""
    old = {"channel_mult": [1, 2, 4, 4], "num_res_blocks": 2, "attention_resolutions": [4, 2, 1], "context_dim": 768}
    for depth in (1, [1, 1, 1, 1]):
        new = convert_config({**old, "transformer_depth": depth})
        recorded = DETECTED["checkpoints"]["sd15"]["unet_config"]
        for name in ("num_res_blocks", "transformer_depth", "transformer_depth_output", "transformer_depth_middle"):
            assert new[name] == recorded[name], name
        assert "attention_resolutions" not in new and new["context_dim"] == 768
    xl = {
        "channel_mult": [1, 2, 4],
        "num_res_blocks": 2,
        "attention_resolutions": [4, 2],
        "transformer_depth": [1, 2, 10],
    }
    new, recorded = convert_config(xl), DETECTED["checkpoints"]["sdxl_base"]["unet_config"]
    for name in ("num_res_blocks", "transformer_depth", "transformer_depth_output", "transformer_depth_middle"):
        assert new[name] == recorded[name], name
    assert convert_config(new) == new
    assert old["num_res_blocks"] == 2, "what was given stays as it is"
