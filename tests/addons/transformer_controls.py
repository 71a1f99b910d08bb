"""Small ControlNets of transformers: their shapes, and weights and inputs that are drawn anew each time."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from comfy.models.dit import patchify
from tests.networks.golden import DATA

FILE = DATA / "addons" / "transformer_controls.safetensors"

_FLUX = {
    "in_channels": 64,
    "num_layers": 2,
    "num_single_layers": 3,
    "num_attention_heads": 1,
    "joint_attention_dim": 24,
    "pooled_projection_dim": 20,
    "guidance_embeds": True,
}
_SD3 = {
    "num_layers": 2,
    "num_attention_heads": 4,
    "joint_attention_dim": 24,
    "caption_projection_dim": 256,
    "pooled_projection_dim": 20,
    "sample_size": 16,
    "pos_embed_max_size": 8,
}
_QWEN = {"num_layers": 2, "num_attention_heads": 1, "joint_attention_dim": 24}

# name -> family, arguments of diffusers' class
NETS: dict[str, tuple[str, dict[str, Any]]] = {
    "flux": ("flux", _FLUX),
    "flux_union": ("flux", {**_FLUX, "num_single_layers": 0, "num_mode": 4}),
    "flux_pixels": ("flux", {**_FLUX, "num_single_layers": 0, "conditioning_embedding_channels": 16, "patch_size": 2}),
    "sd3": ("sd3", _SD3),
    "sd3_inpaint": ("sd3", {**_SD3, "extra_conditioning_channels": 1, "qk_norm": "rms_norm"}),
    "sd35_large": (
        "sd3",
        {**_SD3, "joint_attention_dim": None, "use_pos_embed": False, "num_layers": 2},
    ),
    "qwen": ("qwen", _QWEN),
    "qwen_inpaint": ("qwen", {**_QWEN, "extra_condition_channels": 4}),
}
SIZE = (6, 4)  # of the latent
WORDS = 5


def drawn(shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """A weight of each shape, the same every time: its seed comes from its name."""
    return {name: random(name, *shape) * (0.5 / max((1, *shape[-1:])) ** 0.5) for name, shape in shapes.items()}


def random(name: str, *shape: int) -> Tensor:
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def inputs(name: str) -> dict[str, Any]:
    """What a net is called with: the latent as picture and as patches, and the rest."""
    family, config = NETS[name]
    rows, columns = (n // 2 for n in SIZE)
    hint_channels = 16 + config.get("extra_conditioning_channels", 0) + config.get("extra_condition_channels", 0) // 4
    x, hint = random("x", 2, 16, *SIZE), random("hint", 2, hint_channels, *SIZE)
    width = config["num_attention_heads"] * config.get("attention_head_dim", 64)
    out = {
        "x": x,
        "hint": hint,
        "tokens": patchify(x, 2),
        "hint_tokens": patchify(hint, 2),
        "rows": rows,
        "columns": columns,
        "context": random("context", 2, WORDS, 24),
        "y": random("y", 2, 20),
        "guidance": torch.tensor([3.5, 2.0]),
        "timesteps": torch.tensor([0.75, 0.3]),
    }
    if name == "flux_union":
        out["mode"] = torch.tensor([[2], [2]])
    if name == "flux_pixels":
        out["hint_pixels"] = random("pixels", 2, 3, *(8 * n for n in SIZE))
    if family == "sd3":
        out["timesteps"] = out["timesteps"] * 1000
        out["table"] = random("table", 1, 64, width)
        out["lent"] = {"weight": random("lent.weight", width, 16, 2, 2) * 0.1, "bias": random("lent.bias", width)}
        if name != "sd35_large":
            out["y"] = torch.zeros(2, 20)
    return out
