"""The style of pictures for FLUX.1: tokens made of what SigLIP sees go in front of the words.

Source: Wu et al. 2025, "USO: Unified Style and Subject-Driven Generation" (arXiv 2508.18966).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import comfy.utils
from comfy.model_base import load_assigned
from comfy.model_patcher import ModelPatcher
from comfy.models.style_projector import DEPTHS, StyleProjector, config_from_state_dict

# A file's names, which may come behind the prefix.
STYLE_PREFIX = "feature_embedder."
STYLE_MARK = "mid_layer_norm.bias"


@torch.inference_mode(False)
def load_style_projector(sd: Mapping[str, Tensor]) -> StyleProjector:
    """USO's projector of SigLIP's hidden states."""
    network = StyleProjector(config_from_state_dict(sd), dtype=comfy.utils.weight_dtype(sd), device="meta")
    load_assigned(network, sd, "model patch")
    return network.eval()


class UnfitVisionOutput(ValueError):
    """What an image encoder made of a picture is not what a model patch was trained on."""


class StylePatch:
    """The patch `post_input` of a FLUX.1: style tokens in front of the words, at their position 0. All pictures of the
    batch are looked at by every image.

    hidden: what comes out of SigLIP's blocks [pictures, blocks, patches, width].
    """

    def __init__(self, patch: ModelPatcher, hidden: Tensor) -> None:
        self.patch, self.hidden = patch, hidden

    def __call__(self, values: dict[str, Any]) -> dict[str, Any]:
        txt, ids = values["txt"], values["txt_ids"]
        tokens = self.patch.model(self.hidden.to(txt)).flatten(0, 1).expand(txt.shape[0], -1, -1)
        places = ids.new_zeros(ids.shape[0], tokens.shape[1], ids.shape[2])
        return {"txt": torch.cat([tokens, txt], dim=1), "txt_ids": torch.cat([places, ids], dim=1)}


def apply_style(model: Any, patch: ModelPatcher, vision: Any) -> Any:
    """A clone of FLUX.1's patcher that sees the style of pictures. vision: a `comfy.clip_vision.Output`.

    Raises UnfitVisionOutput where it is of another encoder than the patch was made for.
    """
    config, hidden = patch.model.config, vision.all_hidden_states
    if hidden is None:
        raise UnfitVisionOutput("the style comes from SigLIP, and the pictures were encoded with another model")
    wanted = (-min(DEPTHS.values()), config.patches, config.in_width)
    if hidden.shape[1] < wanted[0] or tuple(hidden.shape[2:]) != wanted[1:]:
        raise UnfitVisionOutput(
            f"the patch takes {wanted[0]} or more blocks of {wanted[1]} tokens, {wanted[2]} wide; the pictures were "
            f"encoded as {hidden.shape[1]} of {hidden.shape[2]}, {hidden.shape[3]} wide"
        )
    patched = model.clone()
    patched.set_model_post_input_patch(StylePatch(patch, hidden))
    patched.add_additional_model("model_patches", patch)
    return patched
