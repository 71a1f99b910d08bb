"""Nodes that make videos of Wan's models begin, end or be filled with given pictures."""

from __future__ import annotations

from typing import Any

import torch

import comfy.model_management
from comfy.clip_vision import Output as VisionOutput
from comfy.latent_formats import LatentFormat, Wan21, Wan22
from comfy_api.latest import io
from node_helpers import conditioning_set_values

from .constants import MAX_RESOLUTION
from .empty_latents import empty, video_frames
from .images import scale_image
from .vae import check_vae

CHANNELS, CELL = 16, 8  # of Wan 2.1's latent
STEP = 4  # pixel frames in a latent frame
GREY = 0.5


class MissingPictures(TypeError):
    """A node has nothing to show the model."""


def size_inputs(width: int = 832, height: int = 480, length: int = 81, step: int = 16) -> list[Any]:
    """Width, height, length and batch size of a video."""
    return [
        io.Int.Input("width", default=width, min=step, max=MAX_RESOLUTION, step=step, tooltip="Width in pixels."),
        io.Int.Input("height", default=height, min=step, max=MAX_RESOLUTION, step=step, tooltip="Height in pixels."),
        io.Int.Input("length", default=length, min=1, max=MAX_RESOLUTION, step=STEP, tooltip="Number of frames."),
        io.Int.Input("batch_size", default=1, min=1, max=4096, tooltip="How many videos to make at once."),
    ]


def common_inputs() -> list[Any]:
    """Conditioning, autoencoder and size."""
    return [
        io.Conditioning.Input("positive", tooltip="Conditioning to follow."),
        io.Conditioning.Input("negative", tooltip="Conditioning to avoid."),
        io.Vae.Input("vae", tooltip="Autoencoder of the model."),
        *size_inputs(),
    ]


def outputs() -> list[Any]:
    """Both conditionings and an empty latent."""
    return [
        io.Conditioning.Output(display_name="positive"),
        io.Conditioning.Output(display_name="negative"),
        io.Latent.Output(display_name="latent"),
    ]


def empty_video(batch_size: int, width: int, height: int, length: int, channels: int = CHANNELS, cell: int = CELL):
    """A LATENT of zeros."""
    return empty(batch_size, channels, video_frames(length), height // cell, width // cell)


def zeros_of(model_format: LatentFormat, shape: torch.Size, count: int = 1) -> torch.Tensor:
    """`count` latents side by side that are 0 to the model (its statistics are taken off again)."""
    zeros = torch.zeros(shape, device=comfy.model_management.intermediate_device())
    return model_format.process_out(zeros).repeat(1, count, 1, 1, 1)


def fitted(frames: torch.Tensor, width: int, height: int, length: int) -> torch.Tensor:
    """The first `length` pictures [frames, height, width, 3], filling the size."""
    return scale_image(frames[:length, ..., :3], "bilinear", width, height, "center")


def encoded(vae: Any, frames: torch.Tensor, width: int, height: int, length: int) -> torch.Tensor:
    """The latent of the first `length` pictures."""
    check_vae(vae)
    return vae.encode(fitted(frames, width, height, length))


def with_grey(frames: torch.Tensor, length: int) -> torch.Tensor:
    """Pictures made as many as `length` by grey ones behind them."""
    return torch.cat([frames, frames.new_full((length - frames.shape[0], *frames.shape[1:]), GREY)])


def frame_mask(latent: torch.Tensor, first: int = 0, last: int = 0) -> torch.Tensor:
    """Which pixel frames are to be made [1, 4, latent frames, rows, columns]: all but the `first` and `last` ones. The
    first picture is all four of its latent frame."""
    frames, rows, columns = latent.shape[2:]
    mask = latent.new_ones(1, 1, frames * STEP, rows, columns, device="cpu")
    if first:
        mask[:, :, : first + STEP - 1] = 0.0
    if last:
        mask[:, :, -last:] = 0.0
    return mask.to(latent.device).reshape(1, frames, STEP, rows, columns).transpose(1, 2)


def set_on(values: dict[str, Any], *conditionings: list, append: bool = False) -> list[list]:
    """The conditionings with the values set."""
    return [conditioning_set_values(c, values, append=append) for c in conditionings]


def with_pictures(seen: Any) -> dict[str, Any]:
    """What an image encoder says, as a conditioning has it."""
    return {} if seen is None else {"clip_vision_output": seen}


class WanImageToVideo(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="WanImageToVideo",
            category="model/conditioning/wan",
            description="Makes a video begin with a picture, or with several frames.",
            inputs=[
                *common_inputs(),
                io.ClipVisionOutput.Input("clip_vision_output", optional=True, tooltip="The first picture, encoded."),
                io.Image.Input("start_image", optional=True, tooltip="The first frames."),
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
        clip_vision_output: Any = None,
        start_image: torch.Tensor | None = None,
    ) -> io.NodeOutput:
        latent = empty_video(batch_size, width, height, length)
        values = with_pictures(clip_vision_output)
        if start_image is not None:
            check_vae(vae)
            start = fitted(start_image, width, height, length)
            image = vae.encode(with_grey(start, length))
            mask = image.new_ones(1, 1, *latent["samples"].shape[2:])
            mask[:, :, : video_frames(start.shape[0])] = 0.0
            values |= {"concat_latent_image": image, "concat_mask": mask}
        return io.NodeOutput(*set_on(values, positive, negative), latent)


def between(
    vae: Any,
    samples: torch.Tensor,
    size: tuple[int, int, int],
    start_image: torch.Tensor | None,
    end_image: torch.Tensor | None,
) -> dict[str, torch.Tensor]:
    """Latent and mask of a video of which the first and the last frames are given. samples: the empty latent; size:
    width, height, length."""
    check_vae(vae)
    width, height, length = size
    start = end = torch.zeros(0, height, width, 3)
    if start_image is not None:
        start = fitted(start_image, *size)
    if end_image is not None:
        end = fitted(end_image[-length:], *size)
    frames = with_grey(start, length)
    if len(end):
        frames = torch.cat([frames[: length - len(end)], end.to(frames)])
    return {
        "concat_latent_image": vae.encode(frames),
        "concat_mask": frame_mask(samples, start.shape[0], end.shape[0]),
    }


class WanFirstLastFrameToVideo(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="WanFirstLastFrameToVideo",
            category="model/conditioning/wan",
            description="Makes a video begin and end with given pictures.",
            inputs=[
                *common_inputs(),
                io.ClipVisionOutput.Input(
                    "clip_vision_start_image", optional=True, tooltip="The first picture, encoded."
                ),
                io.ClipVisionOutput.Input("clip_vision_end_image", optional=True, tooltip="The last picture, encoded."),
                io.Image.Input("start_image", optional=True, tooltip="The first frames."),
                io.Image.Input("end_image", optional=True, tooltip="The last frames."),
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
        end_image: torch.Tensor | None = None,
        clip_vision_start_image: Any = None,
        clip_vision_end_image: Any = None,
    ) -> io.NodeOutput:
        latent = empty_video(batch_size, width, height, length)
        values = between(vae, latent["samples"], (width, height, length), start_image, end_image)
        seen = [v for v in (clip_vision_start_image, clip_vision_end_image) if v is not None]
        if len(seen) == 2:
            both = VisionOutput()
            # The model looks at the tokens of one picture, then at those of the other.
            both.penultimate_hidden_states = torch.cat([v.penultimate_hidden_states for v in seen], dim=-2)
            seen = [both]
        values |= with_pictures(seen[0] if seen else None)
        return io.NodeOutput(*set_on(values, positive, negative), latent)


class WanFunInpaintToVideo(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="WanFunInpaintToVideo",
            category="model/conditioning/wan/fun inpaint",
            description="Makes a video of Wan Fun InP begin and end with given pictures.",
            inputs=[
                *common_inputs(),
                io.ClipVisionOutput.Input("clip_vision_output", optional=True, tooltip="A picture, encoded."),
                io.Image.Input("start_image", optional=True, tooltip="The first frames."),
                io.Image.Input("end_image", optional=True, tooltip="The last frames."),
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
        end_image: torch.Tensor | None = None,
        clip_vision_output: Any = None,
    ) -> io.NodeOutput:
        latent = empty_video(batch_size, width, height, length)
        values = between(vae, latent["samples"], (width, height, length), start_image, end_image)
        values |= with_pictures(clip_vision_output)
        return io.NodeOutput(*set_on(values, positive, negative), latent)


class Wan22ImageToVideoLatent(io.ComfyNode):
    CHANNELS, CELL = 48, 16

    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="Wan22ImageToVideoLatent",
            category="model/conditioning/wan",
            description="An empty latent for Wan 2.2 5B; with a picture the video begins with it.",
            inputs=[
                io.Vae.Input("vae", tooltip="Autoencoder of the model."),
                *size_inputs(1280, 704, 49, step=32),
                io.Image.Input("start_image", optional=True, tooltip="The first frames."),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(
        cls,
        vae: Any,
        width: int,
        height: int,
        length: int,
        batch_size: int,
        start_image: torch.Tensor | None = None,
    ) -> io.NodeOutput:
        latent = empty_video(1, width, height, length, cls.CHANNELS, cls.CELL)["samples"]
        repeats = (batch_size, 1, 1, 1, 1)
        if start_image is None:
            return io.NodeOutput({"samples": latent.repeat(repeats)})
        start = encoded(vae, start_image, width, height, length)
        mask = latent.new_ones(1, 1, *latent.shape[2:])
        mask[:, :, : start.shape[2]] = 0.0
        latent = Wan22().process_out(latent)
        latent[:, :, : start.shape[2]] = start
        return io.NodeOutput({"samples": latent.repeat(repeats), "noise_mask": mask.repeat(repeats)})


class WanPhantomSubjectToVideo(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="WanPhantomSubjectToVideo",
            category="model/conditioning/wan/phantom subject",
            description=(
                "Shows Phantom the subjects of a video. For guidance with two weights there is a negative with the "
                "subjects and one without."
            ),
            inputs=[
                *common_inputs(),
                io.Image.Input("images", optional=True, tooltip="One picture of each subject."),
            ],
            outputs=[
                io.Conditioning.Output(display_name="positive"),
                io.Conditioning.Output(display_name="negative_text"),
                io.Conditioning.Output(display_name="negative_img_text"),
                io.Latent.Output(display_name="latent"),
            ],
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
        images: torch.Tensor | None = None,
    ) -> io.NodeOutput:
        if images is None:
            raise MissingPictures(
                "WanPhantomSubjectToVideo needs pictures of the subjects, and `images` is not connected"
            )
        latent = empty_video(batch_size, width, height, length)
        check_vae(vae)
        pictures = fitted(images, width, height, length)
        subjects = torch.cat([vae.encode(picture.unsqueeze(0)) for picture in pictures], dim=2)
        positive, without_text = set_on({"time_dim_concat": subjects}, positive, negative)
        (without_both,) = set_on({"time_dim_concat": zeros_of(Wan21(), subjects.shape)}, negative)
        return io.NodeOutput(positive, without_text, without_both, latent)


NODES = {
    "comfy_extras.nodes_wan": [
        WanImageToVideo,
        WanFirstLastFrameToVideo,
        WanFunInpaintToVideo,
        Wan22ImageToVideoLatent,
        WanPhantomSubjectToVideo,
    ]
}
