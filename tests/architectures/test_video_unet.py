"""The network and the decoder of Stable Video Diffusion, against diffusers' (see record_video_unet.py)."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import comfy.sd
from comfy.ldm.modules.attention import SpatialTransformer as KnownTransformer
from comfy.ldm.modules.attention import SpatialVideoTransformer
from comfy.ldm.modules.diffusionmodules import openaimodel
from comfy.models.unet import UNetConfig, UNetModel, config_from_state_dict
from comfy.models.video_blocks import AlphaBlender
from comfy.vae import detection
from comfy.vae.autoencoder_kl import AutoencoderConfig, AutoencoderKL, VideoResnetBlock
from tests.architectures.record_video_unet import FILE, FRAMES, VIDEOS, inputs, part, vector, weight
from tests.architectures.recorded import key_map
from tests.networks.golden import LIMIT, error

RECORDED = load_file(FILE)
CONFIG = UNetConfig(
    in_channels=8,
    out_channels=4,
    model_channels=32,
    channel_mult=(1, 2),
    num_res_blocks=(1, 1),
    transformer_depth=(1, 0),
    transformer_depth_middle=1,
    transformer_depth_output=(1, 1, 0, 0),
    context_dim=24,
    adm_in_channels=768,
    use_linear_in_transformer=True,
    num_head_channels=16,
    temporal=True,
)


def drawn(net: nn.Module) -> nn.Module:
    """The module with weights that depend on their names and shapes alone."""
    net.load_state_dict({name: weight(name, tensor.shape) for name, tensor in net.state_dict().items()})
    return net.eval().requires_grad_(False)


def given() -> dict[str, torch.Tensor]:
    """Two videos, one after the other in the batch."""
    x, timesteps, context, _ = inputs()
    return {
        "x": x.flatten(0, 1),
        "timesteps": timesteps.repeat_interleave(FRAMES),
        "context": context.repeat_interleave(FRAMES, dim=0),
        "y": vector().repeat_interleave(FRAMES, dim=0),
        "num_video_frames": FRAMES,
    }


def test_network():
    out = drawn(UNetModel(CONFIG))(**given()).unflatten(0, (VIDEOS, FRAMES))
    assert error(part(out), RECORDED["network"]) < LIMIT


def test_a_batch_without_a_length_is_one_video():
    first = {name: value[:FRAMES] for name, value in given().items() if isinstance(value, torch.Tensor)}
    assert error(part(drawn(UNetModel(CONFIG))(**first)[None]), RECORDED["network"][:1]) < LIMIT


def test_pictures_of_their_own_are_not_mixed():
    """With the indicator the layers across frames do nothing: frames in any order give the same."""
    net, both = drawn(UNetModel(CONFIG)), given()
    alone = {"image_only_indicator": torch.ones(VIDEOS, FRAMES)}
    out, order = net(**both, **alone), torch.tensor([3, 0, 4, 1, 2, 5, 6, 7, 8, 9])
    both["x"] = both["x"][order]
    assert torch.allclose(net(**both, **alone), out[order], atol=1e-5)
    assert not torch.allclose(net(**both)[:FRAMES], out[order][:FRAMES], atol=1e-2)


def test_decoder():
    config = AutoencoderConfig(ch=32, ch_mult=(1, 2), num_res_blocks=2, embed_dim=None, quant_conv=False, temporal=True)
    net = drawn(AutoencoderKL(config))
    assert error(part(net.decode(inputs()[-1])), RECORDED["decoder"]) < LIMIT
    found = detection.detect(net.state_dict())
    again = found.network()
    assert again.config == config and found.latent_channels == 4
    again.load_state_dict(dict(found.weights))
    assert sum(isinstance(m, VideoResnetBlock) for m in again.modules()) == 8
    with_quant = {**net.state_dict(), "quant_conv.weight": torch.zeros(8, 8, 1, 1), "quant_conv.bias": torch.ones(8)}
    layers = detection.detect(with_quant).network()
    layers.load_state_dict(with_quant)
    assert torch.equal(layers.encode(torch.rand(1, 3, 8, 8)), torch.ones(1, 4, 4, 4))


def test_takes_the_published_file():
    model = comfy.sd.load_diffusion_model_state_dict(dict(key_map("svd"))).model
    config = model.diffusion_model.config
    assert config.temporal and config.transformer_depth == (1, 1, 1, 1, 1, 1, 0, 0)
    assert config.attn_precision == torch.float32
    assert {n for n, _ in model.diffusion_model.named_parameters()} == {
        k.removeprefix("model.diffusion_model.") for k in key_map("svd") if k.startswith("model.diffusion_model.")
    }


def test_other_video_networks_are_not_taken_for_it():
    """SV3D has the same layers and is told of the camera: another vector."""
    sd = key_map("svd")
    name = "model.diffusion_model.label_emb.0.0.weight"
    sd[name] = torch.empty(1280, 256, device="meta")
    assert comfy.sd.load_diffusion_model_state_dict(dict(sd)) is None


# --- the names that packs know


@pytest.mark.parametrize("strategy", AlphaBlender.strategies)
def test_mixtures(strategy):
    mixer = AlphaBlender(0.25, strategy, "b t -> b 1 t 1 1")
    first, second = torch.ones(2, 3, 4, 5, 5), torch.zeros(2, 3, 4, 5, 5)
    share = 0.25 if strategy == "fixed" else torch.sigmoid(torch.tensor(0.25)).item()
    assert torch.allclose(mixer(first, second), torch.full_like(first, share))
    indicator = torch.tensor([[1, 0, 0, 0], [0, 0, 0, 1]])
    alone = mixer(first, second, indicator)
    expected = indicator.bool() if strategy == "learned_with_images" else torch.zeros(2, 4, dtype=torch.bool)
    assert torch.equal(alone[:, 0, :, 0, 0] == 1, expected)


def test_misuse_of_mixtures():
    with pytest.raises(ValueError, match="merge_strategy is 'odd'"):
        AlphaBlender(0.5, "odd")
    with pytest.raises(ValueError, match="rearrange_pattern is 'b'"):
        AlphaBlender(0.5, "fixed", "b")


def test_layers_made_by_packs():
    block = drawn(openaimodel.VideoResBlock(32, 16, 0.0, video_kernel_size=[3, 1, 1], merge_strategy="learned"))
    assert isinstance(block, openaimodel.ResBlock)
    x, emb = torch.randn(6, 32, 4, 4), torch.randn(6, 16)
    assert block(x, emb, 3).shape == (6, 32, 4, 4) and not torch.allclose(block(x, emb, 3), block(x, emb, 2))
    layer = drawn(SpatialVideoTransformer(32, 2, 16, context_dim=8, time_context_dim=6, ff_in=True, use_linear=True))
    assert isinstance(layer, KnownTransformer)
    frames = layer(torch.randn(4, 32, 3, 3), torch.randn(4, 5, 8), torch.randn(2, 6), timesteps=2)
    assert frames.shape == (4, 32, 3, 3)
    deep = SpatialVideoTransformer(32, 2, 16, depth=2, context_dim=8, use_spatial_context=True)
    assert len(deep.time_stack) == 2 and deep.time_stack[0].ff_in is not None


def test_residual_blocks_of_every_kind():
    """The variants of Dhariwal & Nichol (2021), by shapes and by what they reduce to."""
    x, emb = torch.randn(2, 32, 6, 6), torch.randn(2, 16)
    up = drawn(openaimodel.ResBlock(32, 16, 0.0, up=True))
    down = drawn(openaimodel.ResBlock(32, 16, 0.0, out_channels=64, down=True, use_conv=True))
    assert up(x, emb).shape == (2, 32, 12, 12) and down(x, emb).shape == (2, 64, 3, 3)
    assert down.skip_connection.weight.shape == (64, 32, 3, 3)
    plain = drawn(openaimodel.ResBlock(32, 16, 0.0))
    scaled = openaimodel.ResBlock(32, 16, 0.0, use_scale_shift_norm=True)
    for name in ("in_layers", "out_layers"):
        getattr(scaled, name).load_state_dict(getattr(plain, name).state_dict())
    for half in scaled.emb_layers[1].parameters():
        nn.init.zeros_(half)
    silent = plain.emb_layers[1]
    nn.init.zeros_(silent.weight)
    nn.init.zeros_(silent.bias)
    assert torch.allclose(scaled(x, emb), plain(x, emb))  # neither scaled nor shifted, nothing added
    flat = drawn(openaimodel.ResBlock(32, 0, 0.0, dims=1, skip_t_emb=True, kernel_size=5))
    assert flat(torch.randn(2, 32, 9)).shape == (2, 32, 9)


def test_network_made_from_single_numbers():
    options = {
        "model_channels": 32,
        "in_channels": 8,
        "num_res_blocks": 1,
        "channel_mult": (1, 2),
        "transformer_depth": [1, 0],
        "transformer_depth_middle": 1,
        "context_dim": 24,
        "num_classes": "sequential",
        "adm_in_channels": 768,
        "use_linear_in_transformer": True,
        "num_head_channels": 16,
        "use_temporal_attention": True,
        "use_temporal_resblock": True,
    }
    net = openaimodel.UNetModel(**options)
    assert net.config == CONFIG and config_from_state_dict(net.state_dict(), num_head_channels=16) == CONFIG
    for name, value in (("merge_strategy", "fixed"), ("use_temporal_resblock", False)):
        with pytest.raises(openaimodel.UnsupportedUNet, match=name):
            openaimodel.UNetModel(**{**options, name: value})
