"""ControlNets of Stable Diffusion 3 and 3.5, in two makes.

* `ControlNetMMDiT` (InstantX, Alimama 2024): a copy of the model's first blocks, text and all;
* `ControlNetSD35` (Stability AI 2024): blocks that see the picture only, and borrow the model's first layers.

Sources: diffusers' SD3ControlNetModel (Apache-2.0) and the published files, in its layout; Stability AI's sd3.5
repository (MIT).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import comfy.ops
from comfy.models.attention import optimized_attention
from comfy.models.dit import FromDict, TimestepEmbedder, VectorEmbedder, count_blocks, modulate
from comfy.models.mmdit import HEAD_WIDTH, DismantledBlock, JointBlock, MMDiT, MMDiTConfig, PatchEmbed

Controls = dict[str, list[Tensor]]


class ControlNetMMDiT(MMDiT):
    """Tensors to add to the image tokens of Stable Diffusion 3, from the noisy latent and the latent of a picture.

    hint_channels: of the picture's latent, with a mask where there is one. model_depth: blocks of the model; each block
    here serves several of them.
    """

    def __init__(
        self,
        config: MMDiTConfig,
        hint_channels: int = 16,
        model_depth: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__(config, dtype, device, operations)
        factory = {"dtype": dtype, "device": device}
        width = config.hidden_size
        self.model_depth = model_depth or width // HEAD_WIDTH
        # Nothing ends here: the last text block is a whole one, and no layer makes pixels.
        del self.final_layer
        last = config.depth - 1
        second = last in config.x_block_self_attn_layers
        self.joint_blocks[last] = JointBlock(width, config.qk_norm, operations, last=False, second=second, **factory)
        self.controlnet_blocks = nn.ModuleList(operations.Linear(width, width, **factory) for _ in range(config.depth))
        self.pos_embed_input = PatchEmbed(config.patch_size, hint_channels, width, operations, **factory)

    def forward(
        self,
        x: Tensor,
        hint: Tensor,
        timesteps: Tensor,
        context: Tensor,
        y: Tensor | None = None,
        **kwargs: Any,
    ) -> Controls:
        """x: [batch, in_channels, h, w]; hint: [batch, hint_channels, h, w]; the others as for the model. These nets
        were trained with zeros for the pooled vector `y`, and get them whatever it is.

        Returns {"output": one tensor [batch, image tokens, width] per block of the model but the last}.
        """
        patch = self.config.patch_size
        rows, columns = (-(-n // patch) for n in x.shape[-2:])
        tokens = self.x_embedder(x)
        tokens = tokens + self.position_embedding(rows, columns).to(device=x.device, dtype=x.dtype)
        tokens = tokens + self.pos_embed_input(hint)
        c = self.t_embedder(timesteps, x.dtype)
        if self.y_embedder is not None:
            c = c + self.y_embedder(x.new_zeros(x.shape[0], self.config.adm_in_channels))
        context = self.context_embedder(context)

        out: list[Tensor] = []
        each = self.model_depth // len(self.joint_blocks)
        for block, project in zip(self.joint_blocks, self.controlnet_blocks):
            context, tokens = block(context, tokens, c)
            out += [project(tokens)] * each
        # The model's last block has text of no further use, and gets no control.
        return {"output": out[: self.model_depth - 1]}


@dataclasses.dataclass(frozen=True)
class SD35ControlConfig(FromDict):
    """Shape of a net by Stability AI. double_y_emb: the pooled vector goes through the model's embedder before this
    one's, and all blocks see the same tokens (made for the medium model); else the latent goes through the model's
    first layer and the blocks follow one another (large)."""

    depth: int = 19
    hidden_size: int = 2432
    in_channels: int = 16
    hint_channels: int = 16
    patch_size: int = 2
    y_channels: int = 2048
    qk_norm: str | None = None
    double_y_emb: bool = False

    @property
    def model_depth(self) -> int:
        return self.hidden_size // HEAD_WIDTH


def sd35_config_from_state_dict(sd: Mapping[str, Tensor]) -> SD35ControlConfig:
    """From tensor shapes. Raises KeyError naming a missing tensor."""
    hidden, hint_channels, patch, _ = sd["pos_embed_input.proj.weight"].shape
    own_input = sd.get("x_embedder.proj.weight")
    y_channels = sd["y_embedder.mlp.0.weight"].shape[1]
    return SD35ControlConfig(
        depth=count_blocks(sd, "transformer_blocks.{}.attn.qkv.weight"),
        hidden_size=hidden,
        in_channels=hint_channels if own_input is None else own_input.shape[1],
        hint_channels=hint_channels,
        patch_size=patch,
        y_channels=y_channels,
        qk_norm="rms" if "transformer_blocks.0.attn.ln_k.weight" in sd else None,
        double_y_emb=y_channels == hidden,
    )


class ImageBlock(DismantledBlock):
    """A block of the model with the image stream alone."""

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        normed, mod = self.before(x, c)
        q, k, v = self.attn.project(modulate(normed, mod[0], mod[1]))
        attention = optimized_attention(q, k, v, self.attn.heads, skip_reshape=True)
        return self.after(x, normed, attention, mod)


class ControlNetSD35(nn.Module):
    """Tensors to add to the image tokens of Stable Diffusion 3.5, from the noisy latent and a picture's latent."""

    def __init__(
        self,
        config: SD35ControlConfig,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__()
        factory = {"dtype": dtype, "device": device}
        width = config.hidden_size
        self.config = config
        self.dtype = dtype
        self.x_embedder = None
        if config.double_y_emb:
            self.x_embedder = PatchEmbed(config.patch_size, config.in_channels, width, operations, **factory)
        self.t_embedder = TimestepEmbedder(width, operations, **factory)
        self.y_embedder = VectorEmbedder(config.y_channels, width, operations, **factory)
        self.transformer_blocks = nn.ModuleList(
            ImageBlock(width, config.qk_norm, operations, **factory) for _ in range(config.depth)
        )
        self.controlnet_blocks = nn.ModuleList(operations.Linear(width, width, **factory) for _ in range(config.depth))
        self.pos_embed_input = PatchEmbed(config.patch_size, config.hint_channels, width, operations, **factory)
        # In a tuple, so that the model does not become a part of this one.
        self._lender: tuple[MMDiT, ...] = ()

    def borrow_from(self, model: MMDiT | None) -> None:
        """Use this model's first layers from now on; None: give them back."""
        self._lender = () if model is None else (model,)

    def forward(
        self,
        x: Tensor,
        hint: Tensor,
        timesteps: Tensor,
        context: Tensor | None = None,
        y: Tensor | None = None,
        **kw: Any,
    ) -> Controls:
        """As `ControlNetMMDiT.forward`; the text is not looked at, and `y` [batch, pooled width] is. All blocks of the
        model get a tensor. Raises RuntimeError before `borrow_from`."""
        if not self._lender:
            raise RuntimeError("this control net works with the first layers of a model, and has been given none")
        (model,) = self._lender
        if self.config.double_y_emb:
            tokens = self.x_embedder(x)
        else:
            rows, columns = (-(-n // self.config.patch_size) for n in x.shape[-2:])
            positions = model.position_embedding(rows, columns).to(device=x.device, dtype=x.dtype)
            tokens = model.x_embedder(x) + positions
        c = self.t_embedder(timesteps, x.dtype)
        if y is not None:
            c = c + self.y_embedder(model.y_embedder(y) if self.config.double_y_emb else y)
        tokens = tokens + self.pos_embed_input(hint)

        out: list[Tensor] = []
        each = math.ceil(self.config.model_depth / len(self.transformer_blocks))
        for block, project in zip(self.transformer_blocks, self.controlnet_blocks):
            after = block(tokens, c)
            out += [project(after)] * each
            if not self.config.double_y_emb:
                tokens = after
        return {"output": out}
