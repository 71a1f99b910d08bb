"""The VAE of nodes against recordings: pictures in, pictures out, whole and in tiles."""

import json

import pytest
import torch
from safetensors import safe_open

import comfy.devices
import comfy.utils
from comfy.sd import VAE, InvalidVAE
from tests.networks.golden import DATA, LIMIT, Golden, error, load_weights


@pytest.fixture(scope="module", params=["vae_kl4", "vae_kl16", "vae_flux2"])
def golden(request) -> Golden:
    return Golden(request.param)


@pytest.fixture(scope="module")
def vae(golden) -> VAE:
    return VAE(sd=golden.module_weights())


def test_encode_and_decode(golden, vae):
    assert error(vae.encode(golden.inputs["pixels"]), golden.out["encode"]) < LIMIT
    assert error(vae.decode(golden.inputs["latent"]), golden.out["decode"]) < LIMIT


def test_pictures_are_cut_to_whole_cells(golden, vae):
    assert error(vae.encode(golden.inputs["pixels_uncropped"]), golden.out["encode_uncropped"]) < LIMIT
    with_alpha = torch.cat([golden.inputs["pixels"], torch.ones_like(golden.inputs["pixels"][..., :1])], dim=-1)
    assert torch.equal(vae.encode(with_alpha), vae.encode(golden.inputs["pixels"]))


def test_tiled_encode(golden, vae):
    pixels = golden.inputs["pixels_big"]
    assert error(vae.encode(pixels), golden.out["encode_big"]) < LIMIT
    assert error(vae.encode_tiled(pixels, tile_x=64, tile_y=64, overlap=16), golden.out["encode_tiled_64_o16"]) < LIMIT


def test_tiled_decode(golden, vae):
    ratio = vae.spacial_compression_decode()
    latent = golden.inputs["latent_big"]
    every_second = (slice(None), slice(None, None, 2), slice(None, None, 2))
    assert error(vae.decode(latent)[every_second], golden.out["decode_big"]) < LIMIT
    tiled = vae.decode_tiled(latent, tile_x=128 // ratio, tile_y=128 // ratio, overlap=32 // ratio)
    assert error(tiled[every_second], golden.out["decode_tiled_128px_o32px"]) < LIMIT


def test_facts(golden, vae):
    assert vae.latent_channels == golden.config["latent_channels"]
    assert vae.spacial_compression_encode() == golden.config["downscale"]
    assert vae.temporal_compression_decode() is None
    vae.throw_exception_if_invalid()


@pytest.mark.parametrize("kind", [comfy.devices.OOM_EXCEPTION, RuntimeError])
def test_out_of_memory_falls_back_to_tiles(golden, vae, monkeypatch, kind):
    network = vae.first_stage_model
    decode = network.decode

    def limited(latent):
        if latent.shape[-2:] == golden.inputs["latent_big"].shape[-2:]:
            raise kind("CUDA out of memory")
        return decode(latent)

    monkeypatch.setattr(network, "decode", limited)
    monkeypatch.setattr(vae, "_decode_tiled", lambda samples, *tile: VAE._decode_tiled(vae, samples, 8, 8, 2))
    latent = golden.inputs["latent_big"]
    out = vae.decode(latent)
    assert out.shape[1:] == (latent.shape[2] * vae.upscale_ratio, latent.shape[3] * vae.upscale_ratio, 3)


def test_other_errors_are_not_swallowed(golden, vae):
    with pytest.raises(RuntimeError, match=r"channels|size of tensor"):
        vae.decode(torch.zeros(1, golden.config["latent_channels"] + 1, 4, 4))


def test_batches_are_split_by_memory(golden, vae, monkeypatch):
    sizes = []
    decode = vae.first_stage_model.decode
    monkeypatch.setattr(vae.first_stage_model, "decode", lambda x: sizes.append(len(x)) or decode(x))
    monkeypatch.setattr(
        comfy.model_management,
        "get_free_memory",
        lambda *a: vae.memory_used_decode(golden.inputs["latent"].shape, torch.float32) * 1.5,
    )
    assert error(vae.decode(golden.inputs["latent"]), golden.out["decode"]) < LIMIT
    assert sizes == [1, 1]


def test_half_precision_weights_compute_in_float32(golden):
    vae = VAE(sd={k: v.half() for k, v in golden.module_weights().items()})
    assert next(vae.first_stage_model.parameters()).dtype == torch.float16
    assert error(vae.decode(golden.inputs["latent"]), golden.out["decode"]) < LIMIT


@pytest.mark.parametrize("sd", [None, {}, {"something.weight": torch.zeros(1)}])
def test_empty_vae_says_so_when_used(sd):
    vae = VAE(sd=sd)
    for use in (
        lambda: vae.decode(torch.zeros(1, 4, 4, 4)),
        lambda: vae.encode(torch.zeros(1, 8, 8, 3)),
        lambda: vae.decode_tiled(torch.zeros(1, 4, 4, 4)),
        lambda: vae.encode_tiled(torch.zeros(1, 8, 8, 3)),
        vae.get_sd,
    ):
        with pytest.raises(InvalidVAE, match="holds no autoencoder"):
            use()


@pytest.mark.parametrize("kind", ["taesd", "taesdxl", "taesd3", "taef1"])
def test_tiny_autoencoders(kind):
    with safe_open(DATA / "taesd.io.safetensors", "pt") as f:
        recorded = {key: f.get_tensor(key) for key in f.keys()}  # noqa: SIM118
        scale, shift, channels = json.loads(f.metadata()["config"])["scale_shift"][kind]
    sd = {
        f"taesd_{part}.{key}": value.float()
        for part in ("encoder", "decoder")
        for key, value in load_weights(f"taesd_{part}").items()
    }
    if channels == 16:
        sd.update(load_weights("taesd_16ch_delta"))
    vae = VAE(sd={**sd, "vae_scale": torch.tensor(scale), "vae_shift": torch.tensor(shift)})
    assert vae.latent_channels == channels
    assert error(vae.encode(recorded["in.pixels"]), recorded[f"out.{kind}.encode"]) < LIMIT
    assert error(vae.decode(recorded[f"in.{kind}.latent"]), recorded[f"out.{kind}.decode"]) < LIMIT


def test_pixel_space():
    vae = VAE(sd={"pixel_space_vae": torch.tensor(1.0)})
    pixels = torch.rand(1, 5, 7, 3)
    latent = vae.encode(pixels)
    assert latent.shape == (1, 3, 5, 7)
    assert torch.allclose(latent, pixels.movedim(-1, 1) * 2 - 1)
    assert torch.allclose(vae.decode(latent), pixels, atol=1e-6)


def test_progress_counts_tiles(golden, vae, monkeypatch):
    seen = []
    monkeypatch.setattr(
        comfy.utils, "PROGRESS_BAR_HOOK", lambda value, total, preview, node_id=None: seen.append((value, total))
    )
    ratio = vae.spacial_compression_decode()
    vae.decode_tiled(golden.inputs["latent_big"], 128 // ratio, 128 // ratio, 32 // ratio)
    assert seen[0][0] == 1
    assert seen[-1][0] == seen[-1][1] > 3
