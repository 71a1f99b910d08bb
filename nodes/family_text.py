"""Nodes that encode a text for models with several text encoders, or with sizes beside the text."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from .conditioning import MissingClip
from .constants import MAX_RESOLUTION


def text_input(name: str, tooltip: str) -> Any:
    return io.String.Input(name, multiline=True, dynamic_prompts=True, tooltip=tooltip)


def size_input(name: str, tooltip: str, default: int = 1024, **options: Any) -> Any:
    return io.Int.Input(name, default=default, min=0, max=MAX_RESOLUTION, tooltip=tooltip, **options)


def tokenize(clip: Any, **texts: str) -> dict[str, list]:
    """Tokens where each encoder named in `texts` has a text of its own. Raises MissingClip.

    The rest of the encoders get what the first text gives them.
    """
    if clip is None:
        raise MissingClip()
    per_text = {text: clip.tokenize(text) for text in dict.fromkeys(texts.values())}
    tokens = dict(per_text[next(iter(texts.values()))])
    tokens.update({name: per_text[text][name] for name, text in texts.items() if name in tokens})
    return tokens


def even_out(clip: Any, tokens: dict[str, list], first: str, second: str) -> None:
    """Give two encoders that are joined on their channels as many chunks, adding those of an empty prompt."""
    if len(tokens.get(first, ())) == len(tokens.get(second, ())):
        return
    empty = clip.tokenize("")
    for name, other in ((first, second), (second, first)):
        missing = len(tokens[other]) - len(tokens[name])
        tokens[name] = tokens[name] + empty[name] * max(0, missing)


class CLIPTextEncodeSDXL(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="CLIPTextEncodeSDXL",
            display_name="CLIP Text Encode (SDXL)",
            category="model/conditioning/stable diffusion",
            description="Encodes a text for each of SDXL's two encoders, with the sizes that SDXL is told.",
            inputs=[
                io.Clip.Input("clip", tooltip="SDXL's text encoders."),
                size_input("width", "Width the picture is said to have had, in pixels."),
                size_input("height", "Height the picture is said to have had, in pixels."),
                size_input("crop_w", "Pixels said to have been cut off on the left.", default=0, advanced=True),
                size_input("crop_h", "Pixels said to have been cut off at the top.", default=0, advanced=True),
                size_input("target_width", "Width asked for, in pixels."),
                size_input("target_height", "Height asked for, in pixels."),
                text_input("text_g", "Text for the larger encoder."),
                text_input("text_l", "Text for the smaller encoder."),
            ],
            outputs=[io.Conditioning.Output()],
        )

    @classmethod
    def execute(cls, clip: Any, text_g: str, text_l: str, **sizes: int) -> io.NodeOutput:
        tokens = tokenize(clip, g=text_g, l=text_l)
        even_out(clip, tokens, "l", "g")
        return io.NodeOutput(clip.encode_from_tokens_scheduled(tokens, add_dict=sizes))


class CLIPTextEncodeSDXLRefiner(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="CLIPTextEncodeSDXLRefiner",
            display_name="CLIP Text Encode (SDXL Refiner)",
            category="model/conditioning/stable diffusion",
            description="Encodes a text for SDXL's refiner, with the size and the beauty it is told.",
            inputs=[
                io.Float.Input(
                    "ascore", default=6.0, min=0.0, max=1000.0, step=0.01, tooltip="Aesthetic score asked for."
                ),
                size_input("width", "Width in pixels."),
                size_input("height", "Height in pixels."),
                text_input("text", "Text to encode."),
                io.Clip.Input("clip", tooltip="The refiner's text encoder."),
            ],
            outputs=[io.Conditioning.Output()],
        )

    @classmethod
    def execute(cls, clip: Any, ascore: float, width: int, height: int, text: str) -> io.NodeOutput:
        if clip is None:
            raise MissingClip()
        values = {"aesthetic_score": ascore, "width": width, "height": height}
        return io.NodeOutput(clip.encode_from_tokens_scheduled(clip.tokenize(text), add_dict=values))


class CLIPTextEncodeSD3(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="CLIPTextEncodeSD3",
            display_name="CLIP Text Encode (SD3)",
            category="model/conditioning/stable diffusion",
            description="Encodes a text for each of Stable Diffusion 3's encoders.",
            inputs=[
                io.Clip.Input("clip", tooltip="Stable Diffusion 3's text encoders."),
                text_input("clip_l", "Text for CLIP L."),
                text_input("clip_g", "Text for CLIP G."),
                text_input("t5xxl", "Text for T5."),
                io.Combo.Input(
                    "empty_padding",
                    options=["none", "empty_prompt"],
                    tooltip="What an encoder without a text gives: nothing, or an empty prompt.",
                    advanced=True,
                ),
            ],
            outputs=[io.Conditioning.Output()],
        )

    @classmethod
    def execute(cls, clip: Any, clip_l: str, clip_g: str, t5xxl: str, empty_padding: str) -> io.NodeOutput:
        texts = {"g": clip_g, "l": clip_l, "t5xxl": t5xxl}
        tokens = tokenize(clip, **texts)
        if empty_padding == "none":
            tokens.update({name: [] for name, text in texts.items() if not text and name in tokens})
        if tokens.get("l") or tokens.get("g"):
            even_out(clip, tokens, "l", "g")
        return io.NodeOutput(clip.encode_from_tokens_scheduled(tokens))


class CLIPTextEncodeFlux(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="CLIPTextEncodeFlux",
            category="model/conditioning/flux",
            description="Encodes a text for each of FLUX.1's encoders, with its guidance.",
            inputs=[
                io.Clip.Input("clip", tooltip="FLUX.1's text encoders."),
                text_input("clip_l", "Text for CLIP L, of which the model sees a summary."),
                text_input("t5xxl", "Text for T5, of which the model sees every word."),
                io.Float.Input("guidance", default=3.5, min=0.0, max=100.0, step=0.1, tooltip="Strength."),
            ],
            outputs=[io.Conditioning.Output()],
        )

    @classmethod
    def execute(cls, clip: Any, clip_l: str, t5xxl: str, guidance: float) -> io.NodeOutput:
        tokens = tokenize(clip, l=clip_l, t5xxl=t5xxl)
        return io.NodeOutput(clip.encode_from_tokens_scheduled(tokens, add_dict={"guidance": guidance}))


class CLIPTextEncodePixArtAlpha(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="CLIPTextEncodePixArtAlpha",
            display_name="CLIP Text Encode (PixArt Alpha)",
            category="model/conditioning/pixart",
            description="Encodes a text for PixArt alpha, with the size it is told; PixArt Sigma needs none.",
            inputs=[
                size_input("width", "Width in pixels."),
                size_input("height", "Height in pixels."),
                text_input("text", "Text to encode."),
                io.Clip.Input("clip", tooltip="PixArt's text encoder."),
            ],
            outputs=[io.Conditioning.Output()],
        )

    @classmethod
    def execute(cls, width: int, height: int, text: str, clip: Any) -> io.NodeOutput:
        if clip is None:
            raise MissingClip()
        values = {"width": width, "height": height}
        return io.NodeOutput(clip.encode_from_tokens_scheduled(clip.tokenize(text), add_dict=values))


class T5TokenizerOptions(io.ComfyNode):
    # Names under which the tokenizers of T5-like encoders look for their options.
    ENCODERS = ("t5xxl", "pile_t5xl", "t5base", "mt5xl", "umt5xxl")

    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="T5TokenizerOptions",
            display_name="T5 Tokenizer Options",
            category="model/conditioning",
            description="Sets how far T5's prompts are filled up with empty tokens.",
            is_experimental=True,
            inputs=[
                io.Clip.Input("clip", tooltip="Text encoder to change."),
                io.Int.Input(
                    "min_padding", default=0, min=0, max=10000, step=1, tooltip="Empty tokens behind every prompt."
                ),
                io.Int.Input("min_length", default=0, min=0, max=10000, step=1, tooltip="Fewest tokens of a prompt."),
            ],
            outputs=[io.Clip.Output()],
        )

    @classmethod
    def execute(cls, clip: Any, min_padding: int, min_length: int) -> io.NodeOutput:
        if clip is None:
            raise MissingClip()
        changed = clip.clone()
        for name in cls.ENCODERS:
            changed.set_tokenizer_option(f"{name}_min_padding", min_padding)
            changed.set_tokenizer_option(f"{name}_min_length", min_length)
        return io.NodeOutput(changed)


class TripleCLIPLoader(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        import folder_paths

        names = folder_paths.get_filename_list("text_encoders")
        return io.Schema(
            node_id="TripleCLIPLoader",
            display_name="Load CLIP (Triple)",
            category="model/loaders",
            description="Loads the three text encoders of Stable Diffusion 3: CLIP L, CLIP G and T5, in any order.",
            inputs=[
                io.Combo.Input(f"clip_name{i}", options=names, tooltip=f"{which} file to load.")
                for i, which in ((1, "First"), (2, "Second"), (3, "Third"))
            ],
            outputs=[io.Clip.Output()],
        )

    @classmethod
    def execute(cls, clip_name1: str, clip_name2: str, clip_name3: str) -> io.NodeOutput:
        from .loaders import _load_text_encoders

        return io.NodeOutput(_load_text_encoders([clip_name1, clip_name2, clip_name3], "sd3", "default"))


NODES = {
    "comfy_extras.nodes_clip_sdxl": [CLIPTextEncodeSDXL, CLIPTextEncodeSDXLRefiner],
    "comfy_extras.nodes_sd3": [TripleCLIPLoader, CLIPTextEncodeSD3],
    "comfy_extras.nodes_flux": [CLIPTextEncodeFlux],
    "comfy_extras.nodes_pixart": [CLIPTextEncodePixArtAlpha],
    "comfy_extras.nodes_cond": [T5TokenizerOptions],
}
