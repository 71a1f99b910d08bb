"""The image autoencoder against recorded outputs, with and without quant convolutions."""

import pytest
import torch

import comfy.ops
from comfy.vae.autoencoder_kl import AutoencoderKL, config_from_state_dict
from tests.networks.golden import EPS_LIMIT, LIMIT, Golden, error

PREFIX = "first_stage_model."
# The recorded decoder output is itself 4e-5 away from the same network in float64 (a wrong eps: 5e-2 and more).
EPS_LIMIT_DECODER = 1e-4


def build(golden: Golden) -> AutoencoderKL:
    net = AutoencoderKL(config_from_state_dict(golden.weights, PREFIX), device="meta")
    net.load_state_dict(golden.module_weights(PREFIX), assign=True)
    return net.eval()


def pixels(golden: Golden) -> torch.Tensor:
    return golden.inputs["pixels"].movedim(-1, 1) * 2 - 1


@pytest.mark.parametrize("name", ["vae_kl4", "vae_kl16"])
def test_output_matches_recording(name):
    golden = Golden(name)
    net = build(golden)
    assert error(net.encoder(pixels(golden)), golden.out["encoder_raw"]) < LIMIT
    assert error(net.encode(pixels(golden)), golden.out["encode"]) < LIMIT
    assert error(net.decode(golden.inputs["latent"]), golden.out["decode_unclamped"]) < LIMIT


@pytest.mark.parametrize("name", ["eps_vae_kl4", "eps_vae_kl16"])
def test_norm_epsilons(name):
    golden = Golden(name)
    net = build(golden)
    assert error(net.encoder(pixels(golden)), golden.out["encoder_raw"]) < EPS_LIMIT
    assert error(net.decode(golden.inputs["latent"]), golden.out["decode_unclamped"]) < EPS_LIMIT_DECODER


@pytest.mark.parametrize("name", ["vae_kl4", "vae_kl16"])
def test_config_is_read_from_shapes(name):
    golden = Golden(name)
    config = config_from_state_dict(golden.weights, PREFIX)
    recorded = golden.config["ddconfig"]
    assert (config.ch, list(config.ch_mult)) == (recorded["ch"], recorded["ch_mult"])
    assert config.num_res_blocks == recorded["num_res_blocks"]
    assert config.z_channels == recorded["z_channels"]
    assert (config.embed_dim is not None) == golden.config["quant_conv"]
    assert config.downscale == golden.config["downscale"]
    assert config.latent_channels == golden.config["latent_channels"]


def test_missing_tensor_is_named():
    golden = Golden("vae_kl4")
    del golden.weights[PREFIX + "decoder.conv_in.weight"]
    with pytest.raises(KeyError, match=r"decoder\.conv_in\.weight"):
        config_from_state_dict(golden.weights, PREFIX)


def test_can_be_trained():
    golden = Golden("vae_kl4")
    with torch.inference_mode(False):
        config = config_from_state_dict(golden.weights, PREFIX)
        net = comfy.ops.init_weights(AutoencoderKL(config), seed=0)
        mean, logvar = net.moments(torch.rand(1, 3, 16, 16) * 2 - 1)
        (net.decode(mean).square().mean() + logvar.square().mean()).backward()
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in net.parameters())
