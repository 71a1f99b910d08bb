"""Nodes that read and write sound files. They need the package `av` (`pip install .[media]`)."""

from __future__ import annotations

import os

import folder_paths
from comfy_api.latest import io, ui

from .audio import sound
from .image_files import file_digest, is_readable_file


class NoMediaLibrary(RuntimeError):
    """The package that reads and writes sound and video is not installed."""


def require_av() -> None:
    """Raise NoMediaLibrary, saying what to do, if sound and video files cannot be read."""
    try:
        import av  # noqa: F401
    except ImportError as error:
        raise NoMediaLibrary("sound and video files need the package av: pip install 'av>=14' (extra media)") from error


def list_sound_files() -> list[str]:
    """Names of the files in the input folder itself that are sound, or video with sound."""
    folder = folder_paths.get_input_directory()
    return sorted({*folder_paths.get_top_files(folder, "audio"), *folder_paths.get_top_files(folder, "video")})


def _prefix() -> io.Input:
    return io.String.Input("filename_prefix", tooltip="Start of the file name.", default="audio/ComfyUI")


def _saving(node_id: str, kind: str, *more: io.Input, essentials: str | None = "Audio") -> io.Schema:
    return io.Schema(
        node_id=node_id,
        display_name=f"Save Audio ({kind}) (DEPRECATED)",
        category="audio",
        description=f"Writes the sound as a {kind} file into the output folder, with the workflow inside.",
        inputs=[io.Audio.Input("audio", tooltip="Sound to write."), _prefix(), *more],
        outputs=[io.Audio.Output(display_name="audio")],
        hidden=[io.Hidden.prompt, io.Hidden.extra_pnginfo],
        is_output_node=True,
        is_deprecated=True,
        essentials_category=essentials,
    )


class SaveAudio(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return _saving("SaveAudio", "FLAC")

    @classmethod
    def execute(cls, audio: dict, filename_prefix: str) -> io.NodeOutput:
        require_av()
        return io.NodeOutput(audio, ui=ui.AudioSaveHelper.get_save_audio_ui(audio, filename_prefix, cls, "flac"))


class SaveAudioMP3(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        qualities = ["V0", "128k", "320k"]
        quality = io.Combo.Input("quality", options=qualities, tooltip="Bits per second; V0 varies.", default="V0")
        return _saving("SaveAudioMP3", "MP3", quality)

    @classmethod
    def execute(cls, audio: dict, filename_prefix: str, quality: str = "128k") -> io.NodeOutput:
        require_av()
        saved = ui.AudioSaveHelper.get_save_audio_ui(audio, filename_prefix, cls, "mp3", quality)
        return io.NodeOutput(audio, ui=saved)


class SaveAudioOpus(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        qualities = ["64k", "96k", "128k", "192k", "320k"]
        quality = io.Combo.Input("quality", options=qualities, tooltip="Bits per second.", default="128k")
        return _saving("SaveAudioOpus", "Opus", quality, essentials=None)

    @classmethod
    def execute(cls, audio: dict, filename_prefix: str, quality: str = "128k") -> io.NodeOutput:
        require_av()
        saved = ui.AudioSaveHelper.get_save_audio_ui(audio, filename_prefix, cls, "opus", quality)
        return io.NodeOutput(audio, ui=saved)


class PreviewAudio(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="PreviewAudio",
            display_name="Preview Audio",
            category="audio",
            description="Lets the sound be heard; the files are temporary.",
            inputs=[io.Audio.Input("audio", tooltip="Sound to hear.")],
            outputs=[io.Audio.Output(display_name="audio")],
            hidden=[io.Hidden.prompt, io.Hidden.extra_pnginfo],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, audio: dict) -> io.NodeOutput:
        require_av()
        return io.NodeOutput(audio, ui=ui.PreviewAudio(audio, cls=cls))


class LoadAudio(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LoadAudio",
            display_name="Load Audio",
            category="audio",
            description="Reads a sound file, or the sound of a video, from the input folder.",
            inputs=[
                io.Combo.Input("audio", options=list_sound_files(), tooltip="File to read.", upload=io.UploadType.audio)
            ],
            outputs=[io.Audio.Output()],
            essentials_category="Audio",
        )

    @classmethod
    def execute(cls, audio: str) -> io.NodeOutput:
        return io.NodeOutput(read_sound(folder_paths.get_annotated_filepath(audio)))

    @classmethod
    def fingerprint_inputs(cls, audio: str) -> str:
        return file_digest(folder_paths.get_annotated_filepath(audio))

    @classmethod
    def validate_inputs(cls, audio: str) -> bool | str:
        return True if is_readable_file(audio) else f"Invalid audio file: {audio}"


def read_sound(path: str) -> dict:
    """AUDIO: the first sound track of a file. Raises ValueError naming the file if there is none that can be read."""
    require_av()
    import av
    import numpy as np
    import torch

    name = os.path.basename(path)
    try:
        with av.open(path) as container:
            if not container.streams.audio:
                raise ValueError(f"{name} has no sound in it")
            stream = container.streams.audio[0]
            if stream.codec_context.format is not None and stream.codec_context.format.name.startswith("u8"):
                raise ValueError(f"{name} has 8-bit sound, which is not read; convert it to 16 bits")
            resampler = av.AudioResampler(format="fltp")
            parts = [out.to_ndarray() for frame in container.decode(stream) for out in resampler.resample(frame)]
            rate = stream.rate
    except av.FFmpegError as error:
        raise ValueError(f"{name} cannot be read as sound: {error}") from error
    if not parts:
        raise ValueError(f"the sound of {name} is empty")
    return sound(torch.from_numpy(np.concatenate(parts, axis=1)).unsqueeze(0), rate)


NODES = {"comfy_extras.nodes_audio": [SaveAudio, SaveAudioMP3, SaveAudioOpus, LoadAudio, PreviewAudio]}
