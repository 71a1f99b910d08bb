"""Nodes that read, write and take apart videos. They need the package `av` (`pip install .[media]`)."""

from __future__ import annotations

import os
from fractions import Fraction
from typing import Any

import torch

import folder_paths
from comfy_api.latest import InputImpl, Types, io, ui
from comfy_api.latest.saving import metadata_of
from comfy_api.latest.video_encoding import CONTAINERS, encode, remux

from .image_files import file_digest, is_readable_file
from .sound_files import require_av

_COLOUR_SPACES = ["auto", "sRGB", "HDR", "HDR PQ"]


class LoadVideo(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        files = folder_paths.get_top_files(folder_paths.get_input_directory(), "video")
        return io.Schema(
            node_id="LoadVideo",
            display_name="Load Video",
            category="video",
            description="Reads a video file from the input folder.",
            inputs=[io.Combo.Input("file", options=files, tooltip="File to read.", upload=io.UploadType.video)],
            outputs=[io.Video.Output()],
            essentials_category="Basics",
        )

    @classmethod
    def execute(cls, file: str) -> io.NodeOutput:
        require_av()
        return io.NodeOutput(InputImpl.VideoFromFile(folder_paths.get_annotated_filepath(file)))

    @classmethod
    def fingerprint_inputs(cls, file: str) -> str:
        return file_digest(folder_paths.get_annotated_filepath(file))

    @classmethod
    def validate_inputs(cls, file: str) -> bool | str:
        return True if is_readable_file(file) else f"Invalid video file: {file}"


class CreateVideo(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="CreateVideo",
            display_name="Create Video",
            category="video",
            description="Makes a video of images and a sound.",
            inputs=[
                io.Image.Input("images", tooltip="Its frames."),
                io.Float.Input("fps", tooltip="Frames per second.", default=30.0, min=1.0, max=120.0, step=1.0),
                io.Audio.Input("audio", tooltip="Its sound.", optional=True),
                io.Int.Input(
                    "bit_depth",
                    tooltip="Bits per value that a file of it is to have.",
                    optional=True,
                    default=8,
                    min=8,
                    max=10,
                    step=2,
                    display_mode=io.NumberDisplay.number,
                ),
            ],
            outputs=[io.Video.Output()],
            essentials_category="Video Tools",
        )

    @classmethod
    def execute(cls, images: torch.Tensor, fps: float, audio: dict | None = None, bit_depth: int = 8) -> io.NodeOutput:
        components = Types.VideoComponents(images, Fraction(fps), audio, bit_depth=bit_depth)
        return io.NodeOutput(InputImpl.VideoFromComponents(components))


class GetVideoComponents(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="GetVideoComponents",
            display_name="Get Video Components",
            category="video",
            description="Takes a video apart.",
            inputs=[io.Video.Input("video", tooltip="Video to take apart.")],
            outputs=[
                io.Image.Output(display_name="images"),
                io.Audio.Output(display_name="audio"),
                io.Float.Output(display_name="fps"),
                io.Int.Output(display_name="bit_depth"),
                io.Combo.Output(display_name="color_space"),
            ],
        )

    @classmethod
    def execute(cls, video: Any) -> io.NodeOutput:
        parts = video.get_components()
        rate = float(parts.frame_rate)
        return io.NodeOutput(parts.images, parts.audio, rate, parts.bit_depth, parts.color_space)


def _codecs(*names: str) -> list[io.DynamicCombo.Option]:
    return [io.DynamicCombo.Option("auto", []), *(_codec(name) for name in names)]


def _codec(name: str) -> io.DynamicCombo.Option:
    usual, worst = {"h264": (23.0, 51.0), "av1": (30.0, 63.0)}[name]
    again = [
        io.Float.Input("crf", tooltip="Smaller is better.", default=usual, min=0.0, max=worst, step=1.0),
        io.Combo.Input(
            "color_space",
            options=_COLOUR_SPACES,
            display_name="color space",
            tooltip="How the values of the frames are meant.",
            default="auto",
        ),
    ]
    modes = [io.DynamicCombo.Option("auto", []), io.DynamicCombo.Option("re-encode", again)]
    encoding = io.DynamicCombo.Input("encoding", options=modes, display_name="encoding mode", optional=True)
    return io.DynamicCombo.Option(name, [encoding])


class SaveVideo(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        by_container = {"auto": ("h264", "av1"), "mp4": ("h264", "av1"), "mkv": ("h264", "av1"), "webm": ("av1",)}
        formats = [
            io.DynamicCombo.Option(name, [io.DynamicCombo.Input("codec", options=_codecs(*codecs))])
            for name, codecs in by_container.items()
        ]
        old = io.DynamicCombo.Input("codec", options=_codecs("h264", "av1"), optional=True, extra_dict={"hidden": True})
        prefix = "Start of the file name, with sub-folders."
        return io.Schema(
            node_id="SaveVideo",
            display_name="Save Video",
            category="video",
            description="Writes the video into the output folder, with the workflow inside.",
            inputs=[
                io.Video.Input("video", tooltip="Video to write."),
                io.String.Input("filename_prefix", tooltip=prefix, default="video/ComfyUI"),
                io.DynamicCombo.Input("format", options=formats, tooltip="Kind of file."),
                old,
            ],
            outputs=[io.Video.Output(display_name="video")],
            hidden=[io.Hidden.prompt, io.Hidden.extra_pnginfo],
            is_output_node=True,
            essentials_category="Basics",
        )

    @classmethod
    def execute(
        cls, video: Any, filename_prefix: str, format: dict | str = "auto", codec: dict | str | None = None
    ) -> io.NodeOutput:
        require_av()
        container = _choice(format, "format")
        inner = format.get("codec") if isinstance(format, dict) else None
        chosen = inner if inner is not None else codec  # prompts of older versions have the codec beside the format
        codec_name = _choice(chosen, "codec")
        encoding = chosen.get("encoding") if isinstance(chosen, dict) else None
        encoding = encoding if isinstance(encoding, dict) else {}
        again = encoding.get("encoding") == "re-encode"
        ending = "mp4" if container == "auto" else container

        width, height = video.get_dimensions()
        root = folder_paths.get_output_directory()
        place = folder_paths.get_save_image_path(filename_prefix, root, width, height)
        folder, name, counter, subfolder = place[:4]
        file = f"{name}_{counter:05}_.{ending}"
        path = os.path.join(folder, file)
        metadata = metadata_of(cls)
        source = _unchanged_file(video)
        if source is not None and container == codec_name == "auto" and not again and _is_mp4(video):
            remux(source, path, ending, metadata)
        else:
            parts = video.get_components()
            colours = encoding.get("color_space", "auto") if again else "auto"
            colours = parts.color_space if colours == "auto" else colours
            crf = encoding.get("crf") if again else None
            encode(path, parts, ending, codec_name, crf, colours, metadata)
        result = ui.SavedResult(file, subfolder, io.FolderType.output)
        return io.NodeOutput(video, ui=ui.PreviewVideo([result]))


class SaveWEBM(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SaveWEBM",
            display_name="Save WEBM",
            category="video",
            description="Writes images as a WebM video into the output folder, with the workflow inside.",
            inputs=[
                io.Image.Input("images", tooltip="Frames to write."),
                io.String.Input("filename_prefix", tooltip="Start of the file name.", default="ComfyUI"),
                io.Combo.Input("codec", options=["vp9", "av1"], tooltip="av1 keeps 10 bits per value."),
                io.Float.Input("fps", tooltip="Frames per second.", default=24.0, min=0.01, max=1000.0, step=0.01),
                io.Float.Input("crf", tooltip="Smaller is better.", default=32.0, min=0, max=63.0, step=1),
            ],
            outputs=[io.Image.Output(display_name="images")],
            hidden=[io.Hidden.prompt, io.Hidden.extra_pnginfo],
            is_output_node=True,
            is_experimental=True,
        )

    @classmethod
    def execute(cls, images: torch.Tensor, filename_prefix: str, codec: str, fps: float, crf: float) -> io.NodeOutput:
        require_av()
        height, width = images.shape[1:3]
        root = folder_paths.get_output_directory()
        folder, name, counter, subfolder, _ = folder_paths.get_save_image_path(filename_prefix, root, width, height)
        file = f"{name}_{counter:05}_.webm"
        rate = Fraction(fps).limit_denominator(1000)
        parts = Types.VideoComponents(images, rate, bit_depth=10 if codec == "av1" else 8)
        encode(os.path.join(folder, file), parts, "webm", codec, crf, metadata=metadata_of(cls))
        result = ui.SavedResult(file, subfolder, io.FolderType.output)
        return io.NodeOutput(images, ui=ui.PreviewVideo([result]))


def _choice(value: dict | str | None, name: str) -> str:
    found = value.get(name) if isinstance(value, dict) else value
    return found or "auto"


def _unchanged_file(video: Any) -> Any:
    return video.whole_file() if isinstance(video, InputImpl.VideoFromFile) else None


def _is_mp4(video: Any) -> bool:
    return CONTAINERS["mp4"][0] in video.get_container_format().split(",")


NODES = {"comfy_extras.nodes_video": [LoadVideo, CreateVideo, GetVideoComponents, SaveVideo, SaveWEBM]}
