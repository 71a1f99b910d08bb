"""Sampling nodes on latents of every kind: pictures, sound [batch, channels, length], video [..., frames, h, w] and
both together (nested)."""

from __future__ import annotations

import pytest
import torch

import comfy.latent_formats
import comfy.model_patcher
import comfy.sample
import latent_preview
import nodes
from comfy.nested_tensor import NestedTensor, parts_of
from nodes.latent_math import SharpenError
from tests.sampling import toy

CPU = torch.device("cpu")
R = toy.tensors("conditioning")
POSITIVE, NEGATIVE = ([[R[f"cond/{name}"], {}]] for name in ("A", "NEG"))
SIGMAS = torch.tensor([5.0, 2.0, 0.5, 0.0])
SHAPES = {"picture": [(1, 4, 6, 8)], "sound": [(1, 8, 30)], "video": [(1, 4, 3, 6, 8)]}
SHAPES["both"] = [*SHAPES["video"], (1, 8, 5, 4)]


class Elementwise(toy.ToyModel):
    """Predicts each value by itself, so that a packed latent gives what its parts give."""

    def apply_model(self, x, t, c_crossattn, transformer_options, **kwargs):
        sigma = toy.per_item(t, x)
        return x / (1 + sigma**2) + 0.1 * toy.per_item(c_crossattn.mean((1, 2)), x)


@pytest.fixture(scope="module")
def model():
    return comfy.model_patcher.ModelPatcher(Elementwise("eps"), CPU, CPU)


def latent(kind: str, seed: int = 4, batch: int = 1):
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(batch, *shape[1:], generator=generator) for shape in SHAPES[kind]]
    return NestedTensor(parts) if len(parts) > 1 else parts[0]


def run(name: str, **inputs):
    return nodes.NODE_CLASS_MAPPINGS[name].execute(**inputs).args


def custom(model, start: dict, noise=None, sampler: str = "euler") -> tuple[dict, dict]:
    with torch.inference_mode():
        return run(
            "SamplerCustomAdvanced",
            noise=run("RandomNoise", noise_seed=3)[0] if noise is None else noise,
            guider=run("CFGGuider", model=model, positive=POSITIVE, negative=NEGATIVE, cfg=2.0)[0],
            sampler=run("KSamplerSelect", sampler_name=sampler)[0],
            sigmas=SIGMAS,
            latent_image=start,
        )


def ksampler(model, start: dict, **changes) -> dict:
    with torch.inference_mode():
        return nodes.KSampler().sample(model, 3, 4, 2.0, "euler", "normal", POSITIVE, NEGATIVE, start, **changes)[0]


def close(one, other, tolerance: float = 1e-5) -> bool:
    pairs = list(zip(parts_of(one), parts_of(other)))
    return len(parts_of(one)) == len(parts_of(other)) and all(
        a.shape == b.shape and toy.difference(a, b) <= tolerance for a, b in pairs
    )


class Given:
    """NOISE that was drawn before."""

    seed = 3

    def __init__(self, noise) -> None:
        self.noise = noise

    def generate_noise(self, input_latent: dict):
        return self.noise


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("sampler", ["euler", "dpmpp_2m", "heun", "uni_pc", "res_multistep"])
def test_parts_are_sampled_as_they_are_alone(model, kind, sampler):
    start = latent(kind)
    result, guess = custom(model, {"samples": start}, sampler=sampler)
    noise = comfy.sample.prepare_noise(start, 3)
    for part, noise_of_part, got, clean in zip(*map(parts_of, (start, noise, result["samples"], guess["samples"]))):
        alone, alone_clean = custom(model, {"samples": part}, Given(noise_of_part), sampler)
        assert close(got, alone["samples"]) and close(clean, alone_clean["samples"])


@pytest.mark.parametrize("kind", SHAPES)
def test_all_ways_to_sample_take_them(model, kind):
    start = {"samples": latent(kind)}
    whole = ksampler(model, start)["samples"]
    assert [part.shape for part in parts_of(whole)] == [torch.Size(shape) for shape in SHAPES[kind]]
    with torch.inference_mode():
        advanced = nodes.KSamplerAdvanced().sample(
            model, "enable", 3, 4, 2.0, "euler", "normal", POSITIVE, NEGATIVE, start, 0, 100, "disable"
        )[0]
    assert close(advanced["samples"], whole)


@pytest.mark.parametrize("kind", SHAPES)
def test_two_runs_with_leftover_noise_are_one(model, kind):
    start = {"samples": latent(kind)}

    def part(latent_image, noise, first, last, leftover):
        with torch.inference_mode():
            return nodes.KSamplerAdvanced().sample(
                model, noise, 3, 4, 2.0, "euler", "normal", POSITIVE, NEGATIVE, latent_image, first, last, leftover
            )[0]

    half = part(start, "enable", 0, 2, "enable")
    assert close(part(half, "disable", 2, 100, "disable")["samples"], ksampler(model, start)["samples"])


@pytest.mark.parametrize("kind", SHAPES)
def test_no_noise(model, kind):
    start = {"samples": latent(kind)}
    (noise,) = run("DisableNoise")
    zeros = noise.generate_noise(start)
    assert close(zeros, NestedTensor([torch.zeros(s) for s in SHAPES[kind]]) if kind == "both" else zeros * 0)
    result, _ = custom(model, start, noise)
    assert all(torch.isfinite(part).all() for part in parts_of(result["samples"]))


@pytest.mark.parametrize("kind", SHAPES)
def test_a_mask_protects(model, kind):
    start = latent(kind)
    masks = [torch.zeros(1, 1, *part.shape[2:]) for part in parts_of(start)]
    for mask in masks:
        mask[..., : mask.shape[-1] // 2] = 1
    mask = NestedTensor(masks) if kind == "both" else masks[0]
    result = ksampler(model, {"samples": start, "noise_mask": mask})["samples"]
    for got, before in zip(parts_of(result), parts_of(start)):
        half = got.shape[-1] // 2
        assert toy.difference(got[..., half:], before[..., half:]) <= 1e-5
        assert toy.difference(got[..., :half], before[..., :half]) > 0.1


def test_a_mask_of_the_picture_leaves_the_sound_free(model):
    start = latent("both")
    result = ksampler(model, {"samples": start, "noise_mask": torch.zeros(1, 1, 6, 8)})["samples"].unbind()
    assert toy.difference(result[0], start.unbind()[0]) <= 1e-5
    assert toy.difference(result[1], start.unbind()[1]) > 0.1


@pytest.mark.parametrize("kind", SHAPES)
def test_members_of_a_batch_get_the_noise_of_their_numbers(model, kind):
    """Members 2 and 0 of a batch of three, alone."""
    three = latent(kind, batch=3)
    whole = ksampler(model, {"samples": three, "batch_index": [0, 1, 2]})["samples"]
    chosen = [part[[2, 0]] for part in parts_of(three)]
    chosen = NestedTensor(chosen) if kind == "both" else chosen[0]
    got = ksampler(model, {"samples": chosen, "batch_index": [2, 0]})["samples"]
    assert all(close(a, b[[2, 0]]) for a, b in zip(parts_of(got), parts_of(whole)))


@pytest.mark.parametrize("kind", SHAPES)
def test_adding_noise(model, kind):
    start = {"samples": latent(kind)}
    noise = run("RandomNoise", noise_seed=3)[0]
    (result,) = run("AddNoise", model=model, noise=noise, sigmas=torch.tensor([4.0, 1.0]), latent_image=start)
    drawn = noise.generate_noise(start)
    for got, clean, added in zip(*map(parts_of, (result["samples"], start["samples"], drawn))):
        assert toy.difference(got, clean + 3.0 * added) <= 1e-5


def test_previews_show_the_picture_of_both(model, monkeypatch):
    shown = []

    class Previewer(latent_preview.LatentPreviewer):
        def decode_latent_to_preview_image(self, preview_format, x0):
            shown.append(tuple(x0.shape))

    monkeypatch.setattr(latent_preview, "get_previewer", lambda *args: Previewer())
    monkeypatch.setattr(latent_preview, "PREVIEW_INTERVAL_S", 0.0)
    custom(model, {"samples": latent("both")})
    ksampler(model, {"samples": latent("both")})
    assert shown == [SHAPES["both"][0]] * (len(SIGMAS) - 1 + 4)
    ksampler(model, {"samples": latent("sound")})
    assert shown[-1] == SHAPES["sound"][0]


def test_an_empty_picture_becomes_what_the_model_works_on():
    """A picture's empty latent for a video model: another number of channels, another ratio, an axis for time."""
    video = comfy.model_patcher.ModelPatcher(Elementwise("eps"), CPU, CPU)
    video.model.latent_format = comfy.latent_formats.HunyuanVideo()
    start = nodes.EmptyLatentImage().generate(64, 48, 1)[0]
    result = ksampler(video, start)
    assert result["samples"].shape == (1, 16, 1, 6, 8)
    assert set(result) == {"samples"}


def operation(name: str, **inputs):
    return run(name, **inputs)[0]


def test_operations_treat_each_frame_as_a_picture():
    video = torch.randn(2, 4, 3, 12, 10, generator=torch.Generator().manual_seed(0))
    sharpen = operation("LatentOperationSharpen", sharpen_radius=2, sigma=1.0, alpha=0.2)
    got = sharpen(latent=video)
    for frame in range(3):
        assert toy.difference(got[:, :, frame], sharpen(latent=video[:, :, frame])) <= 1e-6
    # Of one frame, as of the picture; several share their white.
    tonemap = operation("LatentOperationTonemapReinhard", multiplier=1.0)
    assert toy.difference(tonemap(latent=video[:, :, :1])[:, :, 0], tonemap(latent=video[:, :, 0])) <= 1e-6
    sound = torch.randn(2, 8, 30, generator=torch.Generator().manual_seed(0))
    assert tonemap(latent=sound).shape == sound.shape
    (result,) = run("LatentApplyOperation", samples={"samples": video, "batch_index": [1, 2]}, operation=sharpen)
    assert torch.equal(result["samples"], got) and result["batch_index"] == [1, 2]


@pytest.mark.parametrize("shape", [(1, 4, 8, 8), (1, 8, 30)])
def test_sharpening_says_what_it_needs(shape):
    with pytest.raises(SharpenError, match=r"radius 9 .* shape \("):
        operation("LatentOperationSharpen", sharpen_radius=9, sigma=1.0, alpha=0.1)(latent=torch.zeros(shape))
