"""The UNet of Stable Diffusion 1, 2, XL and their inpainting and editing variants.

Sources: Ronneberger et al. 2015 (UNet), Ho et al. 2020 (residual blocks with time embedding), Rombach et al.
2022 (spatial transformers), Podell et al. 2023 (SDXL: transformer depth per level, vector conditioning), Blattmann et
al. 2023 (Stable Video Diffusion: layers across frames).

`config_from_state_dict` reads every dimension from the shapes of the tensors, so a file needs no config next
to it. To train from scratch: `net = UNetModel(config)`, then `comfy.ops.init_weights(net)`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import comfy.ops
from comfy.models.attention import SpatialTransformer
from comfy.models.unet_blocks import Downsample, ResBlock, TimestepBlock, Upsample, timestep_embedding
from comfy.models.video_blocks import SpatialVideoTransformer, VideoResBlock

# Stable Diffusion 1 splits every width into 8 heads; 2 and XL (recognised by their linear projections around
# the transformer blocks) use heads of 64 channels.
SD1_HEADS = 8
SD2_HEAD_CHANNELS = 64


@dataclasses.dataclass(frozen=True)
class UNetConfig:
    """Shape of a UNet. Lists run from the highest resolution to the lowest.

    transformer_depth: transformer blocks per residual block of the encoder; transformer_depth_output likewise
    for the decoder (one more per level). transformer_depth_middle: -1 = a single residual block in the
    middle, -2 = no middle block. Exactly one of num_heads and num_head_channels is positive. adm_in_channels:
    width of the vector `y`, None if there is none. label_count: `y` is one of so many numbers instead.
    disable_self_attentions: levels whose first attention looks at the context, too. temporal: behind each block is one
    across the frames of a video.
    """

    in_channels: int = 4
    out_channels: int = 4
    model_channels: int = 320
    channel_mult: tuple[int, ...] = (1, 2, 4, 4)
    num_res_blocks: tuple[int, ...] = (2, 2, 2, 2)
    transformer_depth: tuple[int, ...] = (1, 1, 1, 1, 1, 1, 0, 0)
    transformer_depth_middle: int = 1
    transformer_depth_output: tuple[int, ...] = (1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0)
    context_dim: int | None = 768
    adm_in_channels: int | None = None
    use_linear_in_transformer: bool = False
    num_heads: int = -1
    num_head_channels: int = -1
    attn_precision: torch.dtype | None = None
    label_count: int | None = None
    disable_self_attentions: tuple[bool, ...] = ()
    temporal: bool = False

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> UNetConfig:
        """From a mapping that may hold more keys than this class knows (they are ignored)."""
        names = {field.name for field in dataclasses.fields(cls)}
        known = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k in names}
        if isinstance(known.get("attn_precision"), str):
            known["attn_precision"] = getattr(torch, known["attn_precision"].removeprefix("torch."))
        return cls(**known)

    def looks_at_context(self, level: int) -> bool:
        """Whether a level has no self-attention."""
        return level < len(self.disable_self_attentions) and self.disable_self_attentions[level]

    def heads_for(self, channels: int) -> tuple[int, int]:
        """(heads, width of a head) for a block of `channels` channels."""
        if self.num_head_channels > 0:
            return channels // self.num_head_channels, self.num_head_channels
        heads = self.num_heads if self.num_heads > 0 else SD1_HEADS
        return heads, channels // heads


def config_from_state_dict(
    sd: Mapping[str, Tensor], prefix: str = "", encoder_only: bool = False, **overrides: Any
) -> UNetConfig:
    """Read the configuration from tensor names and shapes below `prefix`; `overrides` win (heads of unusual
    width are the one thing shapes do not tell). encoder_only: the tensors are those of a `UNetEncoder`.

    Raises KeyError naming the tensor when one that every UNet has is missing.
    """

    def shape(name: str) -> torch.Size:
        return sd[prefix + name].shape

    def has(name: str) -> bool:
        return prefix + name in sd

    def depth(block: str) -> int:
        count = 0
        while has(f"{block}.transformer_blocks.{count}.norm1.weight"):
            count += 1
        return count

    model_channels, in_channels = shape("input_blocks.0.0.weight")[:2]
    channel_mult: list[int] = []
    num_res_blocks: list[int] = []
    input_depths: list[int] = []
    transformers: list[str] = []
    res_blocks_in_level = 0
    block, channels = 1, shape("input_blocks.1.0.out_layers.3.weight")[0]
    while True:
        if has(f"input_blocks.{block}.0.out_layers.3.weight"):
            channels = shape(f"input_blocks.{block}.0.out_layers.3.weight")[0]
            res_blocks_in_level += 1
            input_depths.append(depth(f"input_blocks.{block}.1"))
            transformers.append(f"input_blocks.{block}.1")
        else:
            channel_mult.append(channels // model_channels)
            num_res_blocks.append(res_blocks_in_level)
            res_blocks_in_level = 0
            if not has(f"input_blocks.{block}.0.op.weight"):
                break
        block += 1

    output_depths: list[int] = []
    while has(f"output_blocks.{len(output_depths)}.0.in_layers.0.weight"):
        transformers.append(f"output_blocks.{len(output_depths)}.1")
        output_depths.append(depth(transformers[-1]))
    expected = 0 if encoder_only else sum(num_res_blocks) + len(num_res_blocks)
    if len(output_depths) < expected:
        raise KeyError(f"{prefix}output_blocks.{len(output_depths)}.0.in_layers.0.weight")

    if has("middle_block.2.in_layers.0.weight"):
        middle_depth = depth("middle_block.1")
        transformers.append("middle_block.1")
    else:
        middle_depth = -1 if has("middle_block.0.in_layers.0.weight") else -2

    def without_self_attention(level: int) -> bool:
        """A first attention whose keys are as wide as the context, and not as the image's tokens."""
        block = 1 + sum(num_res_blocks[:level]) + level
        key = f"input_blocks.{block}.1.transformer_blocks.0.attn1.to_k.weight"
        return has(key) and shape(key)[1] == context_dim and shape(key)[0] != context_dim

    with_attention = next((name for name in transformers if depth(name) > 0), None)
    context_dim = None
    use_linear = False
    if with_attention is not None:
        context_dim = shape(f"{with_attention}.transformer_blocks.0.attn2.to_k.weight")[1]
        use_linear = len(shape(f"{with_attention}.proj_in.weight")) == 2

    values: dict[str, Any] = {
        "in_channels": in_channels,
        "out_channels": in_channels if encoder_only else shape("out.2.weight")[0],
        "model_channels": model_channels,
        "channel_mult": tuple(channel_mult),
        "num_res_blocks": tuple(num_res_blocks),
        "transformer_depth": tuple(input_depths),
        "transformer_depth_middle": middle_depth,
        "transformer_depth_output": tuple(reversed(output_depths)),
        "context_dim": context_dim,
        "adm_in_channels": shape("label_emb.0.0.weight")[1] if has("label_emb.0.0.weight") else None,
        "use_linear_in_transformer": use_linear,
        "num_heads": -1 if use_linear else SD1_HEADS,
        "num_head_channels": SD2_HEAD_CHANNELS if use_linear else -1,
        "temporal": has("input_blocks.1.0.time_stack.in_layers.0.weight"),
    }
    if has("label_emb.weight"):
        # The x4 upscaler: told a noise level, 8 heads everywhere, and little self-attention.
        looks = tuple(without_self_attention(level) for level in range(len(channel_mult)))
        values |= {"label_count": shape("label_emb.weight")[0], "num_heads": SD1_HEADS, "num_head_channels": -1}
        # Where there is no attention the setting has no effect; published files have it on at the first level.
        values["disable_self_attentions"] = (True, *looks[1:])
    values.update(overrides)
    return UNetConfig(**values)


class TimestepEmbedSequential(nn.Sequential, TimestepBlock):
    """A stack whose members get, each as far as it takes them: time embedding, context, output shape."""

    def forward(self, x: Tensor, emb: Tensor, context=None, transformer_options: dict | None = None, *args, **kwargs):
        return forward_timestep_embed(self, x, emb, context, transformer_options, *args, **kwargs)


def forward_timestep_embed(
    layers: nn.Sequential,
    x: Tensor,
    emb: Tensor,
    context: Tensor | list[Tensor] | None = None,
    transformer_options: dict | None = None,
    output_shape: tuple[int, ...] | None = None,
    time_context: Tensor | None = None,
    num_video_frames: int | None = None,
    image_only_indicator: Tensor | None = None,
) -> Tensor:
    """Run one block of the UNet; the last three arguments are for layers across frames (comfy.models.video_blocks).
    Layers of kinds unknown here may be handled by the patches `forward_timestep_embed_patch`: pairs (class,
    function(layer, x, emb, context, options, output_shape, time_context, num_video_frames, image_only_indicator)), the
    last three for a video only."""
    transformer_options = {} if transformer_options is None else transformer_options
    for layer in layers:
        if isinstance(layer, VideoResBlock):
            x = layer(x, emb, num_video_frames, image_only_indicator)
        elif isinstance(layer, TimestepBlock):
            x = layer(x, emb)
        elif isinstance(layer, SpatialVideoTransformer):
            x = layer(x, context, time_context, num_video_frames, image_only_indicator, transformer_options)
            if "transformer_index" in transformer_options:
                transformer_options["transformer_index"] += 1
        elif isinstance(layer, SpatialTransformer):
            x = layer(x, context, transformer_options)
            if "transformer_index" in transformer_options:
                transformer_options["transformer_index"] += 1
        elif isinstance(layer, Upsample):
            x = layer(x, output_shape=output_shape)
        else:
            video = () if num_video_frames is None else (time_context, num_video_frames, image_only_indicator)
            x = _foreign_layer(layer, x, emb, context, transformer_options, output_shape, *video)
    return x


def _foreign_layer(layer, x, emb, context, transformer_options, *args) -> Tensor:
    for kind, function in transformer_options.get("patches", {}).get("forward_timestep_embed_patch", ()):
        if isinstance(layer, kind):
            return function(layer, x, emb, context, transformer_options, *args)
    return layer(x)


def apply_control(h: Tensor, control: dict[str, list[Tensor | None]] | None, name: str) -> Tensor:
    """Add the last remaining control tensor of the list `name` to `h`, taking it from the list."""
    if control and control.get(name):
        residual = control[name].pop()
        if residual is not None:
            h = h + residual
    return h


class _Layers:
    """Makes the layers of one UNet: what they have in common is said once."""

    def __init__(self, config: UNetConfig, operations: Any, dtype: torch.dtype | None, device: Any):
        self.config = config
        self.operations = operations
        self.factory = {"dtype": dtype, "device": device}
        self.layers = {"operations": operations, **self.factory}
        self.emb_channels = config.model_channels * 4

    def embedding_mlp(self, width: int) -> nn.Sequential:
        return nn.Sequential(
            self.operations.Linear(width, self.emb_channels, **self.factory),
            nn.SiLU(),
            self.operations.Linear(self.emb_channels, self.emb_channels, **self.factory),
        )

    def conv_in(self, in_channels: int) -> nn.Module:
        return self.operations.Conv2d(in_channels, self.config.model_channels, 3, padding=1, **self.factory)

    def residual(self, channels: int, out_channels: int) -> ResBlock:
        if self.config.temporal:
            return VideoResBlock(
                channels,
                self.emb_channels,
                video_kernel_size=(3, 1, 1),
                merge_strategy="learned_with_images",
                out_channels=out_channels,
                **self.layers,
            )
        return ResBlock(channels, self.emb_channels, out_channels=out_channels, **self.layers)

    def transformer(self, channels: int, depth: int, level: int | None = None) -> SpatialTransformer:
        """level: where it is; None for the middle."""
        heads, width = self.config.heads_for(channels)
        options = {
            "depth": depth,
            "context_dim": self.config.context_dim,
            "disable_self_attn": level is not None and self.config.looks_at_context(level),
            "use_linear": self.config.use_linear_in_transformer,
            "attn_precision": self.config.attn_precision,
            **self.layers,
        }
        if self.config.temporal:
            across_frames = {"use_spatial_context": True, "merge_strategy": "learned_with_images", "ff_in": True}
            return SpatialVideoTransformer(channels, heads, width, **across_frames, **options)
        return SpatialTransformer(channels, heads, width, **options)


class UNetEncoder(nn.Module):
    """The way down and the middle of a UNet: what a ControlNet has a copy of.

    `skip_channels` are the channels of each input block's output, `channels` those of the middle block's.
    """

    def __init__(
        self,
        config: UNetConfig,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__()
        self.config = config
        self.dtype = dtype
        self.in_channels = config.in_channels
        self.model_channels = config.model_channels
        self.num_classes = "sequential" if config.adm_in_channels is not None else config.label_count
        make = _Layers(config, operations, dtype, device)

        self.time_embed = make.embedding_mlp(config.model_channels)
        if config.adm_in_channels is not None:
            self.label_emb = nn.Sequential(make.embedding_mlp(config.adm_in_channels))
        elif config.label_count is not None:
            self.label_emb = operations.Embedding(config.label_count, make.emb_channels, **make.factory)

        channels = config.model_channels
        skips = [channels]
        depths = iter(config.transformer_depth)
        self.input_blocks = nn.ModuleList([TimestepEmbedSequential(make.conv_in(config.in_channels))])
        last_level = len(config.channel_mult) - 1
        for level, (mult, count) in enumerate(zip(config.channel_mult, config.num_res_blocks)):
            for _ in range(count):
                block = [make.residual(channels, mult * config.model_channels)]
                channels = mult * config.model_channels
                if (depth := next(depths)) > 0:
                    block.append(make.transformer(channels, depth, level))
                self.input_blocks.append(TimestepEmbedSequential(*block))
                skips.append(channels)
            if level != last_level:
                self.input_blocks.append(TimestepEmbedSequential(Downsample(channels, **make.layers)))
                skips.append(channels)

        self.middle_block = None
        if config.transformer_depth_middle >= -1:
            block = [make.residual(channels, channels)]
            if config.transformer_depth_middle >= 0:
                if config.transformer_depth_middle > 0:
                    block.append(make.transformer(channels, config.transformer_depth_middle))
                block.append(make.residual(channels, channels))
            self.middle_block = TimestepEmbedSequential(*block)
        self.channels = channels
        self.skip_channels = tuple(skips)

    def embed(self, timesteps: Tensor, dtype: torch.dtype) -> Tensor:
        """The embedding of timesteps [batch], before the vector `y` is added."""
        return self.time_embed(timestep_embedding(timesteps, self.model_channels).to(dtype))

    def embed_vector(self, y: Tensor | None) -> Tensor:
        """The embedding of `y`, for models that are conditioned on one: a vector [batch, adm_in_channels], or numbers
        [batch] of classes. Raises ValueError without it."""
        if y is None:
            raise ValueError("this UNet is conditioned on a vector: argument y is missing")
        if self.config.label_count is not None:
            return self.label_emb(y.long())
        return self.label_emb(y)


class UNetModel(UNetEncoder):
    """Predicts noise (or velocity) for a latent at a timestep, given a context sequence."""

    def __init__(
        self,
        config: UNetConfig,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__(config, dtype, device, operations)
        self.out_channels = config.out_channels
        make = _Layers(config, operations, dtype, device)
        channels, skips = self.channels, list(self.skip_channels)
        depths = iter(reversed(config.transformer_depth_output))
        self.output_blocks = nn.ModuleList()
        for level, (mult, count) in reversed(list(enumerate(zip(config.channel_mult, config.num_res_blocks)))):
            for index in range(count + 1):
                block = [make.residual(channels + skips.pop(), mult * config.model_channels)]
                channels = mult * config.model_channels
                if (depth := next(depths)) > 0:
                    block.append(make.transformer(channels, depth, level))
                if level > 0 and index == count:
                    block.append(Upsample(channels, **make.layers))
                self.output_blocks.append(TimestepEmbedSequential(*block))

        self.out = nn.Sequential(
            operations.GroupNorm(32, channels, **make.factory),
            nn.SiLU(),
            operations.Conv2d(channels, config.out_channels, 3, padding=1, **make.factory),
        )

    def forward(
        self,
        x: Tensor,
        timesteps: Tensor,
        context: Tensor | list[Tensor] | None = None,
        y: Tensor | None = None,
        control: dict[str, list[Tensor | None]] | None = None,
        transformer_options: dict | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Output [batch, out_channels, height, width].

        x: [batch, in_channels, height, width], any size; timesteps: [batch] floats; context: [batch, tokens,
        context_dim]; y: [batch, adm_in_channels]. control: lists `input`, `middle`, `output` of tensors to add,
        each used from its end. Of a temporal UNet the batch is one video, or several of `num_video_frames`
        frames each; `time_context`: see `SpatialVideoTransformer`. transformer_options: see
        `comfy.models.attention`; the UNet adds the patches `emb_patch` (emb, model_channels, options),
        `input_block_patch` and `input_block_patch_after_skip` (h, options), `middle_block_after_patch` (h,
        options) and `output_block_patch` (h, skip, options) -> both.
        """
        options = {**(transformer_options or {}), "original_shape": list(x.shape), "transformer_index": 0}
        patches = options.get("patches", {})
        control = {name: list(tensors) for name, tensors in control.items()} if control else None
        video = {}
        if self.config.temporal:
            video = {name: kwargs.get(name) for name in ("time_context", "num_video_frames", "image_only_indicator")}
            video["num_video_frames"] = video["num_video_frames"] or x.shape[0]

        emb = self.embed(timesteps, x.dtype)
        for patch in patches.get("emb_patch", ()):
            emb = patch(emb, self.model_channels, options)
        if self.num_classes is not None:
            emb = emb + self.embed_vector(y).to(emb.dtype)

        h, skips = x, []
        for number, block in enumerate(self.input_blocks):
            options["block"] = ("input", number)
            h = forward_timestep_embed(block, h, emb, context, options, **video)
            h = apply_control(h, control, "input")
            for patch in patches.get("input_block_patch", ()):
                h = patch(h, options)
            skips.append(h)
            for patch in patches.get("input_block_patch_after_skip", ()):
                h = patch(h, options)

        options["block"] = ("middle", 0)
        if self.middle_block is not None:
            h = forward_timestep_embed(self.middle_block, h, emb, context, options, **video)
        h = apply_control(h, control, "middle")
        for patch in patches.get("middle_block_after_patch", ()):
            h = patch(h, options)

        for number, block in enumerate(self.output_blocks):
            options["block"] = ("output", number)
            skip = apply_control(skips.pop(), control, "output")
            for patch in patches.get("output_block_patch", ()):
                h, skip = patch(h, skip, options)
            output_shape = skips[-1].shape if skips else None
            joined = torch.cat([h, skip], dim=1)
            h = forward_timestep_embed(block, joined, emb, context, options, output_shape, **video)

        return self.out(h)
