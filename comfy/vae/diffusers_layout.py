"""An autoencoder's file in the layout of the diffusers library, under the names of the original."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

MARK = "encoder.down_blocks.0.resnets.0.conv1.weight"

_ATTENTION = {
    "group_norm": "norm",
    "to_q": "q",
    "to_k": "k",
    "to_v": "v",
    "to_out.0": "proj_out",
    # as older files have it
    "query": "q",
    "key": "k",
    "value": "v",
    "proj_attn": "proj_out",
}
_BLOCK = re.compile(r"^(encoder|decoder)\.(down|up)_blocks\.(\d+)\.(?:resnets\.(\d+)|(down|up)samplers\.0)\.(.+)$")
_MIDDLE = re.compile(r"^(encoder|decoder)\.mid_block\.(?:resnets\.(\d)|attentions\.0)\.(.+)\.(weight|bias)$")


def to_own_layout(sd: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors renamed; projections of the attention, vectors to vectors there, become 1x1 convolutions."""
    levels = 1 + max(int(m[3]) for m in map(_BLOCK.match, sd) if m)
    out = {}
    for key, value in sd.items():
        name = _own_name(key, levels)
        if ".attn_1." in name and value.ndim == 2:
            value = value[:, :, None, None]
        out[name] = value
    return out


def _own_name(key: str, levels: int) -> str:
    if match := _BLOCK.match(key):
        half, way, level, block, _, rest = match.groups()
        # diffusers counts the decoder's levels from the latent's resolution.
        level = int(level) if way == "down" else levels - 1 - int(level)
        if block is None:
            return f"{half}.{way}.{level}.{way}sample.{rest}"
        return f"{half}.{way}.{level}.block.{block}.{rest.replace('conv_shortcut', 'nin_shortcut')}"
    if match := _MIDDLE.match(key):
        half, block, rest, kind = match.groups()
        if block is None:
            return f"{half}.mid.attn_1.{_ATTENTION.get(rest, rest)}.{kind}"
        return f"{half}.mid.block_{int(block) + 1}.{rest}.{kind}"
    return key.replace("conv_norm_out", "norm_out")
