"""AuraFlow: a large flow transformer with few two-stream and many one-stream blocks.

Source: Fal 2024, AuraFlow (Apache-2.0), after Ryu's minimal MMDiT (https://github.com/cloneofsimo/minRF): norms
without weights (also on queries and keys), no biases, learned position table, register tokens (Darcet et al. 2024)
in front of the text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import comfy.ops
from comfy.models.attention import optimized_attention
from comfy.models.attention_patches import attention_output
from comfy.models.dit import (
    BlockHooks,
    FromDict,
    TimestepEmbedder,
    count_blocks,
    modulate,
    pad_to_patch_size,
    patchify,
    plain_norm,
    unpatchify,
)

HEAD_WIDTH = 256
NORM_EPS = 1e-5
TIME_FACTOR = 1000.0


@dataclasses.dataclass(frozen=True)
class AuraFlowConfig(FromDict):
    """Shape of the transformer. max_seq: entries of the (square) table of positions; n_layers: all blocks, of which
    the first n_double_layers have two streams."""

    in_channels: int = 4
    out_channels: int = 4
    patch_size: int = 2
    dim: int = 3072
    n_heads: int = 12
    n_layers: int = 36
    n_double_layers: int = 4
    cond_seq_dim: int = 2048
    max_seq: int = 1024
    register_tokens: int = 8
    mlp_dim: int = 8192


def config_from_state_dict(sd: Mapping[str, Tensor], prefix: str = "", **overrides: Any) -> AuraFlowConfig:
    """Read the configuration from tensor names and shapes below `prefix`; `overrides` win (patch size and number of
    heads are not told by shapes: heads are taken to be 256 wide).

    Raises KeyError naming a missing tensor.
    """

    def shape(name: str) -> torch.Size:
        return sd[prefix + name].shape

    patch = overrides.get("patch_size", 2)
    dim, patch_width = shape("init_x_linear.weight")
    doubles = count_blocks(sd, prefix + "double_layers.{}.attn.w1q.weight")
    singles = count_blocks(sd, prefix + "single_layers.{}.attn.w1q.weight")
    block = "double_layers.0.mlpX" if doubles else "single_layers.0.mlp"
    values: dict[str, Any] = {
        "in_channels": patch_width // patch**2,
        "out_channels": shape("final_linear.weight")[0] // patch**2,
        "patch_size": patch,
        "dim": dim,
        "n_heads": max(1, dim // HEAD_WIDTH),
        "n_layers": doubles + singles,
        "n_double_layers": doubles,
        "cond_seq_dim": shape("cond_seq_linear.weight")[1],
        "max_seq": shape("positional_encoding")[1],
        "register_tokens": shape("register_tokens")[1],
        "mlp_dim": shape(f"{block}.c_fc1.weight")[0],
    }
    values.update(overrides)
    return AuraFlowConfig(**values)


def norm(x: Tensor) -> Tensor:
    return plain_norm(x, NORM_EPS)


class MLP(nn.Module):
    """SiLU-gated MLP."""

    def __init__(self, width: int, hidden: int, operations, **factory):
        super().__init__()
        self.c_fc1 = operations.Linear(width, hidden, bias=False, **factory)
        self.c_fc2 = operations.Linear(width, hidden, bias=False, **factory)
        self.c_proj = operations.Linear(hidden, width, bias=False, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.silu(self.c_fc1(x)) * self.c_fc2(x))


class Attention(nn.Module):
    """Attention over the tokens of one stream, or of two with projections of their own (files: w1 text, w2
    image)."""

    def __init__(self, width: int, heads: int, streams: int, operations, **factory):
        super().__init__()
        self.heads = heads
        self.streams = streams
        for stream in range(1, streams + 1):
            for part in "qkvo":
                layer = operations.Linear(width, width, bias=False, **factory)
                setattr(self, f"w{stream}{part}", layer)

    def project(self, x: Tensor, stream: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys (normed per head) and values [batch, heads, tokens, width]."""
        q, k, v = (
            getattr(self, f"w{stream}{part}")(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in "qkv"
        )
        return norm(q), norm(k), v

    def forward(self, *xs: Tensor, options: dict | None = None, text: int = 0) -> tuple[Tensor, ...]:
        projected = [self.project(x, stream) for stream, x in enumerate(xs, start=1)]
        q, k, v = (torch.cat(parts, dim=2) for parts in zip(*projected))
        out = optimized_attention(q, k, v, self.heads, skip_reshape=True)
        out = attention_output(options, out, text)
        parts = out.split([x.shape[1] for x in xs], dim=1)
        return tuple(getattr(self, f"w{stream}o")(part) for stream, part in enumerate(parts, start=1))


def modulation(width: int, count: int, operations, **factory) -> nn.Sequential:
    return nn.Sequential(nn.SiLU(), operations.Linear(width, count * width, bias=False, **factory))


def finish(x: Tensor, attention: Tensor, mlp: MLP, mod: tuple[Tensor, ...]) -> Tensor:
    """The second half of a block. The attention only feeds the MLP: what goes on is the block's input plus the MLP's
    output, with a norm over the sum of input and attention in between."""
    h = norm(x + mod[2] * attention)
    return x + mod[5] * mlp(modulate(h, mod[3], mod[4]))


class DoubleBlock(nn.Module):
    def __init__(self, config: AuraFlowConfig, operations, **factory):
        super().__init__()
        self.modC = modulation(config.dim, 6, operations, **factory)
        self.modX = modulation(config.dim, 6, operations, **factory)
        self.mlpC = MLP(config.dim, config.mlp_dim, operations, **factory)
        self.mlpX = MLP(config.dim, config.mlp_dim, operations, **factory)
        self.attn = Attention(config.dim, config.n_heads, 2, operations, **factory)

    def forward(self, c: Tensor, x: Tensor, vec: Tensor, options: dict | None = None) -> tuple[Tensor, Tensor]:
        """Text c and image x [batch, tokens, dim] under the conditioning vec [batch, 1, dim]; options: of the patches
        in its attention."""
        c_mod, x_mod = self.modC(vec).chunk(6, dim=-1), self.modX(vec).chunk(6, dim=-1)
        c_attention, x_attention = self.attn(
            modulate(norm(c), c_mod[0], c_mod[1]),
            modulate(norm(x), x_mod[0], x_mod[1]),
            options=options,
            text=c.shape[1],
        )
        return finish(c, c_attention, self.mlpC, c_mod), finish(x, x_attention, self.mlpX, x_mod)


class SingleBlock(nn.Module):
    def __init__(self, config: AuraFlowConfig, operations, **factory):
        super().__init__()
        self.modCX = modulation(config.dim, 6, operations, **factory)
        self.attn = Attention(config.dim, config.n_heads, 1, operations, **factory)
        self.mlp = MLP(config.dim, config.mlp_dim, operations, **factory)

    def forward(self, cx: Tensor, vec: Tensor, options: dict | None = None, text: int = 0) -> Tensor:
        mod = self.modCX(vec).chunk(6, dim=-1)
        (attention,) = self.attn(modulate(norm(cx), mod[0], mod[1]), options=options, text=text)
        return finish(cx, attention, self.mlp, mod)


class AuraFlow(nn.Module):
    """Predicts the flow of a latent at a timestep, given text tokens."""

    def __init__(
        self,
        config: AuraFlowConfig,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__()
        factory = {"dtype": dtype, "device": device}
        dim, patch_area = config.dim, config.patch_size**2
        self.config = config
        self.dtype = dtype
        self.t_embedder = TimestepEmbedder(dim, operations, factor=TIME_FACTOR, **factory)
        self.cond_seq_linear = operations.Linear(config.cond_seq_dim, dim, bias=False, **factory)
        self.init_x_linear = operations.Linear(patch_area * config.in_channels, dim, **factory)
        self.positional_encoding = nn.Parameter(torch.empty(1, config.max_seq, dim, **factory), requires_grad=False)
        self.register_tokens = nn.Parameter(torch.empty(1, config.register_tokens, dim, **factory), requires_grad=False)
        self.double_layers = nn.ModuleList(
            DoubleBlock(config, operations, **factory) for _ in range(config.n_double_layers)
        )
        self.single_layers = nn.ModuleList(
            SingleBlock(config, operations, **factory) for _ in range(config.n_layers - config.n_double_layers)
        )
        self.modF = modulation(dim, 2, operations, **factory)
        self.final_linear = operations.Linear(dim, patch_area * config.out_channels, bias=False, **factory)

    def position_embedding(self, rows: int, columns: int) -> Tensor:
        """The middle [1, rows * columns, dim] of the table, stretched first where it is too small."""
        side = round(self.config.max_seq**0.5)
        table = self.positional_encoding.unflatten(1, (side, side))
        height, width = max(side, rows), max(side, columns)
        if (height, width) != (side, side):
            table = F.interpolate(table.movedim(-1, 1), (height, width), mode="bilinear").movedim(1, -1)
        top, left = height // 2 - rows // 2, width // 2 - columns // 2
        return table[:, top : top + rows, left : left + columns].flatten(1, 2)

    def forward(
        self,
        x: Tensor,
        timesteps: Tensor,
        context: Tensor,
        transformer_options: dict | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Output [batch, out_channels, height, width], any size.

        x: [batch, in_channels, height, width]; timesteps: [batch] sigmas 0..1; context: [batch, tokens,
        cond_seq_dim]. Blocks are replaceable as ("double_block", number) with img, txt, vec and ("single_block",
        number) with img (text and image) and vec (see `comfy.models.dit`).
        """
        height, width = x.shape[-2:]
        patch = self.config.patch_size
        x = pad_to_patch_size(x, (patch, patch))
        rows, columns = x.shape[-2] // patch, x.shape[-1] // patch

        img = self.init_x_linear(patchify(x, patch))
        img = img + self.position_embedding(rows, columns).to(img)
        txt = self.cond_seq_linear(context)
        txt = torch.cat([self.register_tokens.to(txt).expand(txt.shape[0], -1, -1), txt], dim=1)
        vec = self.t_embedder(timesteps, x.dtype).unsqueeze(1)

        hooks = BlockHooks(transformer_options, len(self.double_layers))
        for i, block in enumerate(self.double_layers):

            def double(args: dict, block=block) -> dict:
                txt, img = block(args["txt"], args["img"], args["vec"], hooks.options)
                return {"txt": txt, "img": img}

            out = hooks.run("double_block", i, double, {"img": img, "txt": txt, "vec": vec})
            txt, img = out["txt"], out["img"]

        h = torch.cat([txt, img], dim=1) if len(self.single_layers) else img
        hooks.options["total_blocks"] = len(self.single_layers)
        words = h.shape[1] - rows * columns
        for i, block in enumerate(self.single_layers):

            def single(args: dict, block=block) -> dict:
                return {"img": block(args["img"], args["vec"], hooks.options, words)}

            h = hooks.run("single_block", i, single, {"img": h, "vec": vec})["img"]

        shift, scale = self.modF(vec).chunk(2, dim=-1)
        h = self.final_linear(modulate(h[:, -rows * columns :], shift, scale))
        return unpatchify(h, rows, columns, patch, channels_last=True)[:, :, :height, :width]
