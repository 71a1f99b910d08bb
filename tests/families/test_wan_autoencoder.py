"""Wan 2.1's autoencoder, which Qwen-Image uses: against what diffusers' puts out, and as nodes use it."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open

import nodes
from comfy.vae.autoencoder_wan import WanAutoencoderConfig
from comfy.vae.detection import detect
from comfy.vae.diffusers_wan import to_own_layout
from comfy.vae.vae import VAE
from tests.architectures.recorded import key_map
from tests.families.record_wan_autoencoder import FILE, latent, pixels, weights
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
    assert error(vae.encode(pixels()), OUT["encode_video"]) < LIMIT
    assert error(vae.encode(pixels()[:1]), OUT["encode_image"]) < LIMIT
    assert error(vae.decode(latent()), as_pixels(OUT["decode_video"])) < LIMIT
    assert error(vae.decode(latent()[:, :, :1]), as_pixels(OUT["decode_image"])) < LIMIT


def test_facts(vae):
    assert (vae.latent_dim, vae.latent_channels, vae.downscale_ratio) == (3, 16, 8)
    assert vae.temporal_compression_decode() == 4 and vae.spacial_compression_encode() == 8


def test_published_file():
    found = detect(key_map("vae_wan21"))
    assert found.time_downscale == 4 and found.latent_channels == 16
    network = found.network(device="meta")
    assert network.config == WanAutoencoderConfig()
    own = {k: v.shape for k, v in network.state_dict().items()}
    assert {k.removeprefix("first_stage_model."): v.shape for k, v in key_map("vae_wan21").items()} == own


def test_both_layouts_are_one_network(vae):
    own = VAE(sd=to_own_layout(weights(SHAPES)))
    assert torch.equal(own.encode(pixels()), vae.encode(pixels()))


def test_frames_beyond_a_multiple_of_four_are_left_out(vae):
    more = torch.cat([pixels(), pixels()[:2]])
    assert torch.equal(vae.encode(more), vae.encode(pixels()))


def test_tiles(vae):
    """Larger than a tile: blended in space, whole in time."""
    big = torch.nn.functional.interpolate(latent()[0].movedim(1, 0), (12, 12)).movedim(0, 1).unsqueeze(0)
    assert vae.decode_tiled(big, 8, 8, 4).shape == vae.decode(big).shape == (1, 5, 96, 96, 3)
    assert vae.encode_tiled(torch.rand(5, 96, 96, 3), 64, 64, 16).shape == (1, 16, 2, 12, 12)

    def enlarged(part: torch.Tensor) -> torch.Tensor:
        frames = [part[:, :3, :1], *(part[:, :3, i : i + 1].expand(-1, -1, 4, -1, -1) for i in range(1, part.shape[2]))]
        return torch.cat(frames, dim=2).repeat_interleave(8, -1).repeat_interleave(8, -2)

    # Something that looks at no neighbours comes out the same.
    assert torch.allclose(vae._video_tiles(big, enlarged, 8, 8, 4, 8, 3), enlarged(big), atol=1e-5)
    one = vae.decode_tiled(latent(), 64, 64, 16)
    assert error(one, vae.decode(latent())) < LIMIT


def test_through_the_nodes(vae):
    (encoded,) = nodes.VAEEncode().encode(vae, pixels()[:1])
    assert encoded["samples"].shape == (1, 16, 1, 2, 3)
    (decoded,) = nodes.VAEDecode().decode(vae, encoded)
    assert decoded.shape == (1, 16, 24, 3)
