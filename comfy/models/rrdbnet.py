"""The network of ESRGAN and Real-ESRGAN: enlarges images, mostly four times.

Sources: Wang et al. 2018, "ESRGAN" (residual in residual dense blocks); Wang et al. 2021, "Real-ESRGAN" (pixel
unshuffle in front, for smaller factors).

Files name the same layers in three ways: as the first release did (`model.1.sub.0.RDB1.conv1.0.weight`), the paper's
later code (`RRDB_trunk.0.RDB1.conv1.weight`), and BasicSR (`body.0.rdb1.conv1.weight`), whose names are used here.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comfy.models.dit import count_blocks

RESIDUAL_SCALE = 0.2
SLOPE = 0.2  # of the leaky ReLU below zero
DENSE_LAYERS = 5


@dataclasses.dataclass(frozen=True)
class RRDBNetConfig:
    """num_feat: channels of the trunk; num_grow_ch: what each dense layer adds; upsamples: doublings behind the trunk;
    unshuffle: side of the pixel blocks that are folded into channels in front."""

    in_channels: int = 3
    out_channels: int = 3
    num_feat: int = 64
    num_block: int = 23
    num_grow_ch: int = 32
    upsamples: int = 2
    unshuffle: int = 1

    @property
    def scale(self) -> float:
        """Side of the output over that of the input."""
        return 2**self.upsamples / self.unshuffle


_DENSE = (r"(\d+)\.RDB(\d)\.conv(\d)(?:\.0)?\.", r"body.\1.rdb\2.conv\3.")
_PAPER_NAMES = {"trunk_conv.": "conv_body.", "upconv": "conv_up", "HRconv.": "conv_hr."}


def common_names(sd: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under BasicSR's names, from any of the three; others are left as they are."""
    if "model.0.weight" in sd:
        return _from_first_release(sd)
    out = {}
    for key, tensor in sd.items():
        if key.startswith("RRDB_trunk."):
            key = re.sub(_DENSE[0], _DENSE[1], key.removeprefix("RRDB_trunk."))
        for old, new in _PAPER_NAMES.items():
            if key.startswith(old):
                key = new + key[len(old) :]
        out[key] = tensor
    return out


def _from_first_release(sd: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Layers are numbered: 0 first, 1 trunk, 3, 6, ... after each doubling, then the last two, two apart."""
    numbers = sorted({int(m[1]) for key in sd if (m := re.fullmatch(r"model\.(\d+)\.weight", key))})
    names = {numbers[0]: "conv_first", numbers[-2]: "conv_hr", numbers[-1]: "conv_last"}
    names.update((number, f"conv_up{i}") for i, number in enumerate(numbers[1:-2], start=1))
    last_block = max((int(m[1]) for key in sd if (m := re.match(r"model\.1\.sub\.(\d+)\.", key))), default=0)
    out = {}
    for key, tensor in sd.items():
        top = re.fullmatch(r"model\.(\d+)\.(weight|bias)", key)
        inner = key.removeprefix("model.1.sub.")
        if top:
            key = f"{names[int(top[1])]}.{top[2]}"
        elif inner != key and inner.startswith(f"{last_block}."):
            key = "conv_body." + inner.split(".", 1)[1]
        elif inner != key:
            key = re.sub(_DENSE[0], _DENSE[1], inner)
        out[key] = tensor
    return out


def config_from_state_dict(sd: Mapping[str, Tensor]) -> RRDBNetConfig:
    """Read the configuration from tensors under the common names. Raises KeyError naming a missing one."""
    first = sd["conv_first.weight"]
    out_channels = sd["conv_last.weight"].shape[0]
    # Folded pixels multiply the channels by 4 or 16; an alpha channel does not.
    unshuffle = {1: 1, 4: 2, 16: 4}.get(first.shape[1] // out_channels, 1) if out_channels > 1 else 1
    return RRDBNetConfig(
        in_channels=first.shape[1] // unshuffle**2,
        out_channels=out_channels,
        num_feat=first.shape[0],
        num_block=count_blocks(sd, "body.{}.rdb1.conv1.weight"),
        num_grow_ch=sd["body.0.rdb1.conv1.weight"].shape[0],
        upsamples=sum(f"conv_up{i}.weight" in sd for i in range(1, 9)),
        unshuffle=unshuffle,
    )


def _conv(in_channels: int, out_channels: int, operations, **factory) -> nn.Module:
    return operations.Conv2d(in_channels, out_channels, 3, padding=1, **factory)


class DenseBlock(nn.Module):
    """Five convolutions, each of everything before it; the last one's output, scaled, is a residual."""

    def __init__(self, config: RRDBNetConfig, operations, **factory):
        super().__init__()
        feat, grow = config.num_feat, config.num_grow_ch
        for i in range(DENSE_LAYERS):
            out = feat if i == DENSE_LAYERS - 1 else grow
            setattr(self, f"conv{i + 1}", _conv(feat + i * grow, out, operations, **factory))

    def forward(self, x: Tensor) -> Tensor:
        found = [x]
        for i in range(1, DENSE_LAYERS):
            found.append(F.leaky_relu(getattr(self, f"conv{i}")(torch.cat(found, dim=1)), SLOPE))
        return x + RESIDUAL_SCALE * self.conv5(torch.cat(found, dim=1))


class RRDB(nn.Module):
    """Three dense blocks around a residual."""

    def __init__(self, config: RRDBNetConfig, operations, **factory):
        super().__init__()
        self.rdb1 = DenseBlock(config, operations, **factory)
        self.rdb2 = DenseBlock(config, operations, **factory)
        self.rdb3 = DenseBlock(config, operations, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return x + RESIDUAL_SCALE * self.rdb3(self.rdb2(self.rdb1(x)))


class RRDBNet(nn.Module):
    """Image [batch, in_channels, height, width] -> [batch, out_channels, scale * height, scale * width]."""

    def __init__(self, config: RRDBNetConfig, dtype=None, device=None, operations=nn):
        super().__init__()
        factory = {"dtype": dtype, "device": device}
        feat = config.num_feat
        self.config = config
        self.conv_first = _conv(config.in_channels * config.unshuffle**2, feat, operations, **factory)
        self.body = nn.Sequential(*(RRDB(config, operations, **factory) for _ in range(config.num_block)))
        self.conv_body = _conv(feat, feat, operations, **factory)
        for i in range(1, config.upsamples + 1):
            setattr(self, f"conv_up{i}", _conv(feat, feat, operations, **factory))
        self.conv_hr = _conv(feat, feat, operations, **factory)
        self.conv_last = _conv(feat, config.out_channels, operations, **factory)

    def forward(self, x: Tensor) -> Tensor:
        block = self.config.unshuffle
        height, width = x.shape[-2:]
        if block > 1:
            x = F.pad(x, (0, -width % block, 0, -height % block), mode="reflect")
            x = F.pixel_unshuffle(x, block)
        h = self.conv_first(x)
        h = h + self.conv_body(self.body(h))
        for i in range(1, self.config.upsamples + 1):
            h = F.interpolate(h, scale_factor=2, mode="nearest")
            h = F.leaky_relu(getattr(self, f"conv_up{i}")(h), SLOPE)
        h = self.conv_last(F.leaky_relu(self.conv_hr(h), SLOPE))
        scale = self.config.scale
        return h[..., : round(height * scale), : round(width * scale)]
