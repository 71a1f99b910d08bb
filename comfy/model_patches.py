"""Small networks that patch a diffusion model (folder `model_patches`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import comfy.model_management
import comfy.ops
import comfy.utils
from comfy.controlnet import encoded_pictures
from comfy.loaded_models import run_goes_on
from comfy.model_base import load_assigned
from comfy.model_patcher import ModelPatcher
from comfy.models.blockwise_control import BlockwiseControl, shape_from_state_dict
from comfy.style_patch import STYLE_MARK, STYLE_PREFIX, load_style_projector
from comfy.weights import WeightsFileError, refusing

BLOCKWISE_MARK = "controlnet_blocks.0.y_rms.weight"
LATENT_CHANNELS = 16


class UnknownModelPatch(WeightsFileError):
    """A weight file is readable, but holds no patch known here."""


def load_model_patch(path: str) -> ModelPatcher:
    """The patch in a file. Raises WeightsFileError naming it, UnknownModelPatch for others."""
    sd = comfy.utils.load_torch_file(path)
    size = os.path.getsize(path)
    if STYLE_PREFIX + STYLE_MARK in sd:
        sd = {k.removeprefix(STYLE_PREFIX): v for k, v in sd.items() if k.startswith(STYLE_PREFIX)}
    load = load_blockwise if BLOCKWISE_MARK in sd else load_style_projector if STYLE_MARK in sd else None
    if load is None:
        first = next(iter(sd), "nothing")
        raise UnknownModelPatch(path, size, f"it is no model patch known here (its tensors are such as {first})")
    with refusing(path, UnknownModelPatch):
        network = load(sd)
    management = comfy.model_management
    return ModelPatcher(network, management.get_torch_device(), management.unet_offload_device())


@torch.inference_mode(False)
def load_blockwise(sd: Mapping[str, Tensor]) -> BlockwiseControl:
    """A control beside Qwen-Image's blocks."""
    dtype = comfy.utils.weight_dtype(sd)
    network = BlockwiseControl(*shape_from_state_dict(sd), dtype=dtype, device="meta")
    load_assigned(network, sd, "model patch")
    return network.eval()


class BlockwisePatch:
    """The patch `double_block` of a model: adds what the control makes of a picture. The picture's latent is made when
    the size is known, and kept.

    image: [batch, height, width, 3]; mask: [batch, height, width], 1 where the picture is to be made anew.
    """

    def __init__(
        self, patch: ModelPatcher, vae: Any, image: Tensor, strength: float, mask: Tensor | None, model: Any
    ) -> None:
        self.patch, self.vae, self.strength = patch, vae, strength
        self.image, self.mask, self.model = image, mask, model
        self.hint: Tensor | None = None
        self.size: tuple[int, int] | None = None

    def __call__(self, values: dict[str, Any]) -> dict[str, Any]:
        img, number = values["img"], values["block_index"]
        size = tuple(values["x"].shape[-2:])
        if self.hint is None or self.size != size:
            self.hint, self.size = self._hint_tokens(*size), size
        network = self.patch.model
        hint = network.img_in(self.hint.to(img))
        count = hint.shape[1]
        added = network(img[:, :count], hint, number) * self.strength
        img = img.clone()
        img[:, :count] += added
        return {**values, "img": img}

    def _hint_tokens(self, height: int, width: int) -> Tensor:
        """Patches of the picture's latent [batch, n, in_width] for a latent of that size."""
        cells = self.vae.spacial_compression_encode()
        pixels = _resized(self.image.movedim(-1, 1), height * cells, width * cells, "area")
        keep = None
        if self.patch.model.in_width > LATENT_CHANNELS * 4:
            mask = (
                torch.ones_like(pixels[:1, :1])
                if self.mask is None
                else self.mask.reshape(-1, 1, *self.mask.shape[-2:])
            )
            mask = _resized(mask.to(pixels), height * cells, width * cells, "bilinear").round()
            pixels = pixels * (1 - mask)
            keep = 1 - _resized(mask, height, width, "nearest-exact")
        with run_goes_on():
            latent = self.model.process_latent_in(encoded_pictures(self.vae, pixels.movedim(1, -1)))
        if latent.ndim == 4:
            latent = latent.unsqueeze(2)
        if keep is not None:
            latent = torch.cat([latent, keep.to(latent).unsqueeze(2).expand(latent.shape[0], -1, -1, -1, -1)], dim=1)
        return self.model.diffusion_model.image_tokens(latent)[0]


def _resized(pixels: Tensor, height: int, width: int, method: str) -> Tensor:
    return comfy.utils.common_upscale(pixels, width, height, method, "center")


def apply_blockwise(
    model: Any, patch: ModelPatcher, vae: Any, image: Tensor, strength: float, mask: Tensor | None = None
) -> Any:
    """A clone of Qwen-Image's patcher with the control."""
    patched = model.clone()
    patched.set_model_double_block_patch(BlockwisePatch(patch, vae, image[..., :3], strength, mask, model.model))
    patched.add_additional_model("model_patches", patch)
    return patched
