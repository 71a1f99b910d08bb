"""Nodes that cut by and draw bounding boxes: `{x, y, width, height}` in pixels, `label` and `score` if known.

A BOUNDING_BOX value is one box, a list of boxes, or a list of boxes for each image of a batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from comfy_api.latest import io

Box = dict[str, Any]
_LINE = 3  # pixels
_RED = (255, 0, 0)
# The 80 things of the COCO data set (Lin et al. 2014), which detectors name so.
_COCO = (
    "person bicycle car motorcycle airplane bus train truck boat traffic_light fire_hydrant stop_sign "
    "parking_meter bench bird cat dog horse sheep cow elephant bear zebra giraffe backpack umbrella handbag tie "
    "suitcase frisbee skis snowboard sports_ball kite baseball_bat baseball_glove skateboard surfboard "
    "tennis_racket bottle wine_glass cup fork knife spoon bowl banana apple sandwich orange broccoli carrot "
    "hot_dog pizza donut cake chair couch potted_plant bed dining_table toilet tv laptop mouse remote keyboard "
    "cell_phone microwave oven toaster sink refrigerator book clock vase scissors teddy_bear hair_drier "
    "toothbrush"
)
COCO_LABELS = tuple(name.replace("_", " ") for name in _COCO.split())


def boxes_by_image(bboxes: Box | list, count: int) -> list[list[Box]]:
    """The boxes of each of `count` images; those that are not given by image are in all of them."""
    if isinstance(bboxes, dict):
        return [[bboxes]] * count
    if not any(isinstance(entry, list) for entry in bboxes):
        return [list(bboxes)] * count
    frames = [entry if isinstance(entry, list) else [entry] for entry in bboxes]
    return [frames[i] if i < len(frames) else [] for i in range(count)]


def _bboxes_input() -> io.Input:
    return io.BoundingBox.Input("bboxes", tooltip="Boxes, for all images or for each one.", force_input=True)


class CropByBBoxes(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        size = {"default": 512, "min": 64, "max": 4096, "step": 8}
        return io.Schema(
            node_id="CropByBBoxes",
            display_name="Crop By Bounding Boxes",
            category="image/transform",
            description="Cuts out of each image the part that holds all its boxes, and scales it to one size.",
            inputs=[
                io.Image.Input("image", tooltip="Images to cut."),
                _bboxes_input(),
                io.Int.Input("output_width", tooltip="Width of the results in pixels.", **size),
                io.Int.Input("output_height", tooltip="Height of the results in pixels.", **size),
                io.Int.Input(
                    "padding", tooltip="Pixels to leave around the boxes.", default=0, min=0, max=1024, step=1
                ),
                io.Combo.Input(
                    "keep_aspect",
                    options=["stretch", "pad"],
                    tooltip="Change the proportions, or keep them and fill up with black.",
                    default="stretch",
                ),
            ],
            outputs=[io.Image.Output(tooltip="One image for each.")],
        )

    @classmethod
    def execute(
        cls,
        image: torch.Tensor,
        bboxes: Box | list,
        output_width: int,
        output_height: int,
        padding: int,
        keep_aspect: str,
    ) -> io.NodeOutput:
        found = []
        for frame, boxes in zip(image.split(1), boxes_by_image(bboxes, image.shape[0])):
            left, top, right, bottom = _region(boxes, padding, *image.shape[1:3])
            part = frame[:, top:bottom, left:right].movedim(-1, 1)
            found.append(_fitted(part, output_width, output_height, keep_aspect == "pad").movedim(1, -1))
        return io.NodeOutput(torch.cat(found))


def _region(boxes: list[Box], padding: int, height: int, width: int) -> tuple[int, int, int, int]:
    """Left, top, right, bottom of what holds all boxes; without one inside the image, a square in its upper middle."""
    if boxes:
        left = max(0, int(min(b["x"] for b in boxes)) - padding)
        top = max(0, int(min(b["y"] for b in boxes)) - padding)
        right = min(width, int(max(b["x"] + b["width"] for b in boxes)) + padding)
        bottom = min(height, int(max(b["y"] + b["height"] for b in boxes)) + padding)
        if left < right and top < bottom:
            return left, top, right, bottom
    side = max(1, min(height, width) // 4)
    left, top = (width - side) // 2, height // 10
    return left, top, left + side, top + side


def _fitted(part: torch.Tensor, width: int, height: int, keep_aspect: bool) -> torch.Tensor:
    """[1,C,h,w] in another size."""
    if not keep_aspect:
        return F.interpolate(part, (height, width), mode="area")
    scale = min(width / part.shape[3], height / part.shape[2])
    inner = max(1, int(part.shape[2] * scale)), max(1, int(part.shape[3] * scale))
    top, left = (height - inner[0]) // 2, (width - inner[1]) // 2
    canvas = part.new_zeros(1, part.shape[1], height, width)
    canvas[:, :, top : top + inner[0], left : left + inner[1]] = F.interpolate(part, inner, mode="area")
    return canvas


class DrawBBoxes(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="DrawBBoxes",
            display_name="Draw BBoxes",
            category="image/detection",
            description="Draws boxes and what is in them.",
            inputs=[
                _bboxes_input(),
                io.Image.Input("image", tooltip="What to draw on; without it, on black.", optional=True),
            ],
            outputs=[io.Image.Output("out_image")],
        )

    @classmethod
    def execute(cls, bboxes: Box | list, image: torch.Tensor | None = None) -> io.NodeOutput:
        if image is None:
            (boxes,) = boxes_by_image(bboxes, 1)
            width = int(max((b["x"] + b["width"] for b in boxes), default=1))
            height = int(max((b["y"] + b["height"] for b in boxes), default=1))
            image = torch.zeros(1, max(1, height), max(1, width), 3)
        frames = boxes_by_image(bboxes, image.shape[0])
        return io.NodeOutput(torch.stack([_drawn(one, boxes) for one, boxes in zip(image, frames)]))


def _drawn(image: torch.Tensor, boxes: list[Box]) -> torch.Tensor:
    from PIL import Image, ImageDraw

    pixels = (image[..., :3] * 255).clamp(0, 255).to(torch.uint8).cpu().numpy()
    picture = Image.fromarray(pixels)
    draw = ImageDraw.Draw(picture)
    for box in boxes:
        colour = _colour(box.get("label"))
        corners = [box["x"], box["y"], box["x"] + box["width"], box["y"] + box["height"]]
        draw.rectangle(corners, outline=colour, width=_LINE)
        if box.get("label") in COCO_LABELS:
            score = box.get("score")
            text = box["label"] if score is None else f"{box['label']} {score:.2f}"
            draw.text((box["x"] + _LINE + 1, box["y"] + _LINE), text, fill=colour)
    return torch.from_numpy(np.array(picture)).to(image.dtype) / 255


def _colour(label: str | None) -> tuple[int, int, int]:
    """Kinds of things that follow each other in the list have colours far apart."""
    if label not in COCO_LABELS:
        return _RED
    from PIL import ImageColor

    hue = COCO_LABELS.index(label) * 137.508 % 360  # degrees: the golden angle
    return ImageColor.getrgb(f"hsl({hue:.0f}, 90%, 55%)")


class ImageHistogram(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        names = ("rgb", "luminance", "red", "green", "blue")
        return io.Schema(
            node_id="ImageHistogram",
            display_name="Image Histogram",
            category="utilities",
            description="How often each of 256 values occurs in the first image.",
            inputs=[io.Image.Input("image", tooltip="Image to look at.")],
            outputs=[io.Histogram.Output(name) for name in names],
        )

    @classmethod
    def execute(cls, image: torch.Tensor) -> io.NodeOutput:
        first = image[0, ..., :3].float()
        first = first.expand(*first.shape[:-1], 3)
        luminance = first @ first.new_tensor([0.2126, 0.7152, 0.0722])
        channels = [_counts(channel) for channel in first.unbind(-1)]
        rgb = [sum(counts) // 3 for counts in zip(*channels)]
        return io.NodeOutput(rgb, _counts(luminance), *channels)


def _counts(values: torch.Tensor) -> list[int]:
    return torch.bincount((values * 255).clamp(0, 255).to(torch.uint8).flatten().long(), minlength=256).tolist()


NODES = {
    "comfy_extras.nodes_sdpose": [CropByBBoxes],
    "comfy_extras.nodes_rtdetr": [DrawBBoxes],
    "comfy_extras.nodes_curve": [ImageHistogram],
}
