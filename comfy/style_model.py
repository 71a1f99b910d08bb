"""FLUX.1 Redux: an image encoder's tokens, turned into tokens that stand beside those of the text.

Source: Black Forest Labs 2024, https://github.com/black-forest-labs/flux (Apache-2.0), the image embedder of Redux.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import comfy.model_management
import comfy.ops
import comfy.utils
from comfy.model_base import load_assigned
from comfy.model_patcher import ModelPatcher
from comfy.weights import WeightsFileError, refusing


class UnknownStyleModel(WeightsFileError):
    """A file is no style model known here."""


class ReduxImageEncoder(nn.Module):
    """Linear, SiLU, Linear over each token."""

    def __init__(
        self,
        redux_dim: int = 1152,
        hidden_dim: int = 12288,
        txt_in_features: int = 4096,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        operations: Any = comfy.ops.manual_cast,
    ):
        super().__init__()
        self.redux_up = operations.Linear(redux_dim, hidden_dim, device=device, dtype=dtype)
        self.redux_down = operations.Linear(hidden_dim, txt_in_features, device=device, dtype=dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.redux_down(F.silu(self.redux_up(tokens)))


class StyleModel:
    """A style model as nodes use it, with its patcher: it runs where image encoders run.

    device: where its weights wait.
    """

    def __init__(self, model: nn.Module, device: str | torch.device = "cpu"):
        self.model = model
        self.load_device = comfy.model_management.text_encoder_device()
        self.patcher = ModelPatcher(model, self.load_device, torch.device(device))

    def get_cond(self, input: Any) -> Tensor:
        """Tokens [batch, tokens, width] from an image encoder's output."""
        comfy.model_management.load_models_gpu([self.patcher])
        tokens = self.model(input.last_hidden_state.to(self.load_device).float())
        self.patcher.cleanup()
        return tokens.to(comfy.model_management.intermediate_device())


@torch.inference_mode(False)
def load_style_model(ckpt_path: str) -> StyleModel:
    """A style model from its file. Raises WeightsFileError or UnknownStyleModel."""
    sd: Mapping[str, Tensor] = comfy.utils.load_torch_file(ckpt_path)
    size = os.path.getsize(ckpt_path)
    if "redux_down.weight" not in sd:
        first = next(iter(sd), "none")
        cause = f"of style models only FLUX.1 Redux is known here ({len(sd)} tensors, such as {first})"
        raise UnknownStyleModel(ckpt_path, size, cause)
    with refusing(ckpt_path, UnknownStyleModel):
        hidden, width = sd["redux_up.weight"].shape
        model = ReduxImageEncoder(
            width, hidden, sd["redux_down.weight"].shape[0], device="meta", dtype=comfy.utils.weight_dtype(sd)
        )
        load_assigned(model, sd, "style model")
    return StyleModel(model.eval(), comfy.model_management.text_encoder_offload_device())
