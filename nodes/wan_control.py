"""Nodes that control Wan's models by other videos: Fun Control, VACE."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

import comfy.utils
from comfy.latent_formats import Wan21, Wan22
from comfy_api.latest import io

from .empty_latents import video_frames
from .vae import check_vae
from .wan import (
    CELL,
    GREY,
    STEP,
    common_inputs,
    empty_video,
    encoded,
    fitted,
    frame_mask,
    outputs,
    set_on,
    with_grey,
    with_pictures,
    zeros_of,
)


def put(latent: torch.Tensor, part: torch.Tensor, channel: int) -> None:
    """Write the frames of `part` over those of `latent`, from a channel on."""
    frames = min(latent.shape[2], part.shape[2])
    latent[:, channel : channel + part.shape[1], :frames] = part[:, :, :frames]


class WanFunControlToVideo(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="WanFunControlToVideo",
            category="model/conditioning/wan/fun control",
            description="Makes a video of Wan 2.1 Fun Control follow another one, from a first picture on.",
            inputs=[
                *common_inputs(),
                io.ClipVisionOutput.Input("clip_vision_output", optional=True, tooltip="The first picture, encoded."),
                io.Image.Input("start_image", optional=True, tooltip="The first frames."),
                io.Image.Input("control_video", optional=True, tooltip="Frames of edges, depth, poses or the like."),
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
        clip_vision_output: Any = None,
        control_video: torch.Tensor | None = None,
    ) -> io.NodeOutput:
        latent = empty_video(batch_size, width, height, length)
        shape = latent["samples"].shape
        image = zeros_of(Wan21(), shape, 2)
        if start_image is not None:
            put(image, encoded(vae, start_image, width, height, length), shape[1])
        if control_video is not None:
            put(image, encoded(vae, control_video, width, height, length), 0)
        values = {"concat_latent_image": image, **with_pictures(clip_vision_output)}
        return io.NodeOutput(*set_on(values, positive, negative), latent)


class Wan22FunControlToVideo(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="Wan22FunControlToVideo",
            category="model/conditioning/wan/fun control",
            description="Makes a video of Wan 2.2 Fun Control follow another one, and look like a picture.",
            inputs=[
                *common_inputs(),
                io.Image.Input("ref_image", optional=True, tooltip="The picture."),
                io.Image.Input("control_video", optional=True, tooltip="Frames of edges, depth, poses or the like."),
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
        ref_image: torch.Tensor | None = None,
        control_video: torch.Tensor | None = None,
    ) -> io.NodeOutput:
        check_vae(vae)
        channels = vae.latent_channels
        latent = empty_video(batch_size, width, height, length, channels, vae.spacial_compression_encode())
        samples = latent["samples"]
        image = zeros_of(Wan22() if channels == Wan22.latent_channels else Wan21(), samples.shape, 2)
        if control_video is not None:
            put(image, encoded(vae, control_video, width, height, length), 0)
        # The mask lies between the control and the (here empty) first frames.
        values = {
            "concat_latent_image": image,
            "concat_mask": frame_mask(samples),
            "concat_mask_index": channels,
        }
        positive, negative = set_on(values, positive, negative)
        if ref_image is not None:
            seen = {"reference_latents": [encoded(vae, ref_image[:1], width, height, 1)]}
            positive, negative = set_on(seen, positive, negative, append=True)
        return io.NodeOutput(positive, negative, latent)


class WanVaceToVideo(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="WanVaceToVideo",
            category="model/conditioning/wan/vace",
            description=(
                "Shows VACE a video to follow or to change where a mask says so, and a picture to look like. The "
                "picture's frames come before the video's; Trim Video Latent cuts them off again."
            ),
            inputs=[
                *common_inputs(),
                io.Float.Input("strength", default=1.0, min=0.0, max=1000.0, step=0.01, tooltip="Weight of it all."),
                io.Image.Input("control_video", optional=True, tooltip="The video; grey where there is nothing."),
                io.Mask.Input("control_masks", optional=True, tooltip="Where it is to be made anew."),
                io.Image.Input("reference_image", optional=True, tooltip="The picture."),
            ],
            outputs=[*outputs(), io.Int.Output(display_name="trim_latent")],
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
        strength: float,
        control_video: torch.Tensor | None = None,
        control_masks: torch.Tensor | None = None,
        reference_image: torch.Tensor | None = None,
    ) -> io.NodeOutput:
        check_vae(vae)
        video = vace_video(control_video, width, height, length)
        mask = vace_mask(control_masks, width, height, length)
        # What stays and what is to be made anew, as two videos, each grey where the other one is.
        kept = (video - GREY) * (1 - mask) + GREY
        changed = (video - GREY) * mask + GREY
        frames = torch.cat([vae.encode(kept), vae.encode(changed)], dim=1)
        cells = mask_cells(mask)
        before = 0
        if reference_image is not None:
            picture = encoded(vae, reference_image[:1], width, height, 1)
            picture = torch.cat([picture, zeros_of(Wan21(), picture.shape).to(picture)], dim=1)
            before = picture.shape[2]
            frames = torch.cat([picture, frames], dim=2)
            cells = F.pad(cells, (0, 0, 0, 0, before, 0))
        values = {"vace_frames": [frames], "vace_mask": [cells], "vace_strength": [strength]}
        latent = empty_video(batch_size, width, height, length + before * STEP)
        return io.NodeOutput(*set_on(values, positive, negative, append=True), latent, before)


def vace_video(video: torch.Tensor | None, width: int, height: int, length: int) -> torch.Tensor:
    """The frames [length, height, width, 3], grey ones where there are none."""
    if video is None:
        return torch.full((length, height, width, 3), GREY)
    return with_grey(fitted(video, width, height, length), length)


def vace_mask(mask: torch.Tensor | None, width: int, height: int, length: int) -> torch.Tensor:
    """[length, height, width, 1]: 1 is to be made anew, and so is every frame the mask says nothing about."""
    if mask is None:
        return torch.ones(length, height, width, 1)
    mask = mask.reshape(-1, 1, *mask.shape[-2:])[:length]
    mask = comfy.utils.common_upscale(mask, width, height, "bilinear", "center").movedim(1, -1)
    return F.pad(mask, (0, 0, 0, 0, 0, 0, 0, length - mask.shape[0]), value=1.0)


def mask_cells(mask: torch.Tensor) -> torch.Tensor:
    """A mask [frames, height, width, 1] as the network sees it [1, 64, latent frames, rows, columns]: the pixels of a
    cell are channels; of the frames the nearest ones are taken."""
    length, height, width = mask.shape[:3]
    rows, columns = height // CELL, width // CELL
    pixels = mask.reshape(length, rows, CELL, columns, CELL).permute(2, 4, 0, 1, 3).flatten(0, 1)
    return F.interpolate(pixels.unsqueeze(0), size=(video_frames(length), rows, columns), mode="nearest-exact")


NODES = {"comfy_extras.nodes_wan": [WanFunControlToVideo, Wan22FunControlToVideo, WanVaceToVideo]}
