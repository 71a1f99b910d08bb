"""The files of Wan's autoencoders in the layout of the diffusers library (as in Qwen-Image's repository), under the
names of the originals."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

MARK = "encoder.down_blocks.0.norm1.gamma"
MARK_22 = "encoder.down_blocks.0.resnets.0.norm1.gamma"

_PARTS = {
    "norm1": "residual.0",
    "conv1": "residual.2",
    "norm2": "residual.3",
    "conv2": "residual.6",
    "conv_shortcut": "shortcut",
}
_ENDS = {
    "conv_in": "conv1",
    "norm_out": "head.0",
    "conv_out": "head.2",
    "mid_block.resnets.0": "middle.0",
    "mid_block.attentions.0": "middle.1",
    "mid_block.resnets.1": "middle.2",
}
_UP = re.compile(r"^decoder\.up_blocks\.(\d+)\.(?:resnets\.(\d+)|upsamplers\.0)\.(.*)$")

# Wan 2.2's: levels of residual blocks, then a step up or down.
_LEVEL = re.compile(r"^(encoder|decoder)\.(down|up)_blocks\.(\d+)\.(?:resnets\.(\d+)|(?:down|up)sampler)\.(.*)$")


def to_own_layout_22(sd: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of Wan 2.2's renamed."""
    counts: dict[str, int] = {}
    for match in filter(None, map(_LEVEL.match, sd)):
        counts[match[1]] = max(counts.get(match[1], 0), 1 + int(match[4] or -1))
    out = {}
    for key, value in sd.items():
        if match := _LEVEL.match(key):
            half, way, level, number, rest = match.groups()
            place = counts[half] if number is None else number
            key = f"{half}.{way}samples.{level}.{way}samples.{place}.{_part(rest)}"
            out[key] = value
        else:
            out[_own_name(key, 0)] = value
    return out


def to_own_layout(sd: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors renamed."""
    resnets = 1 + max(int(m[2]) for m in map(_UP.match, sd) if m and m[2])
    return {_own_name(key, resnets): value for key, value in sd.items()}


def _own_name(key: str, resnets: int) -> str:
    if key.startswith(("quant_conv.", "post_quant_conv.")):
        return key.replace("post_quant_conv.", "conv2.").replace("quant_conv.", "conv1.")
    if match := _UP.match(key):
        # A level is its residual blocks and a step up, numbered through.
        place = int(match[1]) * (resnets + 1) + (resnets if match[2] is None else int(match[2]))
        return f"decoder.upsamples.{place}.{_part(match[3])}"
    half, _, rest = key.partition(".")
    if rest.startswith("down_blocks."):
        _, place, rest = rest.split(".", 2)
        return f"{half}.downsamples.{place}.{_part(rest)}"
    for other, own in _ENDS.items():
        if rest.startswith(f"{other}."):
            return f"{half}.{own}.{_part(rest[len(other) + 1 :])}"
    return key


def _part(rest: str) -> str:
    name, _, kind = rest.partition(".")
    return f"{_PARTS.get(name, name)}.{kind}" if kind else name
