"""Nodes that put sounds together, and an equaliser. AUDIO: `waveform` [B,channels,samples] and `sample_rate`."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import torch
import torch.nn.functional as F

from comfy_api.latest import io

from .audio import sound

# Of the windowed sinc that resamples: zero crossings on each side, and where its pass band ends.
_ZERO_CROSSINGS = 6
_ROLLOFF = 0.99
_SHELF_Q = 0.707


def resample(waveform: torch.Tensor, old: int, new: int) -> torch.Tensor:
    """[..., samples] at another rate: convolution with a sinc under a Hann window (Smith, "Digital audio resampling").

    old, new: samples per second; the result has ceil(samples * new / old).
    """
    if old == new:
        return waveform
    ratio = Fraction(new, old)
    up, down = ratio.numerator, ratio.denominator
    cutoff = min(up, down) * _ROLLOFF
    width = math.ceil(_ZERO_CROSSINGS * down / cutoff)
    places = torch.arange(-width, width + down, dtype=torch.float64) / down
    phases = torch.arange(0, -up, -1, dtype=torch.float64) / up
    t = ((phases[:, None] + places[None]) * cutoff).clamp(-_ZERO_CROSSINGS, _ZERO_CROSSINGS)
    window = torch.cos(t * math.pi / _ZERO_CROSSINGS / 2) ** 2
    kernel = (torch.sinc(t) * window * (cutoff / down)).to(waveform)
    flat = F.pad(waveform.reshape(-1, 1, waveform.shape[-1]), (width, width + down))
    found = F.conv1d(flat, kernel[:, None], stride=down).transpose(1, 2).flatten(1)
    length = math.ceil(waveform.shape[-1] * up / down)
    return found[:, :length].reshape(*waveform.shape[:-1], length)


def _at_one_rate(first: dict, second: dict) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Both waveforms at the higher of their rates, and that rate."""
    rate = max(first["sample_rate"], second["sample_rate"])
    waveforms = [resample(audio["waveform"], audio["sample_rate"], rate) for audio in (first, second)]
    return waveforms[0], waveforms[1], rate


class AudioConcat(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="AudioConcat",
            display_name="Concatenate Audio",
            category="audio",
            description="One sound after another, in stereo.",
            inputs=[
                io.Audio.Input("audio1", tooltip="A sound."),
                io.Audio.Input("audio2", tooltip="Another one; the lower rate is brought to the higher."),
                io.Combo.Input(
                    "direction",
                    options=["after", "before"],
                    tooltip="Where the second goes.",
                    default="after",
                ),
            ],
            outputs=[io.Audio.Output()],
        )

    @classmethod
    def execute(cls, audio1: dict, audio2: dict, direction: str) -> io.NodeOutput:
        first, second, rate = _at_one_rate(audio1, audio2)
        parts = [w.repeat(1, 2, 1) if w.shape[1] == 1 else w for w in (first, second)]
        if parts[0].shape[:2] != parts[1].shape[:2]:
            shapes = " and ".join(f"{w.shape[0]} x {w.shape[1]}" for w in parts)
            raise RuntimeError(f"sounds of {shapes} (batch x channels) cannot be joined")
        return io.NodeOutput(sound(torch.cat(parts if direction == "after" else parts[::-1], dim=2), rate))


class AudioMerge(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="AudioMerge",
            display_name="Merge Audio",
            category="audio",
            description="Two sounds at once. The result is as long as the first, and made softer if it is too loud.",
            inputs=[
                io.Audio.Input("audio1", tooltip="A sound."),
                io.Audio.Input("audio2", tooltip="Another one; the lower rate is brought to the higher."),
                io.Combo.Input(
                    "merge_method",
                    options=["add", "mean", "subtract", "multiply"],
                    tooltip="What becomes of two values.",
                ),
            ],
            outputs=[io.Audio.Output()],
        )

    @classmethod
    def execute(cls, audio1: dict, audio2: dict, merge_method: str) -> io.NodeOutput:
        first, second, rate = _at_one_rate(audio1, audio2)
        second = F.pad(second, (0, max(0, first.shape[-1] - second.shape[-1])))[..., : first.shape[-1]]
        if merge_method == "add":
            merged = first + second
        elif merge_method == "mean":
            merged = (first + second) / 2
        elif merge_method == "subtract":
            merged = first - second
        else:
            merged = first * second
        peak = merged.abs().max().item() if merged.numel() else 0.0
        return io.NodeOutput(sound(merged / peak if peak > 1 else merged, rate))


class AudioEqualizer3Band(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        gain = {"default": 0.0, "min": -24.0, "max": 24.0, "step": 0.1}
        return io.Schema(
            node_id="AudioEqualizer3Band",
            display_name="Audio Equalizer (3-Band)",
            category="audio",
            description="Makes low, middle and high tones louder or softer.",
            inputs=[
                io.Audio.Input("audio", tooltip="Sound to change."),
                io.Float.Input("low_gain_dB", tooltip="Change of low tones in decibels.", **gain),
                io.Int.Input("low_freq", tooltip="Below this many hertz is low.", default=100, min=20, max=500),
                io.Float.Input("mid_gain_dB", tooltip="Change of middle tones in decibels.", **gain),
                io.Int.Input("mid_freq", tooltip="The middle, in hertz.", default=1000, min=200, max=4000),
                io.Float.Input(
                    "mid_q", tooltip="How narrow the middle is.", default=0.707, min=0.1, max=10.0, step=0.1
                ),
                io.Float.Input("high_gain_dB", tooltip="Change of high tones in decibels.", **gain),
                io.Int.Input("high_freq", tooltip="Above this many hertz is high.", default=5000, min=1000, max=15000),
            ],
            outputs=[io.Audio.Output()],
            is_experimental=True,
        )

    @classmethod
    def execute(
        cls,
        audio: dict,
        low_gain_dB: float,
        low_freq: int,
        mid_gain_dB: float,
        mid_freq: int,
        mid_q: float,
        high_gain_dB: float,
        high_freq: int,
    ) -> io.NodeOutput:
        rate, waveform = audio["sample_rate"], audio["waveform"]
        bands = [
            ("low_freq", low_freq, low_gain_dB, _low_shelf(low_freq / rate, low_gain_dB)),
            ("mid_freq", mid_freq, mid_gain_dB, _peak(mid_freq / rate, mid_gain_dB, mid_q)),
            ("high_freq", high_freq, high_gain_dB, _high_shelf(high_freq / rate, high_gain_dB)),
        ]
        for name, frequency, gain, coefficients in bands:
            if gain and frequency * 2 >= rate:
                raise ValueError(f"{name} {frequency} Hz: a sound of {rate} samples per second ends at {rate / 2:g} Hz")
            if gain:
                waveform = _filtered(waveform, *coefficients)
        return io.NodeOutput(sound(waveform, rate))


Coefficients = tuple[list[torch.Tensor], list[torch.Tensor]]


def _filtered(waveform: torch.Tensor, b: list[torch.Tensor], a: list[torch.Tensor]) -> torch.Tensor:
    """Second-order filter along the last axis, cut to -1..1."""
    from scipy.signal import lfilter

    numerator, denominator = (np.array([float(value / a[0]) for value in row]) for row in (b, a))
    found = lfilter(numerator, denominator, waveform.double().cpu().numpy(), axis=-1)
    return torch.from_numpy(found).to(waveform).clamp(-1.0, 1.0)


# Filters of Bristow-Johnson's "Audio EQ cookbook"; frequencies are fractions of the sample rate. Coefficients are in
# single precision, as for the results that others have: at frequencies far below the rate it makes a difference.


def _angle_and_gain(frequency: float, gain: float) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(2 * math.pi * frequency), torch.tensor(10 ** (gain / 40))


def _peak(frequency: float, gain: float, q: float) -> Coefficients:
    w, a = _angle_and_gain(frequency, gain)
    cos, alpha = w.cos(), w.sin() / (2 * q)
    return [1 + alpha * a, -2 * cos, 1 - alpha * a], [1 + alpha / a, -2 * cos, 1 - alpha / a]


def _low_shelf(frequency: float, gain: float) -> Coefficients:
    w, a = _angle_and_gain(frequency, gain)
    less, more, root = (a - 1) * w.cos(), (a + 1) * w.cos(), a.sqrt() * w.sin() / _SHELF_Q
    b = [a * (a + 1 - less + root), 2 * a * (a - 1 - more), a * (a + 1 - less - root)]
    return b, [a + 1 + less + root, -2 * (a - 1 + more), a + 1 + less - root]


def _high_shelf(frequency: float, gain: float) -> Coefficients:
    w, a = _angle_and_gain(frequency, gain)
    less, more, root = (a - 1) * w.cos(), (a + 1) * w.cos(), a.sqrt() * w.sin() / _SHELF_Q
    b = [a * (a + 1 + less + root), -2 * a * (a - 1 + more), a * (a + 1 + less - root)]
    return b, [a + 1 - less + root, 2 * (a - 1 - more), a + 1 - less - root]


NODES = {"comfy_extras.nodes_audio": [AudioConcat, AudioMerge, AudioEqualizer3Band]}
