"""Nodes that move the camera of Wan Fun Camera.

Sources: He et al. 2024, "CameraCtrl" (rays of the pixels in Plücker coordinates, and poses relative to the first one);
VideoX-Fun (Apache-2.0; four frames of rays in a latent frame).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

import comfy.model_management
from comfy.latent_formats import Wan21
from comfy_api.latest import io

from .constants import MAX_RESOLUTION
from .wan import (
    STEP,
    common_inputs,
    empty_video,
    encoded,
    frame_mask,
    outputs,
    set_on,
    with_pictures,
    zeros_of,
)
from .wan_control import put

# Names of the interface: where the camera goes in the whole video (x right, y down, z ahead), and how far it turns.
POSES: dict[str, tuple[tuple[float, float, float], float]] = {
    "Static": ((0.0, 0.0, 0.0), 0.0),
    "Pan Up": ((0.0, -1.0, 0.0), 0.0),
    "Pan Down": ((0.0, 1.0, 0.0), 0.0),
    "Pan Left": ((-1.0, 0.0, 0.0), 0.0),
    "Pan Right": ((1.0, 0.0, 0.0), 0.0),
    "Zoom In": ((0.0, 0.0, 2.0), 0.0),
    "Zoom Out": ((0.0, 0.0, -2.0), 0.0),
    "Anti Clockwise (ACW)": ((0.0, 0.0, 0.0), -1.0),
    "ClockWise (CW)": ((0.0, 0.0, 0.0), 1.0),
}
WAY, TURN = 1.5, math.pi / 3
# Focal lengths are of a picture of this shape.
ASPECT = 1280 / 720


class NoFocalLength(ValueError):
    """A camera whose pixels all see the same."""


def camera_path(pose: str, speed: float, length: int) -> torch.Tensor:
    """Camera to world, relative to the first frame [length, 4, 4]."""
    way, turn = POSES[pose]
    share = torch.arange(length, dtype=torch.float64, device="cpu") / length * speed
    angle = share * TURN * turn
    path = torch.eye(4, dtype=torch.float64, device="cpu").repeat(length, 1, 1)
    path[:, 0, 0] = path[:, 1, 1] = angle.cos()
    path[:, 0, 1], path[:, 1, 0] = -angle.sin(), angle.sin()
    path[:, :3, 3] = share[:, None] * WAY * torch.tensor(way, dtype=torch.float64, device="cpu")
    return path


def rays(path: torch.Tensor, width: int, height: int, focal: tuple[float, float], centre: tuple[float, float]):
    """The rays through the pixels [frames, 6, height, width]: moment, then direction. focal, centre: in shares of
    width and height. Raises NoFocalLength."""
    fx, fy = focal
    if not fx > 0 or not fy > 0:
        raise NoFocalLength(f"a camera needs focal lengths above 0, and fx is {fx}, fy is {fy}")
    if width / height < ASPECT:
        fx = fx * height * ASPECT / width
    else:
        fy = fy * width / ASPECT / height
    columns = torch.arange(width, dtype=torch.float64, device="cpu") + 0.5
    rows = torch.arange(height, dtype=torch.float64, device="cpu") + 0.5
    x = (columns - centre[0] * width) / (fx * width)
    y = (rows - centre[1] * height) / (fy * height)
    y, x = torch.meshgrid(y, x, indexing="ij")
    direction = F.normalize(torch.stack([x, y, torch.ones_like(x)], dim=-1), dim=-1)
    direction = torch.einsum("hwi,fji->fhwj", direction, path[:, :3, :3])
    origin = path[:, None, None, :3, 3].expand_as(direction)
    return torch.cat([torch.linalg.cross(origin, direction), direction], dim=-1).movedim(-1, 1).float()


def by_latent_frame(frames: torch.Tensor) -> torch.Tensor:
    """[frames, channels, height, width] -> [1, 4 * channels, latent frames, height, width]; the first frame is all four
    of its latent frame."""
    frames = torch.cat([frames[:1].expand(STEP - 1, -1, -1, -1), frames])
    frames = frames[: len(frames) // STEP * STEP].unflatten(0, (-1, STEP))
    return frames.transpose(1, 2).flatten(1, 2).transpose(0, 1).unsqueeze(0)


class WanCameraEmbedding(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        advanced = {"optional": True, "advanced": True}
        return io.Schema(
            node_id="WanCameraEmbedding",
            category="model/conditioning/wan/camera",
            description="A path of the camera, for Wan Fun Camera.",
            inputs=[
                io.Combo.Input("camera_pose", options=list(POSES), default="Static", tooltip="Where it goes."),
                io.Int.Input("width", default=832, min=16, max=MAX_RESOLUTION, step=16, tooltip="Width in pixels."),
                io.Int.Input("height", default=480, min=16, max=MAX_RESOLUTION, step=16, tooltip="Height in pixels."),
                io.Int.Input("length", default=81, min=1, max=MAX_RESOLUTION, step=4, tooltip="Number of frames."),
                io.Float.Input("speed", default=1.0, min=0, max=10.0, step=0.1, optional=True, tooltip="How far."),
                io.Float.Input(
                    "fx", default=0.5, min=0, max=1, step=0.000000001, tooltip="Focal length by the width.", **advanced
                ),
                io.Float.Input(
                    "fy", default=0.5, min=0, max=1, step=0.000000001, tooltip="Focal length by the height.", **advanced
                ),
                io.Float.Input(
                    "cx", default=0.5, min=0, max=1, step=0.01, tooltip="Middle, from the left.", **advanced
                ),
                io.Float.Input("cy", default=0.5, min=0, max=1, step=0.01, tooltip="Middle from the top.", **advanced),
            ],
            outputs=[
                io.WanCameraEmbedding.Output(display_name="camera_embedding"),
                io.Int.Output(display_name="width"),
                io.Int.Output(display_name="height"),
                io.Int.Output(display_name="length"),
            ],
        )

    @classmethod
    def execute(
        cls,
        camera_pose: str,
        width: int,
        height: int,
        length: int,
        speed: float = 1.0,
        fx: float = 0.5,
        fy: float = 0.5,
        cx: float = 0.5,
        cy: float = 0.5,
    ) -> io.NodeOutput:
        seen = rays(camera_path(camera_pose, speed, length), width, height, (fx, fy), (cx, cy))
        embedding = by_latent_frame(seen).to(comfy.model_management.intermediate_device())
        return io.NodeOutput(embedding, width, height, length)


class WanCameraImageToVideo(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="WanCameraImageToVideo",
            category="model/conditioning/wan/camera",
            description="Makes a video of Wan Fun Camera begin with a picture, along a path of the camera.",
            inputs=[
                *common_inputs(),
                io.ClipVisionOutput.Input("clip_vision_output", optional=True, tooltip="The first picture, encoded."),
                io.Image.Input("start_image", optional=True, tooltip="The first frames."),
                io.WanCameraEmbedding.Input("camera_conditions", optional=True, tooltip="The path."),
            ],
            outputs=outputs(),
        )

    @classmethod
    def execute(
        cls,
        positive: list,
        negative: list,
        vae: Any,
        width: int,
        height: int,
        length: int,
        batch_size: int,
        start_image: torch.Tensor | None = None,
        camera_conditions: torch.Tensor | None = None,
        clip_vision_output: Any = None,
    ) -> io.NodeOutput:
        latent = empty_video(batch_size, width, height, length)
        image = zeros_of(Wan21(), latent["samples"].shape)
        values = with_pictures(clip_vision_output)
        if start_image is not None:
            put(image, encoded(vae, start_image, width, height, length), 0)
            given = min(start_image.shape[0], length)
            values |= {"concat_latent_image": image, "concat_mask": frame_mask(latent["samples"], given)}
        if camera_conditions is not None:
            values["camera_conditions"] = camera_conditions
        return io.NodeOutput(*set_on(values, positive, negative), latent)


NODES = {
    "comfy_extras.nodes_camera_trajectory": [WanCameraEmbedding],
    "comfy_extras.nodes_wan": [WanCameraImageToVideo],
}
