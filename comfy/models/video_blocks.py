"""Layers across the frames of a video, between those of a UNet for pictures.

Source: Blattmann et al. 2023, "Stable Video Diffusion", appendix D, and "Align your Latents": each block is followed by
one that mixes frames, and a learned number tells how much of it is used. Frames of a video stand one after the other in
the batch [videos * frames, ...].
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

import comfy.ops
from comfy.models.attention import BasicTransformerBlock, SpatialTransformer
from comfy.models.unet_blocks import ResBlock, timestep_embedding


class AlphaBlender(nn.Module):
    """A mixture of two tensors, one from layers within frames and one from layers across them.

    merge_strategy: "fixed" (the share of the first is `alpha`), "learned" (the sigmoid of `alpha`, a parameter), or
    "learned_with_images" (frames that are pictures of their own are not mixed). rearrange_pattern: where the numbers
    [videos, frames] go: "b t -> b 1 t 1 1" or "b t -> (b t) 1 1".

    Raises ValueError for other strategies and patterns.
    """

    strategies = ("learned", "fixed", "learned_with_images")

    def __init__(
        self, alpha: float, merge_strategy: str = "learned_with_images", rearrange_pattern: str = "b t -> (b t) 1 1"
    ):
        super().__init__()
        if merge_strategy not in self.strategies:
            raise ValueError(f"merge_strategy is {merge_strategy!r}, expected one of {', '.join(self.strategies)}")
        if rearrange_pattern not in _PLACES:
            raise ValueError(f"rearrange_pattern is {rearrange_pattern!r}, expected one of {', '.join(_PLACES)}")
        self.merge_strategy = merge_strategy
        self.rearrange_pattern = rearrange_pattern
        factor = torch.tensor([float(alpha)])
        if merge_strategy == "fixed":
            self.register_buffer("mix_factor", factor)
        else:
            self.mix_factor = nn.Parameter(factor)

    def get_alpha(self, image_only_indicator: Tensor | None, device: torch.device) -> Tensor:
        """The share of the first tensor, in the shape to multiply it with. image_only_indicator: [videos, frames], 1
        for pictures of their own; None if there are none."""
        alpha = self.mix_factor.to(device)
        if self.merge_strategy == "fixed":
            return alpha
        alpha = torch.sigmoid(alpha)
        if self.merge_strategy == "learned":
            return alpha
        shares = alpha[None]
        if image_only_indicator is not None:
            shares = torch.where(image_only_indicator.to(device).bool(), torch.ones_like(alpha), alpha)
        return _PLACES[self.rearrange_pattern](shares)

    def forward(self, x_spatial: Tensor, x_temporal: Tensor, image_only_indicator: Tensor | None = None) -> Tensor:
        alpha = self.get_alpha(image_only_indicator, x_spatial.device).to(x_spatial.dtype)
        return alpha * x_spatial + (1.0 - alpha) * x_temporal


_PLACES = {
    "b t -> b 1 t 1 1": lambda shares: shares[:, None, :, None, None],
    "b t -> (b t) 1 1": lambda shares: shares.reshape(-1, 1, 1),
}


class VideoResBlock(ResBlock):
    """A residual block within frames, then one across them (`time_stack`), mixed."""

    def __init__(
        self,
        channels: int,
        emb_channels: int,
        dropout: float = 0.0,
        video_kernel_size: int | Sequence[int] = 3,
        merge_strategy: str = "fixed",
        merge_factor: float = 0.5,
        out_channels: int | None = None,
        use_conv: bool = False,
        use_scale_shift_norm: bool = False,
        dims: int = 2,
        use_checkpoint: bool = False,
        up: bool = False,
        down: bool = False,
        dtype=None,
        device=None,
        operations=comfy.ops.disable_weight_init,
    ):
        layers = {"dtype": dtype, "device": device, "operations": operations}
        super().__init__(
            channels,
            emb_channels,
            dropout,
            out_channels=out_channels,
            use_conv=use_conv,
            use_scale_shift_norm=use_scale_shift_norm,
            dims=dims,
            up=up,
            down=down,
            **layers,
        )
        self.time_stack = ResBlock(
            self.out_channels,
            emb_channels,
            dropout,
            dims=3,
            kernel_size=video_kernel_size,
            exchange_temb_dims=True,
            **layers,
        )
        self.time_mixer = AlphaBlender(merge_factor, merge_strategy, "b t -> b 1 t 1 1")

    def forward(
        self, x: Tensor, emb: Tensor, num_video_frames: int | None = None, image_only_indicator: Tensor | None = None
    ) -> Tensor:
        """x: [videos * frames, channels, height, width]; emb: [videos * frames, width]; num_video_frames: of each video
        (default: all)."""
        x = super().forward(x, emb)
        frames = num_video_frames or x.shape[0]
        x = x.unflatten(0, (-1, frames)).transpose(1, 2)  # [videos, channels, frames, height, width]
        mixed = self.time_stack(x, emb.unflatten(0, (-1, frames)))
        return self.time_mixer(x, mixed, image_only_indicator).transpose(1, 2).flatten(0, 1)


class SpatialVideoTransformer(SpatialTransformer):
    """Transformer blocks within frames, each followed by one along the frames of a pixel (`time_stack`), mixed.

    use_spatial_context: layers across frames look at the first frame's context; else at the `time_context` that the
    call gives, of width `time_context_dim`. time_depth: accepted for the interface's sake, there is one for each block.
    """

    def __init__(
        self,
        in_channels: int,
        n_heads: int,
        d_head: int,
        depth: int = 1,
        dropout: float = 0.0,
        use_linear: bool = False,
        context_dim: int | None = None,
        use_spatial_context: bool = False,
        timesteps: int | None = None,
        merge_strategy: str = "fixed",
        merge_factor: float = 0.5,
        time_context_dim: int | None = None,
        ff_in: bool = False,
        checkpoint: bool = False,
        time_depth: int = 1,
        disable_self_attn: bool = False,
        disable_temporal_crossattention: bool = False,
        max_time_embed_period: int = 10000,
        attn_precision: torch.dtype | None = None,
        dtype=None,
        device=None,
        operations=comfy.ops.disable_weight_init,
    ):
        factory = {"dtype": dtype, "device": device}
        super().__init__(
            in_channels,
            n_heads,
            d_head,
            depth=depth,
            dropout=dropout,
            context_dim=context_dim,
            disable_self_attn=disable_self_attn,
            use_linear=use_linear,
            attn_precision=attn_precision,
            operations=operations,
            **factory,
        )
        self.use_spatial_context = use_spatial_context
        self.max_time_embed_period = max_time_embed_period
        inner = n_heads * d_head
        self.time_stack = nn.ModuleList(
            BasicTransformerBlock(
                inner,
                n_heads,
                d_head,
                dropout=dropout,
                context_dim=context_dim if use_spatial_context else time_context_dim,
                ff_in=ff_in,
                inner_dim=inner,
                disable_self_attn=disable_self_attn,
                disable_temporal_crossattention=disable_temporal_crossattention,
                attn_precision=attn_precision,
                operations=operations,
                **factory,
            )
            for _ in range(depth)
        )
        self.time_pos_embed = nn.Sequential(
            operations.Linear(in_channels, in_channels * 4, **factory),
            nn.SiLU(),
            operations.Linear(in_channels * 4, in_channels, **factory),
        )
        self.time_mixer = AlphaBlender(merge_factor, merge_strategy, "b t -> (b t) 1 1")

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        time_context: Tensor | None = None,
        timesteps: int | None = None,
        image_only_indicator: Tensor | None = None,
        transformer_options: dict | None = None,
    ) -> Tensor:
        """x: [videos * frames, channels, height, width]; context: [videos * frames, tokens, width]; time_context:
        [videos, tokens, width] or [videos, width]; timesteps: frames of a video (default: all)."""
        residual, (height, width) = x, x.shape[2:]
        frames = timesteps or x.shape[0]
        options = {**(transformer_options or {}), "activations_shape": list(x.shape)}
        pixels = height * width
        if self.use_spatial_context:
            time_context = None if context is None else context[::frames]
        if time_context is not None:
            time_context = time_context[:, None] if time_context.ndim == 2 else time_context
            time_context = time_context.repeat_interleave(pixels, dim=0)  # the same for all pixels of a video
        x = self._enter(x)
        position = self._frame_positions(frames, x)
        for index, (block, across) in enumerate(zip(self.transformer_blocks, self.time_stack)):
            options["block_index"] = index
            x = block(x, context, options)
            # [videos * frames, pixels, width] -> [videos * pixels, frames, width] and back
            lines = (x + position).unflatten(0, (-1, frames)).transpose(1, 2).flatten(0, 1)
            lines = across(lines, time_context).unflatten(0, (-1, pixels)).transpose(1, 2).flatten(0, 1)
            x = self.time_mixer(x, lines, image_only_indicator)
        return self._leave(x, height, width) + residual

    def _frame_positions(self, frames: int, x: Tensor) -> Tensor:
        """[videos * frames, 1, channels]"""
        numbers = torch.arange(frames, device=x.device).repeat(x.shape[0] // frames)
        embedding = timestep_embedding(numbers, self.in_channels, self.max_time_embed_period)
        return self.time_pos_embed(embedding.to(x.dtype))[:, None]
