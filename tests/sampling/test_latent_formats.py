"""Latent formats, previews, masks and empty latents against latent_formats.* (goldens, section 7)."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import toy

import comfy.latent_formats
import comfy.sample
import comfy.sampler_helpers
import latent_preview

FORMATS = toy.meta("latent_formats")["formats"]
FIGURES = (
    "latent_channels",
    "latent_dimensions",
    "spacial_downscale_ratio",
    "temporal_downscale_ratio",
    "scale_factor",
    "taesd_decoder_name",
    "latent_rgb_factors",
    "latent_rgb_factors_bias",
)


@pytest.mark.parametrize("name", FORMATS)
def test_figures(name):
    latent_format, recorded = getattr(comfy.latent_formats, name)(), FORMATS[name]
    assert {f: getattr(latent_format, f) for f in FIGURES} == {f: recorded[f] for f in FIGURES}
    assert getattr(latent_format, "shift_factor", None) == recorded["shift_factor"]
    assert (latent_format.latent_rgb_factors_reshape is not None) == recorded["has_rgb_reshape"]
    for statistic in ("latents_mean", "latents_std"):
        if recorded[statistic] is not None:
            assert torch.allclose(
                getattr(latent_format, statistic).flatten(), torch.tensor(recorded[statistic]), rtol=1e-6, atol=0
            )


@pytest.mark.parametrize("name", [n for n in FORMATS if f"{n}/process_in" in toy.tensors("latent_formats")])
def test_process(name):
    tensors = toy.tensors("latent_formats")
    latent_format = getattr(comfy.latent_formats, name)()
    latent = tensors[f"{name}/in"]
    before = latent.clone()
    scaled = latent_format.process_in(latent)
    assert toy.difference(scaled, tensors[f"{name}/process_in"]) <= 1e-6
    values = np.random.RandomState(51).standard_normal(scaled.shape).astype(np.float32)
    assert toy.difference(latent_format.process_out(torch.from_numpy(values)), tensors[f"{name}/process_out"]) <= 1e-6
    assert torch.equal(latent, before)


def test_sparse_latents_are_normalised_along_their_last_axis():
    latent_format = comfy.latent_formats.Trellis2TexSLAT()
    latent = torch.randn(5, 32)
    scaled = latent_format.process_in(latent)
    mean, std = (torch.tensor(FORMATS["Trellis2TexSLAT"][n]) for n in ("latents_mean", "latents_std"))
    assert torch.allclose(scaled, (latent - mean) / std, atol=1e-5)
    assert torch.allclose(latent_format.process_out(scaled), latent, atol=1e-5)


@pytest.mark.parametrize("name", [n for n in FORMATS if f"{n}/preview_in" in toy.tensors("latent_formats")])
def test_preview(name, monkeypatch):
    tensors = toy.tensors("latent_formats")
    monkeypatch.setattr(latent_preview.args, "preview_method", latent_preview.LatentPreviewMethod.Latent2RGB)
    previewer = latent_preview.get_previewer(torch.device("cpu"), getattr(comfy.latent_formats, name)())
    image = previewer.decode_latent_to_preview(tensors[f"{name}/preview_in"])
    want = tensors[f"{name}/preview_rgb_u8"].short()
    got = torch.from_numpy(np.asarray(image).astype(np.int16))
    assert got.shape == want.shape
    assert int((got - want).abs().max()) <= 1


def test_masks_take_the_shape_of_the_latent():
    tensors = toy.tensors("latent_formats")
    one, two = tensors["reshape_mask/in_hw"], tensors["reshape_mask/in_b2"]
    cases = {
        "b1c4_8x8": (one, (1, 4, 8, 8)),
        "b3c4_8x8": (one, (3, 4, 8, 8)),
        "b2_to_b1c4_8x8": (two, (1, 4, 8, 8)),
        "b2_to_b3c4_8x8": (two, (3, 4, 8, 8)),
        "up_b1c4_20x20": (one, (1, 4, 20, 20)),
        "video_b1c16_t3_6x5": (one, (1, 16, 3, 6, 5)),
        "b2_as_video_t3": (two, (1, 16, 3, 6, 5)),
    }
    for name, (mask, shape) in cases.items():
        got = comfy.sampler_helpers.prepare_mask(mask, shape, "cpu")
        assert got.shape == shape, name
        assert toy.difference(got[:, :1], tensors[f"reshape_mask/{name}"]) <= 1e-6, name
        assert (got == got[:, :1]).all(), name


@pytest.mark.parametrize("name", toy.meta("latent_formats")["empty_latent_fix"])
def test_empty_latents_are_adapted(name):
    case = toy.meta("latent_formats")["empty_latent_fix"][name]
    latent_format = getattr(comfy.latent_formats, case["format"])()
    model = SimpleNamespace(get_model_object=lambda wanted: {"latent_format": latent_format}[wanted])
    latent = torch.zeros(case["in"]) if "downscale_ratio_spacial" in case else torch.ones(case["in"])
    got = comfy.sample.fix_empty_latent_channels(
        model, latent, case.get("downscale_ratio_spacial"), case.get("downscale_ratio_temporal")
    )
    assert list(got.shape) == case["out"]


class TestPreviewCallback:
    """Previews as often as a person sees them, and always the last."""

    @pytest.fixture
    def updates(self, monkeypatch):
        sent = []

        class Bar:
            def __init__(self, total, node_id=None):
                self.total = total

            def update_absolute(self, value, total=None, preview=None):
                sent.append((value, total, preview))

        monkeypatch.setattr(latent_preview.comfy.utils, "ProgressBar", Bar)
        return sent

    @pytest.fixture
    def clock(self, monkeypatch):
        now = [100.0]
        monkeypatch.setattr(latent_preview.time, "monotonic", lambda: now[0])
        return now

    def model(self):
        return SimpleNamespace(
            load_device=torch.device("cpu"), model=SimpleNamespace(latent_format=comfy.latent_formats.SD15())
        )

    def test_rate_limit(self, updates, clock, monkeypatch):
        monkeypatch.setattr(latent_preview.args, "preview_method", latent_preview.LatentPreviewMethod.Auto)
        latents: dict = {}
        callback = latent_preview.prepare_callback(self.model(), 6, latents)
        x0 = torch.randn(1, 4, 8, 8)
        for step in range(6):
            callback(step, x0, x0, 6)
            clock[0] += 0.04
        assert [value for value, _, _ in updates] == [1, 2, 3, 4, 5, 6]
        assert [preview is not None for _, _, preview in updates] == [True, False, False, True, False, True]
        kind, image, limit = updates[0][2]
        assert (kind, image.size, limit) == ("JPEG", (8, 8), latent_preview.MAX_PREVIEW_RESOLUTION)
        assert latents["x0"] is x0

    def test_no_previews(self, updates, monkeypatch):
        monkeypatch.setattr(latent_preview.args, "preview_method", latent_preview.LatentPreviewMethod.NoPreviews)
        callback = latent_preview.prepare_callback(self.model(), 1)
        callback(0, torch.zeros(1, 4, 8, 8), torch.zeros(1, 4, 8, 8), 1)
        assert updates == [(1, 1, None)]

    def test_taesd_without_a_file_falls_back(self, monkeypatch):
        monkeypatch.setattr(latent_preview.args, "preview_method", latent_preview.LatentPreviewMethod.TAESD)
        previewer = latent_preview.get_previewer(torch.device("cpu"), comfy.latent_formats.SD15())
        assert isinstance(previewer, latent_preview.Latent2RGBPreviewer)

    def test_method_of_a_run(self, monkeypatch):
        monkeypatch.setattr(latent_preview.args, "preview_method", latent_preview.LatentPreviewMethod.NoPreviews)
        latent_preview.set_preview_method("latent2rgb")
        assert latent_preview.args.preview_method == latent_preview.LatentPreviewMethod.Latent2RGB
        latent_preview.set_preview_method("default")
        assert latent_preview.args.preview_method == latent_preview.default_preview_method
