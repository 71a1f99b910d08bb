"""Nodes that enlarge images with a model."""

from __future__ import annotations

import folder_paths
from comfy_api.latest import io


class UpscaleModelLoader(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="UpscaleModelLoader",
            display_name="Load Upscale Model",
            category="model/loaders",
            description="Loads a model that enlarges images: ESRGAN and Real-ESRGAN, others with the library spandrel.",
            inputs=[
                io.Combo.Input(
                    "model_name", options=folder_paths.get_filename_list("upscale_models"), tooltip="File to load."
                )
            ],
            outputs=[io.UpscaleModel.Output()],
        )

    @classmethod
    def execute(cls, model_name: str) -> io.NodeOutput:
        from comfy.upscale_models import load_upscale_model

        return io.NodeOutput(load_upscale_model(folder_paths.get_full_path_or_raise("upscale_models", model_name)))

    load_model = execute


class ImageUpscaleWithModel(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ImageUpscaleWithModel",
            display_name="Upscale Image (using Model)",
            category="image/upscaling",
            description="Enlarges images with a model, by the factor it was made for.",
            inputs=[
                io.UpscaleModel.Input("upscale_model", tooltip="Model from Load Upscale Model."),
                io.Image.Input("image", tooltip="Images to enlarge."),
            ],
            outputs=[io.Image.Output()],
        )

    @classmethod
    def execute(cls, upscale_model, image) -> io.NodeOutput:
        from comfy.upscale_models import upscale

        return io.NodeOutput(upscale(upscale_model, image))

    upscale = execute


NODES = {"comfy_extras.nodes_upscale_model": (UpscaleModelLoader, ImageUpscaleWithModel)}
