"""Core nodes that sample, and the function behind them that packs call too."""

from __future__ import annotations

from typing import Any

import comfy.sample
import comfy.samplers
import comfy.utils
import latent_preview
from comfy.sampling.noise import no_noise

from .constants import MAX_SEED


def common_ksampler(
    model: Any,
    seed: int,
    steps: int,
    cfg: float,
    sampler_name: str,
    scheduler: str,
    positive: list,
    negative: list,
    latent: dict,
    denoise: float = 1.0,
    disable_noise: bool = False,
    start_step: int | None = None,
    last_step: int | None = None,
    force_full_denoise: bool = False,
) -> tuple[dict]:
    """Sample a LATENT and return it with new `samples`.

    denoise: part of the schedule to run; 1 starts from pure noise.
    start_step, last_step: part of the schedule by step numbers.
    force_full_denoise: end at sigma 0 even if last_step stops earlier.
    """
    samples = comfy.sample.fix_empty_latent_channels(
        model,
        latent["samples"],
        latent.get("downscale_ratio_spacial"),
        latent.get("downscale_ratio_temporal"),
    )
    if disable_noise:
        noise = no_noise(samples)
    else:
        noise = comfy.sample.prepare_noise(samples, seed, latent.get("batch_index"))
    samples = comfy.sample.sample(
        model,
        noise,
        steps,
        cfg,
        sampler_name,
        scheduler,
        positive,
        negative,
        samples,
        denoise=denoise,
        disable_noise=disable_noise,
        start_step=start_step,
        last_step=last_step,
        force_full_denoise=force_full_denoise,
        noise_mask=latent.get("noise_mask"),
        callback=latent_preview.prepare_callback(model, steps, nested_like=samples),
        disable_pbar=not comfy.utils.PROGRESS_BAR_ENABLED,
        seed=seed,
    )
    result = {key: value for key, value in latent.items() if not key.startswith("downscale_ratio_")}
    result["samples"] = samples
    return (result,)


class KSampler:
    DESCRIPTION = "Turns noise, step by step, into latents that fit the conditioning."
    DISPLAY_NAME = "KSampler"
    CATEGORY = "model/sampling"
    RETURN_TYPES = ("LATENT",)
    FUNCTION = "sample"
    SEARCH_ALIASES = ["sampler", "denoise", "generate"]
    OUTPUT_TOOLTIPS = ("The finished latents.",)

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "model": ("MODEL", {"tooltip": "Model that predicts the picture."}),
                "seed": (
                    "INT",
                    {
                        "default": 0,
                        "min": 0,
                        "max": MAX_SEED,
                        "control_after_generate": True,
                        "tooltip": "Seed of the noise; the same seed gives the same picture.",
                    },
                ),
                "steps": ("INT", {"default": 20, "min": 1, "max": 10000, "tooltip": "Number of steps."}),
                "cfg": (
                    "FLOAT",
                    {
                        "default": 8.0,
                        "min": 0.0,
                        "max": 100.0,
                        "step": 0.1,
                        "round": 0.01,
                        "tooltip": "How strongly the positive conditioning is preferred to the negative one.",
                    },
                ),
                "sampler_name": (comfy.samplers.KSampler.SAMPLERS, {"tooltip": "Method that takes the steps."}),
                "scheduler": (
                    comfy.samplers.KSampler.SCHEDULERS,
                    {"tooltip": "How the noise levels of the steps are spaced."},
                ),
                "positive": ("CONDITIONING", {"tooltip": "Conditioning to follow."}),
                "negative": ("CONDITIONING", {"tooltip": "Conditioning to avoid."}),
                "latent_image": ("LATENT", {"tooltip": "Latents to start from."}),
                "denoise": (
                    "FLOAT",
                    {
                        "default": 1.0,
                        "min": 0.0,
                        "max": 1.0,
                        "step": 0.01,
                        "tooltip": "How much may change: 1 everything, lower values keep more of the latents.",
                    },
                ),
            }
        }

    def sample(
        self,
        model: Any,
        seed: int,
        steps: int,
        cfg: float,
        sampler_name: str,
        scheduler: str,
        positive: list,
        negative: list,
        latent_image: dict,
        denoise: float = 1.0,
    ) -> tuple[dict]:
        return common_ksampler(
            model, seed, steps, cfg, sampler_name, scheduler, positive, negative, latent_image, denoise=denoise
        )


class KSamplerAdvanced:
    DESCRIPTION = "Like KSampler, with control over the noise and over which steps to run."
    DISPLAY_NAME = "KSampler (Advanced)"
    CATEGORY = "model/sampling"
    RETURN_TYPES = ("LATENT",)
    FUNCTION = "sample"
    SEARCH_ALIASES = ["sampler", "denoise", "steps"]

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "model": ("MODEL", {"tooltip": "Model that predicts the picture."}),
                "add_noise": (
                    ["enable", "disable"],
                    {"advanced": True, "tooltip": "Whether to add noise first; not for latents that still hold noise."},
                ),
                "noise_seed": (
                    "INT",
                    {
                        "default": 0,
                        "min": 0,
                        "max": MAX_SEED,
                        "control_after_generate": True,
                        "tooltip": "Seed of the noise; the same seed gives the same picture.",
                    },
                ),
                "steps": (
                    "INT",
                    {"default": 20, "min": 1, "max": 10000, "tooltip": "Number of steps of the whole schedule."},
                ),
                "cfg": (
                    "FLOAT",
                    {
                        "default": 8.0,
                        "min": 0.0,
                        "max": 100.0,
                        "step": 0.1,
                        "round": 0.01,
                        "tooltip": "How strongly the positive conditioning is preferred to the negative one.",
                    },
                ),
                "sampler_name": (comfy.samplers.KSampler.SAMPLERS, {"tooltip": "Method that takes the steps."}),
                "scheduler": (
                    comfy.samplers.KSampler.SCHEDULERS,
                    {"tooltip": "How the noise levels of the steps are spaced."},
                ),
                "positive": ("CONDITIONING", {"tooltip": "Conditioning to follow."}),
                "negative": ("CONDITIONING", {"tooltip": "Conditioning to avoid."}),
                "latent_image": ("LATENT", {"tooltip": "Latents to start from."}),
                "start_at_step": (
                    "INT",
                    {"default": 0, "min": 0, "max": 10000, "advanced": True, "tooltip": "First step to run."},
                ),
                "end_at_step": (
                    "INT",
                    {"default": 10000, "min": 0, "max": 10000, "advanced": True, "tooltip": "Step to stop before."},
                ),
                "return_with_leftover_noise": (
                    ["disable", "enable"],
                    {
                        "advanced": True,
                        "tooltip": "Whether to keep the noise that is left, for another sampler to go on with.",
                    },
                ),
            }
        }

    def sample(
        self,
        model: Any,
        add_noise: str,
        noise_seed: int,
        steps: int,
        cfg: float,
        sampler_name: str,
        scheduler: str,
        positive: list,
        negative: list,
        latent_image: dict,
        start_at_step: int,
        end_at_step: int,
        return_with_leftover_noise: str,
        denoise: float = 1.0,
    ) -> tuple[dict]:
        return common_ksampler(
            model,
            noise_seed,
            steps,
            cfg,
            sampler_name,
            scheduler,
            positive,
            negative,
            latent_image,
            denoise=denoise,
            disable_noise=add_noise == "disable",
            start_step=start_at_step,
            last_step=end_at_step,
            force_full_denoise=return_with_leftover_noise != "enable",
        )


NODES = {
    "nodes": [KSampler, KSamplerAdvanced],
}
