"""Nodes that cut images into tiles and put them together again."""

from __future__ import annotations

import torch

from comfy_api.latest import io

from .constants import MAX_RESOLUTION


class SplitImageToTileList(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SplitImageToTileList",
            display_name="Split Image into List of Tiles",
            category="image/batch",
            description="Cuts an image into overlapping tiles, row by row.",
            inputs=[
                io.Image.Input("image", tooltip="Image to cut."),
                io.Int.Input(
                    "tile_width", tooltip="Width of a tile in pixels.", default=1024, min=64, max=MAX_RESOLUTION
                ),
                io.Int.Input(
                    "tile_height", tooltip="Height of a tile in pixels.", default=1024, min=64, max=MAX_RESOLUTION
                ),
                io.Int.Input("overlap", tooltip="How far neighbours overlap, in pixels.", default=128, min=0, max=4096),
            ],
            outputs=[io.Image.Output(is_output_list=True)],
        )

    @classmethod
    def execute(cls, image: torch.Tensor, tile_width: int, tile_height: int, overlap: int) -> io.NodeOutput:
        height, width = image.shape[1:3]
        grid = tile_grid(width, height, tile_width, tile_height, overlap)
        return io.NodeOutput([image[:, y : y + tile_height, x : x + tile_width] for x, y in grid])


def _tile_starts(length: int, tile: int, overlap: int) -> list[int]:
    """Where tiles begin along one side; the last one is moved inside."""
    if length <= tile:
        return [0]
    stride = round(max(tile / 4, tile - overlap))
    starts = list(range(0, length - tile, stride))
    return [*starts, length - tile]


def tile_grid(width: int, height: int, tile_width: int, tile_height: int, overlap: int) -> list[tuple[int, int]]:
    """(x, y) of the tiles that cover an image, row by row."""
    columns = _tile_starts(width, tile_width, overlap)
    return [(x, y) for y in _tile_starts(height, tile_height, overlap) for x in columns]


class ImageMergeTileList(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ImageMergeTileList",
            display_name="Merge List of Tiles to Image",
            category="image/batch",
            description="Puts tiles back together. Overlaps are blended.",
            is_input_list=True,
            inputs=[
                io.Image.Input("image_list", tooltip="Tiles, row by row."),
                io.Int.Input(
                    "final_width", tooltip="Width of the whole image in pixels.", default=1024, min=64, max=32768
                ),
                io.Int.Input(
                    "final_height", tooltip="Height of the whole image in pixels.", default=1024, min=64, max=32768
                ),
                io.Int.Input("overlap", tooltip="How far neighbours overlap, in pixels.", default=128, min=0, max=4096),
            ],
            outputs=[io.Image.Output()],
        )

    @classmethod
    def execute(
        cls, image_list: list[torch.Tensor], final_width: list[int], final_height: list[int], overlap: list[int]
    ) -> io.NodeOutput:
        width, height, overlapping = final_width[0], final_height[0], overlap[0]
        batch, tile_height, tile_width, channels = image_list[0].shape
        total = torch.zeros(batch, height, width, channels)
        weights = torch.zeros(1, height, width, 1)
        window = _window(tile_height, overlapping)[:, None] * _window(tile_width, overlapping)[None, :]
        window = window[None, :, :, None]
        grid = tile_grid(width, height, tile_width, tile_height, overlapping)
        for tile, (x, y) in zip(image_list, grid):
            rows, columns = min(tile_height, height - y), min(tile_width, width - x)
            weight = window[:, :rows, :columns]
            total[:, y : y + rows, x : x + columns] += tile[:, :rows, :columns].to(total) * weight
            weights[:, y : y + rows, x : x + columns] += weight
        weights[weights == 0] = 1.0
        return io.NodeOutput(total / weights)


def _window(size: int, overlap: int) -> torch.Tensor:
    """[size] weights of a tile: a half sine wave, so that neighbours fade into each other; flat without overlap."""
    if overlap == 0:
        return torch.ones(size)
    return torch.sin(torch.linspace(0, 1, size) * torch.pi).clamp(min=1e-5)


NODES = {
    "comfy_extras.nodes_images": [SplitImageToTileList, ImageMergeTileList],
}
