"""The node that puts a hypernetwork into a model's attention."""

from __future__ import annotations

from typing import Any

import folder_paths
from comfy_api.latest import io


class HypernetworkLoader(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="HypernetworkLoader",
            display_name="Load Hypernetwork",
            category="model/loaders",
            description="Adds a hypernetwork to a UNet: small networks that change its keys and values.",
            inputs=[
                io.Model.Input("model", tooltip="Model to change."),
                io.Combo.Input(
                    "hypernetwork_name",
                    options=folder_paths.get_filename_list("hypernetworks"),
                    tooltip="File to load.",
                ),
                io.Float.Input("strength", default=1.0, min=-10.0, max=10.0, step=0.01, tooltip="How much of it."),
            ],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(cls, model: Any, hypernetwork_name: str, strength: float) -> io.NodeOutput:
        from comfy.hypernetworks import load_hypernetwork

        path = folder_paths.get_full_path_or_raise("hypernetworks", hypernetwork_name)
        patch = load_hypernetwork(path, strength)
        patched = model.clone()
        patched.set_model_attn1_patch(patch)
        patched.set_model_attn2_patch(patch)
        patched.add_additional_model("hypernetworks", patch.patcher)
        return io.NodeOutput(patched)


NODES = {"comfy_extras.nodes_hypernetwork": [HypernetworkLoader]}
