"""An autoencoder as nodes use it: pictures [batch, height, width, channels] in 0..1 in and out, whole or in
tiles."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import comfy.model_management
import comfy.ops
import comfy.utils
from comfy.model_base import load_assigned
from comfy.model_patcher import ModelPatcher
from comfy.vae.detection import detect

log = logging.getLogger(__name__)

# Peak bytes of activations per pixel of the picture and byte of the number format: the usual figures for the
# Stable Diffusion autoencoder; the decoder's last level is the widest at full resolution.
ENCODE_BYTES_PER_PIXEL = 1767
DECODE_BYTES_PER_PIXEL = 2178

DECODE_TILE, DECODE_OVERLAP = 64, 16  # latent cells
ENCODE_TILE, ENCODE_OVERLAP = 512, 64  # pixels
HALVINGS = 2  # of the tiles, where these do not fit either


class InvalidVAE(RuntimeError):
    """There is no usable autoencoder behind a VAE object."""

    def __init__(self) -> None:
        super().__init__(
            "This VAE is empty: the file it comes from holds no autoencoder weights that are known here. "
            "Load one with a VAE loader node."
        )


def _unless_memory_ends(what: str, compute: Callable[[], Tensor]) -> Tensor | None:
    """What `compute` returns; None if memory runs out meanwhile."""
    try:
        return compute()
    except Exception as error:
        comfy.model_management.raise_non_oom(error)
        log.warning("%s ran out of memory; trying again in smaller parts", what)
    # Outside the handler: the exception would keep the failed attempt's tensors alive.
    comfy.model_management.soft_empty_cache()
    return None


def _in_tiles_that_fit(what: str, compute: Callable[..., Tensor], samples: Tensor, tile: int, overlap: int) -> Tensor:
    """`compute(samples, width, height, overlap)` with tiles of the usual size, or of a half or a quarter of it.

    Raises what the smallest tiles raise.
    """
    for _ in range(HALVINGS):
        done = _unless_memory_ends(f"{what} in tiles of {tile}", lambda: compute(samples, tile, tile, overlap))  # noqa: B023
        if done is not None:
            return done
        tile //= 2
        overlap = min(overlap, tile // 4)
    return compute(samples, tile, tile, overlap)


class VAE:
    """An autoencoder and the patcher that keeps track of where its weights are.

    sd: its tensors, without the prefix they have in a checkpoint. With tensors of no known autoencoder the
    object is empty, and says so (InvalidVAE) when it is used.
    """

    def __init__(
        self,
        sd: Mapping[str, Tensor] | None = None,
        device: torch.device | None = None,
        config: Any = None,
        dtype: torch.dtype | None = None,
        metadata: Mapping[str, str] | None = None,
    ):
        self.device = comfy.model_management.vae_device() if device is None else torch.device(device)
        self.output_device = comfy.model_management.intermediate_device()
        self.first_stage_model: nn.Module | None = None
        self.patcher: ModelPatcher | None = None
        self.latent_channels = 4
        self.latent_dim = 2
        self.time_downscale: int | None = None
        self.output_channels = 3
        self.downscale_ratio = self.upscale_ratio = 8
        self.working_dtypes = [torch.bfloat16, torch.float32]
        self.vae_dtype = dtype or comfy.model_management.vae_dtype(self.device, self.working_dtypes)
        self.process_input: Callable[[Tensor], Tensor] = lambda pixels: pixels * 2.0 - 1.0
        self.process_output: Callable[[Tensor], Tensor] = lambda image: ((image + 1.0) / 2.0).clamp(0.0, 1.0)
        if sd:
            with torch.inference_mode(False):
                self._build(dict(sd))

    def _build(self, sd: dict[str, Tensor]) -> None:
        found = detect(sd)
        if found is None:
            log.warning("no known autoencoder among %d tensors, such as %s", len(sd), next(iter(sd)))
            return
        weights = found.weights
        same = all(t.dtype == self.vae_dtype for t in weights.values() if t.is_floating_point())
        operations = comfy.ops.disable_weight_init if same else comfy.ops.manual_cast
        net = found.network(dtype=comfy.utils.weight_dtype(weights), device="meta", operations=operations)
        load_assigned(net, weights, "VAE")
        self.first_stage_model = net.eval()
        self.latent_channels = found.latent_channels
        self.output_channels = found.output_channels
        self.time_downscale = found.time_downscale
        self.latent_dim = 2 if found.time_downscale is None else 3
        self.downscale_ratio = self.upscale_ratio = found.downscale
        self.patcher = ModelPatcher(net, self.device, comfy.model_management.vae_offload_device())

    # --- facts

    def throw_exception_if_invalid(self) -> None:
        """Raises InvalidVAE when there is no autoencoder."""
        if self.first_stage_model is None:
            raise InvalidVAE()

    def spacial_compression_encode(self) -> int:
        """Pixels per latent cell along one side."""
        return self.downscale_ratio

    def spacial_compression_decode(self) -> int:
        return self.upscale_ratio

    def temporal_compression_decode(self) -> int | None:
        """Frames per latent frame; None for pictures."""
        return self.time_downscale

    def memory_used_encode(self, shape: torch.Size, dtype: torch.dtype) -> int:
        """Bytes for encoding pictures of shape [batch, channels, height, width], or videos, one at a time."""
        frames = shape[2] if len(shape) == 5 else 1
        values = ENCODE_BYTES_PER_PIXEL * self._frames_at_once(frames) + self.output_channels * frames
        return values * math.prod(shape[-2:]) * comfy.model_management.dtype_size(dtype)

    def memory_used_decode(self, shape: torch.Size, dtype: torch.dtype) -> int:
        """Bytes for decoding latents of shape [batch, channels, height, width], or of videos, one at a time."""
        frames = 1 + (shape[2] - 1) * (self.time_downscale or 1) if len(shape) == 5 else 1
        # The result stands beside its parts, and then beside itself in float32.
        results = self.output_channels * frames * max(2, 1 + 4 // comfy.model_management.dtype_size(dtype))
        values = DECODE_BYTES_PER_PIXEL * self._frames_at_once(frames) + results
        return values * math.prod(shape[-2:]) * self.upscale_ratio**2 * comfy.model_management.dtype_size(dtype)

    def _frames_at_once(self, frames: int) -> int:
        """How many frames of a video are in work at a time: those of a latent frame."""
        return min(frames, self.time_downscale or frames)

    def is_dynamic(self) -> bool:
        return False

    def get_sd(self) -> dict[str, Tensor]:
        """The autoencoder's tensors."""
        self.throw_exception_if_invalid()
        return self.first_stage_model.state_dict()

    def vae_encode_crop_pixels(self, pixels: Tensor) -> Tensor:
        """Cut pictures [batch, height, width, channels] to whole latent cells, centred, and to the channels
        used."""
        pixels = pixels[..., : self.output_channels]
        for dim in (pixels.ndim - 3, pixels.ndim - 2):
            rest = pixels.shape[dim] % self.downscale_ratio
            pixels = pixels.narrow(dim, rest // 2, pixels.shape[dim] - rest)
        return pixels

    # --- decoding

    def decode(self, samples_in: Tensor, vae_options: Mapping[str, Any] | None = None) -> Tensor:
        """Pictures [batch, height, width, channels] in 0..1, float32, from latents [batch, channels, h, w], or videos
        [batch, frames, height, width, channels] from latents with frames; in tiles when memory runs out."""
        self.throw_exception_if_invalid()
        per_item = self.memory_used_decode(samples_in.shape, self.vae_dtype)
        batch = self._load(per_item * samples_in.shape[0], per_item)
        pixels = _unless_memory_ends("decoding", lambda: self._decode_batches(samples_in, batch))
        if pixels is None:
            pixels = _in_tiles_that_fit("decoding", self._decode_tiled, samples_in, DECODE_TILE, DECODE_OVERLAP)
        return comfy.model_management.to_intermediate(pixels).movedim(1, -1)

    def decode_tiled(
        self,
        samples: Tensor,
        tile_x: int | None = None,
        tile_y: int | None = None,
        overlap: int | None = None,
        tile_t: int | None = None,
        overlap_t: int | None = None,
    ) -> Tensor:
        """As `decode`, in tiles of tile_x x tile_y latent cells."""
        self.throw_exception_if_invalid()
        tile_x, tile_y = tile_x or DECODE_TILE, tile_y or DECODE_TILE
        overlap = DECODE_OVERLAP if overlap is None else overlap
        tile = torch.Size((*samples.shape[:-2], min(tile_y, samples.shape[-2]), min(tile_x, samples.shape[-1])))
        self._load(self.memory_used_decode(tile, self.vae_dtype))
        pixels = self._decode_tiled(samples, tile_x, tile_y, overlap)
        return comfy.model_management.to_intermediate(pixels).movedim(1, -1)

    def _decode_batches(self, samples: Tensor, batch: int) -> Tensor:
        return torch.cat(
            [self.process_output(self._decode(part).to(self.output_device)) for part in samples.split(batch)]
        )

    def _decode(self, latent: Tensor) -> Tensor:
        return self.first_stage_model.decode(latent.to(device=self.device, dtype=self.vae_dtype)).float()

    def _decode_tiled(
        self, samples: Tensor, tile_x: int = DECODE_TILE, tile_y: int = DECODE_TILE, overlap: int = DECODE_OVERLAP
    ) -> Tensor:
        blended = self._three_passes(
            samples, self._decode, tile_x, tile_y, overlap, self.upscale_ratio, self.output_channels
        )
        return self.process_output(blended)

    # --- encoding

    def encode(self, pixel_samples: Tensor) -> Tensor:
        """Latents [batch, channels, h, w], float32, of pictures [batch, height, width, channels] in 0..1; in tiles when
        memory runs out. For an autoencoder of videos the pictures are the frames of one, or they are [batch, frames,
        height, width, channels]; its latents have frames."""
        self.throw_exception_if_invalid()
        pixels = self._channels_first(pixel_samples)
        per_item = self.memory_used_encode(pixels.shape, self.vae_dtype)
        batch = self._load(per_item * pixels.shape[0], per_item)
        latents = _unless_memory_ends("encoding", lambda: self._encode_batches(pixels, batch))
        if latents is None:
            latents = _in_tiles_that_fit("encoding", self._encode_tiled, pixels, ENCODE_TILE, ENCODE_OVERLAP)
        return comfy.model_management.to_intermediate(latents)

    def encode_tiled(
        self,
        pixel_samples: Tensor,
        tile_x: int | None = None,
        tile_y: int | None = None,
        overlap: int | None = None,
        tile_t: int | None = None,
        overlap_t: int | None = None,
    ) -> Tensor:
        """As `encode`, in tiles of tile_x x tile_y pixels."""
        self.throw_exception_if_invalid()
        pixels = self._channels_first(pixel_samples)
        tile_x, tile_y = tile_x or ENCODE_TILE, tile_y or ENCODE_TILE
        overlap = ENCODE_OVERLAP if overlap is None else overlap
        tile = torch.Size((*pixels.shape[:-2], min(tile_y, pixels.shape[-2]), min(tile_x, pixels.shape[-1])))
        self._load(self.memory_used_encode(tile, self.vae_dtype))
        return comfy.model_management.to_intermediate(self._encode_tiled(pixels, tile_x, tile_y, overlap))

    def _channels_first(self, pixel_samples: Tensor) -> Tensor:
        """Whole cells of the pictures [batch, channels, (frames,) height, width]."""
        if self.latent_dim == 3 and pixel_samples.ndim == 4:
            pixel_samples = pixel_samples.unsqueeze(0)
        if self.latent_dim == 2 and pixel_samples.ndim == 5:
            pixel_samples = pixel_samples.flatten(0, 1)
        return self.vae_encode_crop_pixels(pixel_samples).movedim(-1, 1)

    def _encode_batches(self, pixels: Tensor, batch: int) -> Tensor:
        return torch.cat([self._encode(part).to(self.output_device) for part in pixels.split(batch)])

    def _encode(self, pixels: Tensor) -> Tensor:
        pixels = self.process_input(pixels).to(device=self.device, dtype=self.vae_dtype)
        return self.first_stage_model.encode(pixels).float()

    def _encode_tiled(
        self, pixels: Tensor, tile_x: int = ENCODE_TILE, tile_y: int = ENCODE_TILE, overlap: int = ENCODE_OVERLAP
    ) -> Tensor:
        scale = 1 / self.downscale_ratio
        return self._three_passes(pixels, self._encode, tile_x, tile_y, overlap, scale, self.latent_channels)

    # --- common

    def _load(self, wanted: int, per_item: int | None = None) -> int:
        """Make the weights ready; returns how many items fit into memory at once."""
        comfy.model_management.load_models_gpu([self.patcher], memory_required=wanted)
        if per_item is None:
            return 1
        free = comfy.model_management.get_free_memory(self.device)
        return max(1, int(free / max(per_item, 1)))

    def _three_passes(
        self,
        samples: Tensor,
        function: Callable[[Tensor], Tensor],
        tile_x: int,
        tile_y: int,
        overlap: int,
        scale: float,
        out_channels: int,
    ) -> Tensor:
        """Mean of three tilings with tiles of different shape, so that no seam is in the same place in
        all. Videos are tiled once, with all their frames."""
        if samples.ndim == 5:
            return self._video_tiles(samples, function, tile_x, tile_y, overlap, scale, out_channels)
        height, width = samples.shape[2:]
        shapes = [(tile_x // 2, tile_y * 2), (tile_x * 2, tile_y // 2), (tile_x, tile_y)]
        tiles = sum(comfy.utils.get_tiled_scale_steps(width, height, x, y, overlap) for x, y in shapes)
        progress = comfy.utils.ProgressBar(tiles * samples.shape[0])
        total = None
        for x, y in shapes:
            result = comfy.utils.tiled_scale(
                samples,
                function,
                x,
                y,
                overlap,
                upscale_amount=scale,
                out_channels=out_channels,
                output_device=self.output_device,
                pbar=progress,
            )
            total = result if total is None else total.add_(result)
        return total / len(shapes)

    def _video_tiles(
        self,
        samples: Tensor,
        function: Callable[[Tensor], Tensor],
        tile_x: int,
        tile_y: int,
        overlap: int,
        scale: float,
        out_channels: int,
    ) -> Tensor:
        step = self.time_downscale or 1

        def frames(count: int) -> int:
            return 1 + (count - 1) * step if scale >= 1 else 1 + (count - 1) // step

        return comfy.utils.tiled_scale_multidim(
            samples,
            function,
            tile=(samples.shape[2], tile_y, tile_x),
            overlap=(0, overlap, overlap),
            upscale_amount=(frames, scale, scale),
            # All frames are in one tile, which begins at the first.
            index_formulas=(lambda start: 0, scale, scale),
            out_channels=out_channels,
            output_device=self.output_device,
        )
