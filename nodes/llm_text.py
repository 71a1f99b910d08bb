"""Nodes that encode a text with language models, and load what they need."""

from __future__ import annotations

from typing import Any

import folder_paths
from comfy_api.latest import io

from .conditioning import MissingClip
from .family_text import text_input, tokenize

# What Lumina's authors put in front of every prompt.
SYSTEM_PROMPTS = {
    "superior": (
        "You are an assistant designed to generate superior images with the superior degree of image-text alignment "
        "based on textual prompts or user prompts."
    ),
    "alignment": (
        "You are an assistant designed to generate high-quality images with the highest degree of image-text alignment "
        "based on textual prompts."
    ),
}
PROMPT_START = "<Prompt Start>"


class QuadrupleCLIPLoader(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        names = folder_paths.get_filename_list("text_encoders")
        return io.Schema(
            node_id="QuadrupleCLIPLoader",
            display_name="Load CLIP (Quadruple)",
            category="model/loaders",
            description="Loads the four text encoders of HiDream: CLIP L, CLIP G, T5 and Llama 3.1, in any order.",
            inputs=[
                io.Combo.Input(f"clip_name{i}", options=names, tooltip=f"{which} file to load.")
                for i, which in enumerate(("First", "Second", "Third", "Fourth"), start=1)
            ],
            outputs=[io.Clip.Output()],
        )

    @classmethod
    def execute(cls, clip_name1: str, clip_name2: str, clip_name3: str, clip_name4: str) -> io.NodeOutput:
        from .loaders import _load_text_encoders

        names = [clip_name1, clip_name2, clip_name3, clip_name4]
        return io.NodeOutput(_load_text_encoders(names, "hidream", "default"))


class CLIPTextEncodeHiDream(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="CLIPTextEncodeHiDream",
            display_name="CLIP Text Encode (HiDream)",
            category="model/conditioning/hidream",
            description="Encodes a text for each of HiDream's encoders.",
            search_aliases=["hidream prompt"],
            inputs=[
                io.Clip.Input("clip", tooltip="HiDream's text encoders."),
                text_input("clip_l", "Text for CLIP L, of which the model sees a summary."),
                text_input("clip_g", "Text for CLIP G, of which the model sees a summary."),
                text_input("t5xxl", "Text for T5."),
                text_input("llama", "Text for Llama, which the model follows most."),
            ],
            outputs=[io.Conditioning.Output()],
        )

    @classmethod
    def execute(cls, clip: Any, clip_l: str, clip_g: str, t5xxl: str, llama: str) -> io.NodeOutput:
        tokens = tokenize(clip, g=clip_g, l=clip_l, t5xxl=t5xxl, llama=llama)
        return io.NodeOutput(clip.encode_from_tokens_scheduled(tokens))


class CLIPTextEncodeLumina2(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="CLIPTextEncodeLumina2",
            display_name="CLIP Text Encode (Lumina 2)",
            category="model/conditioning/lumina",
            description="Encodes a text for Lumina-Image 2.0, behind the instruction it was trained with.",
            search_aliases=["lumina prompt"],
            inputs=[
                io.Combo.Input(
                    "system_prompt", options=list(SYSTEM_PROMPTS), tooltip="Instruction in front of the text."
                ),
                text_input("user_prompt", "Text to encode."),
                io.Clip.Input("clip", tooltip="Lumina's text encoder."),
            ],
            outputs=[io.Conditioning.Output(tooltip="What the model is to follow.")],
        )

    @classmethod
    def execute(cls, clip: Any, user_prompt: str, system_prompt: str) -> io.NodeOutput:
        if clip is None:
            raise MissingClip()
        text = f"{SYSTEM_PROMPTS[system_prompt]} {PROMPT_START} {user_prompt}"
        return io.NodeOutput(clip.encode_from_tokens_scheduled(clip.tokenize(text)))


class CLIPTextEncodeControlnet(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="CLIPTextEncodeControlnet",
            display_name="CLIP Text Encode (Controlnet)",
            category="model/conditioning",
            description="Gives ControlNets a text of their own.",
            search_aliases=["controlnet prompt"],
            is_experimental=True,
            inputs=[
                io.Clip.Input("clip", tooltip="Text encoder of the ControlNet's family."),
                io.Conditioning.Input("conditioning", tooltip="Conditioning that has the control."),
                text_input("text", "Text for the ControlNet."),
            ],
            outputs=[io.Conditioning.Output()],
        )

    @classmethod
    def execute(cls, clip: Any, conditioning: list, text: str) -> io.NodeOutput:
        from node_helpers import conditioning_set_values

        if clip is None:
            raise MissingClip()
        cond, pooled = clip.encode_from_tokens(clip.tokenize(text), return_pooled=True)
        values = {"cross_attn_controlnet": cond, "pooled_output_controlnet": pooled}
        return io.NodeOutput(conditioning_set_values(conditioning, values))


NODES = {
    "comfy_extras.nodes_hidream": [QuadrupleCLIPLoader, CLIPTextEncodeHiDream],
    "comfy_extras.nodes_lumina2": [CLIPTextEncodeLumina2],
    "comfy_extras.nodes_cond": [CLIPTextEncodeControlnet],
}
