"""The layers of the FLUX family: FLUX.1, FLUX.2 and Chroma are put together from them.

Source: Black Forest Labs 2024, https://github.com/black-forest-labs/flux (Apache-2.0): blocks with two streams
(text, image) that share an attention, then blocks with one stream in which attention and MLP run side by side
(Dehghani et al. 2023).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comfy.models.attention import optimized_attention
from comfy.models.attention_patches import attention_inputs, attention_output
from comfy.models.dit import FREQUENCY_WIDTH, BlockHooks, add_control, modulate, plain_norm, timestep_embedding
from comfy.models.rope import apply_rope

# Timesteps and guidance arrive as small numbers and are embedded as thousands.
TIME_FACTOR = 1000.0

Modulations = tuple[Tensor, ...]


def head_width(sd: Mapping[str, Tensor], prefix: str) -> int:
    """Width of a head, from a norm that spans one; files call its tensor `scale` or `weight`."""
    name = f"{prefix}double_blocks.0.img_attn.norm.key_norm."
    return sd[name + "scale" if name + "scale" in sd else name + "weight"].shape[0]


class MLPEmbedder(nn.Module):
    """Linear, SiLU, Linear."""

    def __init__(self, in_width: int, width: int, operations, bias: bool = True, **factory):
        super().__init__()
        self.in_layer = operations.Linear(in_width, width, bias=bias, **factory)
        self.out_layer = operations.Linear(width, width, bias=bias, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return self.out_layer(F.silu(self.in_layer(x)))

    def embed_number(self, number: Tensor, dtype: torch.dtype) -> Tensor:
        """The same for sinusoids of a number [batch] about 0..1."""
        return self(timestep_embedding(number * TIME_FACTOR, FREQUENCY_WIDTH).to(dtype))


class ScaleNamedNorms:
    """Mixin: takes the weights of RMS norms below it also under the name `scale`, which BFL's files use."""

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):
        for key in [k for k in state_dict if k.startswith(prefix) and k.endswith(".scale")]:
            state_dict[key.removesuffix("scale") + "weight"] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


class QKNorm(ScaleNamedNorms, nn.Module):
    """RMS norms of queries and keys per head. They have no eps of their own: the dtype's smallest step."""

    def __init__(self, width: int, operations, **factory):
        super().__init__()
        self.query_norm = operations.RMSNorm(width, **factory)
        self.key_norm = operations.RMSNorm(width, **factory)


class Modulation(nn.Module):
    """A vector [batch, s, width] to `count` modulation vectors (shift, scale, gate, ...)."""

    def __init__(self, width: int, count: int, operations, bias: bool = True, **factory):
        super().__init__()
        self.count = count
        self.lin = operations.Linear(width, count * width, bias=bias, **factory)

    def forward(self, vec: Tensor) -> Modulations:
        return self.lin(F.silu(vec)).chunk(self.count, dim=-1)


class SiLUGate(nn.Module):
    """silu(a) * b, where a is the first half of the last axis."""

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return F.silu(a) * b


@dataclasses.dataclass(frozen=True)
class BlockShape:
    """What a block needs to know of its model. own_modulation: the block turns the conditioning vector into
    modulations itself; else it is handed them. gated: the MLP is SiLU-gated instead of GELU."""

    width: int
    heads: int
    mlp_width: int
    own_modulation: bool = True
    gated: bool = False
    bias: bool = True
    qkv_bias: bool = True

    @property
    def activation(self) -> nn.Module:
        return SiLUGate() if self.gated else nn.GELU(approximate="tanh")

    @property
    def mlp_in(self) -> int:
        """Width before the activation."""
        return self.mlp_width * (2 if self.gated else 1)

    def split_heads(self, qkv: Tensor, norm: QKNorm) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys (both normed) and values [batch, heads, tokens, head width]."""
        q, k, v = qkv.unflatten(-1, (3, self.heads, self.width // self.heads)).permute(2, 0, 3, 1, 4)
        return norm.query_norm(q), norm.key_norm(k), v


class Attention(nn.Module):
    """One stream's projections into and out of the shared attention."""

    def __init__(self, shape: BlockShape, operations, **factory):
        super().__init__()
        self.qkv = operations.Linear(shape.width, 3 * shape.width, bias=shape.qkv_bias, **factory)
        self.norm = QKNorm(shape.width // shape.heads, operations, **factory)
        self.proj = operations.Linear(shape.width, shape.width, bias=shape.bias, **factory)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pe: Tensor,
    heads: int,
    mask: Tensor | None = None,
    options: dict | None = None,
    text: int = 0,
) -> Tensor:
    """Attention of rotated queries and keys; [batch, tokens, heads * width]. options, text: see
    `comfy.models.attention_patches`; a patch may bring keys whose positions are at the end of `pe`."""
    q, k, v, pe, mask = attention_inputs(options, q, k, v, pe, mask, text)
    q, k = (apply_rope(t, pe[:, :, : t.shape[2]]) for t in (q, k))
    return attention_output(options, optimized_attention(q, k, v, heads, mask=mask, skip_reshape=True), text)


def spread(mods: Modulations, tokens: int, tail: int) -> Modulations:
    """Modulations with two vectors [batch, 2, width] laid out over tokens, the last `tail` of which get the
    second; with one vector they are left to broadcast."""
    if mods[0].shape[1] == 1:
        return mods
    place = (torch.arange(tokens, device=mods[0].device) >= tokens - tail).long()
    return tuple(m[:, place] for m in mods)


def widened_mask(mask: Tensor | None, tokens: int) -> Tensor | None:
    """A mask [..., n] of the last n of `tokens` tokens, with nothing held against those that a patch put in front."""
    if mask is None or mask.shape[-1] >= tokens:
        return mask
    allowed = True if mask.dtype == torch.bool else 0.0
    missing = tokens - mask.shape[-1]
    mask = F.pad(mask, (missing, 0), value=allowed)
    return F.pad(mask, (0, 0, missing, 0), value=allowed) if mask.ndim >= 2 and mask.shape[-2] > 1 else mask


class DoubleStreamBlock(nn.Module):
    """Text and image tokens with weights of their own and one attention."""

    def __init__(self, shape: BlockShape, operations, **factory):
        super().__init__()
        self.shape = shape
        for stream in ("img", "txt"):
            if shape.own_modulation:
                setattr(self, f"{stream}_mod", Modulation(shape.width, 6, operations, **factory))
            setattr(self, f"{stream}_attn", Attention(shape, operations, **factory))
            mlp = nn.Sequential(
                operations.Linear(shape.width, shape.mlp_in, bias=shape.bias, **factory),
                shape.activation,
                operations.Linear(shape.mlp_width, shape.width, bias=shape.bias, **factory),
            )
            setattr(self, f"{stream}_mlp", mlp)

    def forward(
        self,
        img: Tensor,
        txt: Tensor,
        vec: Tensor | tuple[Modulations, Modulations],
        pe: Tensor,
        attn_mask: Tensor | None = None,
        tail: int = 0,
        options: dict | None = None,
    ) -> tuple[Tensor, Tensor]:
        """img [batch, m, width], txt [batch, n, width]; vec [batch, s, width], or the modulations of image and
        text where the block makes none itself; pe: rope table of text, then image; tail: see `spread`; options: of the
        patches in its attention."""
        img_mod, txt_mod = vec if isinstance(vec, tuple) else (self.img_mod(vec), self.txt_mod(vec[:, :1]))
        img_mod = spread(img_mod, img.shape[1], tail)

        img_qkv = self.img_attn.qkv(modulate(plain_norm(img), img_mod[0], img_mod[1]))
        txt_qkv = self.txt_attn.qkv(modulate(plain_norm(txt), txt_mod[0], txt_mod[1]))
        streams = (
            self.shape.split_heads(txt_qkv, self.txt_attn.norm),
            self.shape.split_heads(img_qkv, self.img_attn.norm),
        )
        q, k, v = (torch.cat(pair, dim=2) for pair in zip(*streams))
        attention = attend(q, k, v, pe, self.shape.heads, attn_mask, options, txt.shape[1])
        txt_attention, img_attention = attention.split([txt.shape[1], img.shape[1]], dim=1)

        img = img + img_mod[2] * self.img_attn.proj(img_attention)
        img = img + img_mod[5] * self.img_mlp(modulate(plain_norm(img), img_mod[3], img_mod[4]))
        txt = txt + txt_mod[2] * self.txt_attn.proj(txt_attention)
        txt = txt + txt_mod[5] * self.txt_mlp(modulate(plain_norm(txt), txt_mod[3], txt_mod[4]))
        return img, txt


class SingleStreamBlock(nn.Module):
    """All tokens in one stream; attention and MLP read the same input and share the projections around them."""

    def __init__(self, shape: BlockShape, operations, **factory):
        super().__init__()
        self.shape = shape
        width = shape.width
        self.linear1 = operations.Linear(width, 3 * width + shape.mlp_in, bias=shape.bias, **factory)
        self.linear2 = operations.Linear(width + shape.mlp_width, width, bias=shape.bias, **factory)
        self.norm = QKNorm(width // shape.heads, operations, **factory)
        self.activation = shape.activation
        if shape.own_modulation:
            self.modulation = Modulation(width, 3, operations, **factory)

    def forward(
        self,
        x: Tensor,
        vec: Tensor | Modulations,
        pe: Tensor,
        attn_mask: Tensor | None = None,
        tail: int = 0,
        options: dict | None = None,
        text: int = 0,
    ) -> Tensor:
        """x [batch, tokens, width], the first `text` of which are words."""
        mod = spread(vec if isinstance(vec, tuple) else self.modulation(vec), x.shape[1], tail)
        h = self.linear1(modulate(plain_norm(x), mod[0], mod[1]))
        qkv, mlp = h.split([3 * self.shape.width, self.shape.mlp_in], dim=-1)
        q, k, v = self.shape.split_heads(qkv, self.norm)
        attention = attend(q, k, v, pe, self.shape.heads, attn_mask, options, text)
        return x + mod[2] * self.linear2(torch.cat([attention, self.activation(mlp)], dim=-1))


class LastLayer(nn.Module):
    """Modulated norm, then the pixels of each patch."""

    def __init__(self, width: int, out_width: int, operations, bias: bool = True, **factory):
        super().__init__()
        self.linear = operations.Linear(width, out_width, bias=bias, **factory)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), operations.Linear(width, 2 * width, bias=bias, **factory))

    def forward(self, x: Tensor, vec: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation(vec).chunk(2, dim=-1)
        return self.linear(modulate(plain_norm(x), shift, scale))


def run_blocks(
    double_blocks: nn.ModuleList,
    single_blocks: nn.ModuleList,
    img: Tensor,
    txt: Tensor,
    double_vec,
    single_vec,
    pe: Tensor,
    attn_mask: Tensor | None = None,
    tail: int = 0,
    control: dict[str, list[Tensor | None]] | None = None,
    transformer_options: dict | None = None,
) -> Tensor:
    """Both stacks of blocks; the image tokens that come out. `double_vec(i)` and `single_vec(i)` give what block
    i is conditioned on."""
    text = txt.shape[1]
    hooks = BlockHooks(transformer_options, len(double_blocks))
    shared = {"pe": pe, "attn_mask": attn_mask}
    for i, block in enumerate(double_blocks):

        def double(args: dict, block=block) -> dict:
            img, txt = block(
                args["img"], args["txt"], args["vec"], args["pe"], args.get("attn_mask"), tail, hooks.options
            )
            return {"img": img, "txt": txt}

        out = hooks.run("double_block", i, double, {"img": img, "txt": txt, "vec": double_vec(i), **shared})
        txt, img = out["txt"], add_control(out["img"], control, "input", i)

    x = torch.cat([txt, img], dim=1)
    hooks.options["total_blocks"] = len(single_blocks)
    for i, block in enumerate(single_blocks):

        def single(args: dict, block=block) -> dict:
            mask = args.get("attn_mask")
            return {"img": block(args["img"], args["vec"], args["pe"], mask, tail, hooks.options, text)}

        x = hooks.run("single_block", i, single, {"img": x, "vec": single_vec(i), **shared})["img"]
        x = add_control(x, control, "output", i, start=text)
    return x[:, text:]
