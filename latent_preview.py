"""Rough previews of a latent while it is sampled, and the step callback that sends them.

Methods: none; latent2rgb, a matrix from latent channels to RGB; taesd, a small decoder if one is found (else
latent2rgb); auto, which is latent2rgb. Spec: execution.md, preview methods.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import comfy.utils
from comfy.cli_args import LatentPreviewMethod, args
from comfy.taesd.taesd import TAESD as TAESD  # for packs

log = logging.getLogger(__name__)

MAX_PREVIEW_RESOLUTION = args.preview_size
# A person sees no more than this many seconds apart; each preview costs a transfer from the device.
PREVIEW_INTERVAL_S = 0.1

default_preview_method = args.preview_method


def set_preview_method(override: str | None = None) -> None:
    """Method for the coming runs: a name, or anything else for the command line's."""
    method = LatentPreviewMethod.from_string(override) if isinstance(override, str) else None
    args.preview_method = default_preview_method if method is None else method


def preview_to_image(latent_image: Tensor, do_scale: bool = True) -> Any:
    """A PIL image of [height, width, 3]: values -1..1, or 0..1 without `do_scale`."""
    from PIL import Image

    unit = ((latent_image + 1.0) / 2.0) if do_scale else latent_image
    pixels = unit.clamp(0, 1).mul(255.0).to(device="cpu", dtype=torch.uint8)
    return Image.fromarray(pixels.numpy())


class LatentPreviewer:
    """Turns a denoised latent into a picture."""

    def decode_latent_to_preview(self, x0: Tensor) -> Any:
        """A PIL image of the first item (and frame) of `x0`."""
        raise NotImplementedError(f"{type(self).__name__} decodes no latents")

    def decode_latent_to_preview_image(self, preview_format: str, x0: Tensor) -> tuple[str, Any, int]:
        """The preview as ProgressBar wants it: (format, image, largest side)."""
        return ("JPEG", self.decode_latent_to_preview(x0), MAX_PREVIEW_RESOLUTION)


class Latent2RGBPreviewer(LatentPreviewer):
    """rgb = latent . factors + bias."""

    def __init__(
        self,
        latent_rgb_factors: list[list[float]],
        latent_rgb_factors_bias: list[float] | None = None,
        latent_rgb_factors_reshape: Callable[[Tensor], Tensor] | None = None,
        do_scale: bool = True,
    ) -> None:
        self.latent_rgb_factors = torch.tensor(latent_rgb_factors, device="cpu").transpose(0, 1)
        self.latent_rgb_factors_bias = None
        if latent_rgb_factors_bias is not None:
            self.latent_rgb_factors_bias = torch.tensor(latent_rgb_factors_bias, device="cpu")
        self.latent_rgb_factors_reshape = latent_rgb_factors_reshape
        self.do_scale = do_scale

    def decode_latent_to_preview(self, x0: Tensor) -> Any:
        first = x0[:1]
        if self.latent_rgb_factors_reshape is not None:
            first = self.latent_rgb_factors_reshape(first)
        self.latent_rgb_factors = self.latent_rgb_factors.to(dtype=x0.dtype, device=x0.device)
        bias = self.latent_rgb_factors_bias
        if bias is not None:
            bias = self.latent_rgb_factors_bias = bias.to(dtype=x0.dtype, device=x0.device)
        cells = first[0, :, 0] if first.ndim == 5 else first[0]
        rgb = torch.nn.functional.linear(cells.movedim(0, -1), self.latent_rgb_factors, bias)
        return preview_to_image(rgb, do_scale=self.do_scale)


class TAESDPreviewerImpl(LatentPreviewer):
    """A small autoencoder's decoder."""

    def __init__(self, taesd: Any) -> None:
        self.taesd = taesd

    def decode_latent_to_preview(self, x0: Tensor) -> Any:
        return preview_to_image(self.taesd.decode(x0[:1])[0].movedim(0, 2))


def _taesd_previewer(device: Any, latent_format: Any) -> LatentPreviewer | None:
    import folder_paths

    name = latent_format.taesd_decoder_name
    if name is None:
        return None
    files = folder_paths.get_filename_list("vae_approx")
    file = next((f for f in files if f.startswith(name)), None)
    path = folder_paths.get_full_path("vae_approx", file) if file else None
    if path is None:
        log.warning("no file %s... in vae_approx: previews use latent2rgb", name)
        return None
    from comfy.model_base import WeightsMismatch
    from comfy.preview_decoder import preview_decoder
    from comfy.weights import WeightsFileError

    try:
        return TAESDPreviewerImpl(preview_decoder(path, latent_format.latent_channels, device))
    except (WeightsFileError, WeightsMismatch) as error:
        log.warning("previews use latent2rgb: %s: %s", file, error)
        return None


def get_previewer(device: Any, latent_format: Any) -> LatentPreviewer | None:
    """The previewer for the method that is set; None for no previews, or where no method knows the format."""
    method = args.preview_method
    if method == LatentPreviewMethod.NoPreviews:
        return None
    previewer = _taesd_previewer(device, latent_format) if method == LatentPreviewMethod.TAESD else None
    if previewer is None and latent_format.latent_rgb_factors is not None:
        previewer = Latent2RGBPreviewer(
            latent_format.latent_rgb_factors,
            latent_format.latent_rgb_factors_bias,
            latent_format.latent_rgb_factors_reshape,
        )
    return previewer


def prepare_callback(
    model: Any, steps: int, x0_output_dict: dict[str, Any] | None = None, nested_like: Any = None
) -> Callable[[int, Tensor, Tensor, int], None]:
    """The step callback of a run: progress after every step, a preview at most every 0.1 s and after the last.

    `x0_output_dict` receives the last denoised latent under "x0". `nested_like`: the latent that is sampled; of a
    nested one, which comes here packed, the first part (the picture) is shown.
    """
    shapes = [part.shape for part in nested_like.unbind()] if getattr(nested_like, "is_nested", False) else None
    previewer = get_previewer(model.load_device, model.model.latent_format)
    progress = comfy.utils.ProgressBar(steps)
    last_preview = -PREVIEW_INTERVAL_S

    def callback(step: int, x0: Tensor, x: Tensor, total_steps: int) -> None:
        nonlocal last_preview
        if x0_output_dict is not None:
            x0_output_dict["x0"] = x0
        preview = None
        if previewer is not None:
            now = time.monotonic()
            if now - last_preview >= PREVIEW_INTERVAL_S or step + 1 >= total_steps:
                last_preview = now
                if shapes is not None:
                    x0 = comfy.utils.unpack_latents(x0, shapes)[0]
                preview = previewer.decode_latent_to_preview_image("JPEG", x0)
        progress.update_absolute(step + 1, total_steps, preview)

    return callback
