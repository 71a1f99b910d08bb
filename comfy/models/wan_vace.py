"""VACE: Wan with a second, thinner stack of blocks that looks at videos to follow or to change.

Source: Jiang et al. 2025, "VACE: All-in-One Video Creation and Editing" (code: Apache-2.0).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import comfy.ops
from comfy.models import wan
from comfy.models.dit import BlockHooks, count_blocks, pad_to_patch_size
from comfy.models.wan import Block, Wan, WanConfig


@dataclasses.dataclass(frozen=True)
class WanVaceConfig(WanConfig):
    """vace_layers: blocks of the second stack, spread evenly over the first; vace_in_dim: channels of its videos."""

    model_type: str = "vace"
    vace_layers: int = 8
    vace_in_dim: int = 96

    @property
    def places(self) -> tuple[int, ...]:
        """After which blocks of the first stack those of the second are added."""
        step = self.num_layers // self.vace_layers
        return tuple(range(0, step * self.vace_layers, step))


def config_from_state_dict(sd: Mapping[str, Tensor], prefix: str = "", **overrides: Any) -> WanVaceConfig:
    """As of `comfy.models.wan`. Raises KeyError naming a missing tensor."""
    values = dataclasses.asdict(wan.config_from_state_dict(sd, prefix))
    values |= {
        "model_type": "vace",
        "vace_layers": count_blocks(sd, prefix + "vace_blocks.{}.after_proj.weight"),
        "vace_in_dim": sd[prefix + "vace_patch_embedding.weight"].shape[1],
    }
    return WanVaceConfig(**{**values, **overrides})


class VaceBlock(Block):
    """A block of the second stack; the first one takes in what the model itself sees."""

    def __init__(self, config: WanVaceConfig, number: int, operations, **factory):
        super().__init__(config, operations, **factory)
        self.before_proj = operations.Linear(config.dim, config.dim, **factory) if number == 0 else None
        self.after_proj = operations.Linear(config.dim, config.dim, **factory)

    def entered(self, x: Tensor, img: Tensor) -> Tensor:
        """What the block works on. x: of the block before, or the tokens of a video; img: the model's own tokens."""
        return x if self.before_proj is None else self.before_proj(x) + img


class WanVace(Wan):
    """Wan that is shown videos."""

    def __init__(
        self,
        config: WanVaceConfig,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__(config, dtype, device, operations)
        factory = {"dtype": dtype, "device": device}
        patch = config.patch_size
        self.vace_blocks = torch.nn.ModuleList(
            VaceBlock(config, i, operations, **factory) for i in range(config.vace_layers)
        )
        self.vace_patch_embedding = comfy.ops.manual_cast.Conv3d(
            config.vace_in_dim, config.dim, kernel_size=patch, stride=patch, **factory
        )

    def run_blocks(
        self,
        img: Tensor,
        txt: Tensor,
        vec: Tensor,
        pe: Tensor,
        pictures: int,
        hooks: BlockHooks,
        vace_context: Tensor | None = None,
        vace_strength: Sequence[float] | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """vace_context: [batch, videos, vace_in_dim, frames, height, width], latents of what stays and of what is
        changed, and the mask; vace_strength: weight of each video."""
        shown = [] if vace_context is None else [self._tokens(video) for video in vace_context.unbind(1)]
        weights = vace_strength or [1.0] * len(shown)
        beside = dict(zip(self.config.places, self.vace_blocks))

        def add_videos(i: int, x: Tensor) -> Tensor:
            if (block := beside.get(i)) is None:
                return x
            for k, weight in enumerate(weights[: len(shown)]):
                shown[k] = block(block.entered(shown[k], img), vec, pe, txt, pictures, hooks.options)
                x = x + block.after_proj(shown[k]) * weight
            return x

        return super().run_blocks(img, txt, vec, pe, pictures, hooks, add_videos)

    def _tokens(self, video: Tensor) -> Tensor:
        video = pad_to_patch_size(video, self.config.patch_size)
        return self.vace_patch_embedding(video.float()).to(video.dtype).flatten(2).transpose(1, 2)
