"""The node that guides inside the attention, which also works for models that were distilled to need no guidance."""

from __future__ import annotations

from typing import Any

from comfy.sampling.attention_guidance import NormalizedAttentionGuidance
from comfy_api.latest import io


class NAGuidance(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="NAGuidance",
            display_name="Normalized Attention Guidance",
            category="advanced/guidance",
            description="Makes negative prompts work at CFG 1: the guidance happens in the attention layers.",
            is_experimental=True,
            inputs=[
                io.Model.Input("model", tooltip="Model to change."),
                io.Float.Input(
                    "nag_scale",
                    default=5.0,
                    min=0.0,
                    max=50.0,
                    step=0.1,
                    tooltip="How far to go away from the negative prompt; 1 is not at all.",
                ),
                io.Float.Input(
                    "nag_alpha",
                    default=0.5,
                    min=0.0,
                    max=1.0,
                    step=0.01,
                    tooltip="Share of the guided attention; the rest is the attention as it was.",
                ),
                io.Float.Input(
                    "nag_tau",
                    default=1.5,
                    min=1.0,
                    max=10.0,
                    step=0.01,
                    tooltip="How much longer than the attention as it was the guided one may become.",
                ),
            ],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(cls, model: Any, nag_scale: float, nag_alpha: float, nag_tau: float) -> io.NodeOutput:
        guidance = NormalizedAttentionGuidance(nag_scale, nag_alpha, nag_tau)
        patched = model.clone()
        patched.set_model_attn1_output_patch(guidance.joint)
        patched.set_model_attn2_output_patch(guidance.cross)
        # The negative has to be evaluated, although guidance itself could do without it.
        patched.disable_model_cfg1_optimization()
        return io.NodeOutput(patched)


NODES = {"comfy_extras.nodes_nag": [NAGuidance]}
