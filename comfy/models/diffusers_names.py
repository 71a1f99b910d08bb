"""The names that diffusers gives to the tensors of a network, next to the network's own.

Each function takes the network's own names and shapes and returns {diffusers name: place}. A place is the own name;
(own name, (dim, start, length)) where diffusers keeps a part of a fused tensor as a tensor of its own; or (own name,
None, function) where the function turns the diffusers tensor into the own one. Sources: the published files of both
layouts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Place = str | tuple[str, tuple[int, int, int]] | tuple[str, None, Callable[[Tensor], Tensor]]
Shapes = Mapping[str, Sequence[int]]

KINDS = ("weight", "bias")
THIRDS = ("q", "k", "v")

_UNET_PARTS = {
    "in_layers.0": "norm1",
    "in_layers.2": "conv1",
    "emb_layers.1": "time_emb_proj",
    "out_layers.0": "norm2",
    "out_layers.3": "conv2",
    "skip_connection": "conv_shortcut",
    "op": "conv",  # of a downsampler
}
_UNET_ENDS = {
    "input_blocks.0.0": ("conv_in",),
    "out.0": ("conv_norm_out",),
    "out.2": ("conv_out",),
    "time_embed.0": ("time_embedding.linear_1",),
    "time_embed.2": ("time_embedding.linear_2",),
    "label_emb.0.0": ("class_embedding.linear_1", "add_embedding.linear_1"),
    "label_emb.0.2": ("class_embedding.linear_2", "add_embedding.linear_2"),
}

# The tensors at the ends of a UNet: (own name, diffusers name). Packs that know more networks add to it.
UNET_MAP_BASIC = {
    (f"{own}.{kind}", f"{other}.{kind}") for own, others in _UNET_ENDS.items() for other in others for kind in KINDS
}


def swap_scale_shift(weight: Tensor) -> Tensor:
    """The two halves of a last modulation exchanged: diffusers puts the scale first, the original the shift."""
    first, second = weight.chunk(2, dim=0)
    return torch.cat([second, first], dim=0)


# --- UNets


def unet_names(shapes: Shapes) -> dict[str, Place]:
    """The UNets of Stable Diffusion 1, 2 and XL, and their ControlNets' encoder halves."""
    prefixes = _unet_block_prefixes(shapes)
    out: dict[str, Place] = {other: own for own, other in UNET_MAP_BASIC if own in shapes}
    for key in shapes:
        member, rest = _split_member(key)
        if member in prefixes:
            part, _, kind = rest.rpartition(".")
            out[f"{prefixes[member]}.{_UNET_PARTS.get(part, part)}.{kind}"] = key
    return out


def _split_member(key: str) -> tuple[str, str]:
    """("input_blocks.4.1", what follows) or ("middle_block.1", what follows)."""
    parts = 2 if key.startswith("middle_block.") else 3
    pieces = key.split(".", parts)
    return ".".join(pieces[:parts]), pieces[parts] if len(pieces) > parts else ""


def _unet_block_prefixes(shapes: Shapes) -> dict[str, str]:
    """Own prefix of a block's member -> its diffusers prefix."""
    out: dict[str, str] = {}
    level = place = 0
    for number in range(1, _count(shapes, "input_blocks.{}.")):
        block = f"input_blocks.{number}"
        if f"{block}.0.op.weight" in shapes:
            out[f"{block}.0"] = f"down_blocks.{level}.downsamplers.0"
            level, place = level + 1, 0
            continue
        out[f"{block}.0"] = f"down_blocks.{level}.resnets.{place}"
        out[f"{block}.1"] = f"down_blocks.{level}.attentions.{place}"
        place += 1
    out["middle_block.0"] = "mid_block.resnets.0"
    out["middle_block.1"] = "mid_block.attentions.0"
    out["middle_block.2"] = "mid_block.resnets.1"
    level = place = 0
    for number in range(_count(shapes, "output_blocks.{}.")):
        block = f"output_blocks.{number}"
        out[f"{block}.0"] = f"up_blocks.{level}.resnets.{place}"
        out[f"{block}.1"] = f"up_blocks.{level}.attentions.{place}"
        place += 1
        upsampler = next((i for i in (1, 2) if f"{block}.{i}.conv.weight" in shapes), None)
        if upsampler is not None:
            out[f"{block}.{upsampler}"] = f"up_blocks.{level}.upsamplers.0"
            level, place = level + 1, 0
    return out


def unet_encoder_own_names(names: Iterable[str]) -> dict[str, str]:
    """{diffusers name: own name} of a UNet's encoder, for those of `names` that are part of one."""
    names = list(names)
    prefixes = _encoder_prefixes(names)
    ends = {other: own for own, others in _UNET_ENDS.items() for other in others}
    parts = {other: own for own, other in _UNET_PARTS.items()}
    out = {}
    for name in names:
        layer, _, kind = name.rpartition(".")
        prefix = ".".join(name.split(".")[: 3 if name.startswith("mid_block.") else 4])
        if layer in ends:
            out[name] = f"{ends[layer]}.{kind}"
        elif prefix in prefixes:
            rest = layer.removeprefix(prefix + ".")
            # Only residual blocks and samplers call their layers otherwise.
            rest = rest if ".attentions." in prefix else parts[rest]
            out[name] = f"{prefixes[prefix]}.{rest}.{kind}"
    return out


def _encoder_prefixes(names: Iterable[str]) -> dict[str, str]:
    """diffusers prefix -> own prefix, counted up over levels, blocks and samplers."""
    blocks: dict[int, int] = {}
    samplers = set()
    for name in names:
        if match := re.match(r"down_blocks\.(\d+)\.resnets\.(\d+)\.", name):
            blocks[int(match[1])] = max(blocks.get(int(match[1]), 0), int(match[2]) + 1)
        elif match := re.match(r"down_blocks\.(\d+)\.downsamplers\.", name):
            samplers.add(int(match[1]))
    out = {
        "mid_block.resnets.0": "middle_block.0",
        "mid_block.attentions.0": "middle_block.1",
        "mid_block.resnets.1": "middle_block.2",
    }
    number = 1
    for level in sorted(blocks):
        for place in range(blocks[level]):
            out[f"down_blocks.{level}.resnets.{place}"] = f"input_blocks.{number}.0"
            out[f"down_blocks.{level}.attentions.{place}"] = f"input_blocks.{number}.1"
            number += 1
        if level in samplers:
            out[f"down_blocks.{level}.downsamplers.0"] = f"input_blocks.{number}.0"
            number += 1
    return out


# --- transformers

# (own pattern, diffusers pattern) of whole tensors; {} is the number of the block, the same on both sides.
_FLUX = (
    ("img_in", "x_embedder"),
    ("txt_in", "context_embedder"),
    ("final_layer.linear", "proj_out"),
    ("time_in.in_layer", "time_text_embed.timestep_embedder.linear_1"),
    ("time_in.out_layer", "time_text_embed.timestep_embedder.linear_2"),
    ("vector_in.in_layer", "time_text_embed.text_embedder.linear_1"),
    ("vector_in.out_layer", "time_text_embed.text_embedder.linear_2"),
    ("guidance_in.in_layer", "time_text_embed.guidance_embedder.linear_1"),
    ("guidance_in.out_layer", "time_text_embed.guidance_embedder.linear_2"),
    ("double_blocks.{}.img_mod.lin", "transformer_blocks.{}.norm1.linear"),
    ("double_blocks.{}.txt_mod.lin", "transformer_blocks.{}.norm1_context.linear"),
    ("double_blocks.{}.img_attn.proj", "transformer_blocks.{}.attn.to_out.0"),
    ("double_blocks.{}.txt_attn.proj", "transformer_blocks.{}.attn.to_add_out"),
    ("double_blocks.{}.img_attn.norm.query_norm", "transformer_blocks.{}.attn.norm_q"),
    ("double_blocks.{}.img_attn.norm.key_norm", "transformer_blocks.{}.attn.norm_k"),
    ("double_blocks.{}.txt_attn.norm.query_norm", "transformer_blocks.{}.attn.norm_added_q"),
    ("double_blocks.{}.txt_attn.norm.key_norm", "transformer_blocks.{}.attn.norm_added_k"),
    ("double_blocks.{}.img_mlp.0", "transformer_blocks.{}.ff.net.0.proj"),
    ("double_blocks.{}.img_mlp.2", "transformer_blocks.{}.ff.net.2"),
    ("double_blocks.{}.txt_mlp.0", "transformer_blocks.{}.ff_context.net.0.proj"),
    ("double_blocks.{}.txt_mlp.2", "transformer_blocks.{}.ff_context.net.2"),
    # as FLUX.2 calls them
    ("double_blocks.{}.img_mlp.0", "transformer_blocks.{}.ff.linear_in"),
    ("double_blocks.{}.img_mlp.2", "transformer_blocks.{}.ff.linear_out"),
    ("double_blocks.{}.txt_mlp.0", "transformer_blocks.{}.ff_context.linear_in"),
    ("double_blocks.{}.txt_mlp.2", "transformer_blocks.{}.ff_context.linear_out"),
    ("single_blocks.{}.linear1", "single_transformer_blocks.{}.attn.to_qkv_mlp_proj"),
    ("single_blocks.{}.linear2", "single_transformer_blocks.{}.attn.to_out"),
    ("single_blocks.{}.modulation.lin", "single_transformer_blocks.{}.norm.linear"),
    ("single_blocks.{}.linear2", "single_transformer_blocks.{}.proj_out"),
    ("single_blocks.{}.norm.query_norm", "single_transformer_blocks.{}.attn.norm_q"),
    ("single_blocks.{}.norm.key_norm", "single_transformer_blocks.{}.attn.norm_k"),
)

_MMDIT = (
    ("x_embedder.proj", "pos_embed.proj"),
    ("context_embedder", "context_embedder"),
    ("t_embedder.mlp.0", "time_text_embed.timestep_embedder.linear_1"),
    ("t_embedder.mlp.2", "time_text_embed.timestep_embedder.linear_2"),
    ("y_embedder.mlp.0", "time_text_embed.text_embedder.linear_1"),
    ("y_embedder.mlp.2", "time_text_embed.text_embedder.linear_2"),
    ("final_layer.linear", "proj_out"),
    ("joint_blocks.{}.x_block.adaLN_modulation.1", "transformer_blocks.{}.norm1.linear"),
    ("joint_blocks.{}.x_block.attn.proj", "transformer_blocks.{}.attn.to_out.0"),
    ("joint_blocks.{}.x_block.attn.ln_q", "transformer_blocks.{}.attn.norm_q"),
    ("joint_blocks.{}.x_block.attn.ln_k", "transformer_blocks.{}.attn.norm_k"),
    ("joint_blocks.{}.x_block.attn2.proj", "transformer_blocks.{}.attn2.to_out.0"),
    ("joint_blocks.{}.x_block.attn2.ln_q", "transformer_blocks.{}.attn2.norm_q"),
    ("joint_blocks.{}.x_block.attn2.ln_k", "transformer_blocks.{}.attn2.norm_k"),
    ("joint_blocks.{}.x_block.mlp.fc1", "transformer_blocks.{}.ff.net.0.proj"),
    ("joint_blocks.{}.x_block.mlp.fc2", "transformer_blocks.{}.ff.net.2"),
    ("joint_blocks.{}.context_block.adaLN_modulation.1", "transformer_blocks.{}.norm1_context.linear"),
    ("joint_blocks.{}.context_block.attn.proj", "transformer_blocks.{}.attn.to_add_out"),
    ("joint_blocks.{}.context_block.attn.ln_q", "transformer_blocks.{}.attn.norm_added_q"),
    ("joint_blocks.{}.context_block.attn.ln_k", "transformer_blocks.{}.attn.norm_added_k"),
    ("joint_blocks.{}.context_block.mlp.fc1", "transformer_blocks.{}.ff_context.net.0.proj"),
    ("joint_blocks.{}.context_block.mlp.fc2", "transformer_blocks.{}.ff_context.net.2"),
)

_AURAFLOW = (
    ("cond_seq_linear", "context_embedder"),
    ("init_x_linear", "pos_embed.proj"),
    ("final_linear", "proj_out"),
    ("t_embedder.mlp.0", "time_step_proj.linear_1"),
    ("t_embedder.mlp.2", "time_step_proj.linear_2"),
    *(
        (f"double_layers.{{}}.attn.w{stream}{own}", f"joint_transformer_blocks.{{}}.attn.{other}")
        for stream, names in ((1, ("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")),
                              (2, ("to_q", "to_k", "to_v", "to_out.0")))
        for own, other in zip("qkvo", names)
    ),
    *(
        (f"double_layers.{{}}.mlp{stream}.{own}", f"joint_transformer_blocks.{{}}.{ff}.{other}")
        for stream, ff in (("X", "ff"), ("C", "ff_context"))
        for own, other in (("c_fc1", "linear_1"), ("c_fc2", "linear_2"), ("c_proj", "out_projection"))
    ),
    ("double_layers.{}.modX.1", "joint_transformer_blocks.{}.norm1.linear"),
    ("double_layers.{}.modC.1", "joint_transformer_blocks.{}.norm1_context.linear"),
    *(
        (f"single_layers.{{}}.attn.w1{own}", f"single_transformer_blocks.{{}}.attn.{other}")
        for own, other in zip("qkvo", ("to_q", "to_k", "to_v", "to_out.0"))
    ),
    *(
        (f"single_layers.{{}}.mlp.{own}", f"single_transformer_blocks.{{}}.ff.{other}")
        for own, other in (("c_fc1", "linear_1"), ("c_fc2", "linear_2"), ("c_proj", "out_projection"))
    ),
    ("single_layers.{}.modCX.1", "single_transformer_blocks.{}.norm1.linear"),
)  # fmt: skip

_PIXART = (
    ("x_embedder.proj", "pos_embed.proj"),
    ("final_layer.linear", "proj_out"),
    ("y_embedder.y_proj.fc1", "caption_projection.linear_1"),
    ("y_embedder.y_proj.fc2", "caption_projection.linear_2"),
    ("t_embedder.mlp.0", "adaln_single.emb.timestep_embedder.linear_1"),
    ("t_embedder.mlp.2", "adaln_single.emb.timestep_embedder.linear_2"),
    ("csize_embedder.mlp.0", "adaln_single.emb.resolution_embedder.linear_1"),
    ("csize_embedder.mlp.2", "adaln_single.emb.resolution_embedder.linear_2"),
    ("ar_embedder.mlp.0", "adaln_single.emb.aspect_ratio_embedder.linear_1"),
    ("ar_embedder.mlp.2", "adaln_single.emb.aspect_ratio_embedder.linear_2"),
    ("t_block.1", "adaln_single.linear"),
    ("blocks.{}.attn.proj", "transformer_blocks.{}.attn1.to_out.0"),
    ("blocks.{}.cross_attn.q_linear", "transformer_blocks.{}.attn2.to_q"),
    ("blocks.{}.cross_attn.proj", "transformer_blocks.{}.attn2.to_out.0"),
    ("blocks.{}.mlp.fc1", "transformer_blocks.{}.ff.net.0.proj"),
    ("blocks.{}.mlp.fc2", "transformer_blocks.{}.ff.net.2"),
)

_HUNYUAN_VIDEO = (
    *((f"double_blocks.{{}}.{s}_mod.lin", f"double_blocks.{{}}.{s}_mod.linear") for s in ("img", "txt")),
    *((f"double_blocks.{{}}.{s}_attn.qkv", f"double_blocks.{{}}.{s}_attn_qkv") for s in ("img", "txt")),
    *((f"double_blocks.{{}}.{s}_attn.proj", f"double_blocks.{{}}.{s}_attn_proj") for s in ("img", "txt")),
    *(
        (f"double_blocks.{{}}.{s}_mlp.{i}", f"double_blocks.{{}}.{s}_mlp.fc{n}")
        for s in ("img", "txt")
        for i, n in ((0, 1), (2, 2))
    ),
    ("single_blocks.{}.modulation.lin", "single_blocks.{}.modulation.linear"),
    *(
        (f"txt_in.individual_token_refiner.blocks.{{}}.{own}", f"txt_in.individual_token_refiner.blocks.{{}}.{other}")
        for own, other in (
            ("self_attn.qkv", "self_attn_qkv"),
            ("self_attn.proj", "self_attn_proj"),
            ("mlp.0", "mlp.fc1"),
            ("mlp.2", "mlp.fc2"),
        )
    ),
)


def flux_names(shapes: Shapes) -> dict[str, Place]:
    """FLUX.1, FLUX.2 and Chroma."""
    out = _whole(shapes, _FLUX)
    for block in range(_count(shapes, "double_blocks.{}.")):
        own, other = f"double_blocks.{block}", f"transformer_blocks.{block}.attn"
        _fused(out, shapes, f"{own}.img_attn.qkv", [f"{other}.to_{x}" for x in THIRDS])
        _fused(out, shapes, f"{own}.txt_attn.qkv", [f"{other}.add_{x}_proj" for x in THIRDS])
    for block in range(_count(shapes, "single_blocks.{}.")):
        other = f"single_transformer_blocks.{block}"
        width = shapes[f"single_blocks.{block}.linear2.weight"][0]
        mlp = shapes[f"single_blocks.{block}.linear1.weight"][0] - 3 * width
        names = [*(f"{other}.attn.to_{x}" for x in THIRDS), f"{other}.proj_mlp"]
        _fused(out, shapes, f"single_blocks.{block}.linear1", names, [width] * 3 + [mlp])
    _swapped(out, shapes, "final_layer.adaLN_modulation.1", "norm_out.linear")
    return out


def mmdit_names(shapes: Shapes) -> dict[str, Place]:
    """Stable Diffusion 3 and 3.5."""
    out = _whole(shapes, _MMDIT)
    for block in range(_count(shapes, "joint_blocks.{}.")):
        own, other = f"joint_blocks.{block}", f"transformer_blocks.{block}"
        _fused(out, shapes, f"{own}.x_block.attn.qkv", [f"{other}.attn.to_{x}" for x in THIRDS])
        _fused(out, shapes, f"{own}.x_block.attn2.qkv", [f"{other}.attn2.to_{x}" for x in THIRDS])
        _fused(out, shapes, f"{own}.context_block.attn.qkv", [f"{other}.attn.add_{x}_proj" for x in THIRDS])
    last = f"joint_blocks.{_count(shapes, 'joint_blocks.{}.') - 1}.context_block.adaLN_modulation.1"
    if f"{last}.weight" in shapes and shapes[f"{last}.weight"][0] == 2 * shapes[f"{last}.weight"][1]:
        # The last text block has a scale and a shift only, in diffusers the other way round. (A ControlNet's blocks
        # are all whole ones.)
        _swapped(out, shapes, last, f"transformer_blocks.{last.split('.')[1]}.norm1_context.linear")
    _swapped(out, shapes, "final_layer.adaLN_modulation.1", "norm_out.linear")
    if "pos_embed" in shapes:
        out["pos_embed.pos_embed"] = "pos_embed"
    return out


def auraflow_names(shapes: Shapes) -> dict[str, Place]:
    out = _whole(shapes, _AURAFLOW)
    _swapped(out, shapes, "modF.1", "norm_out.linear")
    own = {"positional_encoding": "pos_embed.pos_embed", "register_tokens": "register_tokens"}
    out.update((other, name) for name, other in own.items() if name in shapes)
    return out


def pixart_names(shapes: Shapes) -> dict[str, Place]:
    """PixArt alpha and sigma."""
    out = _whole(shapes, _PIXART)
    for block in range(_count(shapes, "blocks.{}.")):
        own, other = f"blocks.{block}", f"transformer_blocks.{block}"
        _fused(out, shapes, f"{own}.attn.qkv", [f"{other}.attn1.to_{x}" for x in THIRDS])
        _fused(out, shapes, f"{own}.cross_attn.kv_linear", [f"{other}.attn2.to_{x}" for x in ("k", "v")])
        if f"{own}.scale_shift_table" in shapes:
            out[f"{other}.scale_shift_table"] = f"{own}.scale_shift_table"
    own = {
        "y_embedder.y_embedding": "caption_projection.y_embedding",
        "final_layer.scale_shift_table": "scale_shift_table",
    }
    out.update((other, name) for name, other in own.items() if name in shapes)
    return out


def lumina_names(shapes: Shapes) -> dict[str, Place]:
    """Lumina 2 and Z-Image: only attention and the patch-size dependent ends are called otherwise."""
    out: dict[str, Place] = {}
    renamed = (
        (".attention.q_norm.", ".attention.norm_q."),
        (".attention.k_norm.", ".attention.norm_k."),
        (".attention.out.", ".attention.to_out.0."),
    )
    for key in shapes:
        name = key
        for own, other in renamed:
            name = name.replace(own, other)
        for end in ("x_embedder.", "final_layer."):
            if key.startswith(end):
                name = f"all_{end}2-1.{key.removeprefix(end)}"
        if ".attention.qkv." in key:
            layer = key.rpartition(".")[0]
            prefix = layer.removesuffix("qkv")
            _fused(out, shapes, layer, [f"{prefix}to_{x}" for x in THIRDS])
        else:
            out[name] = key
    return out


def hunyuan_video_names(shapes: Shapes) -> dict[str, Place]:
    """HunyuanVideo as published by its authors; what has no other name there keeps its own."""
    out = _whole(shapes, _HUNYUAN_VIDEO)
    renamed = set(out.values())
    out.update((key, key) for key in shapes if key not in renamed)
    return out


def own_names(shapes: Shapes) -> dict[str, Place]:
    """Networks that diffusers names as their own files do: Qwen-Image, LTXV, HiDream, ..."""
    return {key: key for key in shapes}


# A tensor name that only networks of one family have, and the family's function; the first that is there decides.
_FAMILIES: tuple[tuple[str, Callable[[Shapes], dict[str, Place]]], ...] = (
    ("input_blocks.0.0.weight", unet_names),
    ("joint_blocks.0.x_block.attn.qkv.weight", mmdit_names),
    ("txt_in.individual_token_refiner.blocks.0.self_attn.qkv.weight", hunyuan_video_names),
    ("double_blocks.0.img_attn.qkv.weight", flux_names),
    ("double_layers.0.attn.w1q.weight", auraflow_names),
    ("blocks.0.cross_attn.kv_linear.weight", pixart_names),
    ("noise_refiner.0.attention.qkv.weight", lumina_names),
)


def diffusers_names(shapes: Shapes) -> dict[str, Place]:
    """{diffusers name: place} for a network of any family known here."""
    for mark, function in _FAMILIES:
        if mark in shapes:
            return function(shapes)
    return own_names(shapes)


# --- parts


def _count(shapes: Shapes, pattern: str) -> int:
    """Number of blocks; `pattern` has {} for the number and ends with a dot."""
    before = pattern.partition("{}")[0]
    numbers = {key[len(before) :].partition(".")[0] for key in shapes if key.startswith(before)}
    return 1 + max((int(n) for n in numbers if n.isdigit()), default=-1)


def _whole(shapes: Shapes, table: Iterable[tuple[str, str]]) -> dict[str, Place]:
    out: dict[str, Place] = {}
    counts: dict[str, int] = {}
    for own, other in table:
        before = own.partition("{}")[0]
        if "{}" in own:
            numbers: Iterable[Any] = range(counts.setdefault(before, _count(shapes, before + "{}.")))
        else:
            numbers = (None,)
        for number in numbers:
            for kind in KINDS:
                key = f"{own.format(number)}.{kind}"
                if key in shapes:
                    out[f"{other.format(number)}.{kind}"] = key
    return out


def _fused(
    out: dict[str, Place], shapes: Shapes, own: str, names: Sequence[str], sizes: Sequence[int] | None = None
) -> None:
    """Parts of the rows of one own tensor, equal ones without `sizes`."""
    for kind in KINDS:
        key = f"{own}.{kind}"
        if key not in shapes:
            continue
        rows = sizes or [shapes[key][0] // len(names)] * len(names)
        start = 0
        for name, length in zip(names, rows):
            out[f"{name}.{kind}"] = (key, (0, start, length))
            start += length


def _swapped(out: dict[str, Place], shapes: Shapes, own: str, other: str) -> None:
    for kind in KINDS:
        if f"{own}.{kind}" in shapes:
            out[f"{other}.{kind}"] = (f"{own}.{kind}", None, swap_scale_shift)
