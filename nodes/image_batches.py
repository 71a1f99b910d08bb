"""Nodes that work on batches of images and masks."""

from __future__ import annotations

import torch

import comfy.utils
from comfy_api.latest import io

from .constants import MAX_RESOLUTION
from .images import match_channels, on_one_device, scale_image


class RepeatImageBatch(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="RepeatImageBatch",
            display_name="Repeat Image Batch",
            category="image/batch",
            description="Repeats a batch of images several times.",
            inputs=[
                io.Image.Input("image", tooltip="The batch."),
                io.Int.Input("amount", tooltip="How often it shall occur in the result.", default=1, min=1, max=4096),
            ],
            outputs=[io.Image.Output()],
        )

    @classmethod
    def execute(cls, image: torch.Tensor, amount: int) -> io.NodeOutput:
        return io.NodeOutput(image.repeat(amount, 1, 1, 1))


class ImageFromBatch(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ImageFromBatch",
            display_name="Get Image from Batch",
            category="image/batch",
            description="Takes some images out of a batch.",
            inputs=[
                io.Image.Input("image", tooltip="The batch."),
                io.Int.Input(
                    "batch_index",
                    tooltip="First one to take; negative counts from the end.",
                    default=0,
                    min=-MAX_RESOLUTION,
                    max=MAX_RESOLUTION,
                ),
                io.Int.Input("length", tooltip="How many to take.", default=1, min=1, max=4096),
            ],
            outputs=[io.Image.Output()],
        )

    @classmethod
    def execute(cls, image: torch.Tensor, batch_index: int, length: int) -> io.NodeOutput:
        total = image.shape[0]
        first = batch_index + total if batch_index < 0 else batch_index
        first = min(max(first, 0), total - 1)
        return io.NodeOutput(image[first : first + length].clone())


class BatchImagesNode(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BatchImagesNode",
            display_name="Batch Images",
            category="image/batch",
            description="Puts several images into one batch. All are resized to the first.",
            essentials_category="Image Tools",
            inputs=[
                io.Autogrow.Input(
                    "images",
                    template=io.Autogrow.TemplatePrefix(
                        io.Image.Input("image", tooltip="Images to put in."), prefix="image", min=1, max=50
                    ),
                )
            ],
            outputs=[io.Image.Output()],
        )

    @classmethod
    def execute(cls, images: dict[str, torch.Tensor]) -> io.NodeOutput:
        members = on_one_device(images.values())
        channels = max(image.shape[-1] for image in members)
        members = [match_channels(i, channels) if i.shape[-1] == channels - 1 else i for i in members]
        height, width = members[0].shape[1:3]
        fitted = [
            image if image.shape[1:3] == (height, width) else scale_image(image, "bilinear", width, height, "center")
            for image in members
        ]
        return io.NodeOutput(torch.cat(fitted))


class BatchMasksNode(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BatchMasksNode",
            display_name="Batch Masks",
            category="image/mask",
            description="Puts several masks into one batch. All are resized to the first.",
            inputs=[
                io.Autogrow.Input(
                    "masks",
                    template=io.Autogrow.TemplatePrefix(
                        io.Mask.Input("mask", tooltip="Masks to put in."), prefix="mask", min=1, max=50
                    ),
                )
            ],
            outputs=[io.Mask.Output()],
        )

    @classmethod
    def execute(cls, masks: dict[str, torch.Tensor]) -> io.NodeOutput:
        members = [mask.reshape((-1, *mask.shape[-2:])) for mask in on_one_device(masks.values())]
        height, width = members[0].shape[1:]
        fitted = [
            mask
            if mask.shape[1:] == (height, width)
            else comfy.utils.common_upscale(mask[:, None], width, height, "bilinear", "center")[:, 0]
            for mask in members
        ]
        return io.NodeOutput(torch.cat(fitted))


class RebatchImages(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="RebatchImages",
            display_name="Rebatch Images",
            category="image/batch",
            description="Cuts batches of images into batches of another size.",
            is_input_list=True,
            inputs=[
                io.Image.Input("images", tooltip="Batches of images."),
                io.Int.Input("batch_size", tooltip="Images per new batch.", default=1, min=1, max=4096),
            ],
            outputs=[io.Image.Output(is_output_list=True)],
        )

    @classmethod
    def execute(cls, images: list[torch.Tensor], batch_size: list[int]) -> io.NodeOutput:
        return io.NodeOutput(list(torch.cat(images).split(batch_size[0])))


NODES = {
    "comfy_extras.nodes_images": [RepeatImageBatch, ImageFromBatch],
    "comfy_extras.nodes_post_processing": [BatchImagesNode, BatchMasksNode],
    "comfy_extras.nodes_rebatch": [RebatchImages],
}
