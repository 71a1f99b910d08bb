"""Nodes that take some of the frames of a video, with the sound that belongs to them.

Frames in memory stay what they are; nothing is encoded in between.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from comfy_api.latest import InputImpl, Types, io


class VideoSlice(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="Video Slice",
            display_name="Trim Video",
            category="video",
            description="Takes a part of a video by time.",
            inputs=[
                io.Video.Input("video", tooltip="Video to take a part of."),
                io.Float.Input(
                    "start_time",
                    tooltip="Seconds to leave out; below zero, counted from the end.",
                    default=0.0,
                    min=-1e5,
                    max=1e5,
                    step=0.001,
                ),
                io.Float.Input("duration", tooltip="Seconds to take; 0 for all.", default=0.0, min=0.0, step=0.001),
                io.Boolean.Input("strict_duration", tooltip="Fail if there is less than the duration.", default=False),
            ],
            outputs=[io.Video.Output()],
            essentials_category="Video Tools",
        )

    @classmethod
    def execute(cls, video: Any, start_time: float, duration: float, strict_duration: bool) -> io.NodeOutput:
        start = max(0.0, video.get_duration() + start_time) if start_time < 0 else start_time
        part = video.as_trimmed(start, duration, strict_duration)
        if part is None:
            wanted = f"{duration:g} seconds from {start:g} s on" if duration else f"a part from {start:g} s on"
            raise ValueError(f"the video lasts {video.get_duration():g} seconds: there is no such part as {wanted}")
        return io.NodeOutput(part)


class VideoTemporalCrop(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="VideoTemporalCrop",
            display_name="Crop Video (Temporal)",
            category="video/transform",
            description="Takes consecutive frames of a video.",
            inputs=[
                io.Video.Input("video", tooltip="Video to take frames of."),
                io.Int.Input("start_frame", tooltip="The first frame to take.", default=0, min=0, max=99999),
                io.Int.Input("length", tooltip="How many; fewer where the video ends.", default=16, min=1, max=99999),
            ],
            outputs=[io.Video.Output(display_name="video")],
            is_experimental=True,
        )

    @classmethod
    def execute(cls, video: Any, start_frame: int, length: int) -> io.NodeOutput:
        return io.NodeOutput(consecutive(video.get_components(), start_frame, length))


class VideoFrameSample(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="VideoFrameSample",
            display_name="Sample Video Frame",
            category="video",
            description="Takes some frames of a video: the first, the last, evenly spread ones, or any.",
            inputs=[
                io.Video.Input("video", tooltip="Video to take frames of."),
                io.Int.Input("num_frames", tooltip="How many, if there are so many.", default=16, min=1, max=9999),
                io.Combo.Input(
                    "strategy",
                    options=["uniform", "head", "tail", "random"],
                    tooltip="Which; frames stay in their order.",
                    default="uniform",
                ),
                io.Int.Input("seed", tooltip="Which random ones.", default=0, min=0, max=2**64 - 1),
            ],
            outputs=[io.Video.Output(display_name="video")],
            is_experimental=True,
        )

    @classmethod
    def execute(cls, video: Any, num_frames: int, strategy: str, seed: int) -> io.NodeOutput:
        parts = video.get_components()
        total = parts.images.shape[0]
        count = min(num_frames, total)
        if strategy == "head":
            return io.NodeOutput(consecutive(parts, 0, count))
        if strategy == "tail":
            return io.NodeOutput(consecutive(parts, total - count, count))
        if strategy == "random":
            chosen = sorted(random.Random(seed).sample(range(total), count))
        elif strategy == "uniform":
            chosen = [number * (total - 1) // max(count - 1, 1) for number in range(count)]
        else:
            raise ValueError(f"frames can be chosen by uniform, head, tail or random, not {strategy!r}")
        # Frames that are not neighbours have no sound that fits.
        return io.NodeOutput(InputImpl.VideoFromComponents(replace(parts, images=parts.images[chosen], audio=None)))


def consecutive(parts: Types.VideoComponents, first: int, count: int) -> Any:
    """A video of `count` frames from `first` on, both limited to what is there; with the sound of that time."""
    first = min(first, parts.images.shape[0] - 1)
    return InputImpl.VideoFromComponents(parts.frames_between(first, first + count))


NODES = {
    "comfy_extras.nodes_video": [VideoSlice],
    "comfy_extras.nodes_dataset": [VideoFrameSample, VideoTemporalCrop],
}
