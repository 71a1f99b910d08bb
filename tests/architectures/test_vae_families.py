"""The autoencoders of SD3, FLUX.1 and FLUX.2 and the tiny ones against recorded outputs and key maps."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from comfy.vae import autoencoder_flux2, autoencoder_kl, taesd
from comfy.vae.autoencoder_flux2 import Flux2Autoencoder
from comfy.vae.autoencoder_kl import AutoencoderKL
from comfy.vae.taesd import TAESD, TAESDConfig
from tests.architectures.recorded import build, build_from_map, key_map
from tests.networks.golden import DATA, LIMIT, Golden, error, load_weights

PREFIX = "first_stage_model."


def flux2_network(golden: Golden) -> Flux2Autoencoder:
    config = autoencoder_flux2.config_from_state_dict(golden.weights, PREFIX)
    return build(golden, config, Flux2Autoencoder, PREFIX)


def pixels(image: torch.Tensor) -> torch.Tensor:
    """[batch, height, width, channels] 0..1 to what networks take."""
    return image.movedim(-1, 1) * 2 - 1


def image(pixels: torch.Tensor) -> torch.Tensor:
    return ((pixels + 1) / 2).clamp(0, 1).movedim(1, -1)


def test_flux2_matches_recording():
    golden = Golden("vae_flux2")
    net = flux2_network(golden)
    assert error(net.encoder(pixels(golden.inputs["pixels"])), golden.out["encoder_raw"]) < LIMIT
    assert error(net.encode(pixels(golden.inputs["pixels"])), golden.out["encode"]) < LIMIT
    decoded = net.decode(golden.inputs["latent"])
    assert error(decoded, golden.out["decode_unclamped"]) < LIMIT
    assert error(image(decoded), golden.out["decode"]) < LIMIT
    assert error(net.encode(pixels(golden.inputs["pixels_big"])), golden.out["encode_big"]) < LIMIT
    big = image(net.decode(golden.inputs["latent_big"]))[:, ::2, ::2]
    assert error(big, golden.out["decode_big"]) < LIMIT


def test_flux2_config_counts_the_packing():
    golden = Golden("vae_flux2")
    config = autoencoder_flux2.config_from_state_dict(golden.weights, PREFIX)
    assert config.downscale == golden.config["downscale"]
    assert config.latent_channels == golden.config["latent_channels"]
    assert config.z_channels == golden.config["ddconfig"]["z_channels"]


def test_flux2_packing_is_undone_by_decoding():
    net = flux2_network(Golden("vae_flux2"))
    z = torch.randn(1, 32, 3, 2)
    assert torch.allclose(net.bn.restore(net.bn.normalize(z)), z, atol=1e-5)


@pytest.mark.parametrize(
    "name, module, network, downscale, channels",
    [
        ("vae_sd", autoencoder_kl, AutoencoderKL, 8, 4),
        ("vae_sd3_flux", autoencoder_kl, AutoencoderKL, 8, 16),
        ("vae_flux2", autoencoder_flux2, Flux2Autoencoder, 16, 128),
    ],
)
def test_takes_a_published_file(name, module, network, downscale, channels):
    config, net = build_from_map(name, module, network)
    assert (config.downscale, config.latent_channels) == (downscale, channels)
    assert (config.ch, config.ch_mult, config.num_res_blocks) == (128, (1, 2, 4, 4), 2)
    assert (net.quant_conv is None) == (name == "vae_sd3_flux")


def tiny_weights(channels: int) -> dict[str, torch.Tensor]:
    weights = {f"{half}.{k}": v for half in ("encoder", "decoder") for k, v in load_weights(f"taesd_{half}").items()}
    if channels == 16:
        weights |= {k.removeprefix("taesd_"): v for k, v in load_weights("taesd_16ch_delta").items()}
    return weights


def tiny_network(kind: str) -> TAESD:
    weights = tiny_weights(taesd.KINDS[kind].latent_channels)
    net = TAESD(TAESDConfig.of_kind(kind), device="meta")
    net.load_state_dict(weights, assign=True)
    return net.eval()


def tiny_recording() -> tuple[dict[str, torch.Tensor], dict]:
    """Inputs and outputs, and the metadata (the weights are in several files, chosen by kind)."""
    path = DATA / "taesd.io.safetensors"
    with safe_open(path, "pt") as f:
        return load_file(path), json.loads(f.metadata()["config"])


@pytest.mark.parametrize("kind", list(taesd.KINDS))
def test_taesd_matches_recording(kind):
    recorded, _ = tiny_recording()
    net = tiny_network(kind)
    assert error(net.encode(pixels(recorded["in.pixels"])), recorded[f"out.{kind}.encode"]) < LIMIT
    decoded = net.decode(recorded[f"in.{kind}.latent"])
    assert error(decoded, recorded[f"out.{kind}.decode_raw"]) < LIMIT
    assert error(image(decoded), recorded[f"out.{kind}.decode"]) < LIMIT


def test_taesd_kinds_are_as_recorded():
    for kind, (scale, shift, channels) in tiny_recording()[1]["scale_shift"].items():
        assert taesd.KINDS[kind] == taesd.TAESDKind(channels, scale, shift)
    with pytest.raises(KeyError, match="'taehv' is none of taesd"):
        TAESDConfig.of_kind("taehv")


@pytest.mark.parametrize("channels", [4, 16])
def test_taesd_config_is_read_from_shapes(channels):
    config = taesd.config_from_state_dict(tiny_weights(channels))
    assert config == TAESDConfig(latent_channels=channels)
    decoder_only = {k: v for k, v in tiny_weights(channels).items() if k.startswith("decoder")}
    assert taesd.config_from_state_dict(decoder_only).has_encoder is False
    with pytest.raises(KeyError):
        taesd.config_from_state_dict({})


@pytest.mark.parametrize("half", ["encoder", "decoder"])
def test_taesd_halves_come_as_files(half):
    sd = {f"{half}.{k}": v for k, v in key_map(f"taesd_{half}").items()}
    net = TAESD(taesd.config_from_state_dict(sd), device="meta")
    net.load_state_dict(sd, assign=True)
    other = {"encoder": "decode", "decoder": "encode"}[half]
    with pytest.raises(ValueError, match=f"has no {other}r"):
        getattr(net, other)(torch.zeros(1, 4, 8, 8))
