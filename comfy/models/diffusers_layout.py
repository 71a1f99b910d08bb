"""From a network file in the layout of the diffusers library to the network's own.

The dimensions are read from the diffusers names; the network built from them on the meta device says which tensors it
has, and `comfy.models.diffusers_names` what diffusers calls them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from comfy.models import auraflow, flux, lumina2, mmdit, pixart, unet
from comfy.models.diffusers_names import diffusers_names
from comfy.models.dit import count_blocks
from comfy.quantized_files import with_shapes_of_values, written_out

Shapes = Mapping[str, torch.Size]


class DiffusersLayoutError(ValueError):
    """A file in diffusers' layout lacks parts of a tensor."""


def to_own_layout(sd: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """The tensors under their network's own names, fused where it fuses them; None for other layouts and families.

    Tensors that go over whole are not copied. Raises DiffusersLayoutError or UnfitScales.
    """
    build = next((build for mark, build in _FAMILIES if mark in sd), None)
    if build is None:
        return None
    network = build({key: value.shape for key, value in with_shapes_of_values(sd).items()})
    return renamed_for(network, sd)


def renamed_for(network: nn.Module, sd: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors with diffusers' names under the names that `network` has for them. Those that go by the same name in both
    layouts keep it, and what it has no place for is left out. Raises DiffusersLayoutError or UnfitScales."""
    sd = written_out(sd)
    own_shapes = {key: value.shape for key, value in network.state_dict().items()}
    places = diffusers_names(own_shapes)

    out: dict[str, Tensor] = {}
    parts: dict[str, list[tuple[int, int, Tensor]]] = {}
    for key, value in sd.items():
        place = places.get(key, key if key in own_shapes else None)
        if isinstance(place, str):
            out[place] = value
        elif place is not None and place[1] is None:
            out[place[0]] = place[2](value)
        elif place is not None:
            own, (_, start, length) = place
            parts.setdefault(own, []).append((start, length, value))
    for own, pieces in parts.items():
        pieces.sort(key=lambda piece: piece[0])
        if sum(length for _, length, _ in pieces) != own_shapes[own][0]:
            raise DiffusersLayoutError(f"{own} is made of several tensors, of which the file has only {len(pieces)}")
        out[own] = torch.cat([value for _, _, value in pieces])
    # diffusers keeps single numbers and vectors of some networks with another number of axes.
    return {k: v.reshape(own_shapes[k]) if v.numel() == own_shapes[k].numel() else v for k, v in out.items()}


# --- networks of the dimensions that a file's diffusers names tell


def unet_config(shapes: Shapes) -> unet.UNetConfig | None:
    """Of the UNets of Stable Diffusion 1, 2 and XL; None for other networks."""
    if "down_blocks.0.resnets.0.conv1.weight" not in shapes or "conv_out.weight" not in shapes:
        return None

    def blocks(prefix: str) -> list[tuple[int, list[int]]]:
        """Channels and transformer depths of each level."""
        levels = []
        for level in range(count_blocks(shapes, prefix + ".{}.resnets.0.conv1.weight")):
            block = f"{prefix}.{level}"
            count = count_blocks(shapes, block + ".resnets.{}.conv1.weight")
            depths = [_depth(shapes, f"{block}.attentions.{i}") for i in range(count)]
            levels.append((shapes[f"{block}.resnets.0.conv1.weight"][0], depths))
        return levels

    channels, in_channels = shapes["conv_in.weight"][:2]
    down, up = blocks("down_blocks"), blocks("up_blocks")
    adm = next((shapes[k][1] for k in _UNET_VECTORS if k in shapes), None)
    attention = next(k.removesuffix("proj_in.weight") for k in shapes if k.endswith(".proj_in.weight"))
    linear = len(shapes[f"{attention}proj_in.weight"]) == 2
    return unet.UNetConfig(
        in_channels=in_channels,
        out_channels=shapes["conv_out.weight"][0],
        model_channels=channels,
        channel_mult=tuple(width // channels for width, _ in down),
        num_res_blocks=tuple(len(depths) for _, depths in down),
        transformer_depth=tuple(d for _, depths in down for d in depths),
        transformer_depth_middle=_depth(shapes, "mid_block.attentions.0"),
        # diffusers counts the decoder's levels from the lowest resolution.
        transformer_depth_output=tuple(d for _, depths in reversed(up) for d in depths),
        context_dim=shapes[f"{attention}transformer_blocks.0.attn2.to_k.weight"][1],
        adm_in_channels=adm,
        use_linear_in_transformer=linear,
        num_heads=-1 if linear else unet.SD1_HEADS,
        num_head_channels=unet.SD2_HEAD_CHANNELS if linear else -1,
    )


def _unet(shapes: Shapes) -> nn.Module:
    return unet.UNetModel(unet_config(shapes), device="meta")


_UNET_VECTORS = ("class_embedding.linear_1.weight", "add_embedding.linear_1.weight")


def _depth(shapes: Shapes, attention: str) -> int:
    return count_blocks(shapes, attention + ".transformer_blocks.{}.norm1.weight")


def _flux(shapes: Shapes) -> nn.Module:
    return flux.Flux(flux_config(shapes), device="meta")


def flux_config(shapes: Shapes) -> flux.FluxConfig:
    """Of FLUX.1 and its ControlNets, which have no last layer."""
    hidden, patch_width = shapes["x_embedder.weight"]
    vector = shapes.get("time_text_embed.text_embedder.linear_1.weight")
    return flux.FluxConfig(
        in_channels=patch_width // 4,
        out_channels=shapes.get("proj_out.weight", (patch_width,))[0] // 4,
        hidden_size=hidden,
        num_heads=hidden // shapes["transformer_blocks.0.attn.norm_q.weight"][0],
        depth=count_blocks(shapes, "transformer_blocks.{}.attn.to_q.weight"),
        depth_single_blocks=count_blocks(shapes, "single_transformer_blocks.{}.attn.to_q.weight"),
        mlp_ratio=shapes["transformer_blocks.0.ff.net.0.proj.weight"][0] / hidden,
        context_in_dim=shapes["context_embedder.weight"][1],
        vec_in_dim=None if vector is None else vector[1],
        guidance_embed="time_text_embed.guidance_embedder.linear_1.weight" in shapes,
    )


def _mmdit(shapes: Shapes) -> nn.Module:
    return mmdit.MMDiT(mmdit_config(shapes), device="meta")


def mmdit_config(shapes: Shapes) -> mmdit.MMDiTConfig:
    """Of Stable Diffusion 3 and 3.5 and their ControlNets, which have no last layer."""
    hidden, in_channels, patch, _ = shapes["pos_embed.proj.weight"]
    depth = count_blocks(shapes, "transformer_blocks.{}.attn.to_q.weight")
    second = [i for i in range(depth) if f"transformer_blocks.{i}.attn2.to_q.weight" in shapes]
    return mmdit.MMDiTConfig(
        in_channels=in_channels,
        out_channels=shapes.get("proj_out.weight", (in_channels * patch**2,))[0] // patch**2,
        patch_size=patch,
        depth=depth,
        hidden_size=hidden,
        context_dim=shapes["context_embedder.weight"][1],
        adm_in_channels=shapes["time_text_embed.text_embedder.linear_1.weight"][1],
        pos_embed_max_size=round(shapes["pos_embed.pos_embed"][1] ** 0.5),
        qk_norm="rms" if "transformer_blocks.0.attn.norm_q.weight" in shapes else None,
        x_block_self_attn_layers=tuple(second),
    )


def _auraflow(shapes: Shapes) -> nn.Module:
    dim, patch_width = shapes["pos_embed.proj.weight"]
    doubles = count_blocks(shapes, "joint_transformer_blocks.{}.attn.to_q.weight")
    singles = count_blocks(shapes, "single_transformer_blocks.{}.attn.to_q.weight")
    block = "joint_transformer_blocks.0" if doubles else "single_transformer_blocks.0"
    config = auraflow.AuraFlowConfig(
        in_channels=patch_width // 4,
        out_channels=shapes["proj_out.weight"][0] // 4,
        dim=dim,
        n_heads=max(1, dim // auraflow.HEAD_WIDTH),
        n_layers=doubles + singles,
        n_double_layers=doubles,
        cond_seq_dim=shapes["context_embedder.weight"][1],
        max_seq=shapes["pos_embed.pos_embed"][1],
        register_tokens=shapes["register_tokens"][1],
        mlp_dim=shapes[f"{block}.ff.linear_1.weight"][0],
    )
    return auraflow.AuraFlow(config, device="meta")


def _pixart(shapes: Shapes) -> nn.Module:
    hidden, in_channels, patch, _ = shapes["pos_embed.proj.weight"]
    length = shapes.get("caption_projection.y_embedding", (pixart.PixArtConfig.model_max_length,))[0]
    config = pixart.PixArtConfig(
        in_channels=in_channels,
        out_channels=shapes["proj_out.weight"][0] // patch**2,
        patch_size=patch,
        hidden_size=hidden,
        depth=count_blocks(shapes, "transformer_blocks.{}.attn1.to_q.weight"),
        caption_channels=shapes["caption_projection.linear_1.weight"][1],
        model_max_length=length,
        micro_condition="adaln_single.emb.resolution_embedder.linear_1.weight" in shapes,
    )
    return pixart.PixArt(config, device="meta")


def _z_image(shapes: Shapes) -> nn.Module:
    dim, patch_width = shapes["all_x_embedder.2-1.weight"]
    head = shapes["layers.0.attention.norm_q.weight"][0]
    config: dict[str, Any] = {
        "in_channels": patch_width // 4,
        "dim": dim,
        "n_layers": count_blocks(shapes, "layers.{}.attention.to_q.weight"),
        "n_refiner_layers": count_blocks(shapes, "noise_refiner.{}.attention.to_q.weight"),
        "n_heads": dim // head,
        "n_kv_heads": shapes["layers.0.attention.to_k.weight"][0] // head,
        "ffn_dim": shapes["layers.0.feed_forward.w1.weight"][0],
        "cap_feat_dim": shapes["cap_embedder.0.weight"][0],
        "time_width": shapes["t_embedder.mlp.2.weight"][0],
        "time_hidden": shapes["t_embedder.mlp.0.weight"][0],
        "z_image": True,
        "pad_tokens": "cap_pad_token" in shapes,
    }
    return lumina2.Lumina2(lumina2.Lumina2Config(**config), device="meta")


# A name that only one family's diffusers files have, and what builds its network; the first that is there decides.
_FAMILIES: tuple[tuple[str, Callable[[Shapes], nn.Module]], ...] = (
    ("down_blocks.0.resnets.0.conv1.weight", _unet),
    ("joint_transformer_blocks.0.attn.add_q_proj.weight", _auraflow),
    ("adaln_single.linear.weight", _pixart),
    ("all_x_embedder.2-1.weight", _z_image),
    ("single_transformer_blocks.0.proj_mlp.weight", _flux),
    ("transformer_blocks.0.attn.add_q_proj.weight", _mmdit),
)
