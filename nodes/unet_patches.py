"""Nodes that change what a UNet computes: quality for free, or speed."""

from __future__ import annotations

from typing import Any

from comfy.unet_patches import freeu
from comfy.unet_patches.deep_shrink import DeepShrink
from comfy.unet_patches.hypertile import HyperTile as Tiling
from comfy.unet_patches.token_merging import TokenMerging
from comfy_api.latest import io

PIXELS_PER_CELL = 8
SMALLEST_TILE = 32
RESIZE_METHODS = ["bicubic", "nearest-exact", "bilinear", "area", "bislerp"]


def _model_input() -> Any:
    return io.Model.Input("model", tooltip="Model to change.")


def _freeu_inputs(b1: float, b2: float) -> list:
    texts = {
        "b1": "Factor of the backbone in the deepest blocks.",
        "b2": "Factor of the backbone in the blocks after them.",
        "s1": "Factor of the skips' coarse structure in the deepest blocks.",
        "s2": "Factor of the skips' coarse structure in the blocks after them.",
    }
    defaults = {"b1": b1, "b2": b2, "s1": 0.9, "s2": 0.2}
    return [
        _model_input(),
        *(
            io.Float.Input(name, default=defaults[name], min=0.0, max=10.0, step=0.01, advanced=True, tooltip=text)
            for name, text in texts.items()
        ),
    ]


def _with_freeu(model: Any, b1: float, b2: float, s1: float, s2: float, by_structure: bool) -> Any:
    width = model.model.diffusion_model.model_channels
    patched = model.clone()
    factors = {width * 4: (b1, s1), width * 2: (b2, s2)}
    patched.set_model_output_block_patch(freeu.output_block_patch(factors, by_structure))
    return patched


class FreeU(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="FreeU",
            category="model/patch/unet",
            description="Strengthens a UNet's backbone against its skips, for cleaner pictures at no cost.",
            inputs=_freeu_inputs(1.1, 1.2),
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(cls, model: Any, b1: float, b2: float, s1: float, s2: float) -> io.NodeOutput:
        return io.NodeOutput(_with_freeu(model, b1, b2, s1, s2, by_structure=False))


class FreeU_V2(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="FreeU_V2",
            category="model/patch/unet",
            description="Second version of FreeU: the backbone is strengthened where it has structure.",
            inputs=_freeu_inputs(1.3, 1.4),
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(cls, model: Any, b1: float, b2: float, s1: float, s2: float) -> io.NodeOutput:
        return io.NodeOutput(_with_freeu(model, b1, b2, s1, s2, by_structure=True))


class HyperTile(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="HyperTile",
            category="model/patch/unet",
            description="Self-attention looks at tiles instead of the whole picture: faster for large pictures.",
            inputs=[
                _model_input(),
                io.Int.Input(
                    "tile_size", default=256, min=1, max=2048, advanced=True, tooltip="Side of a tile in pixels."
                ),
                io.Int.Input(
                    "swap_size", default=2, min=1, max=128, advanced=True, tooltip="How many tile sizes take turns."
                ),
                io.Int.Input(
                    "max_depth",
                    default=0,
                    min=0,
                    max=10,
                    advanced=True,
                    tooltip="Lower resolutions tiled too.",
                ),
                io.Boolean.Input(
                    "scale_depth", default=False, advanced=True, tooltip="Larger tiles at lower resolutions."
                ),
            ],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(cls, model: Any, tile_size: int, swap_size: int, max_depth: int, scale_depth: bool) -> io.NodeOutput:
        tiling = Tiling(max(SMALLEST_TILE, tile_size) // PIXELS_PER_CELL, swap_size, max_depth, scale_depth)
        patched = model.clone()
        patched.set_model_attn1_patch(tiling.split)
        patched.set_model_attn1_output_patch(tiling.join)
        return io.NodeOutput(patched)


class TomePatchModel(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="TomePatchModel",
            category="model/patch/unet",
            description="Merges tokens that are alike before self-attention: faster, with less detail.",
            inputs=[
                _model_input(),
                io.Float.Input(
                    "ratio", default=0.3, min=0.0, max=1.0, step=0.01, tooltip="Share of tokens to merge away."
                ),
            ],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(cls, model: Any, ratio: float) -> io.NodeOutput:
        merging = TokenMerging(ratio)
        patched = model.clone()
        patched.set_model_attn1_patch(merging.merge)
        patched.set_model_attn1_output_patch(merging.unmerge)
        return io.NodeOutput(patched)


class PatchModelAddDownscale(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        percent = {"min": 0.0, "max": 1.0, "step": 0.001, "advanced": True}
        return io.Schema(
            node_id="PatchModelAddDownscale",
            display_name="PatchModelAddDownscale (Kohya Deep Shrink)",
            category="model/patch/unet",
            description="Computes early steps' deep blocks at a lower resolution, to hold large pictures together.",
            inputs=[
                _model_input(),
                io.Int.Input(
                    "block_number",
                    default=3,
                    min=1,
                    max=32,
                    step=1,
                    advanced=True,
                    tooltip="Block after which features get smaller.",
                ),
                io.Float.Input(
                    "downscale_factor", default=2.0, min=0.1, max=9.0, step=0.001, tooltip="How much smaller."
                ),
                io.Float.Input(
                    "start_percent", default=0.0, tooltip="Share of sampling at which it sets in.", **percent
                ),
                io.Float.Input("end_percent", default=0.35, tooltip="Share of sampling at which it ends.", **percent),
                io.Boolean.Input(
                    "downscale_after_skip", default=True, advanced=True, tooltip="Leave the block's skip in full size."
                ),
                io.Combo.Input("downscale_method", options=RESIZE_METHODS, tooltip="Filter for getting smaller."),
                io.Combo.Input("upscale_method", options=RESIZE_METHODS, tooltip="Filter for getting larger again."),
            ],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(
        cls,
        model: Any,
        block_number: int,
        downscale_factor: float,
        start_percent: float,
        end_percent: float,
        downscale_after_skip: bool,
        downscale_method: str,
        upscale_method: str,
    ) -> io.NodeOutput:
        sampling = model.get_model_object("model_sampling")
        start, end = (sampling.percent_to_sigma(p) for p in (start_percent, end_percent))
        patch = DeepShrink(block_number, downscale_factor, start, end, downscale_method, upscale_method)
        patched = model.clone()
        if downscale_after_skip:
            patched.set_model_input_block_patch_after_skip(patch.shrink)
        else:
            patched.set_model_input_block_patch(patch.shrink)
        patched.set_model_output_block_patch(patch.grow)
        return io.NodeOutput(patched)


NODES = {
    "comfy_extras.nodes_freelunch": [FreeU, FreeU_V2],
    "comfy_extras.nodes_hypertile": [HyperTile],
    "comfy_extras.nodes_tomesd": [TomePatchModel],
    "comfy_extras.nodes_model_downscale": [PatchModelAddDownscale],
}
