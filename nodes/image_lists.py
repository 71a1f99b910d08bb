"""Nodes that prepare the images of a training set, one at a time or as a list."""

from __future__ import annotations

import numpy as np
import torch

from comfy.resize import lanczos
from comfy_api.latest import io

from .constants import MAX_SEED

# Seeds are 64 bits wide, the generator takes fewer.
_GENERATOR_SEEDS = 2**32 - 1
_HASH_SIDE = 8  # pixels: a picture's fingerprint tells which of 8 x 8 fields are brighter than the mean


def _schema(
    node_id: str,
    display_name: str,
    category: str,
    description: str,
    *more: io.Input,
    takes_list: bool = False,
    gives_list: bool = False,
    deprecated: bool = False,
) -> io.Schema:
    return io.Schema(
        node_id=node_id,
        display_name=display_name,
        category=f"image/{category}",
        description=description,
        inputs=[io.Image.Input("images", tooltip="Images to work on."), *more],
        outputs=[io.Image.Output(display_name="images", is_output_list=gives_list)],
        is_input_list=takes_list,
        is_experimental=True,
        is_deprecated=deprecated,
    )


def _seed_input() -> io.Input:
    return io.Int.Input("seed", tooltip="Another seed makes another choice.", default=0, min=0, max=MAX_SEED)


def _random(seed: int) -> np.random.RandomState:
    return np.random.RandomState(seed % _GENERATOR_SEEDS)


def _as_bytes(images: torch.Tensor) -> torch.Tensor:
    """Values k/255, cut off and not rounded, as a picture file has them."""
    return (images * 255).clamp(0, 255).to(torch.uint8).to(images.dtype) / 255


def _resized(images: torch.Tensor, width: int, height: int) -> torch.Tensor:
    return lanczos(images.movedim(-1, 1), width, height).movedim(1, -1)


class ResizeImagesByShorterEdge(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return _schema(
            "ResizeImagesByShorterEdge",
            "Resize Images by Shorter Edge (DEPRECATED)",
            "transform",
            "Scales images so that the shorter side has a given length.",
            io.Int.Input("shorter_edge", tooltip="Length in pixels.", default=512, min=1, max=8192),
            deprecated=True,
        )

    @classmethod
    def execute(cls, images: torch.Tensor, shorter_edge: int) -> io.NodeOutput:
        height, width = images.shape[1:3]
        if width < height:
            size = shorter_edge, max(1, int(height * (shorter_edge / width)))
        else:
            size = max(1, int(width * (shorter_edge / height))), shorter_edge
        return io.NodeOutput(_resized(images, *size))


class ResizeImagesByLongerEdge(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return _schema(
            "ResizeImagesByLongerEdge",
            "Resize Images by Longer Edge (DEPRECATED)",
            "transform",
            "Scales images so that the longer side has a given length.",
            io.Int.Input("longer_edge", tooltip="Length in pixels.", default=1024, min=1, max=8192),
            deprecated=True,
        )

    @classmethod
    def execute(cls, images: torch.Tensor, longer_edge: int) -> io.NodeOutput:
        height, width = images.shape[1:3]
        if width > height:
            size = longer_edge, max(1, int(height * (longer_edge / width)))
        else:
            size = max(1, int(width * (longer_edge / height))), longer_edge
        return io.NodeOutput(_resized(images, *size))


def _crop_inputs() -> list[io.Input]:
    return [
        io.Int.Input("width", tooltip="Width in pixels; less if the image is narrower.", default=512, min=1, max=8192),
        io.Int.Input("height", tooltip="Height in pixels; less if the image is lower.", default=512, min=1, max=8192),
    ]


class CenterCropImages(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        about = "Cuts the middle out of images."
        return _schema("CenterCropImages", "Crop Image (Center)", "transform", about, *_crop_inputs())

    @classmethod
    def execute(cls, images: torch.Tensor, width: int, height: int) -> io.NodeOutput:
        x, y = max(0, images.shape[2] - width) // 2, max(0, images.shape[1] - height) // 2
        return io.NodeOutput(_as_bytes(images[:, y : y + height, x : x + width]))


class RandomCropImages(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        about = "Cuts a piece out of images, anywhere."
        return _schema("RandomCropImages", "Crop Image (Random)", "transform", about, *_crop_inputs(), _seed_input())

    @classmethod
    def execute(cls, images: torch.Tensor, width: int, height: int, seed: int) -> io.NodeOutput:
        random = _random(seed)
        x = random.randint(0, max(0, images.shape[2] - width) + 1)
        y = random.randint(0, max(0, images.shape[1] - height) + 1)
        return io.NodeOutput(_as_bytes(images[:, y : y + height, x : x + width]))


class NormalizeImages(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return _schema(
            "NormalizeImages",
            "Normalize Image Colors",
            "color",
            "Shifts and scales the values of images: (value - mean) / std.",
            io.Float.Input("mean", tooltip="What becomes 0.", advanced=True, default=0.5, min=0.0, max=1.0),
            io.Float.Input("std", tooltip="What becomes a step of 1.", advanced=True, default=0.5, min=0.001, max=1.0),
        )

    @classmethod
    def execute(cls, images: torch.Tensor, mean: float, std: float) -> io.NodeOutput:
        return io.NodeOutput((images - mean) / std)


class AdjustBrightness(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        factor = io.Float.Input("factor", tooltip="1 leaves it, 0 is black.", default=1.0, min=0.0, max=2.0)
        about = "Makes images brighter or darker."
        return _schema("AdjustBrightness", "Adjust Brightness", "adjustments", about, factor)

    @classmethod
    def execute(cls, images: torch.Tensor, factor: float) -> io.NodeOutput:
        return io.NodeOutput((images * factor).clamp(0.0, 1.0))


class AdjustContrast(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        factor = io.Float.Input("factor", tooltip="1 leaves it, 0 is grey.", default=1.0, min=0.0, max=2.0)
        about = "Makes differences to a middle grey larger or smaller."
        return _schema("AdjustContrast", "Adjust Contrast", "adjustments", about, factor)

    @classmethod
    def execute(cls, images: torch.Tensor, factor: float) -> io.NodeOutput:
        return io.NodeOutput(((images - 0.5) * factor + 0.5).clamp(0.0, 1.0))


def _single(images: list[torch.Tensor]) -> list[torch.Tensor]:
    """The images [1,H,W,C] of a list of batches."""
    return [image for batch in images for image in batch.split(1)]


class ShuffleDataset(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return _schema(
            "ShuffleDataset",
            "Shuffle Images List",
            "batch",
            "The images of a list in another order.",
            _seed_input(),
            takes_list=True,
            gives_list=True,
        )

    @classmethod
    def execute(cls, images: list[torch.Tensor], seed: list[int]) -> io.NodeOutput:
        found = _single(images)
        return io.NodeOutput([found[i] for i in _random(seed[0]).permutation(len(found))])


class ShuffleImageTextDataset(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ShuffleImageTextDataset",
            display_name="Shuffle Pairs of Image-Text",
            category="image/batch",
            description="The images of a list and their texts in another order, which is the same for both.",
            inputs=[
                io.Image.Input("images", tooltip="Images of the pairs."),
                io.String.Input("texts", tooltip="Texts of the pairs.", force_input=True),
                _seed_input(),
            ],
            outputs=[
                io.Image.Output(display_name="images", is_output_list=True),
                io.String.Output(display_name="texts", is_output_list=True),
            ],
            is_input_list=True,
            is_experimental=True,
        )

    @classmethod
    def execute(cls, images: list[torch.Tensor], texts: list[str], seed: list[int]) -> io.NodeOutput:
        found = _single(images)
        if len(found) != len(texts):
            raise ValueError(f"{len(found)} images and {len(texts)} texts are no pairs")
        order = _random(seed[0]).permutation(len(found))
        return io.NodeOutput([found[i] for i in order], [texts[i] for i in order])


class MergeImageLists(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return _schema(
            "MergeImageLists",
            "Merge Image Lists (DEPRECATED)",
            "batch",
            "All images of all lists in one list.",
            takes_list=True,
            gives_list=True,
            deprecated=True,
        )

    @classmethod
    def execute(cls, images: list[torch.Tensor]) -> io.NodeOutput:
        return io.NodeOutput(_single(images))


def _brightness_hash(image: torch.Tensor) -> torch.Tensor:
    """[1,H,W,C] -> 64 booleans: which fields of an 8 x 8 grid are brighter than their mean."""
    from PIL import Image

    pixels = (image[0, ..., :3] * 255).clamp(0, 255).to(torch.uint8).cpu().numpy()
    picture = Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels)
    small = picture.resize((_HASH_SIDE, _HASH_SIDE), Image.Resampling.LANCZOS).convert("L")
    values = torch.from_numpy(np.array(small, dtype=np.float32)).ravel()
    return values > values.mean()


class ImageDeduplication(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return _schema(
            "ImageDeduplication",
            "Deduplicate Images",
            "batch",
            "Leaves out images that look like one before them.",
            io.Float.Input(
                "similarity_threshold",
                tooltip="From how much likeness on one counts as a repetition; 1 is the same.",
                advanced=True,
                default=0.95,
                min=0.0,
                max=1.0,
            ),
            takes_list=True,
            gives_list=True,
        )

    @classmethod
    def execute(cls, images: list[torch.Tensor], similarity_threshold: list[float]) -> io.NodeOutput:
        kept: list[torch.Tensor] = []
        hashes: list[torch.Tensor] = []
        for image in _single(images):
            own = _brightness_hash(image)
            if not any((own == other).float().mean().item() >= similarity_threshold[0] for other in hashes):
                kept.append(image)
                hashes.append(own)
        return io.NodeOutput(kept)


class ImageGrid(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        size = {"advanced": True, "default": 256, "min": 32, "max": 2048}
        schema = _schema(
            "ImageGrid",
            "Make Image Grid",
            "batch",
            "Puts images side by side, row after row.",
            io.Int.Input("columns", tooltip="Images in a row.", default=4, min=1, max=20),
            io.Int.Input("cell_width", tooltip="Width that every image is brought to.", **size),
            io.Int.Input("cell_height", tooltip="Height that every image is brought to.", **size),
            io.Int.Input("padding", tooltip="Black pixels between images.", advanced=True, default=4, min=0, max=50),
            takes_list=True,
        )
        return schema

    @classmethod
    def execute(
        cls,
        images: list[torch.Tensor],
        columns: list[int],
        cell_width: list[int],
        cell_height: list[int],
        padding: list[int],
    ) -> io.NodeOutput:
        found = _single(images)
        width, height, gap = cell_width[0], cell_height[0], padding[0]
        rows = -(-len(found) // columns[0])
        sheet = torch.zeros(1, rows * (height + gap) - gap, columns[0] * (width + gap) - gap, 3)
        for number, image in enumerate(found):
            row, column = divmod(number, columns[0])
            y, x = row * (height + gap), column * (width + gap)
            sheet[:, y : y + height, x : x + width] = _resized(image[..., :3], width, height)
        return io.NodeOutput(sheet)


NODES = {
    "comfy_extras.nodes_dataset": [
        ResizeImagesByShorterEdge,
        ResizeImagesByLongerEdge,
        CenterCropImages,
        RandomCropImages,
        NormalizeImages,
        AdjustBrightness,
        AdjustContrast,
        ShuffleDataset,
        ShuffleImageTextDataset,
        MergeImageLists,
        ImageDeduplication,
        ImageGrid,
    ],
}
