"""Core nodes between pictures and latents."""

from __future__ import annotations

from typing import Any

import torch

from node_helpers import conditioning_set_values

_GREY = 0.5


class MissingVae(RuntimeError):
    """A VAE input is empty, most often because the checkpoint holds none."""

    def __init__(self) -> None:
        super().__init__("vae is empty: the checkpoint it comes from probably holds no VAE. Load one with VAELoader.")


def check_vae(vae: Any) -> None:
    """Raises MissingVae for None."""
    if vae is None:
        raise MissingVae()


def crop_to_blocks(pixels: torch.Tensor, block: int) -> tuple[torch.Tensor, tuple[slice, slice]]:
    """Cut [B,H,W,C] around the centre to multiples of `block`. Returns it with the (rows, columns) that were kept."""
    keep = []
    for size in pixels.shape[1:3]:
        kept = size // block * block
        begin = (size - kept) // 2
        keep.append(slice(begin, begin + kept))
    rows, columns = keep
    return pixels[:, rows, columns], (rows, columns)


def fit_mask(mask: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
    """A mask [B,H,W] (or [H,W]) resized to the pixels' height and width: [B,1,H,W]."""
    mask = mask.reshape((-1, 1, *mask.shape[-2:]))
    return torch.nn.functional.interpolate(mask, size=tuple(pixels.shape[1:3]), mode="bilinear")


def grey_out(pixels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Pixels [B,H,W,C] with the masked part (mask [B,1,H,W], rounded) set to middle grey in the first 3 channels."""
    keep = (1.0 - mask.to(pixels.device).round()).squeeze(1)[..., None]
    pixels = pixels.clone()
    pixels[..., :3] = (pixels[..., :3] - _GREY) * keep + _GREY
    return pixels


class VAEDecode:
    DESCRIPTION = "Turns latents into pictures."
    DISPLAY_NAME = "VAE Decode"
    CATEGORY = "model/latent"
    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "decode"
    SEARCH_ALIASES = ["latent to image", "render"]
    OUTPUT_TOOLTIPS = ("The pictures.",)

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "samples": ("LATENT", {"tooltip": "Latents to decode."}),
                "vae": ("VAE", {"tooltip": "VAE of the model that made them."}),
            }
        }

    def decode(self, vae: Any, samples: dict) -> tuple[torch.Tensor]:
        check_vae(vae)
        return (_as_batch(vae.decode(samples["samples"])),)


def _as_batch(images: torch.Tensor) -> torch.Tensor:
    """Frames of several videos, [B,T,H,W,C], as one batch [B*T,H,W,C]."""
    return images.reshape((-1, *images.shape[-3:])) if images.ndim == 5 else images


class VAEDecodeTiled:
    DESCRIPTION = "Turns latents into pictures piece by piece, which needs less memory."
    DISPLAY_NAME = "VAE Decode (Tiled)"
    CATEGORY = "model/latent"
    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "decode"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "samples": ("LATENT", {"tooltip": "Latents to decode."}),
                "vae": ("VAE", {"tooltip": "VAE of the model that made them."}),
                "tile_size": (
                    "INT",
                    {
                        "default": 512,
                        "min": 64,
                        "max": 4096,
                        "step": 32,
                        "advanced": True,
                        "tooltip": "Side of a tile in pixels.",
                    },
                ),
                "overlap": (
                    "INT",
                    {
                        "default": 64,
                        "min": 0,
                        "max": 4096,
                        "step": 32,
                        "advanced": True,
                        "tooltip": "How far tiles overlap, in pixels.",
                    },
                ),
                "temporal_size": (
                    "INT",
                    {
                        "default": 64,
                        "min": 8,
                        "max": 4096,
                        "step": 4,
                        "advanced": True,
                        "tooltip": "Frames decoded at a time; for video VAEs only.",
                    },
                ),
                "temporal_overlap": (
                    "INT",
                    {
                        "default": 8,
                        "min": 4,
                        "max": 4096,
                        "step": 4,
                        "advanced": True,
                        "tooltip": "How many frames overlap; for video VAEs only.",
                    },
                ),
            }
        }

    def decode(
        self,
        vae: Any,
        samples: dict,
        tile_size: int,
        overlap: int = 64,
        temporal_size: int = 64,
        temporal_overlap: int = 8,
    ) -> tuple[torch.Tensor]:
        check_vae(vae)
        overlap = min(overlap, tile_size // 4)
        cell = vae.spacial_compression_decode()
        frames, frames_overlap = _temporal_tile(vae.temporal_compression_decode(), temporal_size, temporal_overlap)
        images = vae.decode_tiled(
            samples["samples"],
            tile_x=tile_size // cell,
            tile_y=tile_size // cell,
            overlap=overlap // cell,
            tile_t=frames,
            overlap_t=frames_overlap,
        )
        return (_as_batch(images),)


def _temporal_tile(compression: int | None, size: int, overlap: int) -> tuple[int | None, int | None]:
    """Length and overlap of a tile in latent frames; (None, None) for VAEs of still pictures."""
    if compression is None:
        return None, None
    if size < overlap * 2:
        overlap //= 2
    size = max(2, size // compression)
    return size, max(1, min(size // 2, overlap // compression))


class VAEEncode:
    DESCRIPTION = "Turns pictures into latents."
    DISPLAY_NAME = "VAE Encode"
    CATEGORY = "model/latent"
    RETURN_TYPES = ("LATENT",)
    FUNCTION = "encode"
    SEARCH_ALIASES = ["image to latent"]

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "pixels": ("IMAGE", {"tooltip": "Pictures to encode."}),
                "vae": ("VAE", {"tooltip": "VAE of the model that shall work on them."}),
            }
        }

    def encode(self, vae: Any, pixels: torch.Tensor) -> tuple[dict]:
        check_vae(vae)
        return ({"samples": vae.encode(pixels)},)


class VAEEncodeTiled:
    DESCRIPTION = "Turns pictures into latents piece by piece, which needs less memory."
    DISPLAY_NAME = "VAE Encode (Tiled)"
    CATEGORY = "model/latent"
    RETURN_TYPES = ("LATENT",)
    FUNCTION = "encode"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "pixels": ("IMAGE", {"tooltip": "Pictures to encode."}),
                "vae": ("VAE", {"tooltip": "VAE of the model that shall work on them."}),
                "tile_size": (
                    "INT",
                    {
                        "default": 512,
                        "min": 64,
                        "max": 4096,
                        "step": 64,
                        "advanced": True,
                        "tooltip": "Side of a tile in pixels.",
                    },
                ),
                "overlap": (
                    "INT",
                    {
                        "default": 64,
                        "min": 0,
                        "max": 4096,
                        "step": 32,
                        "advanced": True,
                        "tooltip": "How far tiles overlap, in pixels.",
                    },
                ),
                "temporal_size": (
                    "INT",
                    {
                        "default": 64,
                        "min": 8,
                        "max": 4096,
                        "step": 4,
                        "advanced": True,
                        "tooltip": "Frames encoded at a time; for video VAEs only.",
                    },
                ),
                "temporal_overlap": (
                    "INT",
                    {
                        "default": 8,
                        "min": 4,
                        "max": 4096,
                        "step": 4,
                        "advanced": True,
                        "tooltip": "How many frames overlap; for video VAEs only.",
                    },
                ),
            }
        }

    def encode(
        self,
        vae: Any,
        pixels: torch.Tensor,
        tile_size: int,
        overlap: int,
        temporal_size: int = 64,
        temporal_overlap: int = 8,
    ) -> tuple[dict]:
        check_vae(vae)
        samples = vae.encode_tiled(
            pixels,
            tile_x=tile_size,
            tile_y=tile_size,
            overlap=overlap,
            tile_t=temporal_size,
            overlap_t=temporal_overlap,
        )
        return ({"samples": samples},)


class VAEEncodeForInpaint:
    DESCRIPTION = "Encodes a picture with its masked part greyed out, for inpainting models."
    DISPLAY_NAME = "VAE Encode (for Inpainting)"
    CATEGORY = "model/latent"
    RETURN_TYPES = ("LATENT",)
    FUNCTION = "encode"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "pixels": ("IMAGE", {"tooltip": "Picture to encode."}),
                "vae": ("VAE", {"tooltip": "VAE of the model."}),
                "mask": ("MASK", {"tooltip": "1 where something new shall be painted."}),
                "grow_mask_by": (
                    "INT",
                    {
                        "default": 6,
                        "min": 0,
                        "max": 64,
                        "step": 1,
                        "tooltip": "How far, in pixels, sampling may reach beyond the mask.",
                    },
                ),
            }
        }

    def encode(self, vae: Any, pixels: torch.Tensor, mask: torch.Tensor, grow_mask_by: int = 6) -> tuple[dict]:
        check_vae(vae)
        mask = fit_mask(mask, pixels)
        pixels, (rows, columns) = crop_to_blocks(pixels, vae.spacial_compression_encode())
        mask = mask[:, :, rows, columns]
        grown = _grow(mask.round(), grow_mask_by)[:, :, : pixels.shape[1], : pixels.shape[2]].round()
        return ({"samples": vae.encode(grey_out(pixels, mask)), "noise_mask": grown},)


def _grow(mask: torch.Tensor, size: int) -> torch.Tensor:
    """Dilate a mask [B,1,H,W] with a square of ones of the given side, in pixels; 0 leaves it."""
    if size == 0:
        return mask
    kernel = mask.new_ones(1, 1, size, size)
    # Padding rounded up, so an even square does not lose the last row; the caller cuts the surplus.
    return torch.nn.functional.conv2d(mask, kernel, padding=size // 2).clamp(0, 1)


class InpaintModelConditioning:
    DESCRIPTION = "Prepares conditioning and latents for models that were trained for inpainting."
    DISPLAY_NAME = "InpaintModelConditioning"
    CATEGORY = "model/conditioning"
    RETURN_TYPES = ("CONDITIONING", "CONDITIONING", "LATENT")
    RETURN_NAMES = ("positive", "negative", "latent")
    FUNCTION = "encode"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "positive": ("CONDITIONING", {"tooltip": "Conditioning to follow."}),
                "negative": ("CONDITIONING", {"tooltip": "Conditioning to avoid."}),
                "vae": ("VAE", {"tooltip": "VAE of the model."}),
                "pixels": ("IMAGE", {"tooltip": "Picture to paint in."}),
                "mask": ("MASK", {"tooltip": "1 where something new shall be painted."}),
                "noise_mask": (
                    "BOOLEAN",
                    {"default": True, "tooltip": "Whether to leave the rest of the picture untouched."},
                ),
            }
        }

    def encode(
        self,
        positive: list,
        negative: list,
        pixels: torch.Tensor,
        vae: Any,
        mask: torch.Tensor,
        noise_mask: bool = True,
    ) -> tuple[list, list, dict]:
        check_vae(vae)
        mask = fit_mask(mask, pixels)
        cropped, (rows, columns) = crop_to_blocks(pixels, 8)
        mask = mask[:, :, rows, columns]
        values = {"concat_latent_image": vae.encode(grey_out(cropped, mask)), "concat_mask": mask}
        # The VAE crops by its own rule; cutting twice would shift the picture against its latents.
        latent = {"samples": vae.encode(pixels)}
        if noise_mask:
            latent["noise_mask"] = mask
        return (conditioning_set_values(positive, values), conditioning_set_values(negative, values), latent)


NODES = {
    "nodes": [VAEDecode, VAEDecodeTiled, VAEEncode, VAEEncodeTiled, VAEEncodeForInpaint, InpaintModelConditioning],
}
