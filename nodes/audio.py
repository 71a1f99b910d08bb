"""Nodes that cut and mix sound. AUDIO: dict with `waveform` [B,channels,samples] and `sample_rate`."""

from __future__ import annotations

import torch

from comfy_api.latest import io

from .constants import MAX_SEED


def sound(waveform: torch.Tensor, sample_rate: int) -> dict:
    """An AUDIO value."""
    return {"waveform": waveform, "sample_rate": sample_rate}


class EmptyAudio(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="EmptyAudio",
            display_name="Empty Audio",
            category="audio",
            description="Silence of a given length.",
            inputs=[
                io.Float.Input(
                    "duration", tooltip="Length in seconds.", default=60.0, min=0.0, max=MAX_SEED, step=0.01
                ),
                io.Int.Input(
                    "sample_rate", tooltip="Samples per second.", advanced=True, default=44100, min=1, max=192000
                ),
                io.Int.Input("channels", tooltip="1 is mono, 2 is stereo.", advanced=True, default=2, min=1, max=2),
            ],
            outputs=[io.Audio.Output()],
        )

    @classmethod
    def execute(cls, duration: float, sample_rate: int, channels: int) -> io.NodeOutput:
        samples = round(duration * sample_rate)
        return io.NodeOutput(sound(torch.zeros((1, channels, samples), dtype=torch.float32), sample_rate))


class TrimAudioDuration(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="TrimAudioDuration",
            display_name="Trim Audio Duration",
            category="audio",
            description="Cuts a piece out of a sound.",
            inputs=[
                io.Audio.Input("audio", tooltip="Sound to cut."),
                io.Float.Input(
                    "start_index",
                    tooltip="Where it begins, in seconds; negative counts from the end.",
                    default=0.0,
                    min=-18446744073709551615,
                    max=MAX_SEED,
                    step=0.01,
                ),
                io.Float.Input("duration", tooltip="Length in seconds.", default=60.0, min=0.0, step=0.01),
            ],
            outputs=[io.Audio.Output()],
        )

    @classmethod
    def execute(cls, audio: dict, start_index: float, duration: float) -> io.NodeOutput:
        waveform, rate = audio["waveform"], audio["sample_rate"]
        total = waveform.shape[-1]
        begin = round(start_index * rate)
        if begin < 0:
            begin = max(begin + total, 0)
        end = min(begin + round(duration * rate), total)
        if begin >= end:
            raise ValueError(
                f"nothing is left of a sound of {total / rate:g} s from {start_index:g} s on for {duration:g} s"
            )
        return io.NodeOutput(sound(waveform[..., begin:end], rate))


class AudioAdjustVolume(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="AudioAdjustVolume",
            display_name="Adjust Audio Volume",
            category="audio",
            description="Makes a sound louder or softer.",
            inputs=[
                io.Audio.Input("audio", tooltip="Sound to change."),
                io.Int.Input("volume", tooltip="Change in decibels.", default=1, min=-100, max=100),
            ],
            outputs=[io.Audio.Output()],
        )

    @classmethod
    def execute(cls, audio: dict, volume: int) -> io.NodeOutput:
        if volume == 0:
            return io.NodeOutput(audio)
        return io.NodeOutput(sound(audio["waveform"] * 10 ** (volume / 20), audio["sample_rate"]))


class SplitAudioChannels(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SplitAudioChannels",
            display_name="Split Audio Channels",
            category="audio",
            description="Splits a stereo sound into its two channels.",
            inputs=[io.Audio.Input("audio", tooltip="Stereo sound.")],
            outputs=[io.Audio.Output(display_name="left"), io.Audio.Output(display_name="right")],
        )

    @classmethod
    def execute(cls, audio: dict) -> io.NodeOutput:
        waveform, rate = audio["waveform"], audio["sample_rate"]
        if waveform.shape[1] != 2:
            raise ValueError(f"the sound has {waveform.shape[1]} channels, expected 2")
        return io.NodeOutput(sound(waveform[:, :1], rate), sound(waveform[:, 1:], rate))


class JoinAudioChannels(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="JoinAudioChannels",
            display_name="Join Audio Channels",
            category="audio",
            description="Joins two mono sounds into a stereo one. The longer one is cut.",
            inputs=[
                io.Audio.Input("audio_left", tooltip="Left channel."),
                io.Audio.Input("audio_right", tooltip="Right channel."),
            ],
            outputs=[io.Audio.Output(display_name="audio")],
        )

    @classmethod
    def execute(cls, audio_left: dict, audio_right: dict) -> io.NodeOutput:
        sides = {"left": audio_left, "right": audio_right}
        for name, side in sides.items():
            if side["waveform"].shape[1] != 1:
                raise ValueError(f"the {name} sound has {side['waveform'].shape[1]} channels, expected 1")
        rates = [side["sample_rate"] for side in sides.values()]
        if rates[0] != rates[1]:
            raise ValueError(f"the sounds have different rates, {rates[0]} and {rates[1]} samples per second")
        waveforms = [side["waveform"] for side in sides.values()]
        length = min(waveform.shape[-1] for waveform in waveforms)
        return io.NodeOutput(sound(torch.cat([w[..., :length] for w in waveforms], dim=1), rates[0]))


NODES = {
    "comfy_extras.nodes_audio": [
        EmptyAudio,
        TrimAudioDuration,
        AudioAdjustVolume,
        SplitAudioChannels,
        JoinAudioChannels,
    ],
}
