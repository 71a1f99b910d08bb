"""Nodes that change how a model computes: number format, attention, compilation, positions, skipped steps."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

CACHE_PERCENT = {"min": 0.0, "max": 1.0, "step": 0.01, "advanced": True}


class ModelComputeDtype:
    DESCRIPTION = "Sets the number format that a model computes in."
    DISPLAY_NAME = "ModelComputeDtype"
    CATEGORY = "advanced/debug"
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"
    DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}

    @classmethod
    def INPUT_TYPES(cls):
        dtypes = ["default", *cls.DTYPES]
        return {
            "required": {
                "model": ("MODEL", {"tooltip": "Model to change."}),
                "dtype": (dtypes, {"advanced": True, "tooltip": "Number format; default is the model's own."}),
            }
        }

    def patch(self, model: Any, dtype: str) -> tuple[Any]:
        import torch

        patched = model.clone()
        if dtype in self.DTYPES:
            patched.set_model_compute_dtype(getattr(torch, self.DTYPES[dtype]))
        return (patched,)


class ModelAttentionBackend:
    DESCRIPTION = "Chooses the attention of a model; torch picks the fastest kernel there is."
    DISPLAY_NAME = "ModelAttentionBackend"
    CATEGORY = "model/patch"
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"
    # By name; there is one.
    BACKENDS = ("pytorch attention",)

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "model": ("MODEL", {"tooltip": "Model to change."}),
                "attention": (list(cls.BACKENDS), {"tooltip": "Attention to use."}),
            }
        }

    def patch(self, model: Any, attention: str) -> tuple[Any]:
        return (model.clone(),)


class ScaleROPE(io.ComfyNode):
    AXES = {"x": "columns", "y": "rows", "t": "frames or images"}

    @classmethod
    def define_schema(cls):
        inputs = [io.Model.Input("model", tooltip="Transformer with rotary positions.")]
        for axis, what in cls.AXES.items():
            inputs += [
                io.Float.Input(
                    f"scale_{axis}",
                    default=1.0,
                    min=0.0,
                    max=100.0,
                    step=0.1,
                    advanced=True,
                    tooltip=f"Factor of the positions of {what}.",
                ),
                io.Float.Input(
                    f"shift_{axis}",
                    default=0.0,
                    min=-256.0,
                    max=256.0,
                    step=0.1,
                    advanced=True,
                    tooltip=f"Added to the positions of {what}.",
                ),
            ]
        return io.Schema(
            node_id="ScaleROPE",
            category="model/patch",
            description="Scales and shifts the positions that a transformer gives to a picture's patches.",
            is_experimental=True,
            inputs=inputs,
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(cls, model: Any, **values: float) -> io.NodeOutput:
        patched = model.clone()
        patched.model_options.setdefault("transformer_options", {})["rope_options"] = values
        return io.NodeOutput(patched)


class TorchCompileModel(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="TorchCompileModel",
            category="experimental",
            description="Compiles a model's network on its first step: slow at first, faster then.",
            is_experimental=True,
            inputs=[
                io.Model.Input("model", tooltip="Model to compile."),
                io.Combo.Input("backend", options=["inductor", "cudagraphs"], advanced=True, tooltip="Compiler."),
            ],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(cls, model: Any, backend: str) -> io.NodeOutput:
        from comfy.compile_wrapper import compile_model

        patched = model.clone()
        compile_model(patched, backend)
        return io.NodeOutput(patched)


def _cache_inputs() -> list:
    return [
        io.Model.Input("model", tooltip="Model to speed up."),
        io.Float.Input(
            "reuse_threshold",
            default=0.2,
            min=0.0,
            max=3.0,
            step=0.01,
            advanced=True,
            tooltip="Predicted change up to which the last result is used again.",
        ),
        io.Float.Input(
            "start_percent", default=0.15, tooltip="Share of sampling at which it sets in.", **CACHE_PERCENT
        ),
        io.Float.Input("end_percent", default=0.95, tooltip="Share of sampling at which it ends.", **CACHE_PERCENT),
        io.Boolean.Input("verbose", default=False, advanced=True, tooltip="Log how much was used again."),
    ]


class EasyCache(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="EasyCache",
            display_name="EasyCache",
            category="advanced/debug",
            description="Skips the network in steps that would change little.",
            search_aliases=["cache", "skip steps"],
            is_experimental=True,
            inputs=_cache_inputs(),
            outputs=[io.Model.Output(tooltip="The model with the cache.")],
        )

    @classmethod
    def execute(
        cls, model: Any, reuse_threshold: float, start_percent: float, end_percent: float, verbose: bool
    ) -> io.NodeOutput:
        from comfy.step_cache import EasyCache as Cache

        patched = model.clone()
        Cache(reuse_threshold, start_percent, end_percent, verbose).add_to(patched)
        return io.NodeOutput(patched)


class LazyCache(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LazyCache",
            display_name="LazyCache",
            category="advanced/debug",
            description="Skips whole predictions in steps that would change little; works with every model.",
            search_aliases=["cache", "skip steps"],
            is_experimental=True,
            inputs=_cache_inputs(),
            outputs=[io.Model.Output(tooltip="The model with the cache.")],
        )

    @classmethod
    def execute(
        cls, model: Any, reuse_threshold: float, start_percent: float, end_percent: float, verbose: bool
    ) -> io.NodeOutput:
        from comfy.step_cache import LazyCache as Cache

        patched = model.clone()
        Cache(reuse_threshold, start_percent, end_percent, verbose).add_to(patched)
        return io.NodeOutput(patched)


NODES = {
    "comfy_extras.nodes_model_advanced": [ModelComputeDtype, ModelAttentionBackend],
    "comfy_extras.nodes_rope": [ScaleROPE],
    "comfy_extras.nodes_torch_compile": [TorchCompileModel],
    "comfy_extras.nodes_easycache": [EasyCache, LazyCache],
}
