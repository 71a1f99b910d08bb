"""HiDream-I1: a flow transformer whose MLPs are sparse mixtures of experts.

Source: Cai et al. 2025, "HiDream-I1" (MIT): T5 tokens and, in every block anew, one layer of Llama's hidden states;
two-stream blocks, then one-stream blocks.
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
    FREQUENCY_WIDTH,
    BlockHooks,
    FromDict,
    count_blocks,
    modulate,
    pad_to_patch_size,
    patchify,
    plain_norm,
    timestep_embedding,
    unpatchify,
)
from comfy.models.rope import apply_rope, grid_ids, rope_table, scaled_ids

QK_NORM_EPS = 1e-5
HEAD_WIDTH = 128
LLAMA_LAYERS = 32


@dataclasses.dataclass(frozen=True)
class HiDreamConfig(FromDict):
    """Shape of the transformer. llama_layers: which of Llama's layers each block reads, two-stream blocks first.
    expert_dim, shared_dim: hidden widths of a routed expert and of the one every token passes."""

    in_channels: int = 16
    out_channels: int = 16
    patch_size: int = 2
    num_layers: int = 16
    num_single_layers: int = 32
    attention_head_dim: int = HEAD_WIDTH
    num_attention_heads: int = 20
    caption_channels: tuple[int, int] = (4096, 4096)
    text_emb_dim: int = 2048
    num_routed_experts: int = 4
    num_activated_experts: int = 2
    expert_dim: int = 6912
    shared_dim: int = 3584
    axes_dims_rope: tuple[int, ...] = (64, 32, 32)
    llama_layers: tuple[int, ...] = tuple(min(i, LLAMA_LAYERS - 1) for i in range(48))

    @property
    def width(self) -> int:
        return self.num_attention_heads * self.attention_head_dim


def config_from_state_dict(sd: Mapping[str, Tensor], prefix: str = "", **overrides: Any) -> HiDreamConfig:
    """Read the configuration from tensor names and shapes below `prefix`; `overrides` win (patch size, head width and
    axes, the choice of Llama's layers and the number of active experts are not told by shapes).

    Raises KeyError naming a missing tensor.
    """

    def shape(name: str) -> torch.Size:
        return sd[prefix + name].shape

    patch = overrides.get("patch_size", 2)
    width, patch_width = shape("x_embedder.proj.weight")
    doubles = count_blocks(sd, prefix + "double_stream_blocks.{}.block.attn1.to_q.weight")
    singles = count_blocks(sd, prefix + "single_stream_blocks.{}.block.attn1.to_q.weight")
    experts = "double_stream_blocks.0.block.ff_i."
    t5 = shape(f"caption_projection.{doubles + singles}.linear.weight")[1]
    values: dict[str, Any] = {
        "in_channels": patch_width // patch**2,
        "out_channels": shape("final_layer.linear.weight")[0] // patch**2,
        "num_layers": doubles,
        "num_single_layers": singles,
        "num_attention_heads": width // overrides.get("attention_head_dim", HEAD_WIDTH),
        "caption_channels": (t5, shape("caption_projection.0.linear.weight")[1]),
        "text_emb_dim": shape("p_embedder.pooled_embedder.linear_1.weight")[1],
        "num_routed_experts": shape(experts + "gate.weight")[0],
        "expert_dim": shape(experts + "experts.0.w1.weight")[0],
        "shared_dim": shape(experts + "shared_experts.w1.weight")[0],
        "llama_layers": tuple(min(i, LLAMA_LAYERS - 1) for i in range(doubles + singles)),
    }
    values.update(overrides)
    return HiDreamConfig(**values)


class MLPEmbedder(nn.Module):
    """Linear, SiLU, Linear."""

    def __init__(self, in_width: int, width: int, operations, **factory):
        super().__init__()
        self.linear_1 = operations.Linear(in_width, width, **factory)
        self.linear_2 = operations.Linear(width, width, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(F.silu(self.linear_1(x)))


class TimeEmbedder(nn.Module):
    def __init__(self, width: int, operations, **factory):
        super().__init__()
        self.timestep_embedder = MLPEmbedder(FREQUENCY_WIDTH, width, operations, **factory)

    def forward(self, timesteps: Tensor, dtype: torch.dtype) -> Tensor:
        return self.timestep_embedder(timestep_embedding(timesteps, FREQUENCY_WIDTH).to(dtype))


class PooledEmbedder(nn.Module):
    def __init__(self, in_width: int, width: int, operations, **factory):
        super().__init__()
        self.pooled_embedder = MLPEmbedder(in_width, width, operations, **factory)

    def forward(self, y: Tensor) -> Tensor:
        return self.pooled_embedder(y)


class PatchEmbed(nn.Module):
    def __init__(self, in_width: int, width: int, operations, **factory):
        super().__init__()
        self.proj = operations.Linear(in_width, width, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x)


class TextProjection(nn.Module):
    def __init__(self, in_width: int, width: int, operations, **factory):
        super().__init__()
        self.linear = operations.Linear(in_width, width, bias=False, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class FeedForward(nn.Module):
    """SiLU-gated MLP."""

    def __init__(self, width: int, hidden: int, operations, **factory):
        super().__init__()
        self.w1 = operations.Linear(width, hidden, bias=False, **factory)
        self.w2 = operations.Linear(hidden, width, bias=False, **factory)
        self.w3 = operations.Linear(width, hidden, bias=False, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class ExpertGate(nn.Module):
    """Probabilities of the experts; the weight is a table, not a layer, in files."""

    def __init__(self, width: int, experts: int, **factory):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, width, **factory), requires_grad=False)

    def forward(self, x: Tensor, active: int) -> Tensor:
        """Weights [..., experts]: the probabilities of the `active` likeliest, 0 for the others."""
        scores = F.linear(x, self.weight.to(x)).softmax(dim=-1)
        top, experts = scores.topk(active, dim=-1)
        return torch.zeros_like(scores).scatter(-1, experts, top)


class MixtureOfExperts(nn.Module):
    """Every token passes the shared expert and the few routed ones that suit it best.

    All experts run on all tokens and the gate's zeros drop what is not wanted: with half of the experts active that
    costs twice the arithmetic, but the shapes do not depend on the data, so nothing waits for the device.
    """

    def __init__(self, config: HiDreamConfig, operations, **factory):
        super().__init__()
        self.active = config.num_activated_experts
        self.shared_experts = FeedForward(config.width, config.shared_dim, operations, **factory)
        self.experts = nn.ModuleList(
            FeedForward(config.width, config.expert_dim, operations, **factory)
            for _ in range(config.num_routed_experts)
        )
        self.gate = ExpertGate(config.width, config.num_routed_experts, **factory)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x, self.active)
        out = self.shared_experts(x)
        for number, expert in enumerate(self.experts):
            out = out + weights[..., number, None] * expert(x)
        return out


class Attention(nn.Module):
    """Attention over image tokens, or over image and text tokens with projections of their own (files: `_t`). Norms
    span all heads."""

    def __init__(self, config: HiDreamConfig, operations, streams: int, **factory):
        super().__init__()
        self.heads = config.num_attention_heads
        self.suffixes = ("", "_t")[:streams]
        for suffix in self.suffixes:
            for name in ("to_q", "to_k", "to_v", "to_out"):
                setattr(self, name + suffix, operations.Linear(config.width, config.width, **factory))
            for name in ("q_rms_norm", "k_rms_norm"):
                setattr(self, name + suffix, operations.RMSNorm(config.width, eps=QK_NORM_EPS, **factory))

    def project(self, x: Tensor, suffix: str) -> tuple[Tensor, Tensor, Tensor]:
        q = getattr(self, "q_rms_norm" + suffix)(getattr(self, "to_q" + suffix)(x))
        k = getattr(self, "k_rms_norm" + suffix)(getattr(self, "to_k" + suffix)(x))
        v = getattr(self, "to_v" + suffix)(x)
        return tuple(t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))

    def forward(
        self, pe: Tensor, *xs: Tensor, options: dict | None = None, image: int | None = None
    ) -> tuple[Tensor, ...]:
        """image: how many tokens of the first stream are the image's (default: all)."""
        projected = [self.project(x, suffix) for x, suffix in zip(xs, self.suffixes)]
        q, k, v = (torch.cat(parts, dim=2) for parts in zip(*projected))
        out = optimized_attention(apply_rope(q, pe), apply_rope(k, pe), v, self.heads, skip_reshape=True)
        out = attention_output(options, out, 0, xs[0].shape[1] if image is None else image)
        parts = out.split([x.shape[1] for x in xs], dim=1)
        return tuple(getattr(self, "to_out" + suffix)(part) for part, suffix in zip(parts, self.suffixes))


def modulation(width: int, count: int, operations, **factory) -> nn.Sequential:
    return nn.Sequential(nn.SiLU(), operations.Linear(width, count * width, **factory))


class DoubleBlock(nn.Module):
    def __init__(self, config: HiDreamConfig, operations, **factory):
        super().__init__()
        self.adaLN_modulation = modulation(config.width, 12, operations, **factory)
        self.attn1 = Attention(config, operations, 2, **factory)
        self.ff_i = MixtureOfExperts(config, operations, **factory)
        self.ff_t = FeedForward(config.width, config.expert_dim, operations, **factory)

    def forward(
        self, img: Tensor, txt: Tensor, vec: Tensor, pe: Tensor, options: dict | None = None
    ) -> tuple[Tensor, Tensor]:
        """img [batch, m, width], txt [batch, n, width], vec [batch, 1, width]; options: of the patches in its
        attention."""
        mod = self.adaLN_modulation(vec).chunk(12, dim=-1)
        img_mod, txt_mod = mod[:6], mod[6:]
        img_attention, txt_attention = self.attn1(
            pe,
            modulate(plain_norm(img), img_mod[0], img_mod[1]),
            modulate(plain_norm(txt), txt_mod[0], txt_mod[1]),
            options=options,
        )
        img = img + img_mod[2] * img_attention
        img = img + img_mod[5] * self.ff_i(modulate(plain_norm(img), img_mod[3], img_mod[4]))
        txt = txt + txt_mod[2] * txt_attention
        txt = txt + txt_mod[5] * self.ff_t(modulate(plain_norm(txt), txt_mod[3], txt_mod[4]))
        return img, txt


class SingleBlock(nn.Module):
    def __init__(self, config: HiDreamConfig, operations, **factory):
        super().__init__()
        self.adaLN_modulation = modulation(config.width, 6, operations, **factory)
        self.attn1 = Attention(config, operations, 1, **factory)
        self.ff_i = MixtureOfExperts(config, operations, **factory)

    def forward(
        self, x: Tensor, vec: Tensor, pe: Tensor, options: dict | None = None, image: int | None = None
    ) -> Tensor:
        mod = self.adaLN_modulation(vec).chunk(6, dim=-1)
        (attention,) = self.attn1(pe, modulate(plain_norm(x), mod[0], mod[1]), options=options, image=image)
        x = x + mod[2] * attention
        return x + mod[5] * self.ff_i(modulate(plain_norm(x), mod[3], mod[4]))


class NamedBlock(nn.Module):
    """Files have every block one level down, as `block`."""

    def __init__(self, block: nn.Module):
        super().__init__()
        self.block = block

    def forward(self, *args: Any):
        return self.block(*args)


class FinalLayer(nn.Module):
    def __init__(self, width: int, out_width: int, operations, **factory):
        super().__init__()
        self.linear = operations.Linear(width, out_width, **factory)
        self.adaLN_modulation = modulation(width, 2, operations, **factory)

    def forward(self, x: Tensor, vec: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation(vec).chunk(2, dim=-1)
        return self.linear(modulate(plain_norm(x), shift, scale))


class HiDream(nn.Module):
    """Predicts the flow of a latent at a timestep, given T5 tokens, Llama's hidden states and a pooled CLIP
    vector."""

    def __init__(
        self,
        config: HiDreamConfig,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__()
        factory = {"dtype": dtype, "device": device}
        width, patch_area = config.width, config.patch_size**2
        self.config = config
        self.dtype = dtype
        self.t_embedder = TimeEmbedder(width, operations, **factory)
        self.p_embedder = PooledEmbedder(config.text_emb_dim, width, operations, **factory)
        self.x_embedder = PatchEmbed(config.in_channels * patch_area, width, operations, **factory)
        self.double_stream_blocks = nn.ModuleList(
            NamedBlock(DoubleBlock(config, operations, **factory)) for _ in range(config.num_layers)
        )
        self.single_stream_blocks = nn.ModuleList(
            NamedBlock(SingleBlock(config, operations, **factory)) for _ in range(config.num_single_layers)
        )
        t5, llama = config.caption_channels
        sources = [llama] * (config.num_layers + config.num_single_layers) + [t5]
        self.caption_projection = nn.ModuleList(
            TextProjection(source, width, operations, **factory) for source in sources
        )
        self.final_layer = FinalLayer(width, config.out_channels * patch_area, operations, **factory)

    def forward(
        self,
        x: Tensor,
        timesteps: Tensor,
        context: Tensor,
        y: Tensor | None = None,
        encoder_hidden_states_llama3: Tensor | None = None,
        transformer_options: dict | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Output [batch, out_channels, height, width], any size.

        x: [batch, in_channels, height, width]; timesteps: [batch], 1000 * sigma; context: T5 [batch, n,
        caption_channels[0]]; y: [batch, text_emb_dim]; encoder_hidden_states_llama3: [batch, layers, m,
        caption_channels[1]]. Blocks are replaceable as ("double_block", number) with img, txt, vec, pe and
        ("single_block", number) with img (image and text), vec, pe (see `comfy.models.dit`).
        """
        if y is None or encoder_hidden_states_llama3 is None:
            missing = "y" if y is None else "encoder_hidden_states_llama3"
            raise ValueError(f"HiDream is conditioned on CLIP, T5 and Llama: argument {missing} is missing")
        height, width = x.shape[-2:]
        patch = self.config.patch_size
        x = pad_to_patch_size(x, (patch, patch))
        rows, columns = x.shape[-2] // patch, x.shape[-1] // patch
        vec = (self.t_embedder(timesteps, x.dtype) + self.p_embedder(y)).unsqueeze(1)

        img = self.x_embedder(patchify(x, patch, channels_last=True))
        image_tokens = img.shape[1]
        llama = [
            projection(encoder_hidden_states_llama3[:, layer])
            for projection, layer in zip(self.caption_projection, self.config.llama_layers)
        ]
        # What runs through the blocks; each block also sees Llama tokens of its own behind it.
        txt = torch.cat([self.caption_projection[-1](context), llama[-1]], dim=1)
        words = txt.shape[1]
        img_ids = scaled_ids(grid_ids(1, rows, columns, device=x.device), transformer_options)
        txt_ids = img_ids.new_zeros(1, words + llama[0].shape[1], 3)
        pe = rope_table(torch.cat([img_ids, txt_ids], dim=1), self.config.axes_dims_rope, 10000.0)

        hooks = BlockHooks(transformer_options, len(self.double_stream_blocks))
        for i, block in enumerate(self.double_stream_blocks):

            def double(args: dict, block=block) -> dict:
                img, txt = block(args["img"], args["txt"], args["vec"], args["pe"], hooks.options)
                return {"img": img, "txt": txt}

            args = {"img": img, "txt": torch.cat([txt, llama[i]], dim=1), "vec": vec, "pe": pe}
            out = hooks.run("double_block", i, double, args)
            img, txt = out["img"], out["txt"][:, :words]

        h = torch.cat([img, txt], dim=1)
        tokens = h.shape[1]
        hooks.options["total_blocks"] = len(self.single_stream_blocks)
        for i, block in enumerate(self.single_stream_blocks):

            def single(args: dict, block=block) -> dict:
                return {"img": block(args["img"], args["vec"], args["pe"], hooks.options, image_tokens)}

            own = llama[len(self.double_stream_blocks) + i]
            args = {"img": torch.cat([h, own], dim=1), "vec": vec, "pe": pe}
            h = hooks.run("single_block", i, single, args)["img"][:, :tokens]

        h = self.final_layer(h[:, :image_tokens], vec)
        return -unpatchify(h, rows, columns, patch, channels_last=True)[:, :, :height, :width]
