"""`InputImpl`: videos in files, and videos in memory (spec node-api.md 3.6). Needs the package `av`."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

from comfy_api.latest._input import VideoInput
from comfy_api.latest._types import VideoCodec, VideoComponents, VideoContainer
from comfy_api.latest.video_encoding import encode

# How the values of a video are encoded, by the numbers of ITU-T H.273.
_TRANSFERS = {16: "HDR PQ", 18: "HDR"}
_INSTANT = 1e-6  # seconds; what is less apart is at the same time


class VideoFromFile(VideoInput):
    """A video file, or a stream of one.

    Args:
        start_time: seconds to skip. duration: seconds to take; 0 for all that is left.
    """

    def __init__(self, file: str | io.BytesIO, *, start_time: float = 0, duration: float = 0) -> None:
        self._file = file
        self._start_time = start_time
        self._duration = duration

    def get_stream_source(self) -> str | io.BytesIO:
        if self._start_time or self._duration:
            return super().get_stream_source()
        return self._source()

    def get_components(self) -> VideoComponents:
        import numpy as np
        import torch

        frames: list[Any] = []
        with self._open() as container:
            stream = self._video_stream(container)
            rate = Fraction(stream.average_rate or stream.guessed_rate or 1)
            end = self._start_time + self._duration if self._duration else None
            for frame in container.decode(stream):
                if frame.time is not None and frame.time + 1e-6 < self._start_time:
                    continue
                if end is not None and frame.time is not None and frame.time >= end - 1e-6:
                    break
                # As numbers, not bytes: half-size colour planes are then interpolated.
                frames.append(frame.to_ndarray(format="gbrpf32le"))
            metadata = dict(container.metadata)
            depth = 10 if "10" in (stream.codec_context.pix_fmt or "") else 8
            colours = _TRANSFERS.get(int(stream.codec_context.color_trc), "sRGB")
        if not frames:
            raise ValueError("the video has no frames in the part that was asked for")
        images = torch.from_numpy(np.stack(frames)).clamp_(0.0, 1.0)
        return VideoComponents(images, rate, self._audio(), _parsed(metadata), depth, colours)

    def whole_file(self) -> str | io.BytesIO | None:
        """The file or stream it is read from; None if only a part of it is taken."""
        return None if self._start_time or self._duration else self._source()

    def get_dimensions(self) -> tuple[int, int]:
        with self._open() as container:
            stream = self._video_stream(container)
            return stream.width, stream.height

    def get_frame_rate(self) -> Fraction:
        with self._open() as container:
            stream = self._video_stream(container)
            return Fraction(stream.average_rate or stream.guessed_rate or 1)

    def get_frame_count(self) -> int:
        if self._start_time or self._duration:
            return super().get_frame_count()
        with self._open() as container:
            stream = self._video_stream(container)
            return stream.frames or sum(1 for _ in container.decode(stream))

    def get_container_format(self) -> str:
        with self._open() as container:
            return container.format.name

    def save_to(
        self,
        path: str | io.BytesIO,
        format: VideoContainer = VideoContainer.AUTO,
        codec: VideoCodec = VideoCodec.AUTO,
        metadata: dict | None = None,
    ) -> None:
        VideoFromComponents(self.get_components()).save_to(path, format, codec, metadata)

    def as_trimmed(self, start_time: float = 0, duration: float = 0, strict_duration: bool = True) -> VideoInput | None:
        left = self.get_duration() - start_time
        if left <= 0 or (strict_duration and duration > left + _INSTANT):
            return None
        if self._duration:  # a part of a part ends where that one does
            duration = min(duration or left, left)
        return VideoFromFile(self._file, start_time=self._start_time + start_time, duration=duration)

    def _source(self) -> str | io.BytesIO:
        if not isinstance(self._file, str):
            self._file.seek(0)
        return self._file

    def _open(self) -> Any:
        import av

        return av.open(self._source(), "r")

    @staticmethod
    def _video_stream(container: Any) -> Any:
        if not container.streams.video:
            raise ValueError("the file has no video in it")
        return container.streams.video[0]

    def _audio(self) -> dict[str, Any] | None:
        """Waveform [1,C,T] of the first sound track, None if there is none."""
        import av
        import numpy as np
        import torch

        with self._open() as container:
            if not container.streams.audio:
                return None
            stream = container.streams.audio[0]
            resampler = av.AudioResampler(format="fltp")
            parts = [out.to_ndarray() for frame in container.decode(stream) for out in resampler.resample(frame)]
            rate = stream.rate
        if not parts:
            return None
        wave = np.concatenate(parts, axis=1)
        first = round(self._start_time * rate)
        last = first + round(self._duration * rate) if self._duration else wave.shape[1]
        return {"waveform": torch.from_numpy(wave[:, first:last].copy()).unsqueeze(0), "sample_rate": rate}


class VideoFromComponents(VideoInput):
    """A video made of frames and sound in memory."""

    def __init__(self, components: VideoComponents) -> None:
        self._components = components

    def get_components(self) -> VideoComponents:
        return self._components

    def as_trimmed(self, start_time: float = 0, duration: float = 0, strict_duration: bool = True) -> VideoInput | None:
        parts = self._components
        rate, count = float(parts.frame_rate), parts.images.shape[0]
        left = self.get_duration() - start_time
        if left <= 0 or (strict_duration and duration > left + _INSTANT):
            return None
        # A frame is in if it begins within the time.
        first = max(0, math.ceil((start_time - _INSTANT) * rate))
        end = min(count, math.ceil((start_time + duration - _INSTANT) * rate)) if duration else count
        return VideoFromComponents(parts.frames_between(first, end)) if first < end else None

    def save_to(
        self,
        path: str | io.BytesIO,
        format: VideoContainer = VideoContainer.AUTO,
        codec: VideoCodec = VideoCodec.AUTO,
        metadata: dict | None = None,
    ) -> None:
        if VideoContainer(format) not in (VideoContainer.AUTO, VideoContainer.MP4):
            raise ValueError(f"videos can be saved as mp4, not {format}")
        if VideoCodec(codec) not in (VideoCodec.AUTO, VideoCodec.H264):
            raise ValueError(f"videos can be encoded as h264, not {codec}")
        # What is there with one row or column too many is worth having without it.
        height, width = (side & ~1 for side in self._components.images.shape[1:3])
        images = self._components.images[:, :height, :width]
        encode(path, replace(self._components, images=images), metadata=metadata)


def _parsed(metadata: dict[str, str]) -> dict[str, Any] | None:
    """Metadata with JSON texts turned into what they stand for."""
    parsed: dict[str, Any] = {}
    for key, text in metadata.items():
        try:
            parsed[key] = json.loads(text)
        except ValueError:
            parsed[key] = text
    return parsed or None
