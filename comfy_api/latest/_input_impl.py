"""`InputImpl`: videos in files, and videos in memory (spec node-api.md 3.6). Needs the package `av`."""

from __future__ import annotations

import io
import json
from fractions import Fraction
from typing import Any

from comfy_api.latest._input import VideoInput
from comfy_api.latest._types import VideoCodec, VideoComponents, VideoContainer


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
                frames.append(frame.to_ndarray(format="rgb24"))
            metadata = dict(container.metadata)
        if not frames:
            raise ValueError("the video has no frames in the part that was asked for")
        images = torch.from_numpy(np.stack(frames)).float() / 255.0
        return VideoComponents(images, rate, self._audio(), _parsed(metadata))

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
        """A part of the video; None if it is shorter than asked for and `strict_duration` is set."""
        left = self.get_duration() - start_time
        if left <= 0 or (strict_duration and duration > left):
            return None
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
        import av

        images, rate = self._components.images, Fraction(round(float(self._components.frame_rate) * 1000), 1000)
        options = {"movflags": "use_metadata_tags"}
        with av.open(path, "w", format="mp4", options=options) as container:
            for key, value in (metadata or {}).items():
                container.metadata[key] = json.dumps(value)
            video = container.add_stream("h264", rate=rate)
            video.width, video.height = images.shape[2] & ~1, images.shape[1] & ~1  # yuv420p halves both
            video.pix_fmt = "yuv420p"
            audio, samples = self._audio_stream(container, rate)
            for image in images[:, : video.height, : video.width, :3]:
                pixels = (image.detach().cpu().float() * 255).clamp(0, 255).byte().numpy()
                for packet in video.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                    container.mux(packet)
            for packet in video.encode(None):
                container.mux(packet)
            if audio is not None:
                for packet in (*audio.encode(samples), *audio.encode(None)):
                    container.mux(packet)

    def _audio_stream(self, container: Any, rate: Fraction) -> tuple[Any, Any]:
        """A sound track for the container, and what to encode into it: no longer than the frames last."""
        import av

        sound = self._components.audio
        if sound is None:
            return None, None
        sample_rate = int(sound["sample_rate"])
        seconds = self._components.images.shape[0] / rate
        wave = sound["waveform"][0][:2, : round(seconds * sample_rate)].detach().cpu().float()
        layout = "mono" if wave.shape[0] == 1 else "stereo"
        stream = container.add_stream("aac", rate=sample_rate, layout=layout)
        flat = wave.movedim(0, 1).reshape(1, -1).contiguous().numpy()
        frame = av.AudioFrame.from_ndarray(flat, format="flt", layout=layout)
        frame.sample_rate = sample_rate
        frame.pts = 0
        return stream, frame


def _parsed(metadata: dict[str, str]) -> dict[str, Any] | None:
    """Metadata with JSON texts turned into what they stand for."""
    parsed: dict[str, Any] = {}
    for key, text in metadata.items():
        try:
            parsed[key] = json.loads(text)
        except ValueError:
            parsed[key] = text
    return parsed or None
