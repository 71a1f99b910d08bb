"""Nodes that mix models and text encoders. Weights are mixed when a model is used or saved, not before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RATIO = {"default": 1.0, "min": 0.0, "max": 1.0, "step": 0.01}
MULTIPLIER = {"default": 1.0, "min": -10.0, "max": 10.0, "step": 0.01}
NETWORK = "diffusion_model."
# Entries of a text encoder that are no weights to mix.
CLIP_FIXED = (".position_ids", ".logit_scale")


def _two(kind: str) -> dict[str, tuple]:
    number = kind.lower()
    return {
        f"{number}1": (kind, {"tooltip": "What is mixed into."}),
        f"{number}2": (kind, {"tooltip": "What is mixed in."}),
    }


def mixed(first: Any, second: Any, strengths: Any, prefix: str | None = NETWORK) -> Any:
    """A clone of `first` in which each weight w becomes a * w + b * w2; strengths(key) gives (b, a)."""
    out = first.clone()
    patches = second.get_key_patches(prefix) if prefix is not None else second.get_key_patches()
    for key, patch in patches.items():
        if prefix is None and key.endswith(CLIP_FIXED):
            continue
        of_second, of_first = strengths(key)
        out.add_patches({key: patch}, of_second, of_first)
    return out


def block_ratio(key: str, ratios: Mapping[str, float]) -> float:
    """The ratio of the longest name in `ratios` that the weight's name begins with; else that of the first."""
    name = key.removeprefix(NETWORK)
    fitting = [start for start in ratios if name.startswith(start)]
    return ratios[max(fitting, key=len)] if fitting else next(iter(ratios.values()))


class ModelMergeSimple:
    DESCRIPTION = "Mixes two models by one ratio."
    DISPLAY_NAME = "ModelMergeSimple"
    CATEGORY = "model/merging"
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "merge"

    @classmethod
    def INPUT_TYPES(cls):
        ratio = ("FLOAT", {**RATIO, "tooltip": "Share of the first model."})
        return {"required": {**_two("MODEL"), "ratio": ratio}}

    def merge(self, model1: Any, model2: Any, ratio: float) -> tuple[Any]:
        return (mixed(model1, model2, lambda key: (1.0 - ratio, ratio)),)


class ModelMergeSubtract:
    DESCRIPTION = "The difference of two models, to be added to another one."
    DISPLAY_NAME = "ModelMergeSubtract"
    CATEGORY = "model/merging"
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "merge"

    @classmethod
    def INPUT_TYPES(cls):
        multiplier = ("FLOAT", {**MULTIPLIER, "tooltip": "Factor of the difference."})
        return {"required": {**_two("MODEL"), "multiplier": multiplier}}

    def merge(self, model1: Any, model2: Any, multiplier: float) -> tuple[Any]:
        return (mixed(model1, model2, lambda key: (-multiplier, multiplier)),)


class ModelMergeAdd:
    DESCRIPTION = "The sum of two models; one of them is a difference as a rule."
    DISPLAY_NAME = "ModelMergeAdd"
    CATEGORY = "model/merging"
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "merge"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": _two("MODEL")}

    def merge(self, model1: Any, model2: Any) -> tuple[Any]:
        return (mixed(model1, model2, lambda key: (1.0, 1.0)),)


class ModelMergeBlocks:
    DESCRIPTION = "Mixes two UNets with ratios of their own for the way down, the middle and the way up."
    DISPLAY_NAME = "ModelMergeBlocks"
    CATEGORY = "model/merging"
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "merge"

    @classmethod
    def INPUT_TYPES(cls):
        parts = {"input": "on the way down", "middle": "in the middle", "out": "on the way up"}
        return {
            "required": {
                **_two("MODEL"),
                **{
                    name: ("FLOAT", {**RATIO, "tooltip": f"Share of the first model {at}."})
                    for name, at in parts.items()
                },
            }
        }

    def merge(self, model1: Any, model2: Any, **ratios: float) -> tuple[Any]:
        def strengths(key: str) -> tuple[float, float]:
            ratio = block_ratio(key, ratios)
            return 1.0 - ratio, ratio

        return (mixed(model1, model2, strengths),)


class CLIPMergeSimple:
    DESCRIPTION = "Mixes two text encoders by one ratio."
    DISPLAY_NAME = "CLIPMergeSimple"
    CATEGORY = "model/merging"
    RETURN_TYPES = ("CLIP",)
    FUNCTION = "merge"

    @classmethod
    def INPUT_TYPES(cls):
        ratio = ("FLOAT", {**RATIO, "tooltip": "Share of the first text encoder."})
        return {"required": {**_two("CLIP"), "ratio": ratio}}

    def merge(self, clip1: Any, clip2: Any, ratio: float) -> tuple[Any]:
        return (mixed(clip1, clip2, lambda key: (1.0 - ratio, ratio), prefix=None),)


class CLIPMergeSubtract:
    DESCRIPTION = "The difference of two text encoders, to be added to another one."
    DISPLAY_NAME = "CLIPMergeSubtract"
    CATEGORY = "model/merging"
    RETURN_TYPES = ("CLIP",)
    FUNCTION = "merge"

    @classmethod
    def INPUT_TYPES(cls):
        multiplier = ("FLOAT", {**MULTIPLIER, "tooltip": "Factor of the difference."})
        return {"required": {**_two("CLIP"), "multiplier": multiplier}}

    def merge(self, clip1: Any, clip2: Any, multiplier: float) -> tuple[Any]:
        return (mixed(clip1, clip2, lambda key: (-multiplier, multiplier), prefix=None),)


class CLIPMergeAdd:
    DESCRIPTION = "The sum of two text encoders; one of them is a difference as a rule."
    DISPLAY_NAME = "CLIPMergeAdd"
    CATEGORY = "model/merging"
    RETURN_TYPES = ("CLIP",)
    FUNCTION = "merge"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": _two("CLIP")}

    def merge(self, clip1: Any, clip2: Any) -> tuple[Any]:
        return (mixed(clip1, clip2, lambda key: (1.0, 1.0), prefix=None),)


# --- with a ratio for each block of one family's network


def _numbered(pattern: str, count: int) -> tuple[str, ...]:
    return tuple(pattern.format(i) for i in range(count))


_SD1 = (
    *("time_embed.", "label_emb."),
    *_numbered("input_blocks.{}.", 12),
    *_numbered("middle_block.{}.", 3),
    *_numbered("output_blocks.{}.", 12),
    "out.",
)
_SD3 = ("pos_embed.", "x_embedder.", "context_embedder.", "y_embedder.", "t_embedder.")
_COSMOS = ("pos_embedder.", "extra_pos_embedder.", "x_embedder.", "t_embedder.", "affline_norm.")
_COSMOS2 = ("pos_embedder.", "x_embedder.", "t_embedder.", "t_embedding_norm.")

# Node -> beginnings of the names of weights, in the order of its inputs.
FAMILIES: dict[str, tuple[str, ...]] = {
    "ModelMergeSD1": _SD1,
    "ModelMergeSD2": _SD1,
    "ModelMergeSDXL": (
        *("time_embed.", "label_emb."),
        *_numbered("input_blocks.{}", 9),
        *_numbered("middle_block.{}", 3),
        *_numbered("output_blocks.{}", 9),
        "out.",
    ),
    "ModelMergeSD3_2B": (*_SD3, *_numbered("joint_blocks.{}.", 24), "final_layer."),
    "ModelMergeSD35_Large": (*_SD3, *_numbered("joint_blocks.{}.", 38), "final_layer."),
    "ModelMergeAuraflow": (
        *("init_x_linear.", "positional_encoding", "cond_seq_linear.", "register_tokens", "t_embedder."),
        *_numbered("double_layers.{}.", 4),
        *_numbered("single_layers.{}.", 32),
        *("modF.", "final_linear."),
    ),
    "ModelMergeFlux1": (
        *("img_in.", "time_in.", "guidance_in", "vector_in.", "txt_in."),
        *_numbered("double_blocks.{}.", 19),
        *_numbered("single_blocks.{}.", 38),
        "final_layer.",
    ),
    "ModelMergeMochiPreview": (
        *("pos_frequencies.", "t_embedder.", "t5_y_embedder.", "t5_yproj."),
        *_numbered("blocks.{}.", 48),
        "final_layer.",
    ),
    "ModelMergeLTXV": (
        *("patchify_proj.", "adaln_single.", "caption_projection."),
        *_numbered("transformer_blocks.{}.", 28),
        *("scale_shift_table", "proj_out."),
    ),
    "ModelMergeCosmos7B": (*_COSMOS, *_numbered("blocks.block{}.", 28), "final_layer."),
    "ModelMergeCosmos14B": (*_COSMOS, *_numbered("blocks.block{}.", 36), "final_layer."),
    "ModelMergeWAN2_1": (
        *("patch_embedding.", "time_embedding.", "time_projection.", "text_embedding.", "img_emb."),
        *_numbered("blocks.{}.", 40),
        "head.",
    ),
    "ModelMergeCosmosPredict2_2B": (*_COSMOS2, *_numbered("blocks.{}.", 28), "final_layer."),
    "ModelMergeCosmosPredict2_14B": (*_COSMOS2, *_numbered("blocks.{}.", 36), "final_layer."),
    "ModelMergeQwenImage": (
        *("pos_embeds.", "img_in.", "txt_norm.", "txt_in.", "time_text_embed."),
        *_numbered("transformer_blocks.{}.", 60),
        "proj_out.",
    ),
    "ModelMergeKrea2": (
        *("first.", "tmlp.", "txtmlp.", "tproj."),
        *_numbered("txtfusion.layerwise_blocks.{}.", 2),
        "txtfusion.projector.",
        *_numbered("txtfusion.refiner_blocks.{}.", 2),
        *_numbered("blocks.{}.", 28),
        "last.",
    ),
}


def _family_node(name: str, starts: tuple[str, ...]) -> type:
    def input_types(cls):
        ratio = ("FLOAT", {**RATIO, "tooltip": "Share of the first model in this part."})
        return {"required": {**_two("MODEL"), **dict.fromkeys(starts, ratio)}}

    return type(
        name,
        (ModelMergeBlocks,),
        {
            "__doc__": f"As ModelMergeBlocks, with {len(starts)} parts.",
            "__module__": __name__,
            "DESCRIPTION": "Mixes two models of this family with a ratio for each block.",
            "DISPLAY_NAME": name,
            "CATEGORY": "model/merging/model specific",
            "INPUT_TYPES": classmethod(input_types),
        },
    )


FAMILY_NODES = {name: _family_node(name, starts) for name, starts in FAMILIES.items()}
globals().update(FAMILY_NODES)

NODES = {
    "comfy_extras.nodes_model_merging": [
        ModelMergeSimple,
        ModelMergeBlocks,
        ModelMergeSubtract,
        ModelMergeAdd,
        CLIPMergeSimple,
        CLIPMergeSubtract,
        CLIPMergeAdd,
    ],
    "comfy_extras.nodes_model_merging_model_specific": list(FAMILY_NODES.values()),
}
