"""From the files of a small Wan to a video on the disk, through the engine."""

from __future__ import annotations

import lzma

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import execution
import folder_paths
import nodes
from comfy.models.wan import Wan, WanConfig
from comfy.text_encoders import families as text_families
from comfy.vae.autoencoder_wan22 import Wan22Autoencoder, Wan22AutoencoderConfig
from comfy.vae.diffusers_wan import to_own_layout
from tests.addons.transformer_controls import drawn
from tests.engine.engine_kit import FakeServer, Runner, n, node
from tests.families import test_wan_autoencoder
from tests.families.record_wan_autoencoder import weights as autoencoder_weights
from tests.families.text import DATA, encoder_file

FOLDERS = ("diffusion_models", "text_encoders", "vae")


def wan_file(**config) -> dict[str, torch.Tensor]:
    """A narrow network, its weights drawn."""
    shape = WanConfig(**{"dim": 128, "ffn_dim": 64, "freq_dim": 32, "text_dim": 48, "num_layers": 1, **config})
    shapes = {k: tuple(v.shape) for k, v in Wan(shape, device="meta").state_dict().items()}
    return drawn(shapes)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for name in FOLDERS:
        (root / name).mkdir()
    save_file(wan_file(in_dim=36, num_heads=1), root / "diffusion_models" / "wan22_14b.safetensors")
    save_file(wan_file(in_dim=48, out_dim=48, num_heads=1), root / "diffusion_models" / "wan22_5b.safetensors")
    vocabulary = np.frombuffer(lzma.decompress((DATA / "pile_t5.model.xz").read_bytes()), dtype=np.uint8)
    text = {**encoder_file("U"), "spiece_model": torch.from_numpy(vocabulary.copy())}
    save_file(text, root / "text_encoders" / "umt5.safetensors")
    save_file(to_own_layout(autoencoder_weights(test_wan_autoencoder.SHAPES)), root / "vae" / "wan21.safetensors")
    small = Wan22Autoencoder(Wan22AutoencoderConfig(dim=4, decoder_dim=4, num_res_blocks=1), device="meta")
    shapes = {k: tuple(v.shape) for k, v in small.state_dict().items()}
    save_file(autoencoder_weights(shapes), root / "vae" / "wan22.safetensors")
    return root


@pytest.fixture
def runner(files, tmp_path, monkeypatch):
    for name in FOLDERS:
        entry = ([str(files / name)], {".safetensors"})
        monkeypatch.setitem(folder_paths.folder_names_and_paths, name, entry)
    for name in ("input", "output", "temp"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(folder_paths, f"{name}_directory", str(tmp_path / name))
    # The published encoder is told by its width.
    monkeypatch.setattr(text_families, "_t5_name", lambda tensors: "umt5xxl")
    Image.new("RGB", (40, 24), (200, 40, 90)).save(tmp_path / "input" / "start.png")
    return Runner(FakeServer(), execution.CacheType.CLASSIC)


def loaders(model: str, vae: str) -> dict:
    return {
        "model": n("UNETLoader", unet_name=f"{model}.safetensors", weight_dtype="default"),
        "clip": n("CLIPLoader", clip_name="umt5.safetensors", type="wan"),
        "vae": n("VAELoader", vae_name=f"{vae}.safetensors"),
        "shift": n("ModelSamplingSD3", model=("model", 0), shift=5.0),
        "text": n("CLIPTextEncode", clip=("clip", 0), text="a box that turns"),
        "negative": n("CLIPTextEncode", clip=("clip", 0), text=""),
        "start": n("LoadImage", image="start.png"),
    }


def sampler(positive: tuple, negative: tuple, latent: tuple) -> dict:
    settings = {"seed": 1, "steps": 2, "cfg": 3.0, "sampler_name": "uni_pc", "scheduler": "simple", "denoise": 1.0}
    conditioning = {"positive": positive, "negative": negative, "latent_image": latent}
    return {
        "sample": n("KSampler", model=("shift", 0), **conditioning, **settings),
        "decode": n("VAEDecode", samples=("sample", 0), vae=("vae", 0)),
    }


def frames_of(path) -> np.ndarray:
    with Image.open(path) as image:
        assert image.n_frames > 1
        shots = []
        for number in range(image.n_frames):
            image.seek(number)
            shots.append(np.asarray(image.convert("RGB")))
        return np.stack(shots)


def test_picture_to_video(runner, tmp_path):
    size = {"width": 32, "height": 32, "length": 5, "batch_size": 1}
    graph = {
        **loaders("wan22_14b", "wan21"),
        "video": n(
            "WanImageToVideo",
            positive=("text", 0),
            negative=("negative", 0),
            vae=("vae", 0),
            start_image=("start", 0),
            **size,
        ),
        **sampler(("video", 0), ("video", 1), ("video", 2)),
        "save": n(
            "SaveAnimatedWEBP",
            images=("decode", 0),
            **{"filename_prefix": "wan", "fps": 8.0, "lossless": True, "quality": 80, "method": "fastest"},
        ),
    }
    (shown,) = runner.good(graph)["save"]["images"]
    moving = frames_of(tmp_path / "output" / shown["filename"])
    assert moving.shape == (5, 32, 32, 3) and moving.std() > 1.0
    # Another first picture makes another video.
    Image.new("RGB", (40, 24), (10, 220, 40)).save(tmp_path / "input" / "other.png")
    graph["start"] = n("LoadImage", image="other.png")
    (other,) = runner.good(graph)["save"]["images"]
    assert not np.array_equal(frames_of(tmp_path / "output" / other["filename"]), moving)


@node({"images": ("IMAGE",), "latent": ("LATENT",), "given": ("LATENT",)}, OUTPUT_NODE=True)
class Take:
    """Keeps what it gets."""

    taken: list[tuple] = []

    def run(self, images, latent, given):
        Take.taken.append((images, latent["samples"], given))
        return {}


def test_video_of_the_5b_model_begins_with_its_picture(runner, monkeypatch):
    """Given frames are in the latent itself: they come out as they went in."""
    monkeypatch.setitem(nodes.NODE_CLASS_MAPPINGS, "Take", Take)
    size = {"width": 32, "height": 32, "length": 5, "batch_size": 1}
    graph = {
        **loaders("wan22_5b", "wan22"),
        "video": n("Wan22ImageToVideoLatent", vae=("vae", 0), start_image=("start", 0), **size),
        **sampler(("text", 0), ("negative", 0), ("video", 0)),
        "take": n("Take", images=("decode", 0), latent=("sample", 0), given=("video", 0)),
    }
    runner.good(graph)
    images, latent, given = Take.taken.pop()
    assert images.shape == (5, 32, 32, 3) and latent.shape == (1, 48, 2, 2, 2)
    assert torch.allclose(latent[:, :, 0], given["samples"][:, :, 0], rtol=1e-3, atol=1e-3)
    assert not given["noise_mask"][:, :, 0].any() and (latent[:, :, 1] - given["samples"][:, :, 1]).abs().max() > 0.1
