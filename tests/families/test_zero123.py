"""Stable Zero123: detection, the camera's place, a run; checkpoints with an image encoder only, read and written."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import load_file, save_file

import folder_paths
import nodes
from nodes.view_models import camera_place
from tests.addons.transformer_controls import random
from tests.families.test_clip_vision import CLIP as VISION
from tests.families.test_clip_vision import to_open_clip, weights
from tests.networks.golden import Golden

NODES = nodes.NODE_CLASS_MAPPINGS
CONTEXT = 24  # of the small UNet
SEEN = 16  # stands for the 768 of the image encoder's vector


def checkpoint() -> dict[str, torch.Tensor]:
    sd = {**Golden("unet_sd1_ip2p8").weights, **Golden("vae_kl4").weights}
    sd["cc_projection.weight"] = random("projection", CONTEXT, SEEN + 4) * 0.3
    sd["cc_projection.bias"] = random("bias", CONTEXT) * 0.1
    sd |= {f"cond_stage_model.model.{k}": v for k, v in to_open_clip(weights(VISION)).items()}
    return {k: v.contiguous() for k, v in sd.items()}


@pytest.fixture
def folders(tmp_path, monkeypatch):
    _, extensions = folder_paths.folder_names_and_paths["checkpoints"]
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "checkpoints", ([str(tmp_path)], extensions))
    monkeypatch.setattr(folder_paths, "output_directory", str(tmp_path / "out"))
    save_file(checkpoint(), tmp_path / "zero.safetensors")
    return tmp_path


class Eyes:
    def encode_image(self, image):
        class Seen:
            image_embeds = random("seen", 1, SEEN).expand(image.shape[0], -1)

        return Seen()


def test_checkpoint(folders):
    model, vision, vae = NODES["ImageOnlyCheckpointLoader"]().load_checkpoint("zero.safetensors")
    assert type(model.model).__name__ == "Stable_Zero123" and model.model.concat_keys == ()
    assert type(vision).__name__ == "ClipVisionModel"
    vae.throw_exception_if_invalid()
    context = random("context", 1, 1, SEEN + 4)
    made = model.model.extra_conds(
        noise=torch.zeros(1, 4, 8, 8), device=torch.device("cpu"), cross_attn=context, concat_latent_image=None
    )
    sd = checkpoint()
    expected = context @ sd["cc_projection.weight"].T + sd["cc_projection.bias"]
    assert torch.allclose(made["c_crossattn"].cond, expected, atol=1e-5)
    assert not made["c_concat"].cond.any()


def test_cameras_place():
    higher, sine, cosine, start = camera_place(30.0, 90.0).flatten().tolist()
    assert higher == pytest.approx(-math.pi / 6) and start == pytest.approx(math.pi / 2)
    assert sine == pytest.approx(1) and cosine == pytest.approx(0, abs=1e-6)


def test_views(folders):
    model, _, vae = NODES["ImageOnlyCheckpointLoader"]().load_checkpoint("zero.safetensors")
    image = torch.rand(1, 40, 40, 3)
    size = {"width": 64, "height": 64, "batch_size": 3, "elevation": 10.0, "azimuth": 20.0}
    one = NODES["StableZero123_Conditioning"].execute(Eyes(), image, vae, **size).result
    positive, negative, latent = one
    assert positive[0][0].shape == (1, 1, SEEN + 4) and latent["samples"].shape == (3, 4, 8, 8)
    assert positive[0][1]["concat_latent_image"].any() and not negative[0][1]["concat_latent_image"].any()
    assert negative[0][0].shape == (1, 1, SEEN) and not negative[0][0].any()
    node = NODES["StableZero123_Conditioning_Batched"]
    more = {"elevation_batch_increment": 5.0, "azimuth_batch_increment": -10.0}
    positive, negative, latent = node.execute(Eyes(), image, vae, **size, **more).result
    assert positive[0][0].shape == (3, 1, SEEN + 4) and latent["batch_index"] == [0, 0, 0]
    assert torch.equal(positive[0][0][2, 0, SEEN:], camera_place(20.0, 0.0)[0, 0])
    # The negative's vector is as wide as a text: as in the published model, 768 without the camera's four.
    negative[0][0] = torch.zeros(3, 1, CONTEXT)
    (out,) = nodes.common_ksampler(model, 1, 2, 3.0, "euler", "normal", positive, negative, latent)
    assert out["samples"].shape == (3, 4, 8, 8) and out["samples"].isfinite().all()


def test_written_and_read_again(folders):
    model, vision, vae = NODES["ImageOnlyCheckpointLoader"]().load_checkpoint("zero.safetensors")
    saver = NODES["ImageOnlyCheckpointSave"]()
    saver.save(model, vision, vae, "checkpoints/again")
    (path,) = (folders / "out").rglob("*.safetensors")
    written = load_file(path)
    original = checkpoint()
    for key in ("model.diffusion_model.out.2.weight", "first_stage_model.decoder.conv_in.weight"):
        assert torch.equal(written[key].float(), original[key])
    (folders / "again.safetensors").write_bytes(path.read_bytes())
    again, seen, _ = NODES["ImageOnlyCheckpointLoader"]().load_checkpoint("again.safetensors")
    assert torch.equal(again.model.cc_projection.weight, model.model.cc_projection.weight)
    pictures = torch.rand(1, 16, 16, 3)
    ours, before = seen.encode_image(pictures).image_embeds, vision.encode_image(pictures).image_embeds
    assert torch.allclose(ours, before, atol=1e-5)
