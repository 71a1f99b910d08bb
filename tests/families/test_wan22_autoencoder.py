"""Wan 2.2's autoencoder: against what diffusers' puts out, and as nodes use it."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open

from comfy.vae.autoencoder_wan22 import Wan22Autoencoder, Wan22AutoencoderConfig, from_squares, to_squares
from comfy.vae.detection import detect
from comfy.vae.diffusers_wan import to_own_layout_22
from comfy.vae.vae import VAE
from tests.architectures.recorded import key_map
from tests.families.record_wan22_autoencoder import CHANNELS, FILE, latent, pixels
from tests.families.record_wan_autoencoder import weights
from tests.networks.golden import LIMIT, error

with safe_open(FILE, "pt") as f:
    OUT = {key: f.get_tensor(key) for key in f.keys()}  # noqa: SIM118
    SHAPES = json.loads(f.metadata()["shapes"])


@pytest.fixture(scope="module")
def vae():
    return VAE(sd=weights(SHAPES))


def as_pixels(out: torch.Tensor) -> torch.Tensor:
    return ((out + 1) / 2).clamp(0, 1).movedim(1, -1)


def test_numbers_are_those_of_diffusers(vae):
    assert isinstance(vae.first_stage_model, Wan22Autoencoder)
    assert error(vae.encode(pixels()), OUT["encode_video"]) < LIMIT
    assert error(vae.encode(pixels()[:1]), OUT["encode_image"]) < LIMIT
    assert error(vae.decode(latent()), as_pixels(OUT["decode_video"])) < LIMIT
    assert error(vae.decode(latent()[:, :, :1]), as_pixels(OUT["decode_image"])) < LIMIT


def test_facts(vae):
    assert (vae.latent_dim, vae.latent_channels, vae.downscale_ratio) == (3, CHANNELS, 16)
    assert vae.temporal_compression_decode() == 4 and vae.spacial_compression_encode() == 16


def test_published_file():
    found = detect(key_map("vae_wan22"))
    assert (found.time_downscale, found.latent_channels, found.downscale) == (4, 48, 16)
    network = found.network(device="meta")
    assert network.config == Wan22AutoencoderConfig()
    assert {k: v.shape for k, v in key_map("vae_wan22").items()} == {
        k: v.shape for k, v in network.state_dict().items()
    }


def test_both_layouts_are_one_network(vae):
    own = VAE(sd=to_own_layout_22(weights(SHAPES)))
    assert torch.equal(own.encode(pixels()), vae.encode(pixels()))


def test_squares_come_apart_again():
    x = torch.randn(2, 3, 2, 4, 6, generator=torch.Generator().manual_seed(0))
    squares = to_squares(x)
    assert squares.shape == (2, 12, 2, 2, 3) and torch.equal(from_squares(squares), x)


def test_tiles(vae):
    big = torch.randn(1, CHANNELS, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    assert vae.decode_tiled(big, 4, 4, 2).shape == vae.decode(big).shape == (1, 5, 96, 96, 3)
    assert vae.encode_tiled(torch.rand(5, 96, 96, 3), 64, 64, 16).shape == (1, CHANNELS, 2, 6, 6)
