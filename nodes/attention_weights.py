"""Nodes that make an attention's weights larger or smaller."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from comfy_api.latest import io

FACTOR = {"default": 1.0, "min": 0.0, "max": 10.0, "step": 0.01, "advanced": True}
TENSOR = r"\.(?:weight|bias)$"
TIME = ".time_stack."


def scaled(patchable: Any, keys: Any, factor_of: Callable[[str], float | None]) -> Any:
    """A clone whose weights are multiplied by what `factor_of` says; None and 1 leave one as it is."""
    out = patchable.clone()
    for key in keys:
        factor = factor_of(key)
        if factor is not None and factor != 1.0:
            out.add_patches({key: (None,)}, 0.0, factor)
    return out


def _factor_inputs(names: dict[str, str]) -> list:
    return [io.Float.Input(name, tooltip=text, **FACTOR) for name, text in names.items()]


PARTS = {
    "q": "Factor of the queries.",
    "k": "Factor of the keys.",
    "v": "Factor of the values.",
    "out": "Factor of what the attention adds.",
}
CATEGORY = "experimental/attention_experiments"


def _unet_attention(model: Any, attention: str, factors: dict[str, float]) -> Any:
    pattern = re.compile(rf"\.{attention}\.to_(q|k|v|out)(?:\.0)?{TENSOR}")

    def factor_of(key: str) -> float | None:
        match = pattern.search(key)
        return factors[match[1]] if match else None

    return scaled(model, model.model_state_dict(), factor_of)


class UNetSelfAttentionMultiply(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="UNetSelfAttentionMultiply",
            category=CATEGORY,
            description="Scales the parts of a UNet's self-attention.",
            is_experimental=True,
            inputs=[io.Model.Input("model", tooltip="Model to change."), *_factor_inputs(PARTS)],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(cls, model: Any, **factors: float) -> io.NodeOutput:
        return io.NodeOutput(_unet_attention(model, "attn1", factors))


class UNetCrossAttentionMultiply(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="UNetCrossAttentionMultiply",
            category=CATEGORY,
            description="Scales the parts of a UNet's attention to the text.",
            is_experimental=True,
            inputs=[io.Model.Input("model", tooltip="Model to change."), *_factor_inputs(PARTS)],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(cls, model: Any, **factors: float) -> io.NodeOutput:
        return io.NodeOutput(_unet_attention(model, "attn2", factors))


class UNetTemporalAttentionMultiply(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        texts = {
            "self_structural": "Factor of self-attention within a frame.",
            "self_temporal": "Factor of self-attention between frames.",
            "cross_structural": "Factor of attention to the text within a frame.",
            "cross_temporal": "Factor of attention to the text between frames.",
        }
        return io.Schema(
            node_id="UNetTemporalAttentionMultiply",
            category=CATEGORY,
            description="Scales what the attentions of a video UNet add, within frames and between them.",
            is_experimental=True,
            inputs=[io.Model.Input("model", tooltip="Model to change."), *_factor_inputs(texts)],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(
        cls,
        model: Any,
        self_structural: float,
        self_temporal: float,
        cross_structural: float,
        cross_temporal: float,
    ) -> io.NodeOutput:
        pattern = re.compile(rf"\.attn([12])\.to_out\.0{TENSOR}")
        factors = {
            ("1", False): self_structural,
            ("1", True): self_temporal,
            ("2", False): cross_structural,
            ("2", True): cross_temporal,
        }

        def factor_of(key: str) -> float | None:
            match = pattern.search(key)
            return factors[match[1], TIME in key] if match else None

        return io.NodeOutput(scaled(model, model.model_state_dict(), factor_of))


class CLIPAttentionMultiply(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="CLIPAttentionMultiply",
            category=CATEGORY,
            description="Scales the parts of a CLIP text encoder's attention.",
            search_aliases=["clip attention scale", "text encoder attention"],
            is_experimental=True,
            inputs=[io.Clip.Input("clip", tooltip="Text encoder to change."), *_factor_inputs(PARTS)],
            outputs=[io.Clip.Output()],
        )

    @classmethod
    def execute(cls, clip: Any, **factors: float) -> io.NodeOutput:
        pattern = re.compile(rf"\.self_attn\.(q|k|v|out)_proj{TENSOR}")

        def factor_of(key: str) -> float | None:
            match = pattern.search(key)
            return factors[match[1]] if match else None

        return io.NodeOutput(scaled(clip, clip.patcher.model_state_dict(), factor_of))


NODES = {
    "comfy_extras.nodes_attention_multiply": [
        UNetSelfAttentionMultiply,
        UNetCrossAttentionMultiply,
        UNetTemporalAttentionMultiply,
        CLIPAttentionMultiply,
    ]
}
