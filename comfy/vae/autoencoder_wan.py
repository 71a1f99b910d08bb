"""The video autoencoder of Wan 2.1, which Qwen-Image uses for pictures: 16 channels, an eighth of the size, a quarter
of the frames.

Source: Wan Team 2025, "Wan: Open and Advanced Large-Scale Video Generative Models" (Apache-2.0): convolutions look at
past frames only; the first frame stands alone, the others are taken in fours.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import comfy.ops


@dataclasses.dataclass(frozen=True)
class WanAutoencoderConfig:
    """dim_mult: widths of the levels, from full resolution to the latent's. temporal_downsample: which of the steps
    between them halve the number of frames, too."""

    dim: int = 96
    z_dim: int = 16
    dim_mult: tuple[int, ...] = (1, 2, 4, 4)
    num_res_blocks: int = 2
    temporal_downsample: tuple[bool, ...] = (False, True, True)

    @property
    def downscale(self) -> int:
        return 2 ** (len(self.dim_mult) - 1)

    @property
    def time_downscale(self) -> int:
        return 2 ** sum(self.temporal_downsample)


def config_from_state_dict(sd: Mapping[str, Tensor], prefix: str = "") -> WanAutoencoderConfig:
    """From tensor names and shapes below `prefix`. Raises KeyError naming a missing tensor."""
    dim = sd[f"{prefix}encoder.conv1.weight"].shape[0]
    widths, in_time, blocks, place = [], [], 0, 0
    while True:
        name = f"{prefix}encoder.downsamples.{place}."
        if f"{name}residual.2.weight" in sd:
            width, blocks = sd[f"{name}residual.2.weight"].shape[0] // dim, blocks + 1
        elif f"{name}resample.1.weight" in sd:
            widths.append(width)
            in_time.append(f"{name}time_conv.weight" in sd)
        else:
            widths.append(width)
            break
        place += 1
    z_dim = sd[f"{prefix}conv2.weight"].shape[0]
    return WanAutoencoderConfig(dim, z_dim, tuple(widths), blocks // len(widths), tuple(in_time))


class Parts:
    """A video that goes through in parts, and what each layer saw last: a layer that looks at past frames finds those
    of the part before. A video's first part finds zeros, as the whole video would, and behind the last one nothing is
    kept."""

    def __init__(self, parts: Sequence[Tensor]) -> None:
        self._frames: dict[int, Tensor] = {}
        self._parts = parts
        self._is_last = False

    def __iter__(self) -> Iterator[Tensor]:
        """The parts, each to be sent through before the next is asked for."""
        for number, part in enumerate(self._parts, start=1):
            self._is_last = number == len(self._parts)
            yield part

    def take(self, layer: nn.Module) -> Tensor | None:
        """Frames that the layer kept; None in the first part."""
        return self._frames.pop(id(layer), None)

    def keep(self, layer: nn.Module, frames: Tensor) -> None:
        """For the next part. A copy: the rest of the part is let go."""
        if not self._is_last:
            self._frames[id(layer)] = frames.clone()


def causal(conv: nn.Module, x: Tensor, past: Parts) -> Tensor:
    """A three-dimensional convolution of each frame and those before it; the size stays."""
    before, rows, columns = (n - 1 for n in conv.kernel_size)
    if before == 0 and rows == columns == 0:
        return conv(x)
    height, width = x.shape[-2:]
    x = F.pad(x, [columns // 2, columns // 2, rows // 2, rows // 2, before, 0])
    inner = x[..., rows // 2 : rows // 2 + height, columns // 2 : columns // 2 + width]
    kept = past.take(conv)
    if kept is not None:
        inner[:, :, :before] = kept
    past.keep(conv, inner[:, :, -before:])
    return conv(x)


class RMSNorm(nn.Module):
    """Over the channels [batch, channels, ...]; `gamma` has an axis for each other one of them."""

    def __init__(self, channels: int, axes: int, **factory: Any):
        super().__init__()
        self.scale = channels**0.5
        self.gamma = nn.Parameter(torch.empty(channels, *([1] * axes), **factory), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=1) * self.scale * self.gamma.to(x)


class ResidualBlock(nn.Module):
    def __init__(self, before: int, after: int, operations: Any, **factory: Any):
        super().__init__()
        self.residual = nn.Sequential(
            RMSNorm(before, 3, **factory),
            nn.SiLU(),
            operations.Conv3d(before, after, 3, **factory),
            RMSNorm(after, 3, **factory),
            nn.SiLU(),
            nn.Identity(),  # files keep a place for a dropout layer
            operations.Conv3d(after, after, 3, **factory),
        )
        self.shortcut = None if before == after else operations.Conv3d(before, after, 1, **factory)

    def forward(self, x: Tensor, past: Parts) -> Tensor:
        norm1, act1, conv1, norm2, act2, _, conv2 = self.residual
        h = causal(conv1, act1(norm1(x)), past)
        h = causal(conv2, act2(norm2(h)), past)
        return h + (x if self.shortcut is None else self.shortcut(x))


def by_frame(x: Tensor) -> Tensor:
    """[batch, channels, frames, h, w] -> [batch * frames, channels, h, w]."""
    return x.transpose(1, 2).flatten(0, 1)


def by_video(x: Tensor, batch: int) -> Tensor:
    """The inverse of `by_frame`."""
    return x.unflatten(0, (batch, -1)).transpose(1, 2)


class AttentionBlock(nn.Module):
    """Each frame's pixels look at one another, with one head."""

    def __init__(self, channels: int, operations: Any, **factory: Any):
        super().__init__()
        self.norm = RMSNorm(channels, 2, **factory)
        self.to_qkv = operations.Conv2d(channels, channels * 3, 1, **factory)
        self.proj = operations.Conv2d(channels, channels, 1, **factory)

    def forward(self, x: Tensor, past: Parts) -> Tensor:
        frames = by_frame(x)
        rows, columns = frames.shape[-2:]
        q, k, v = self.to_qkv(self.norm(frames)).flatten(2).transpose(1, 2).unsqueeze(1).chunk(3, dim=-1)
        out = F.scaled_dot_product_attention(q, k, v).squeeze(1).transpose(1, 2).unflatten(2, (rows, columns))
        return x + by_video(self.proj(out), x.shape[0])


class Downsample(nn.Module):
    """Half the size, and with `in_time` half the frames behind the first one."""

    def __init__(self, channels: int, in_time: bool, operations: Any, **factory: Any):
        super().__init__()
        self.resample = nn.Sequential(
            nn.ZeroPad2d((0, 1, 0, 1)), operations.Conv2d(channels, channels, 3, stride=2, **factory)
        )
        self.time_conv = None
        if in_time:
            self.time_conv = operations.Conv3d(channels, channels, (3, 1, 1), stride=(2, 1, 1), **factory)

    def forward(self, x: Tensor, past: Parts) -> Tensor:
        x = by_video(self.resample(by_frame(x)), x.shape[0])
        if self.time_conv is None:
            return x
        # The first frame goes on as it is; each pair behind it is seen with the frame before.
        before = past.take(self)
        past.keep(self, x[:, :, -1:])
        if before is not None:
            return self.time_conv(torch.cat([before, x], dim=2))
        return x if x.shape[2] == 1 else torch.cat([x[:, :, :1], self.time_conv(x)], dim=2)


class Upsample(nn.Module):
    """Twice the size and half the channels (or `out`), and with `in_time` twice the frames behind the first one."""

    def __init__(self, channels: int, in_time: bool, operations: Any, out: int | None = None, **factory: Any):
        super().__init__()
        self.resample = nn.Sequential(
            nn.Upsample(scale_factor=2.0, mode="nearest-exact"),
            operations.Conv2d(channels, out or channels // 2, 3, padding=1, **factory),
        )
        self.time_conv = None
        if in_time:
            self.time_conv = operations.Conv3d(channels, channels * 2, (3, 1, 1), **factory)

    def forward(self, x: Tensor, past: Parts) -> Tensor:
        if self.time_conv is not None:
            # Two frames of each behind the first, which is not looked at either.
            first = x[:, :, : 1 if past.take(self) is None else 0]
            past.keep(self, x[:, :, :0])
            parts = [first] if first.shape[2] else []
            if x.shape[2] > first.shape[2]:
                pairs = causal(self.time_conv, x[:, :, first.shape[2] :], past).unflatten(1, (2, -1))
                parts.append(pairs.permute(0, 2, 3, 1, 4, 5).flatten(2, 3))
            x = torch.cat(parts, dim=2)
        return by_video(self.resample(by_frame(x)), x.shape[0])


def middle_blocks(channels: int, operations: Any, **factory: Any) -> nn.Sequential:
    return nn.Sequential(
        ResidualBlock(channels, channels, operations, **factory),
        AttentionBlock(channels, operations, **factory),
        ResidualBlock(channels, channels, operations, **factory),
    )


class Half(nn.Module):
    """What encoder and decoder share: a convolution in, blocks, a norm and a convolution out."""

    def _head(self, channels: int, out: int, operations: Any, **factory: Any) -> nn.Sequential:
        return nn.Sequential(RMSNorm(channels, 3, **factory), nn.SiLU(), operations.Conv3d(channels, out, 3, **factory))

    def _through(self, x: Tensor, blocks: Iterable[nn.Module], past: Parts) -> Tensor:
        """The half on one part of a video."""
        x = causal(self.conv1, x, past)
        for block in blocks:
            x = block(x, past)
        norm, act, conv = self.head
        return causal(conv, act(norm(x)), past)


class Encoder(Half):
    def __init__(self, config: WanAutoencoderConfig, operations: Any, **factory: Any):
        super().__init__()
        widths = [config.dim, *(config.dim * m for m in config.dim_mult)]
        self.conv1 = operations.Conv3d(3, widths[0], 3, **factory)
        blocks: list[nn.Module] = []
        for level, (before, after) in enumerate(itertools.pairwise(widths)):
            for i in range(config.num_res_blocks):
                blocks.append(ResidualBlock(before if i == 0 else after, after, operations, **factory))
            if level < len(config.temporal_downsample):
                blocks.append(Downsample(after, config.temporal_downsample[level], operations, **factory))
        self.downsamples = nn.Sequential(*blocks)
        self.middle = middle_blocks(widths[-1], operations, **factory)
        self.head = self._head(widths[-1], config.z_dim * 2, operations, **factory)

    def forward(self, x: Tensor, past: Parts) -> Tensor:
        return self._through(x, [*self.downsamples, *self.middle], past)


class Decoder(Half):
    def __init__(self, config: WanAutoencoderConfig, operations: Any, **factory: Any):
        super().__init__()
        widths = [config.dim * m for m in (config.dim_mult[-1], *config.dim_mult[::-1])]
        in_time = config.temporal_downsample[::-1]
        self.conv1 = operations.Conv3d(config.z_dim, widths[0], 3, **factory)
        self.middle = middle_blocks(widths[0], operations, **factory)
        blocks: list[nn.Module] = []
        for level, (before, after) in enumerate(itertools.pairwise(widths)):
            # The step up before has halved the channels.
            before = before // 2 if level > 0 else before
            for i in range(config.num_res_blocks + 1):
                blocks.append(ResidualBlock(before if i == 0 else after, after, operations, **factory))
            if level < len(in_time):
                blocks.append(Upsample(after, in_time[level], operations, **factory))
        self.upsamples = nn.Sequential(*blocks)
        self.head = self._head(widths[-1], 3, operations, **factory)

    def forward(self, x: Tensor, past: Parts) -> Tensor:
        return self._through(x, [*self.middle, *self.upsamples], past)


class WanAutoencoder(nn.Module):
    """Videos [batch, 3, frames, h, w] in -1..1 to latents [batch, z_dim, 1 + (frames - 1) / 4, h / 8, w / 8] and
    back; frames are 1 more than a multiple of 4 (those beyond are left out). A picture is a video of one frame."""

    ENCODER: type[nn.Module] = Encoder
    DECODER: type[nn.Module] = Decoder

    def __init__(
        self,
        config: WanAutoencoderConfig | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__()
        config = config or WanAutoencoderConfig()
        factory = {"dtype": dtype, "device": device}
        self.config = config
        self.encoder = self.ENCODER(config, operations, **factory)
        self.conv1 = operations.Conv3d(config.z_dim * 2, config.z_dim * 2, 1, **factory)
        self.conv2 = operations.Conv3d(config.z_dim, config.z_dim, 1, **factory)
        self.decoder = self.DECODER(config, operations, **factory)

    def encode(self, pixels: Tensor) -> Tensor:
        """The mean; nothing is sampled. The first frame, and then a latent frame's worth of frames at a time: what is
        in memory does not grow with the length."""
        step = self.config.time_downscale
        groups = (pixels.shape[2] - 1) // step
        parts = Parts(pixels[:, :, : 1 + groups * step].split([1, *([step] * groups)], dim=2))
        return torch.cat([self.conv1(self.encoder(part, parts)).chunk(2, dim=1)[0] for part in parts], dim=2)

    def decode(self, latent: Tensor) -> Tensor:
        """One latent frame at a time, as `encode`."""
        parts = Parts(latent.split(1, dim=2))
        return torch.cat([self.decoder(self.conv2(part), parts) for part in parts], dim=2)
