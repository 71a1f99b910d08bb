"""From a checkpoint file to a picture, with a small complete checkpoint; and files that are broken."""

from __future__ import annotations

import pytest
import torch

import folder_paths
import nodes
from tests.networks import checkpoints


@pytest.fixture(scope="module")
def model_folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for name in ("checkpoints", "vae", "diffusion_models", "text_encoders"):
        (root / name).mkdir()
    checkpoints.write(root / "checkpoints" / "small.safetensors")
    checkpoints.write(root / "checkpoints" / "no_clip.safetensors", "unet", "vae")
    checkpoints.write(root / "checkpoints" / "no_vae.safetensors", "unet", "clip")
    vae = {k.removeprefix("first_stage_model."): v for k, v in checkpoints.parts()["vae"].items()}
    from safetensors.torch import save_file

    save_file({k: v.contiguous() for k, v in vae.items()}, root / "vae" / "small_vae.safetensors")
    unet = checkpoints.parts()["unet"]
    save_file({k: v.contiguous() for k, v in unet.items()}, root / "diffusion_models" / "small_unet.safetensors")
    return root


@pytest.fixture
def models(model_folders, monkeypatch, folders):
    for name in ("checkpoints", "vae", "diffusion_models", "text_encoders"):
        _, extensions = folder_paths.folder_names_and_paths[name]
        paths = [str(model_folders / name)]
        monkeypatch.setitem(folder_paths.folder_names_and_paths, name, (paths, extensions))
    return model_folders


@pytest.fixture
def loaded(models):
    with torch.inference_mode():
        yield nodes.CheckpointLoaderSimple().load_checkpoint("small.safetensors")


# Channels of the conditioning that the recorded UNet takes; the recorded text encoder gives more.
CONTEXT = 24


def encode(clip, text):
    (conditioning,) = nodes.CLIPTextEncode().encode(clip, text)
    return [[tensor[..., :CONTEXT], options] for tensor, options in conditioning]


def sample(model, positive, negative, latent, **changes):
    inputs = {
        "seed": 1, "steps": 2, "cfg": 2.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0,
        **changes,
    }  # fmt: skip
    return nodes.KSampler().sample(model, positive=positive, negative=negative, latent_image=latent, **inputs)[0]


def test_choices_are_read_anew(models):
    def choices():
        return nodes.CheckpointLoaderSimple.INPUT_TYPES()["required"]["ckpt_name"][0]

    assert choices() == ["no_clip.safetensors", "no_vae.safetensors", "small.safetensors"]
    (models / "checkpoints" / "later.safetensors").touch()
    try:
        assert "later.safetensors" in choices()
    finally:
        (models / "checkpoints" / "later.safetensors").unlink()


def test_text_to_picture(loaded, folders):
    model, clip, vae = loaded
    (latent,) = nodes.EmptyLatentImage().generate(96, 64, 2)
    assert latent["samples"].shape == (2, 4, 8, 12)
    result = sample(model, encode(clip, "a (red:1.3) box"), encode(clip, ""), latent)
    (images,) = nodes.VAEDecode().decode(vae, result)
    assert images.shape[0] == 2 and images.shape[3] == 3 and images.dtype == torch.float32
    assert images.min() >= 0 and images.max() <= 1
    again = sample(model, encode(clip, "a (red:1.3) box"), encode(clip, ""), latent)
    assert torch.equal(again["samples"], result["samples"])
    other = sample(model, encode(clip, "a (red:1.3) box"), encode(clip, ""), latent, seed=2)
    assert not torch.equal(other["samples"], result["samples"])
    items = nodes.SaveImage().save_images(images, "chain")["ui"]["images"]
    assert [item["filename"] for item in items] == ["chain_00001_.png", "chain_00002_.png"]


def test_picture_to_picture(loaded):
    model, clip, vae = loaded
    pixels = torch.rand(1, 64, 64, 3, generator=torch.Generator().manual_seed(0))
    (latent,) = nodes.VAEEncode().encode(vae, pixels)
    cell = vae.spacial_compression_encode()
    assert latent["samples"].shape == (1, 4, 64 // cell, 64 // cell)
    little = sample(model, encode(clip, "x"), encode(clip, ""), latent, denoise=0.2, steps=2)
    much = sample(model, encode(clip, "x"), encode(clip, ""), latent, denoise=0.9, steps=2)
    distance = [(s["samples"] - latent["samples"]).abs().mean() for s in (little, much)]
    assert 0 < distance[0] < distance[1]


def test_tiles_give_about_the_same_picture(loaded):
    _, _, vae = loaded
    pixels = torch.rand(1, 128, 128, 3, generator=torch.Generator().manual_seed(0))
    (latent,) = nodes.VAEEncodeTiled().encode(vae, pixels, tile_size=512, overlap=64)
    assert torch.allclose(latent["samples"], vae.encode(pixels), atol=1e-3)
    (whole,) = nodes.VAEDecode().decode(vae, latent)
    (tiled,) = nodes.VAEDecodeTiled().decode(vae, latent, tile_size=512, overlap=64)
    assert tiled.shape == whole.shape
    assert torch.allclose(tiled, whole, atol=1e-3)


def test_clip_skip_changes_the_conditioning(loaded):
    _, clip, _ = loaded
    (skipped,) = nodes.CLIPSetLastLayer().set_last_layer(clip, -2)
    assert skipped is not clip
    assert not torch.equal(encode(skipped, "box")[0][0], encode(clip, "box")[0][0])


def test_inpainting(loaded):
    model, clip, vae = loaded
    pixels = torch.rand(1, 70, 66, 3, generator=torch.Generator().manual_seed(0))
    mask = torch.zeros(1, 70, 66)
    mask[:, 40:] = 1
    (latent,) = nodes.VAEEncodeForInpaint().encode(vae, pixels, mask, 6)
    result = sample(model, encode(clip, "x"), encode(clip, ""), latent)
    assert torch.isfinite(result["samples"]).all()
    positive, negative, latent = nodes.InpaintModelConditioning().encode(
        encode(clip, "x"), encode(clip, ""), pixels, vae, mask
    )
    assert positive[0][1]["concat_latent_image"].shape == latent["samples"].shape
    assert set(negative[0][1]) >= {"concat_latent_image", "concat_mask"}


def test_areas_and_masks(loaded):
    model, clip, _ = loaded
    (latent,) = nodes.EmptyLatentImage().generate(96, 96, 1)
    (left,) = nodes.ConditioningSetArea().append(encode(clip, "a"), 64, 96, 0, 0, 1.0)
    (right,) = nodes.ConditioningSetMask().append(encode(clip, "b"), torch.ones(1, 96, 96), "default", 0.5)
    (both,) = nodes.ConditioningCombine().combine(left, right)
    (timed,) = nodes.ConditioningSetTimestepRange().set_range(both, 0.0, 0.5)
    result = sample(model, timed + encode(clip, ""), encode(clip, ""), latent)
    assert torch.isfinite(result["samples"]).all()


def test_files_of_single_parts(models, loaded):
    (vae,) = nodes.VAELoader().load_vae("small_vae.safetensors")
    latent = torch.zeros(1, 4, 8, 8)
    assert torch.allclose(vae.decode(latent), loaded[2].decode(latent), atol=2e-3)
    (model,) = nodes.UNETLoader().load_unet("small_unet.safetensors", "default")
    assert type(model.model.diffusion_model) is type(loaded[0].model.diffusion_model)
    assert "pixel_space" in nodes.VAELoader.INPUT_TYPES()["required"]["vae_name"][0]


def test_a_checkpoint_without_text_encoder_or_vae(models):
    with torch.inference_mode():
        _, clip, _ = nodes.CheckpointLoaderSimple().load_checkpoint("no_clip.safetensors")
        _, _, vae = nodes.CheckpointLoaderSimple().load_checkpoint("no_vae.safetensors")
    assert clip is None
    with pytest.raises(RuntimeError, match="clip is empty"):
        nodes.CLIPTextEncode().encode(clip, "x")
    with pytest.raises(RuntimeError, match=r"VAE|vae"):
        nodes.VAEDecode().decode(vae, {"samples": torch.zeros(1, 4, 8, 8)})
    with pytest.raises(RuntimeError, match="vae is empty"):
        nodes.VAEEncode().encode(None, torch.zeros(1, 8, 8, 3))


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"<!DOCTYPE html><html><title>Login</title></html>", "HTML|web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "(?i)lfs"),
        (b"", "(?i)empty|0 bytes"),
        (None, "(?i)cut|truncated|incomplete|shorter"),
    ],
)
def test_broken_files_are_named(models, content, cause):
    path = models / "checkpoints" / "broken.safetensors"
    whole = (models / "checkpoints" / "small.safetensors").read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content is None else content)
    try:
        with pytest.raises(Exception, match=cause) as caught:
            nodes.CheckpointLoaderSimple().load_checkpoint("broken.safetensors")
        assert "broken.safetensors" in str(caught.value)
    finally:
        path.unlink()


@pytest.mark.parametrize("name", ["missing.safetensors", "../../etc/passwd", "/etc/passwd"])
def test_names_outside_the_folder_are_refused(models, name):
    with pytest.raises((FileNotFoundError, ValueError)) as caught:
        nodes.CheckpointLoaderSimple().load_checkpoint(name)
    assert name.rsplit("/", 1)[-1] in str(caught.value)


def test_kinds_of_files_that_are_not_run_yet(models, monkeypatch, tmp_path):
    (tmp_path / "c.safetensors").write_bytes(b"x")
    _, extensions = folder_paths.folder_names_and_paths["controlnet"]
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "controlnet", ([str(tmp_path)], extensions))
    with pytest.raises(Exception, match=r"c\.safetensors"):
        nodes.ControlNetLoader().load_controlnet("c.safetensors")
