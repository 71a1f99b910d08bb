"""Wan 2.1's autoencoder, which Qwen-Image uses: against what diffusers' puts out, and as nodes use it."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open

import nodes
from comfy.vae.autoencoder_wan import Parts, WanAutoencoder, WanAutoencoderConfig
from comfy.vae.detection import detect
from comfy.vae.diffusers_wan import to_own_layout
from comfy.vae.vae import VAE
from tests.architectures.recorded import key_map
from tests.families.record_wan_autoencoder import FILE, latent, pixels, weights
from tests.memory.live_bytes import LiveBytes
from tests.networks.golden import LIMIT, error

with safe_open(FILE, "pt") as f:
    OUT = {key: f.get_tensor(key) for key in f.keys()}  # noqa: SIM118
    SHAPES = json.loads(f.metadata()["shapes"])


@pytest.fixture(scope="module")
def vae():
    return VAE(sd=weights(SHAPES))


def as_pixels(out: torch.Tensor) -> torch.Tensor:
    return ((out + 1) / 2).clamp(0, 1).movedim(1, -1)


def test_numbers_are_those_of_diffusers():
    """Computed in float64: the drawn weights are large, so that the recording's rounding alone takes most of the
    tolerance."""
    vae = VAE(sd=weights(SHAPES), dtype=torch.float64)
    assert error(vae.encode(pixels()), OUT["encode_video"]) < LIMIT
    assert error(vae.encode(pixels()[:1]), OUT["encode_image"]) < LIMIT
    assert error(vae.decode(latent()), as_pixels(OUT["decode_video"])) < LIMIT
    assert error(vae.decode(latent()[:, :, :1]), as_pixels(OUT["decode_image"])) < LIMIT


@pytest.mark.parametrize("frames", [1, 5, 13])
def test_parts_are_as_the_whole(vae, frames):
    """Latent frame by latent frame, with what layers saw before, is what all frames at once give."""
    network = vae.first_stage_model
    video = torch.rand(2, 3, frames, 16, 24, generator=torch.Generator().manual_seed(frames)) * 2 - 1
    made = network.encode(video)
    (whole,) = (network.conv1(network.encoder(part, parts)) for parts in [Parts([video])] for part in parts)
    assert made.shape[2] == 1 + frames // 4 and error(made, whole.chunk(2, dim=1)[0]) < 1e-5
    back = network.decode(made)
    (whole,) = (network.decoder(network.conv2(part), parts) for parts in [Parts([made])] for part in parts)
    assert back.shape == video.shape and error(back, whole) < 1e-5


def peak(function, shape: tuple[int, ...]) -> int:
    x = torch.empty(shape, device="meta", dtype=torch.float16)
    with torch.inference_mode(), LiveBytes() as live:
        function(x)
    return live.peak


def test_memory_does_not_grow_with_the_length(vae):
    """The published size: a longer video takes its own frames more, and what is asked of the ledger suffices."""
    network = WanAutoencoder(device="meta", dtype=torch.float16)
    side, half = 16, torch.float16
    for function, estimate, channels, cells, lengths in (
        (network.decode, vae.memory_used_decode, 16, side, (1, 3, 9)),
        (network.encode, vae.memory_used_encode, 3, side * 8, (1, 9, 33)),
    ):
        shapes = [(1, channels, length, cells, cells) for length in lengths]
        one, short, long = (peak(function, shape) for shape in shapes)
        assert one < short < long < 1.1 * short
        assert all(p < estimate(torch.Size(shape), half) < 4 * p for p, shape in zip((one, short, long), shapes))


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
