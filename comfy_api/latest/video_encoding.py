"""Writing videos with PyAV: frames and sound into a file of a chosen kind."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

# What files are called -> the format as FFmpeg knows it, the codec taken by itself, and that of the sound.
CONTAINERS = {
    "mp4": ("mp4", "h264", "aac"),
    "mkv": ("matroska", "h264", "aac"),
    "webm": ("webm", "av1", "libopus"),
}
# And the usual quality, smaller is better.
_ENCODERS = {"h264": ("libx264", 23.0), "av1": ("libsvtav1", 30.0), "vp9": ("libvpx-vp9", 32.0)}
_OPUS_RATE = 48000
# Numbers of ITU-T H.273: primaries, transfer, matrix. sRGB pictures in the primaries of HD video; HLG and PQ in UHD's.
_COLOURS = {"sRGB": (1, 13, 1), "HDR": (9, 18, 9), "HDR PQ": (9, 16, 9)}
_LIMITED_RANGE = 1


def encode(
    path: str | io.BytesIO,
    components: Any,
    container: str = "mp4",
    codec: str = "auto",
    crf: float | None = None,
    color_space: str = "sRGB",
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write a video.

    components: `VideoComponents`. With a `bit_depth` of 10 frames keep more than 8 bits.
    crf: quality, smaller is better; None: the usual one of the codec.
    color_space: how the values of the frames are to be understood: `sRGB`, `HDR` (HLG) or `HDR PQ`.
    metadata: values are written as JSON.

    Raises ValueError for unknown names, and for h264 if a side is odd.
    """
    import av

    if container not in CONTAINERS:
        raise ValueError(f"videos can be saved as {', '.join(CONTAINERS)}, not {container!r}")
    format_name, own_codec, sound_codec = CONTAINERS[container]
    codec = own_codec if codec == "auto" else codec
    if codec not in _ENCODERS:
        raise ValueError(f"videos can be encoded as {', '.join(_ENCODERS)}, not {codec!r}")
    height, width = components.images.shape[1:3]
    if height % 2 or width % 2:
        raise ValueError(f"a video of {width} x {height} pixels: both sides have to be even")
    rate = Fraction(components.frame_rate).limit_denominator(100_000)
    options = {"movflags": "use_metadata_tags"} if container == "mp4" else {}
    with av.open(path, "w", format=format_name, options=options) as output:
        for key, value in (metadata or {}).items():
            output.metadata[key] = json.dumps(value)
        encoder, usual = _ENCODERS[codec]
        stream = output.add_stream(encoder, rate=rate)
        stream.width, stream.height = width, height
        ten_bit = getattr(components, "bit_depth", 8) > 8 or color_space != "sRGB"
        stream.pix_fmt = "yuv420p10le" if ten_bit else "yuv420p"
        stream.options = {"crf": f"{usual if crf is None else crf:g}"}
        if codec == "vp9":
            stream.bit_rate = 0  # else the quality is a limit only
        context = stream.codec_context
        context.color_primaries, context.color_trc, context.colorspace = _COLOURS[color_space]
        context.color_range = _LIMITED_RANGE
        audio, sound = _sound_stream(output, components, rate, sound_codec)
        for frame in _frames(components.images, stream.pix_fmt, color_space):
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
        if audio is not None:
            output.mux(audio.encode(sound))
            output.mux(audio.encode(None))


def _frames(images: Any, pixel_format: str, color_space: str) -> Iterator[Any]:
    """Frames [B,H,W,C] in 0..1, in the pixel format and the colours of the video."""
    import av
    import numpy as np
    from av.video.reformatter import ColorRange, Colorspace

    deep = pixel_format.endswith("10le")
    matrix = Colorspace.ITU709 if color_space == "sRGB" else Colorspace(_COLOURS[color_space][2])
    for image in images[..., :3]:
        values = image.detach().cpu().float().clamp(0, 1).numpy()
        pixels = (values * 65535).round().astype(np.uint16) if deep else (values * 255).astype(np.uint8)
        frame = av.VideoFrame.from_ndarray(pixels, format="rgb48le" if deep else "rgb24")
        yield frame.reformat(
            format=pixel_format,
            src_color_range=ColorRange.JPEG,
            dst_color_range=ColorRange.MPEG,
            dst_colorspace=matrix,
        )


def _sound_stream(output: Any, components: Any, rate: Fraction, codec: str) -> tuple[Any, Any]:
    """A sound track of the file, and what to encode into it: no longer than the frames last."""
    import av

    if components.audio is None:
        return None, None
    sample_rate = int(components.audio["sample_rate"])
    samples = round(components.images.shape[0] / rate * sample_rate)
    wave = components.audio["waveform"][0][:2, :samples].detach().cpu().float()
    layout = "mono" if wave.shape[0] == 1 else "stereo"
    stream = output.add_stream(codec, rate=_OPUS_RATE if codec == "libopus" else sample_rate, layout=layout)
    frame = av.AudioFrame.from_ndarray(wave.movedim(0, 1).reshape(1, -1).contiguous().numpy(), "flt", layout)
    frame.sample_rate = sample_rate
    frame.pts = 0
    return stream, frame


def remux(source: str | io.BytesIO, path: str, container: str, metadata: Mapping[str, Any] | None = None) -> None:
    """The streams of a video file as they are, in a file of ours with metadata of ours."""
    import av

    options = {"movflags": "use_metadata_tags"} if container == "mp4" else {}
    with av.open(source) as old, av.open(path, "w", format=CONTAINERS[container][0], options=options) as new:
        for key, value in (metadata or {}).items():
            new.metadata[key] = json.dumps(value)
        streams = {s: new.add_stream_from_template(s) for s in old.streams if s.type in ("video", "audio")}
        for packet in old.demux(list(streams)):
            if packet.dts is not None:
                packet.stream = streams[packet.stream]
                new.mux(packet)
