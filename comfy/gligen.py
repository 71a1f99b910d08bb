"""From a GLIGEN file to something that sampling can use: boxes with texts become a patch of the UNet's transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import comfy.model_management
import comfy.ops
import comfy.utils
from comfy.model_base import load_assigned
from comfy.model_patcher import ModelPatcher
from comfy.models import gligen
from comfy.weights import WeightsFileError, refusing

MAX_OBJECTS = 30

# (pooled text [1, width], height, width, top, left), sizes in latent cells
Position = tuple[Tensor, int, int, int, int]
MiddlePatch = Callable[[Tensor, Mapping[str, Any]], Tensor]


class UnknownGligenError(WeightsFileError):
    """A weight file is readable, but holds no GLIGEN model."""


class GligenModel(gligen.Gligen):
    """See `comfy.models.gligen.Gligen`."""

    def set_position(self, latent_shape: Sequence[int], positions: Sequence[Position], device: Any) -> MiddlePatch:
        """The patch for these boxes in a latent of that shape; more than 30 are too many for the model, the rest is
        left out."""
        batch, _, height, width = latent_shape
        boxes, given = torch.zeros(1, MAX_OBJECTS, 4), torch.zeros(1, MAX_OBJECTS)
        texts = torch.zeros(1, MAX_OBJECTS, self.key_dim)
        for i, (text, box_height, box_width, top, left) in enumerate(positions[:MAX_OBJECTS]):
            edges = (left / width, top / height, (left + box_width) / width, (top + box_height) / height)
            boxes[0, i] = torch.tensor(edges)
            given[0, i] = 1.0
            texts[0, i] = text.reshape(-1, text.shape[-1])[0].to(texts)
        return self._patch(boxes, given, texts, batch, device)

    def set_empty(self, latent_shape: Sequence[int], device: Any) -> MiddlePatch:
        """The patch for no boxes at all."""
        return self.set_position(latent_shape, [], device)

    def _patch(self, boxes: Tensor, given: Tensor, texts: Tensor, batch: int, device: Any) -> MiddlePatch:
        objects = self.position_net(boxes.to(device), given.to(device), texts.to(device))
        objects = objects.expand(batch, -1, -1)

        def patch(x: Tensor, options: Mapping[str, Any]) -> Tensor:
            return self.module_list[options["transformer_index"]](x, objects.to(x))

        return patch


def load_gligen(ckpt_path: str) -> ModelPatcher:
    """Raises WeightsFileError naming the file when it cannot be read, UnknownGligenError when it is none."""
    sd = comfy.utils.load_torch_file(ckpt_path)
    with refusing(ckpt_path, UnknownGligenError):
        model = load_gligen_state_dict(sd)
    management = comfy.model_management
    return ModelPatcher(model, management.get_torch_device(), management.unet_offload_device())


@torch.inference_mode(False)
def load_gligen_state_dict(sd: Mapping[str, Tensor]) -> GligenModel:
    """The model that the tensors make. Raises KeyError or WeightsMismatch."""
    prefixes = gligen.fuser_prefixes(sd)
    if not prefixes:
        raise KeyError("no tensor is part of a fuser (input_blocks.1.1.transformer_blocks.0.fuser...)")
    dtype = comfy.utils.weight_dtype(sd)
    factory = {"dtype": dtype, "device": "meta", "operations": comfy.ops.manual_cast}
    weights, fusers = {}, []
    for i, prefix in enumerate(prefixes):
        width, object_width = sd[f"{prefix}linear.weight"].shape
        heads = gligen.heads_of(width, object_width)
        fusers.append(gligen.GatedSelfAttention(width, object_width, heads, **factory))
        weights.update({f"module_list.{i}.{k.removeprefix(prefix)}": v for k, v in sd.items() if k.startswith(prefix)})
    text_width = sd["position_net.null_positive_feature"].shape[0]
    out_width = sd["position_net.linears.4.weight"].shape[0]
    weights.update({k: v for k, v in sd.items() if k.startswith("position_net.")})
    model = GligenModel(gligen.PositionNet(text_width, out_width, **factory), fusers, text_width, dtype)
    load_assigned(model, weights, "GLIGEN")
    return model.eval()
