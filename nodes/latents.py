"""Core nodes that make and change latents.

LATENT: dict with `samples` [B,C,H,W] (or [B,C,T,H,W]), perhaps `noise_mask`, `batch_index`, `type`. Pixel
measures are divided by 8, whatever the model's real ratio is, because that is what the interface has always meant.
"""

from __future__ import annotations

import torch

import comfy.model_management
import comfy.utils

from .constants import CROP_MODES, LATENT_SCALE_METHODS, MAX_RESOLUTION

PIXELS_PER_CELL = 8
_MIN_UPSCALE_PIXELS = 64


def with_samples(latent: dict, samples: torch.Tensor) -> dict:
    """A copy of the latent with other samples; the other keys stay."""
    return {**latent, "samples": samples}


class EmptyLatentImage:
    DESCRIPTION = "Empty latents to start a picture from nothing."
    DISPLAY_NAME = "Empty Latent Image"
    CATEGORY = "model/latent"
    RETURN_TYPES = ("LATENT",)
    FUNCTION = "generate"
    SEARCH_ALIASES = ["blank", "new image", "size"]
    OUTPUT_TOOLTIPS = ("Zeros, to be filled by a sampler.",)

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "width": (
                    "INT",
                    {
                        "default": 512,
                        "min": 16,
                        "max": MAX_RESOLUTION,
                        "step": 8,
                        "tooltip": "Width of the picture in pixels.",
                    },
                ),
                "height": (
                    "INT",
                    {
                        "default": 512,
                        "min": 16,
                        "max": MAX_RESOLUTION,
                        "step": 8,
                        "tooltip": "Height of the picture in pixels.",
                    },
                ),
                "batch_size": (
                    "INT",
                    {"default": 1, "min": 1, "max": 4096, "tooltip": "How many pictures to make at once."},
                ),
            }
        }

    def generate(self, width: int, height: int, batch_size: int = 1) -> tuple[dict]:
        samples = torch.zeros(
            (batch_size, 4, height // PIXELS_PER_CELL, width // PIXELS_PER_CELL),
            device=comfy.model_management.intermediate_device(),
        )
        # Lets samplers adapt the still empty latent to models with another compression.
        return ({"samples": samples, "downscale_ratio_spacial": PIXELS_PER_CELL},)


class LatentUpscale:
    upscale_methods = LATENT_SCALE_METHODS
    crop_methods = CROP_MODES
    DESCRIPTION = "Resizes latents to a given size."
    DISPLAY_NAME = "Upscale Latent"
    CATEGORY = "model/latent"
    RETURN_TYPES = ("LATENT",)
    FUNCTION = "upscale"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "samples": ("LATENT", {"tooltip": "Latents to resize."}),
                "upscale_method": (LATENT_SCALE_METHODS, {"tooltip": "How new values are computed."}),
                "width": (
                    "INT",
                    {
                        "default": 512,
                        "min": 0,
                        "max": MAX_RESOLUTION,
                        "step": 8,
                        "tooltip": "New width in pixels; 0 follows from the height.",
                    },
                ),
                "height": (
                    "INT",
                    {
                        "default": 512,
                        "min": 0,
                        "max": MAX_RESOLUTION,
                        "step": 8,
                        "tooltip": "New height in pixels; 0 follows from the width.",
                    },
                ),
                "crop": (CROP_MODES, {"tooltip": "Whether to cut to the new aspect ratio first."}),
            }
        }

    def upscale(self, samples: dict, upscale_method: str, width: int, height: int, crop: str) -> tuple[dict]:
        if width == 0 and height == 0:
            return (samples,)
        old = samples["samples"]
        rows, columns = old.shape[-2:]
        if width == 0:
            width = round(columns * height / rows)
        elif height == 0:
            height = round(rows * width / columns)
        width, height = (max(_MIN_UPSCALE_PIXELS, side) // PIXELS_PER_CELL for side in (width, height))
        return (with_samples(samples, comfy.utils.common_upscale(old, width, height, upscale_method, crop)),)


class LatentUpscaleBy:
    upscale_methods = LATENT_SCALE_METHODS
    DESCRIPTION = "Resizes latents by a factor."
    DISPLAY_NAME = "Upscale Latent By"
    CATEGORY = "model/latent"
    RETURN_TYPES = ("LATENT",)
    FUNCTION = "upscale"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "samples": ("LATENT", {"tooltip": "Latents to resize."}),
                "upscale_method": (LATENT_SCALE_METHODS, {"tooltip": "How new values are computed."}),
                "scale_by": (
                    "FLOAT",
                    {"default": 1.5, "min": 0.01, "max": 8.0, "step": 0.01, "tooltip": "Factor for both sides."},
                ),
            }
        }

    def upscale(self, samples: dict, upscale_method: str, scale_by: float) -> tuple[dict]:
        old = samples["samples"]
        width, height = round(old.shape[-1] * scale_by), round(old.shape[-2] * scale_by)
        return (with_samples(samples, comfy.utils.common_upscale(old, width, height, upscale_method, "disabled")),)


class LatentFromBatch:
    DESCRIPTION = "Takes some latents out of a batch."
    DISPLAY_NAME = "Get Latent From Batch"
    CATEGORY = "model/latent/batch"
    RETURN_TYPES = ("LATENT",)
    FUNCTION = "frombatch"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "samples": ("LATENT", {"tooltip": "The batch."}),
                "batch_index": (
                    "INT",
                    {
                        "default": 0,
                        "min": -MAX_RESOLUTION,
                        "max": MAX_RESOLUTION,
                        "tooltip": "First one to take; negative counts from the end.",
                    },
                ),
                "length": ("INT", {"default": 1, "min": 1, "max": 64, "tooltip": "How many to take."}),
            }
        }

    def frombatch(self, samples: dict, batch_index: int, length: int) -> tuple[dict]:
        total = samples["samples"].shape[0]
        first = batch_index + total if batch_index < 0 else batch_index
        first = min(max(first, 0), total - 1)
        last = min(first + length, total)
        result = with_samples(samples, samples["samples"][first:last].clone())
        mask = samples.get("noise_mask")
        if mask is not None:
            # A single mask holds for every latent of the batch.
            result["noise_mask"] = mask.clone() if mask.shape[0] == 1 else mask[first:last].clone()
        index = samples.get("batch_index")
        result["batch_index"] = list(range(first, last)) if index is None else index[first:last]
        return (result,)


class RepeatLatentBatch:
    DESCRIPTION = "Repeats a batch of latents several times."
    DISPLAY_NAME = "Repeat Latent Batch"
    CATEGORY = "model/latent/batch"
    RETURN_TYPES = ("LATENT",)
    FUNCTION = "repeat"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "samples": ("LATENT", {"tooltip": "The batch."}),
                "amount": (
                    "INT",
                    {"default": 1, "min": 1, "max": 64, "tooltip": "How often it shall occur in the result."},
                ),
            }
        }

    def repeat(self, samples: dict, amount: int) -> tuple[dict]:
        old = samples["samples"]
        result = with_samples(samples, old.repeat((amount,) + (1,) * (old.ndim - 1)))
        mask = samples.get("noise_mask")
        if mask is not None and mask.shape[0] > 1:
            if mask.shape[0] < old.shape[0]:
                mask = comfy.utils.repeat_to_batch_size(mask, old.shape[0])
            result["noise_mask"] = mask.repeat((amount,) + (1,) * (mask.ndim - 1))
        index = samples.get("batch_index")
        if index is not None:
            # Copies go on counting, so that each gets noise of its own.
            span = max(index) - min(index) + 1
            result["batch_index"] = [i + span * copy for copy in range(amount) for i in index]
        return (result,)


class SetLatentNoiseMask:
    DESCRIPTION = "Limits sampling to the masked part of the latents."
    DISPLAY_NAME = "Set Latent Noise Mask"
    CATEGORY = "model/latent"
    RETURN_TYPES = ("LATENT",)
    FUNCTION = "set_mask"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "samples": ("LATENT", {"tooltip": "Latents to work on."}),
                "mask": ("MASK", {"tooltip": "1 where the sampler may change something."}),
            }
        }

    def set_mask(self, samples: dict, mask: torch.Tensor) -> tuple[dict]:
        return ({**samples, "noise_mask": mask.reshape((-1, 1, *mask.shape[-2:]))},)


class LatentComposite:
    DESCRIPTION = "Pastes one latent onto another."
    DISPLAY_NAME = "Latent Composite"
    CATEGORY = "model/latent"
    RETURN_TYPES = ("LATENT",)
    FUNCTION = "composite"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "samples_to": ("LATENT", {"tooltip": "Latents to paste on."}),
                "samples_from": ("LATENT", {"tooltip": "Latents to paste."}),
                "x": (
                    "INT",
                    {"default": 0, "min": 0, "max": MAX_RESOLUTION, "step": 8, "tooltip": "Left edge in pixels."},
                ),
                "y": (
                    "INT",
                    {"default": 0, "min": 0, "max": MAX_RESOLUTION, "step": 8, "tooltip": "Top edge in pixels."},
                ),
                "feather": (
                    "INT",
                    {
                        "default": 0,
                        "min": 0,
                        "max": MAX_RESOLUTION,
                        "step": 8,
                        "tooltip": "Width of the blended edge in pixels.",
                    },
                ),
            }
        }

    def composite(
        self,
        samples_to: dict,
        samples_from: dict,
        x: int,
        y: int,
        composite_method: str = "normal",
        feather: int = 0,
    ) -> tuple[dict]:
        x, y, feather = x // PIXELS_PER_CELL, y // PIXELS_PER_CELL, feather // PIXELS_PER_CELL
        result = samples_to["samples"].clone()
        height, width = result.shape[-2:]
        piece = samples_from["samples"][..., : max(height - y, 0), : max(width - x, 0)]
        rows, columns = piece.shape[-2:]
        # A tail of `...` axes, so that video latents work too.
        region = (..., slice(y, y + rows), slice(x, x + columns))
        mask = _feather_mask(samples_from["samples"].shape[-2:], (x, y), (width, height), feather)
        mask = mask[:rows, :columns].to(result)
        result[region] = piece.to(result) * mask + result[region] * (1.0 - mask)
        return (with_samples(samples_to, result),)


def _feather_mask(
    size: tuple[int, int], position: tuple[int, int], canvas: tuple[int, int], feather: int
) -> torch.Tensor:
    """Weights [H,W] of a pasted piece: rising over `feather` cells from edges that lie inside the canvas.

    size: (rows, columns) of the piece; position: (x, y); canvas: (width, height).
    """
    rows, columns = size
    mask = torch.ones(rows, columns)
    x, y = position
    width, height = canvas
    for step in range(feather):
        weight = (step + 1) / feather
        if y != 0 and step < rows:
            mask[step, :] *= weight
        if y + rows < height and step < rows:
            mask[rows - 1 - step, :] *= weight
        if x != 0 and step < columns:
            mask[:, step] *= weight
        if x + columns < width and step < columns:
            mask[:, columns - 1 - step] *= weight
    return mask


class LatentBlend:
    DESCRIPTION = "Mixes two latents."
    DISPLAY_NAME = "Latent Blend"
    CATEGORY = "experimental"
    RETURN_TYPES = ("LATENT",)
    FUNCTION = "blend"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "samples1": ("LATENT", {"tooltip": "First latents; they set the size."}),
                "samples2": ("LATENT", {"tooltip": "Second latents, resized if need be."}),
                "blend_factor": (
                    "FLOAT",
                    {
                        "default": 0.5,
                        "min": 0,
                        "max": 1,
                        "step": 0.01,
                        "tooltip": "Share of the first: 1 keeps it, 0 gives the second.",
                    },
                ),
            }
        }

    def blend(self, samples1: dict, samples2: dict, blend_factor: float, blend_mode: str = "normal") -> tuple[dict]:
        first, second = samples1["samples"], samples2["samples"]
        if first.shape != second.shape:
            second = comfy.utils.common_upscale(second, first.shape[3], first.shape[2], "bicubic", crop="center")
        return (with_samples(samples1, first * blend_factor + second.to(first) * (1 - blend_factor)),)


class LatentRotate:
    DESCRIPTION = "Turns latents clockwise."
    DISPLAY_NAME = "Rotate Latent"
    CATEGORY = "model/latent/transform"
    RETURN_TYPES = ("LATENT",)
    FUNCTION = "rotate"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "samples": ("LATENT", {"tooltip": "Latents to turn."}),
                "rotation": (["none", "90 degrees", "180 degrees", "270 degrees"], {"tooltip": "Angle."}),
            }
        }

    def rotate(self, samples: dict, rotation: str) -> tuple[dict]:
        # torch turns anticlockwise for positive counts.
        turns = {"none": 0, "90 degrees": 1, "180 degrees": 2, "270 degrees": 3}[rotation]
        return (with_samples(samples, torch.rot90(samples["samples"], k=-turns, dims=(2, 3))),)


class LatentFlip:
    DESCRIPTION = "Mirrors latents."
    DISPLAY_NAME = "Flip Latent"
    CATEGORY = "model/latent/transform"
    RETURN_TYPES = ("LATENT",)
    FUNCTION = "flip"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "samples": ("LATENT", {"tooltip": "Latents to mirror."}),
                "flip_method": (["x-axis: vertically", "y-axis: horizontally"], {"tooltip": "Axis to mirror at."}),
            }
        }

    def flip(self, samples: dict, flip_method: str) -> tuple[dict]:
        axis = 2 if flip_method.startswith("x") else 3
        return (with_samples(samples, torch.flip(samples["samples"], dims=[axis])),)


class LatentCrop:
    DESCRIPTION = "Cuts a rectangle out of latents."
    DISPLAY_NAME = "Crop Latent"
    CATEGORY = "model/latent/transform"
    RETURN_TYPES = ("LATENT",)
    FUNCTION = "crop"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "samples": ("LATENT", {"tooltip": "Latents to cut."}),
                "width": (
                    "INT",
                    {"default": 512, "min": 64, "max": MAX_RESOLUTION, "step": 8, "tooltip": "Width in pixels."},
                ),
                "height": (
                    "INT",
                    {"default": 512, "min": 64, "max": MAX_RESOLUTION, "step": 8, "tooltip": "Height in pixels."},
                ),
                "x": (
                    "INT",
                    {"default": 0, "min": 0, "max": MAX_RESOLUTION, "step": 8, "tooltip": "Left edge in pixels."},
                ),
                "y": (
                    "INT",
                    {"default": 0, "min": 0, "max": MAX_RESOLUTION, "step": 8, "tooltip": "Top edge in pixels."},
                ),
            }
        }

    def crop(self, samples: dict, width: int, height: int, x: int, y: int) -> tuple[dict]:
        old = samples["samples"]
        # At least 8 cells stay, so that the rectangle never becomes empty.
        x = max(0, min(x // PIXELS_PER_CELL, old.shape[3] - 8))
        y = max(0, min(y // PIXELS_PER_CELL, old.shape[2] - 8))
        bottom, right = y + height // PIXELS_PER_CELL, x + width // PIXELS_PER_CELL
        return (with_samples(samples, old[:, :, y:bottom, x:right]),)


NODES = {
    "nodes": [
        EmptyLatentImage,
        LatentUpscale,
        LatentUpscaleBy,
        LatentFromBatch,
        RepeatLatentBatch,
        SetLatentNoiseMask,
        LatentComposite,
        LatentBlend,
        LatentRotate,
        LatentFlip,
        LatentCrop,
    ],
}
