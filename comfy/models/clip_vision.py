"""The image transformers of CLIP and SigLIP in the layout of the `transformers` library (`vision_model.*`).

Sources: Radford et al. 2021 (CLIP: a class token, norms before and after), Zhai et al. 2023 (SigLIP: no class token, no
norm before), Dosovitskiy et al. 2020 (ViT).
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import comfy.ops
from comfy.models.attention import optimized_attention
from comfy.models.dit import count_blocks
from comfy.text_encoders.clip import quick_gelu

ACTIVATIONS = {
    "quick_gelu": quick_gelu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": functools.partial(F.gelu, approximate="tanh"),
}


@dataclasses.dataclass(frozen=True)
class CLIPVisionConfig:
    """Shape of the transformer. image_size: pixels per side; projection_dim: width of the picture's vector, None
    without projection; class_token and pre_norm: CLIP has them, SigLIP not."""

    hidden_size: int = 1024
    intermediate_size: int = 4096
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    patch_size: int = 14
    image_size: int = 224
    projection_dim: int | None = 768
    hidden_act: str = "quick_gelu"
    norm_eps: float = 1e-5
    class_token: bool = True

    @property
    def tokens(self) -> int:
        return (self.image_size // self.patch_size) ** 2 + self.class_token


def config_from_state_dict(sd: Mapping[str, Tensor]) -> CLIPVisionConfig:
    """Read the configuration from names and shapes (`vision_model...`). Raises KeyError naming a missing tensor.

    Shapes tell neither heads nor activation: all published models from ViT-L on have 16 heads, smaller ones heads of
    64; of the CLIP models only ViT-L and smaller have the quick GELU.
    """
    width, _, patch, _ = sd["vision_model.embeddings.patch_embedding.weight"].shape
    positions = sd["vision_model.embeddings.position_embedding.weight"].shape[0]
    clip = "vision_model.embeddings.class_embedding" in sd
    projection = sd.get("visual_projection.weight")
    return CLIPVisionConfig(
        hidden_size=width,
        intermediate_size=sd["vision_model.encoder.layers.0.mlp.fc1.weight"].shape[0],
        num_hidden_layers=count_blocks(sd, "vision_model.encoder.layers.{}.layer_norm1.weight"),
        num_attention_heads=16 if width >= 1024 else max(1, width // 64),
        patch_size=patch,
        image_size=round((positions - clip) ** 0.5) * patch,
        projection_dim=None if projection is None else projection.shape[0],
        hidden_act=("quick_gelu" if width <= 1024 else "gelu") if clip else "gelu_pytorch_tanh",
        norm_eps=1e-5 if clip else 1e-6,
        class_token=clip,
    )


class VisionOutput(NamedTuple):
    """last: [batch, tokens, width] after all blocks (SigLIP: normed too); penultimate: before the last block;
    projected: the class token's vector, normed and projected (None without a class token); blocks: [batch, blocks,
    tokens, width], what comes out of each (SigLIP only)."""

    last: Tensor
    penultimate: Tensor
    projected: Tensor | None
    blocks: Tensor | None = None


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, operations, **factory):
        super().__init__()
        self.heads = heads
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(self, name, operations.Linear(width, width, **factory))

    def forward(self, x: Tensor) -> Tensor:
        return self.out_proj(optimized_attention(self.q_proj(x), self.k_proj(x), self.v_proj(x), self.heads))


class Layer(nn.Module):
    def __init__(self, config: CLIPVisionConfig, operations, **factory):
        super().__init__()
        width, eps = config.hidden_size, config.norm_eps
        self.activation = ACTIVATIONS[config.hidden_act]
        self.layer_norm1 = operations.LayerNorm(width, eps=eps, **factory)
        self.self_attn = Attention(width, config.num_attention_heads, operations, **factory)
        self.layer_norm2 = operations.LayerNorm(width, eps=eps, **factory)
        self.mlp = nn.Module()
        self.mlp.fc1 = operations.Linear(width, config.intermediate_size, **factory)
        self.mlp.fc2 = operations.Linear(config.intermediate_size, width, **factory)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp.fc2(self.activation(self.mlp.fc1(self.layer_norm2(x))))


class Embeddings(nn.Module):
    """Patches, behind the class token if there is one, with positions."""

    def __init__(self, config: CLIPVisionConfig, operations, **factory):
        super().__init__()
        width, patch = config.hidden_size, config.patch_size
        self.patch_embedding = operations.Conv2d(3, width, patch, stride=patch, bias=not config.class_token, **factory)
        self.position_embedding = operations.Embedding(config.tokens, width, **factory)
        self.class_embedding = None
        if config.class_token:
            self.class_embedding = nn.Parameter(torch.empty(width, **factory), requires_grad=False)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.patch_embedding(pixels).flatten(2).transpose(1, 2)
        if self.class_embedding is not None:
            first = self.class_embedding.to(x).expand(x.shape[0], 1, -1)
            x = torch.cat([first, x], dim=1)
        return x + self.position_embedding.weight.to(x)


class CLIPVisionModelProjection(nn.Module):
    """Pixels to hidden states and one vector."""

    def __init__(
        self,
        config: CLIPVisionConfig,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__()
        factory = {"dtype": dtype, "device": device}
        width, eps = config.hidden_size, config.norm_eps
        self.config = config
        self.vision_model = nn.Module()
        self.vision_model.embeddings = Embeddings(config, operations, **factory)
        self.vision_model.pre_layrnorm = operations.LayerNorm(width, eps=eps, **factory) if config.class_token else None
        self.vision_model.encoder = nn.Module()
        self.vision_model.encoder.layers = nn.ModuleList(
            Layer(config, operations, **factory) for _ in range(config.num_hidden_layers)
        )
        self.vision_model.post_layernorm = operations.LayerNorm(width, eps=eps, **factory)
        self.visual_projection = None
        if config.projection_dim is not None:
            self.visual_projection = operations.Linear(width, config.projection_dim, bias=False, **factory)

    def forward(self, pixels: Tensor) -> VisionOutput:
        """pixels: [batch, 3, image_size, image_size], normalised."""
        model = self.vision_model
        x = model.embeddings(pixels)
        if model.pre_layrnorm is not None:
            x = model.pre_layrnorm(x)
        penultimate, blocks = x, []
        for layer in model.encoder.layers:
            penultimate, x = x, layer(x)
            if not self.config.class_token:
                blocks.append(x)
        if not self.config.class_token:
            return VisionOutput(model.post_layernorm(x), penultimate, None, torch.stack(blocks, dim=1))
        vector = model.post_layernorm(x[:, 0])
        return VisionOutput(
            x, penultimate, vector if self.visual_projection is None else self.visual_projection(vector)
        )


# --- open_clip's layout

_ENDS = {
    "class_embedding": "vision_model.embeddings.class_embedding",
    "positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "conv1.weight": "vision_model.embeddings.patch_embedding.weight",
    "ln_pre.weight": "vision_model.pre_layrnorm.weight",
    "ln_pre.bias": "vision_model.pre_layrnorm.bias",
    "ln_post.weight": "vision_model.post_layernorm.weight",
    "ln_post.bias": "vision_model.post_layernorm.bias",
}
_BLOCK = re.compile(r"transformer\.resblocks\.(\d+)\.(.+?)[._](weight|bias)$")
_PARTS = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
    "attn.out_proj": "self_attn.out_proj",
}


def from_open_clip(sd: Mapping[str, Tensor], prefix: str = "visual.") -> dict[str, Tensor]:
    """The image part of an open_clip file under the names of `CLIPVisionModelProjection`."""
    out: dict[str, Tensor] = {}
    for key, value in sd.items():
        name = key.removeprefix(prefix)
        if not key.startswith(prefix):
            continue
        if name == "proj":
            out["visual_projection.weight"] = value.transpose(0, 1)
        elif name in _ENDS:
            out[_ENDS[name]] = value
        elif match := _BLOCK.match(name):
            number, part, kind = match.groups()
            layer = f"vision_model.encoder.layers.{number}"
            if part == "attn.in_proj":
                for letter, piece in zip("qkv", value.chunk(3)):
                    out[f"{layer}.self_attn.{letter}_proj.{kind}"] = piece
            elif part in _PARTS:
                out[f"{layer}.{_PARTS[part]}.{kind}"] = value
    return out
