"""The image autoencoder of Stable Diffusion 1/2/XL (4 channels) and of SD3 and Flux (16 channels).

Source: Rombach et al. 2022, appendix G (the KL-regularised autoencoder). With quant convolutions around the
latent in the older files, without in the newer ones. The decoder of Stable Video Diffusion (Blattmann et al. 2023)
mixes the frames of a video as well.

To train from scratch: `net = AutoencoderKL(config)`, then `comfy.ops.init_weights(net)`; `moments` gives mean
and log variance for the KL term.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import comfy.ops
from comfy.models.unet_blocks import ResBlock

NORM_EPS = 1e-6


@dataclasses.dataclass(frozen=True)
class AutoencoderConfig:
    """Shape of the autoencoder; `ch_mult` runs from full resolution to the latent's.

    embed_dim: channels of the latent outside the quant convolutions; None when the file has none. quant_conv: whether
    there is one behind the encoder (None: if there is one before the decoder). temporal: the decoder takes its batch
    for a video.
    """

    in_channels: int = 3
    out_channels: int = 3
    ch: int = 128
    ch_mult: tuple[int, ...] = (1, 2, 4, 4)
    num_res_blocks: int = 2
    z_channels: int = 4
    double_z: bool = True
    embed_dim: int | None = 4
    quant_conv: bool | None = None
    temporal: bool = False

    @property
    def downscale(self) -> int:
        """Pixels per latent cell along one side."""
        return 2 ** (len(self.ch_mult) - 1)

    @property
    def latent_channels(self) -> int:
        return self.z_channels if self.embed_dim is None else self.embed_dim


def config_from_state_dict(sd: Mapping[str, Tensor], prefix: str = "") -> AutoencoderConfig:
    """Read the configuration from tensor shapes below `prefix`. Raises KeyError naming a missing tensor."""

    def shape(name: str) -> torch.Size:
        return sd[prefix + name].shape

    ch, in_channels = shape("encoder.conv_in.weight")[:2]
    ch_mult: list[int] = []
    while f"{prefix}encoder.down.{len(ch_mult)}.block.0.conv2.weight" in sd:
        ch_mult.append(shape(f"encoder.down.{len(ch_mult)}.block.0.conv2.weight")[0] // ch)
    num_res_blocks = 0
    while f"{prefix}encoder.down.0.block.{num_res_blocks}.conv1.weight" in sd:
        num_res_blocks += 1
    z_channels = shape("decoder.conv_in.weight")[1]
    quant = f"{prefix}post_quant_conv.weight" in sd
    return AutoencoderConfig(
        in_channels=in_channels,
        out_channels=shape("decoder.conv_out.weight")[0],
        ch=ch,
        ch_mult=tuple(ch_mult),
        num_res_blocks=num_res_blocks,
        z_channels=z_channels,
        double_z=shape("encoder.conv_out.weight")[0] == 2 * z_channels,
        embed_dim=shape("post_quant_conv.weight")[1] if quant else None,
        quant_conv=f"{prefix}quant_conv.weight" in sd,
        temporal=f"{prefix}decoder.mid.block_1.mix_factor" in sd,
    )


class ResnetBlock(nn.Module):
    """Two normed convolutions around a residual."""

    def __init__(self, in_channels: int, out_channels: int, operations, **factory):
        super().__init__()
        self.norm1 = operations.GroupNorm(32, in_channels, eps=NORM_EPS, **factory)
        self.conv1 = operations.Conv2d(in_channels, out_channels, 3, padding=1, **factory)
        self.norm2 = operations.GroupNorm(32, out_channels, eps=NORM_EPS, **factory)
        self.conv2 = operations.Conv2d(out_channels, out_channels, 3, padding=1, **factory)
        self.nin_shortcut = None
        if in_channels != out_channels:
            self.nin_shortcut = operations.Conv2d(in_channels, out_channels, 1, **factory)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        if self.nin_shortcut is not None:
            x = self.nin_shortcut(x)
        return x + h


def _as_video(layer: nn.Module, frames: Tensor) -> Tensor:
    """What a layer for videos makes of frames [frames, channels, height, width]."""
    return layer(frames.transpose(0, 1)[None])[0].transpose(0, 1)


class VideoResnetBlock(ResnetBlock):
    """A block within frames, then one across the frames [frames, channels, height, width], mixed."""

    def __init__(self, in_channels: int, out_channels: int, operations, **factory):
        super().__init__(in_channels, out_channels, operations, **factory)
        self.time_stack = ResBlock(
            out_channels, 0, dims=3, kernel_size=(3, 1, 1), skip_t_emb=True, operations=operations, **factory
        )
        self.mix_factor = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        across = _as_video(self.time_stack, x)
        share = torch.sigmoid(self.mix_factor.to(x))
        return share * across + (1.0 - share) * x


class AttnBlock(nn.Module):
    """Self-attention over all pixels with one head as wide as the feature map."""

    def __init__(self, channels: int, operations, **factory):
        super().__init__()
        self.norm = operations.GroupNorm(32, channels, eps=NORM_EPS, **factory)
        self.q = operations.Conv2d(channels, channels, 1, **factory)
        self.k = operations.Conv2d(channels, channels, 1, **factory)
        self.v = operations.Conv2d(channels, channels, 1, **factory)
        self.proj_out = operations.Conv2d(channels, channels, 1, **factory)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        # [batch, channels, height, width] -> [batch, 1 head, pixels, channels]
        q, k, v = (layer(h).flatten(2).transpose(1, 2).unsqueeze(1) for layer in (self.q, self.k, self.v))
        out = F.scaled_dot_product_attention(q, k, v).squeeze(1)
        return x + self.proj_out(out.transpose(1, 2).unflatten(2, x.shape[2:]))


class Downsample(nn.Module):
    """Stride-2 convolution; the one row and column of padding goes to the bottom and the right."""

    def __init__(self, channels: int, operations, **factory):
        super().__init__()
        self.conv = operations.Conv2d(channels, channels, 3, stride=2, padding=0, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Upsample(nn.Module):
    """Nearest neighbour to twice the size, then a convolution."""

    def __init__(self, channels: int, operations, **factory):
        super().__init__()
        self.conv = operations.Conv2d(channels, channels, 3, padding=1, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class Middle(nn.Module):
    def __init__(self, channels: int, operations, block: type[ResnetBlock] = ResnetBlock, **factory):
        super().__init__()
        self.block_1 = block(channels, channels, operations, **factory)
        self.attn_1 = AttnBlock(channels, operations, **factory)
        self.block_2 = block(channels, channels, operations, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return self.block_2(self.attn_1(self.block_1(x)))


class Level(nn.Module):
    """One resolution: residual blocks, then a change of size unless it is the last."""

    def __init__(
        self, in_channels: int, out_channels: int, blocks: int, operations, block: type = ResnetBlock, **factory
    ):
        super().__init__()
        self.block = nn.ModuleList(
            block(in_channels if i == 0 else out_channels, out_channels, operations, **factory) for i in range(blocks)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.block:
            x = block(x)
        for name in ("downsample", "upsample"):
            if (resize := getattr(self, name, None)) is not None:
                x = resize(x)
        return x


class Encoder(nn.Module):
    """Pixels [batch, in_channels, height, width] in -1..1 -> [batch, 2 * z_channels, height / f, width /
    f]."""

    def __init__(self, config: AutoencoderConfig, operations, **factory):
        super().__init__()
        channels = config.ch
        self.conv_in = operations.Conv2d(config.in_channels, channels, 3, padding=1, **factory)
        self.down = nn.ModuleList()
        for index, mult in enumerate(config.ch_mult):
            level = Level(channels, config.ch * mult, config.num_res_blocks, operations, **factory)
            channels = config.ch * mult
            if index != len(config.ch_mult) - 1:
                level.downsample = Downsample(channels, operations, **factory)
            self.down.append(level)
        self.mid = Middle(channels, operations, **factory)
        self.norm_out = operations.GroupNorm(32, channels, eps=NORM_EPS, **factory)
        out_channels = config.z_channels * (2 if config.double_z else 1)
        self.conv_out = operations.Conv2d(channels, out_channels, 3, padding=1, **factory)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv_in(x)
        for level in self.down:
            h = level(h)
        return self.conv_out(F.silu(self.norm_out(self.mid(h))))


class Decoder(nn.Module):
    """Latent [batch, z_channels, height, width] -> pixels [batch, out_channels, height * f, width * f], about
    -1..1."""

    def __init__(self, config: AutoencoderConfig, operations, **factory):
        super().__init__()
        channels = config.ch * config.ch_mult[-1]
        self.conv_in = operations.Conv2d(config.z_channels, channels, 3, padding=1, **factory)
        block = VideoResnetBlock if config.temporal else ResnetBlock
        self.mid = Middle(channels, operations, block, **factory)
        levels = []
        for index, mult in reversed(list(enumerate(config.ch_mult))):
            level = Level(channels, config.ch * mult, config.num_res_blocks + 1, operations, block, **factory)
            channels = config.ch * mult
            if index != 0:
                level.upsample = Upsample(channels, operations, **factory)
            levels.append(level)
        # Files number the levels from full resolution down; they run in the opposite order.
        self.up = nn.ModuleList(reversed(levels))
        self.norm_out = operations.GroupNorm(32, channels, eps=NORM_EPS, **factory)
        self.conv_out = operations.Conv2d(channels, config.out_channels, 3, padding=1, **factory)
        if config.temporal:
            out = config.out_channels
            self.conv_out.time_mix_conv = operations.Conv3d(out, out, (3, 1, 1), padding=(1, 0, 0), **factory)

    def forward(self, z: Tensor) -> Tensor:
        h = self.mid(self.conv_in(z))
        for level in reversed(self.up):
            h = level(h)
        out = self.conv_out(F.silu(self.norm_out(h)))
        across_frames = getattr(self.conv_out, "time_mix_conv", None)
        return out if across_frames is None else _as_video(across_frames, out)


class AutoencoderKL(nn.Module):
    """Encoder and decoder around a small Gaussian latent."""

    def __init__(
        self,
        config: AutoencoderConfig,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__()
        factory = {"dtype": dtype, "device": device}
        self.config = config
        self.encoder = Encoder(config, operations, **factory)
        self.decoder = Decoder(config, operations, **factory)
        self.quant_conv = self.post_quant_conv = None
        factor = 2 if config.double_z else 1
        if config.quant_conv or (config.quant_conv is None and config.embed_dim is not None):
            width = config.z_channels if config.embed_dim is None else config.embed_dim
            self.quant_conv = operations.Conv2d(config.z_channels * factor, width * factor, 1, **factory)
        if config.embed_dim is not None:
            self.post_quant_conv = operations.Conv2d(config.embed_dim, config.z_channels, 1, **factory)

    def moments(self, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
        """Mean and log variance of the latent of pixels [batch, in_channels, height, width] in -1..1."""
        h = self.encoder(pixels)
        if self.quant_conv is not None:
            h = self.quant_conv(h)
        if not self.config.double_z:
            return h, None
        mean, logvar = h.chunk(2, dim=1)
        return mean, logvar

    def encode(self, pixels: Tensor) -> Tensor:
        """The mean: encoding is deterministic, nothing is sampled."""
        return self.moments(pixels)[0]

    def decode(self, latent: Tensor) -> Tensor:
        """Pixels, about -1..1, not clamped."""
        if self.post_quant_conv is not None:
            latent = self.post_quant_conv(latent)
        return self.decoder(latent)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.decode(self.encode(pixels))
