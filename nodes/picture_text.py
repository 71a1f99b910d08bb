"""Nodes that encode a text together with the pictures it speaks of."""

from __future__ import annotations

import math
from typing import Any

from comfy_api.latest import io
from node_helpers import conditioning_set_values

from .conditioning import MissingClip
from .family_text import text_input

# Pixels of what the text encoder sees, and of what the model is given to look at.
SEEN, SEEN_OF_SEVERAL, REFERENCE = 1024 * 1024, 384 * 384, 1024 * 1024
PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"


def of_area(image: Any, pixels: int, multiple: int = 1) -> Any:
    """A picture [batch, height, width, channels] with about so many pixels, of the same shape; sides are multiples."""
    import comfy.utils

    height, width = image.shape[1:3]
    factor = math.sqrt(pixels / (height * width))
    height, width = (max(1, round(n * factor / multiple)) * multiple for n in (height, width))
    resized = comfy.utils.common_upscale(image.movedim(-1, 1), width, height, "area", "disabled")
    return resized.movedim(1, -1)[..., :3]


def _encode(clip: Any, text: str, images: list, references: list, **options: Any) -> list:
    if clip is None:
        raise MissingClip()
    conditioning = clip.encode_from_tokens_scheduled(clip.tokenize(text, images=images, **options))
    if references:
        conditioning = conditioning_set_values(conditioning, {"reference_latents": references}, append=True)
    return conditioning


class TextEncodeQwenImageEdit(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="TextEncodeQwenImageEdit",
            category="model/conditioning/qwen image",
            description="Encodes an instruction together with the picture to edit.",
            inputs=[
                io.Clip.Input("clip", tooltip="Qwen-Image's text encoder, with its part that sees."),
                text_input("prompt", "What is to be changed."),
                io.Vae.Input("vae", optional=True, tooltip="Makes a latent of the picture for the model to look at."),
                io.Image.Input("image", optional=True, tooltip="Picture to edit."),
            ],
            outputs=[io.Conditioning.Output()],
        )

    @classmethod
    def execute(cls, clip: Any, prompt: str, vae: Any = None, image: Any = None) -> io.NodeOutput:
        images, references = [], []
        if image is not None:
            seen = of_area(image, SEEN)
            images.append(seen)
            if vae is not None:
                references.append(vae.encode(seen))
        return io.NodeOutput(_encode(clip, prompt, images, references))


class TextEncodeQwenImageEditPlus(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="TextEncodeQwenImageEditPlus",
            category="model/conditioning/qwen image",
            description="Encodes an instruction together with up to three pictures.",
            inputs=[
                io.Clip.Input("clip", tooltip="Qwen-Image's text encoder, with its part that sees."),
                text_input("prompt", "What is to be done; pictures are called Picture 1, Picture 2 and Picture 3."),
                io.Vae.Input("vae", optional=True, tooltip="Makes latents of the pictures for the model to look at."),
                *(io.Image.Input(f"image{i}", optional=True, tooltip=f"Picture {i}.") for i in (1, 2, 3)),
            ],
            outputs=[io.Conditioning.Output()],
        )

    @classmethod
    def execute(
        cls, clip: Any, prompt: str, vae: Any = None, image1: Any = None, image2: Any = None, image3: Any = None
    ) -> io.NodeOutput:
        from comfy.text_encoders.llm_families import QwenImageTokenizer

        images, references, names = [], [], ""
        for number, image in enumerate((image1, image2, image3), start=1):
            if image is None:
                continue
            images.append(of_area(image, SEEN_OF_SEVERAL))
            names += f"Picture {number}: {PICTURE}"
            if vae is not None:
                references.append(vae.encode(of_area(image, REFERENCE, 8)))
        # The pictures have their places in the prompt, so the template has none.
        template = QwenImageTokenizer.picture_template.replace(PICTURE, "")
        return io.NodeOutput(_encode(clip, names + prompt, images, references, llama_template=template))


NODES = {"comfy_extras.nodes_qwen": [TextEncodeQwenImageEdit, TextEncodeQwenImageEditPlus]}
