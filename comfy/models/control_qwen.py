"""ControlNets of Qwen-Image (InstantX 2025): a copy of the model's first blocks that also sees a picture's latent.

Source: diffusers' QwenImageControlNetModel (Apache-2.0) and the published files (union; inpainting, with a mask beside
the latent).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import comfy.ops
from comfy.models.control_flux import spread_over
from comfy.models.qwen_image import QwenImage, QwenImageConfig

MODEL_BLOCKS = 60


class ControlNetQwenImage(QwenImage):
    """Tensors to add to the image tokens of Qwen-Image. hint_width: of a patch of the picture's latent, with a mask
    where there is one."""

    def __init__(
        self,
        config: QwenImageConfig,
        hint_width: int = 64,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__(config, dtype, device, operations)
        factory = {"dtype": dtype, "device": device}
        width = config.width
        del self.norm_out, self.proj_out
        self.controlnet_blocks = nn.ModuleList(
            operations.Linear(width, width, **factory) for _ in range(config.num_layers)
        )
        self.controlnet_x_embedder = operations.Linear(hint_width, width, **factory)

    def forward(
        self,
        x: Tensor,
        hint: Tensor,
        timesteps: Tensor,
        context: Tensor,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, list[Tensor]]:
        """x: [batch, channels, frames, h, w]; hint: [batch, channels (+ mask), frames, h, w] or without frames; the
        others as for the model. Returns {"input": one tensor [batch, image tokens, width] per block of the model}."""
        if hint.ndim == 4:
            hint = hint.unsqueeze(2)
        tokens, img_ids = self.image_tokens(x)
        img = self.img_in(tokens) + self.controlnet_x_embedder(self.image_tokens(hint)[0])
        txt = self.txt_in(self.txt_norm(context))
        pe = self.positions(img_ids, context.shape[1], x.shape[-2:])
        vec = self.time_text_embed(timesteps, x.dtype).unsqueeze(1)
        mask = None
        if attention_mask is not None:
            mask = F.pad(attention_mask.bool(), (0, img.shape[1]), value=True)[:, None, None]

        out = []
        for block, project in zip(self.transformer_blocks, self.controlnet_blocks):
            img, txt = block(img, txt, vec, pe, mask)
            out.append(project(img))
        return {"input": spread_over(out, MODEL_BLOCKS)}
