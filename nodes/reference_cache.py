"""The node that lets FLUX compute reference pictures once a run."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io
from nodes.model_patches import NotForThisModel


class FluxKVCache(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="FluxKVCache",
            display_name="Flux KV Cache",
            category="experimental",
            description="Computes reference pictures in the first step only. For models trained that way, such as "
            "FLUX.2 [klein] KV.",
            is_experimental=True,
            inputs=[io.Model.Input("model", tooltip="A FLUX model that edits pictures.")],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(cls, model: Any) -> io.NodeOutput:
        from comfy.reference_cache import DEFAULT_METHOD, apply_reference_cache

        network = model.get_model_object("diffusion_model")
        if not hasattr(network, DEFAULT_METHOD):
            raise NotForThisModel(f"only FLUX models compute references that way; this is a {type(network).__name__}")
        return io.NodeOutput(apply_reference_cache(model))


NODES = {"comfy_extras.nodes_flux": [FluxKVCache]}
