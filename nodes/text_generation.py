"""A node that has a language model write a text."""

from __future__ import annotations

import math
from typing import Any

from comfy_api.latest import io

from .conditioning import MissingClip
from .constants import MAX_SEED

# Of a video so many pictures are shown, and of each so many pixels (768 tokens of Qwen 2.5 VL, as published for it).
MOST_FRAMES, FRAME_PIXELS = 16, 768 * 28 * 28


def sampling_inputs() -> list[io.Input]:
    return [
        io.Float.Input(
            "temperature",
            default=0.7,
            min=0.01,
            max=2.0,
            step=0.000001,
            tooltip="Below 1 the likely words become likelier, above 1 the unlikely ones.",
        ),
        io.Int.Input(
            "top_k", default=64, min=0, max=1000, tooltip="Draw from this many of the likeliest words; 0: from all."
        ),
        io.Float.Input(
            "top_p",
            default=0.95,
            min=0.0,
            max=1.0,
            step=0.01,
            tooltip="Draw from the likeliest words that together have this share.",
        ),
        io.Float.Input(
            "min_p",
            default=0.05,
            min=0.0,
            max=1.0,
            step=0.01,
            tooltip="Leave out words with less than this part of the share that the likeliest has.",
        ),
        io.Float.Input(
            "repetition_penalty",
            default=1.05,
            min=0.0,
            max=5.0,
            step=0.01,
            tooltip="Above 1, words of the prompt and of the answer so far become less likely. 1 and 0: no change.",
        ),
        io.Int.Input("seed", default=0, min=0, max=MAX_SEED, tooltip="The same seed gives the same text."),
        io.Float.Input(
            "presence_penalty",
            optional=True,
            default=0.0,
            min=0.0,
            max=5.0,
            step=0.01,
            tooltip="Taken off the score of every word that the answer has already.",
        ),
    ]


def frames_of(video: Any) -> Any:
    """At most MOST_FRAMES frames of a video [frames, height, width, channels], evenly spread, each with at most
    FRAME_PIXELS pixels."""
    from .picture_text import of_area

    if len(video) > MOST_FRAMES:
        video = video[[round(i * (len(video) - 1) / (MOST_FRAMES - 1)) for i in range(MOST_FRAMES)]]
    return of_area(video, FRAME_PIXELS) if math.prod(video.shape[1:3]) > FRAME_PIXELS else video


class TextGenerate(io.ComfyNode):
    """Thoughts, which some models write in front of their answer, are not part of the text, as that is often a prompt
    for another model. If max_length ends them before there is an answer the text is the thoughts: one sees why."""

    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="TextGenerate",
            display_name="Generate Text",
            category="text",
            description=(
                "Has a language model answer a prompt. Text encoders that are whole language models can: Qwen, Gemma, "
                "Mistral, Llama; Qwen 2.5 VL also sees pictures."
            ),
            search_aliases=["llm", "language model", "chat", "describe image", "caption", "prompt enhancer", "vlm"],
            inputs=[
                io.Clip.Input("clip", tooltip="A language model, loaded with Load CLIP."),
                io.String.Input(
                    "prompt",
                    multiline=True,
                    dynamic_prompts=True,
                    default="",
                    tooltip="What to say to the language model.",
                ),
                io.Int.Input(
                    "max_length", default=512, min=1, max=32768, tooltip="Longest answer in tokens, thoughts included."
                ),
                io.DynamicCombo.Input(
                    "sampling_mode",
                    display_name="Sampling Mode",
                    options=[
                        io.DynamicCombo.Option("on", sampling_inputs()),
                        io.DynamicCombo.Option("off", []),
                    ],
                    tooltip="Draw each word by its likelihood (on), or always take the likeliest (off).",
                ),
                io.Image.Input("image", optional=True, tooltip="Pictures to look at, for models that see."),
                io.Image.Input(
                    "video",
                    optional=True,
                    tooltip=f"Frames of a video, for models that see; of many {MOST_FRAMES} are shown, evenly spread.",
                ),
                io.Audio.Input("audio", optional=True, tooltip="Sound, for models that hear."),
                io.Boolean.Input(
                    "thinking",
                    optional=True,
                    default=False,
                    tooltip="Let a model that can (Qwen 3) think before it answers; the thoughts are not shown.",
                ),
                io.Boolean.Input(
                    "use_default_template",
                    optional=True,
                    advanced=True,
                    default=True,
                    tooltip="Speak to the model as it was trained to be spoken to. Off: it goes on from what is typed.",
                ),
            ],
            outputs=[io.String.Output(display_name="generated_text")],
        )

    @classmethod
    def execute(
        cls,
        clip: Any,
        prompt: str,
        max_length: int,
        sampling_mode: dict[str, Any],
        image: Any = None,
        video: Any = None,
        audio: Any = None,
        thinking: bool = False,
        use_default_template: bool = True,
    ) -> io.NodeOutput:
        if clip is None:
            raise MissingClip()
        writer = clip.language_model()
        pictures = []
        for name, given in (("image", image), ("video", video)):
            if given is not None:
                writer.must_see(name)
                pictures += (given if name == "image" else frames_of(given)).split(1)
        if audio is not None:
            writer.must_hear("audio")
        tokens = writer.tokenize(prompt, pictures, thinking, use_default_template)
        sampling = {key: value for key, value in sampling_mode.items() if key != "sampling_mode"}
        ids = clip.generate(tokens, do_sample=sampling_mode["sampling_mode"] == "on", max_length=max_length, **sampling)
        text = writer.decode(ids, thoughts=False)
        # A prompt as typed may go on with a space.
        return io.NodeOutput(text.strip() if use_default_template else text)


NODES = {"comfy_extras.nodes_textgen": [TextGenerate]}
