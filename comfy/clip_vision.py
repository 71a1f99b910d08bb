"""Image encoders as nodes use them: CLIP for unCLIP and adapters, SigLIP for FLUX.1 Redux."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import comfy.model_management
import comfy.ops
import comfy.utils
from comfy.model_base import load_assigned
from comfy.model_patcher import ModelPatcher
from comfy.models.clip_vision import CLIPVisionConfig, CLIPVisionModelProjection, config_from_state_dict, from_open_clip
from comfy.weights import WeightsFileError, refusing

CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
SIGLIP_MEAN, SIGLIP_STD = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
# Where unCLIP checkpoints and open_clip files have the image part.
OPEN_CLIP_MARK = "visual.transformer.resblocks.0.attn.in_proj_weight"


class UnknownVisionModel(WeightsFileError):
    """A file is no image encoder known here."""


class Output:
    """What an encoder says about pictures; entries also as attributes: `image_embeds` [batch, width] (None from
    encoders without such a vector), `last_hidden_state` and `penultimate_hidden_states` [batch, tokens, width];
    `all_hidden_states` [batch, blocks, tokens, width] of SigLIP, else None."""

    image_embeds: Tensor | None = None
    last_hidden_state: Tensor | None = None
    penultimate_hidden_states: Tensor | None = None
    all_hidden_states: Tensor | None = None
    image_sizes: list[tuple[int, ...]]

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)

    def __setitem__(self, key: str, item: Any) -> None:
        setattr(self, key, item)


def clip_preprocess(
    image: Tensor,
    size: int = 224,
    mean: Sequence[float] = CLIP_MEAN,
    std: Sequence[float] = CLIP_STD,
    crop: bool = True,
) -> Tensor:
    """Pictures [batch, height, width, 3 or more] in 0..1 as an encoder wants them [batch, 3, size, size].

    Scaled with the shorter side to `size` and cut around the middle (or, without `crop`, squeezed), rounded to 8 bits,
    normalised.
    """
    pixels = image[..., :3].movedim(-1, 1)
    height, width = pixels.shape[2:]
    if (height, width) != (size, size):
        target = (size, size)
        if crop:
            scale = size / min(height, width)
            target = (round(scale * height), round(scale * width))
        pixels = F.interpolate(pixels, size=target, mode="bicubic", antialias=True)
        top, left = (target[0] - size) // 2, (target[1] - size) // 2
        pixels = pixels[:, :, top : top + size, left : left + size]
    pixels = (pixels * 255.0).clamp(0, 255).round() / 255.0
    mean_, std_ = (torch.tensor(v, device=pixels.device, dtype=pixels.dtype).view(3, 1, 1) for v in (mean, std))
    return (pixels - mean_) / std_


class ClipVisionModel:
    """An image encoder with its patcher. config: a `CLIPVisionConfig`, or a mapping of its fields."""

    def __init__(self, json_config: CLIPVisionConfig | Mapping[str, Any], dtype: torch.dtype | None = None):
        config = json_config if isinstance(json_config, CLIPVisionConfig) else CLIPVisionConfig(**json_config)
        self.config = config
        self.image_size = config.image_size
        self.image_mean, self.image_std = (CLIP_MEAN, CLIP_STD) if config.class_token else (SIGLIP_MEAN, SIGLIP_STD)
        self.load_device = comfy.model_management.text_encoder_device()
        offload_device = comfy.model_management.text_encoder_offload_device()
        self.dtype = dtype
        self.model = CLIPVisionModelProjection(
            config, dtype=dtype, device="meta", operations=comfy.ops.manual_cast
        ).eval()
        self.model.requires_grad_(False)
        self.patcher = ModelPatcher(self.model, load_device=self.load_device, offload_device=offload_device)

    def load_sd(self, sd: Mapping[str, Tensor]) -> list[str]:
        """Take the weights; returns the keys that were not used. Raises WeightsMismatch."""
        return load_assigned(self.model, sd, "image encoder")

    def get_sd(self) -> dict[str, Tensor]:
        return self.model.state_dict()

    def encode_image(self, image: Tensor, crop: bool = True) -> Output:
        """image: [batch, height, width, channels] in 0..1."""
        comfy.model_management.load_models_gpu([self.patcher])
        pixels = clip_preprocess(
            image.to(self.load_device), self.image_size, self.image_mean, self.image_std, crop=crop
        ).float()
        out = self.model(pixels)
        device = comfy.model_management.intermediate_device()
        result = Output()
        result.last_hidden_state = out.last.to(device)
        result.penultimate_hidden_states = out.penultimate.to(device)
        result.all_hidden_states = None if out.blocks is None else out.blocks.to(device)
        result.image_embeds = None if out.projected is None else out.projected.to(device)
        result.image_sizes = [tuple(pixels.shape[1:])] * pixels.shape[0]
        return result


@torch.inference_mode(False)
def load_clipvision_from_sd(
    sd: Mapping[str, Tensor], prefix: str = "", convert_keys: bool = False
) -> ClipVisionModel | None:
    """An image encoder from the tensors below `prefix`, in either layout; None if they are none."""
    own = {k[len(prefix) :]: v for k, v in sd.items() if k.startswith(prefix)}
    if OPEN_CLIP_MARK in own:
        own = from_open_clip(own)
    # Checkpoints that this program writes keep the encoder's own names, one level down.
    own = {k.removeprefix("visual."): v for k, v in own.items()}
    # Files of whole CLIP or SigLIP models have a text part, and SigLIP a head that nothing here uses.
    kept = ("vision_model.", "visual_projection.")
    own = {k: v for k, v in own.items() if k.startswith(kept) and not k.startswith("vision_model.head.")}
    own = {k: v for k, v in own.items() if not k.endswith("position_ids")}
    if "vision_model.embeddings.patch_embedding.weight" not in own:
        return None
    model = ClipVisionModel(config_from_state_dict(own), dtype=comfy.utils.weight_dtype(own))
    model.load_sd(own)
    return model


def load(ckpt_path: str) -> ClipVisionModel:
    """An image encoder from its file. Raises WeightsFileError or UnknownVisionModel."""
    sd = comfy.utils.load_torch_file(ckpt_path)
    with refusing(ckpt_path, UnknownVisionModel):
        model = load_clipvision_from_sd(sd)
    if model is None:
        first = next(iter(sd), "none")
        cause = f"no image encoder known here has its tensors ({len(sd)} of them, such as {first})"
        raise UnknownVisionModel(ckpt_path, os.path.getsize(ckpt_path), cause)
    return model
