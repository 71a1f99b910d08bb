"""Nodes that use LoRA in other ways: beside the weights, from memory, and taken out of patched models."""

from __future__ import annotations

from typing import Any

import folder_paths
from comfy_api.latest import io

from .lora import LoraLoader, LoraLoaderModelOnly
from .model_saving import WeightFiles


class NothingToSave(ValueError):
    """There is no change between the models, so no LoRA to write."""


class LoraLoaderBypass(LoraLoader):
    DESCRIPTION = "Runs a LoRA beside a model's weights, which stay as they are in the file."
    DISPLAY_NAME = "Load LoRA (Bypass) (For debugging)"
    EXPERIMENTAL = True
    ESSENTIALS_CATEGORY = None
    SEARCH_ALIASES = ["lora", "bypass lora"]

    def load_lora(
        self, model: Any, clip: Any, lora_name: str, strength_model: float, strength_clip: float
    ) -> tuple[Any, Any]:
        if strength_model == 0 and strength_clip == 0:
            return (model, clip)
        from comfy.lora_bypass import load_bypass_lora_for_models

        lora, metadata = self._contents(folder_paths.get_full_path_or_raise("loras", lora_name))
        return load_bypass_lora_for_models(model, clip, lora, strength_model, strength_clip, lora_metadata=metadata)


class LoraLoaderBypassModelOnly(LoraLoaderBypass):
    DESCRIPTION = "Runs a LoRA beside a model's weights; the text encoder stays as it is."
    DISPLAY_NAME = "Load LoRA (Bypass, Model Only) (for debugging)"
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "load_lora_model_only"
    OUTPUT_TOOLTIPS = ("The model with the LoRA.",)
    load_lora_model_only = LoraLoaderModelOnly.load_lora_model_only

    @classmethod
    def INPUT_TYPES(cls):
        return LoraLoaderModelOnly.INPUT_TYPES()


class LoraModelLoader(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LoraModelLoader",
            display_name="Load LoRA Model",
            category="model/loaders",
            description="Adds a LoRA that is in memory, such as one just trained, to a model.",
            is_experimental=True,
            inputs=[
                io.Model.Input("model", tooltip="Model to add the LoRA to."),
                io.LoraModel.Input("lora", tooltip="LoRA to add."),
                io.Float.Input(
                    "strength_model", default=1.0, min=-100.0, max=100.0, tooltip="How much; negative subtracts it."
                ),
                io.Boolean.Input("bypass", default=False, tooltip="Run it beside the weights."),
            ],
            outputs=[io.Model.Output(display_name="model")],
        )

    @classmethod
    def execute(cls, model: Any, lora: dict, strength_model: float, bypass: bool = False) -> io.NodeOutput:
        if strength_model == 0:
            return io.NodeOutput(model)
        from comfy.lora import load_lora_for_models
        from comfy.lora_bypass import load_bypass_lora_for_models

        load = load_bypass_lora_for_models if bypass else load_lora_for_models
        return io.NodeOutput(load(model, None, lora, strength_model, 0)[0])


class SaveLoRA(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SaveLoRA",
            display_name="Save LoRA Weights",
            category="model/merging",
            description="Writes a LoRA that is in memory into the output folder.",
            search_aliases=["export lora"],
            is_experimental=True,
            is_output_node=True,
            inputs=[
                io.LoraModel.Input("lora", tooltip="LoRA to write."),
                io.String.Input(
                    "prefix",
                    default="loras/ComfyUI_trained_lora",
                    tooltip="Start of the file name, with sub-folders if wanted.",
                ),
                io.Int.Input("steps", optional=True, tooltip="Steps it was trained for: becomes part of the name."),
            ],
            outputs=[],
        )

    @classmethod
    def execute(cls, lora: dict, prefix: str, steps: int | None = None) -> io.NodeOutput:
        if steps is not None:
            prefix = f"{prefix}_{steps}_steps"
        files = WeightFiles(prefix, folder_paths.get_output_directory(), cls.hidden.prompt, cls.hidden.extra_pnginfo)
        files.write(lora)
        return io.NodeOutput()


class LoraSave(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LoraSave",
            display_name="Extract and Save Lora",
            category="experimental",
            description="Writes the difference of two models as a LoRA.",
            search_aliases=["extract lora", "lora from difference"],
            is_experimental=True,
            is_output_node=True,
            inputs=[
                io.String.Input(
                    "filename_prefix",
                    default="loras/ComfyUI_extracted_lora",
                    tooltip="Start of the file name, with sub-folders if wanted.",
                ),
                io.Int.Input("rank", default=8, min=1, max=4096, step=1, advanced=True, tooltip="Rank of the LoRA."),
                io.Combo.Input(
                    "lora_type",
                    options=["standard", "full_diff"],
                    advanced=True,
                    tooltip="Thin matrices, or the whole difference.",
                ),
                io.Boolean.Input("bias_diff", default=True, advanced=True, tooltip="Write changes of biases too."),
                io.Model.Input(
                    "model_diff", optional=True, tooltip="Difference of two models, from ModelMergeSubtract."
                ),
                io.Clip.Input(
                    "text_encoder_diff",
                    optional=True,
                    tooltip="Difference of two text encoders, from CLIPMergeSubtract.",
                ),
            ],
            outputs=[],
        )

    @classmethod
    def execute(
        cls,
        filename_prefix: str,
        rank: int,
        lora_type: str,
        bias_diff: bool,
        model_diff: Any = None,
        text_encoder_diff: Any = None,
    ) -> io.NodeOutput:
        from comfy import lora_extract as extraction

        tensors: dict = {}
        if model_diff is not None:
            prefixes = (extraction.UNET_PREFIX, extraction.UNET_OUT)
            tensors |= extraction.extract(model_diff, *prefixes, rank, lora_type, bias_diff)
        if text_encoder_diff is not None:
            prefixes = (extraction.TEXT_PREFIX, extraction.TEXT_OUT)
            tensors |= extraction.extract(text_encoder_diff.patcher, *prefixes, rank, lora_type, bias_diff)
        if not tensors:
            raise NothingToSave("there is nothing to write: connect the difference of two models (ModelMergeSubtract)")
        output = folder_paths.get_output_directory()
        WeightFiles(filename_prefix, output, cls.hidden.prompt, cls.hidden.extra_pnginfo).write(tensors)
        return io.NodeOutput()


NODES = {
    "comfy_extras.nodes_lora_debug": [LoraLoaderBypass, LoraLoaderBypassModelOnly],
    "comfy_extras.nodes_train": [LoraModelLoader, SaveLoRA],
    "comfy_extras.nodes_lora_extract": [LoraSave],
}
