"""Stable Video Diffusion: a checkpoint without text, from the picture to the frames; read and written."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from safetensors.torch import load_file, save_file

import folder_paths
import nodes
from comfy.denoisers.unet import size_vector
from comfy.models.unet import UNetModel
from comfy.vae.autoencoder_kl import AutoencoderConfig, AutoencoderKL
from tests.architectures.test_video_unet import CONFIG, drawn
from tests.families.test_clip_vision import CLIP as VISION
from tests.families.test_clip_vision import to_open_clip, weights

NODES = nodes.NODE_CLASS_MAPPINGS
FRAMES = 3
SIZE = {"width": 64, "height": 32, "video_frames": FRAMES}


def checkpoint() -> dict[str, torch.Tensor]:
    seen = weights(VISION)
    width = seen["visual_projection.weight"].shape[0]
    config = dataclasses.replace(CONFIG, model_channels=64, num_head_channels=64, context_dim=width)
    autoencoder = AutoencoderConfig(ch=32, ch_mult=(1, 1, 1, 1), num_res_blocks=1, embed_dim=None, temporal=True)
    parts = {
        "model.diffusion_model.": drawn(UNetModel(config)).state_dict(),
        "first_stage_model.": drawn(AutoencoderKL(autoencoder)).state_dict(),
        "conditioner.embedders.0.open_clip.model.": to_open_clip(seen),
    }
    return {prefix + k: v.clone().contiguous() for prefix, part in parts.items() for k, v in part.items()}


@pytest.fixture(scope="module")
def file():
    return checkpoint()


@pytest.fixture
def folders(tmp_path, monkeypatch, file):
    _, extensions = folder_paths.folder_names_and_paths["checkpoints"]
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "checkpoints", ([str(tmp_path)], extensions))
    monkeypatch.setattr(folder_paths, "output_directory", str(tmp_path / "out"))
    save_file(file, tmp_path / "svd.safetensors")
    return tmp_path


def load(name: str):
    return NODES["ImageOnlyCheckpointLoader"]().load_checkpoint(name)


def shown(vision, vae, **options):
    given = {**SIZE, "motion_bucket_id": 100, "fps": 8, "augmentation_level": 0.0, **options}
    return NODES["SVD_img2vid_Conditioning"]().encode(vision, torch.rand(1, 40, 50, 3), vae, **given)


def test_what_the_network_is_told(folders):
    model, vision, vae = load("svd.safetensors")
    assert type(model.model).__name__ == "SVD_img2vid" and model.model.concat_keys == ()
    positive, negative, latent = shown(vision, vae, augmentation_level=0.5)
    assert latent["samples"].shape == (FRAMES, 4, 4, 8) and not latent["samples"].any()
    noise = torch.randn(FRAMES, 4, 4, 8)
    run = {"noise": noise, "device": torch.device("cpu")}
    made = model.model.extra_conds(**run, cross_attn=positive[0][0], **positive[0][1])
    assert torch.equal(made["y"].cond, size_vector(torch.zeros(1, 0), [7, 100, 0.5]))
    assert made["num_video_frames"].cond == FRAMES
    # Beside each frame the picture's latent as the VAE gives it, not scaled.
    assert torch.equal(made["c_concat"].cond, positive[0][1]["concat_latent_image"].expand(FRAMES, -1, -1, -1))
    made = model.model.extra_conds(**run, cross_attn=negative[0][0], **negative[0][1])
    assert not made["c_concat"].cond.any() and not made["c_crossattn"].cond.any()
    default = model.model.extra_conds(**run)
    assert torch.equal(default["y"].cond, size_vector(torch.zeros(1, 0), [5, 127, 0.0]))


def test_noise_is_put_into_the_picture(folders):
    _, vision, vae = load("svd.safetensors")
    image = torch.rand(1, 32, 64, 3)
    node = NODES["SVD_img2vid_Conditioning"]()
    rest = {**SIZE, "motion_bucket_id": 127, "fps": 6}
    latents = [node.encode(vision, image, vae, **rest, augmentation_level=a)[0][0][1] for a in (0.0, 0.0, 1.0)]
    first, second, noisy = (told["concat_latent_image"] for told in latents)
    assert torch.equal(first, second) and not torch.allclose(first, noisy, atol=1e-2)


@pytest.mark.parametrize("guidance", [None, "VideoLinearCFGGuidance", "VideoTriangleCFGGuidance"])
def test_a_video(folders, guidance):
    model, vision, vae = load("svd.safetensors")
    if guidance:
        (model,) = NODES[guidance]().patch(model, 1.0)
    positive, negative, latent = shown(vision, vae)
    (out,) = nodes.common_ksampler(model, 1, 3, 2.5, "euler", "karras", positive, negative, latent)
    assert out["samples"].shape == (FRAMES, 4, 4, 8) and out["samples"].isfinite().all()
    (again,) = nodes.common_ksampler(model, 1, 3, 2.5, "euler", "karras", positive, negative, latent)
    assert torch.equal(out["samples"], again["samples"])
    frames = vae.decode(out["samples"])
    assert frames.shape == (FRAMES, 32, 64, 3)
    # The decoder sees the whole video: a frame by itself comes out differently.
    assert not torch.allclose(vae.decode(out["samples"][:1]), frames[:1], atol=1e-3)


def test_positive_and_negative_are_two_videos(folders):
    """Evaluated together or one after the other, frames of one are never mixed with those of the other."""
    model, vision, vae = load("svd.safetensors")
    positive, negative, _ = shown(vision, vae)
    x, sigma = torch.randn(FRAMES, 4, 4, 8), torch.full((FRAMES,), 3.0)
    made = []
    for entry in (positive[0], negative[0]):
        run = {"noise": x, "device": x.device}
        conds = model.model.extra_conds(**run, cross_attn=entry[0], **entry[1])
        made.append({name: cond.process_cond(FRAMES, area=None).cond for name, cond in conds.items()})
    alone = [model.model.apply_model(x, sigma, **conds) for conds in made]
    both = {
        name: first if name == "num_video_frames" else torch.cat([first, made[1][name]])
        for name, first in made[0].items()
    }
    together = model.model.apply_model(torch.cat([x, x]), torch.cat([sigma, sigma]), **both)
    assert torch.allclose(together, torch.cat(alone), atol=1e-4)


def test_written_and_read_again(folders, file):
    model, vision, vae = load("svd.safetensors")
    NODES["ImageOnlyCheckpointSave"]().save(model, vision, vae, "checkpoints/again")
    (path,) = (folders / "out").rglob("*.safetensors")
    written = load_file(path)
    for key in file:
        if key.startswith(("model.diffusion_model.", "first_stage_model.")):
            assert torch.equal(written[key].float(), file[key]), key
    (folders / "again.safetensors").write_bytes(path.read_bytes())
    again, seen, _ = load("again.safetensors")
    assert type(again.model).__name__ == "SVD_img2vid"
    pictures = torch.rand(1, 16, 16, 3)
    assert torch.allclose(
        seen.encode_image(pictures).image_embeds, vision.encode_image(pictures).image_embeds, atol=1e-5
    )
