"""Edge detection after Canny (1986), "A Computational Approach to Edge Detection"."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from comfy_api.latest import io

_BLUR_SIZE, _BLUR_SIGMA = 5, 1.0
# Keeps the gradient's length differentiable, and above zero, on flat ground.
_EPSILON = 1e-6
# Neighbours of a pixel, as (row, column), by the angle of the gradient in steps of 45 degrees.
_NEIGHBOURS = ((0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1))


class Canny(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="Canny",
            display_name="Detect Edges (Canny)",
            category="image/filters",
            description="Draws the edges of an image as white lines (Canny, 1986).",
            search_aliases=["outline", "contour", "edge detection"],
            essentials_category="Image Tools",
            inputs=[
                io.Image.Input("image", tooltip="Image to look at."),
                io.Float.Input(
                    "low_threshold",
                    tooltip="Edges above this are kept where they touch a strong one.",
                    default=0.4,
                    min=0.01,
                    max=0.99,
                    step=0.01,
                ),
                io.Float.Input(
                    "high_threshold", tooltip="Edges above this are strong.", default=0.8, min=0.01, max=0.99, step=0.01
                ),
            ],
            outputs=[io.Image.Output()],
        )

    @classmethod
    def execute(cls, image: torch.Tensor, low_threshold: float, high_threshold: float) -> io.NodeOutput:
        if low_threshold > high_threshold:
            raise ValueError(f"low_threshold {low_threshold} is above high_threshold {high_threshold}")
        if image.shape[-1] not in (1, 3):
            raise ValueError(f"the image has {image.shape[-1]} channels, expected 1 or 3")
        edges = canny(image.movedim(-1, 1), low_threshold, high_threshold)
        return io.NodeOutput(edges.movedim(1, -1).repeat(1, 1, 1, 3))


def canny(image: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Edges [B,1,H,W] of [B,1 or 3,H,W]: 1 on an edge, 0 elsewhere."""
    grey = image
    if image.shape[1] == 3:
        grey = (image * image.new_tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
    length, direction = _gradient(_blur(grey))
    ridge = torch.where(_is_maximum(length, direction), length, torch.zeros_like(length))
    connected = [_hysteresis(single[0].cpu().numpy(), low, high) for single in ridge]
    return torch.from_numpy(np.stack(connected))[:, None].to(image)


def _blur(grey: torch.Tensor) -> torch.Tensor:
    axis = torch.arange(_BLUR_SIZE, dtype=grey.dtype, device=grey.device) - _BLUR_SIZE // 2
    bell = torch.exp(-(axis**2) / (2 * _BLUR_SIGMA**2))
    bell = bell / bell.sum()
    padded = F.pad(grey, (_BLUR_SIZE // 2,) * 4, "reflect")
    return F.conv2d(F.conv2d(padded, bell[None, None, :, None]), bell[None, None, None, :])


def _gradient(grey: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(length, direction) by Sobel's filter; direction in steps of 45 degrees, clockwise from the right, 0 to 7."""
    across = grey.new_tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]])
    kernels = torch.stack((across, across.T))[:, None]
    gradient = F.conv2d(F.pad(grey, (1, 1, 1, 1), "replicate"), kernels)
    right, down = gradient[:, :1], gradient[:, 1:]
    length = torch.sqrt(right**2 + down**2 + _EPSILON)
    return length, torch.round(torch.rad2deg(torch.atan2(down, right)) / 45) % 8


def _is_maximum(length: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    """Where the gradient is longer than at both neighbours along its direction; beyond the image it counts as 0."""
    height, width = length.shape[-2:]
    padded = F.pad(length, (1, 1, 1, 1))
    ahead = torch.stack([length - padded[..., 1 + y : 1 + y + height, 1 + x : 1 + x + width] for y, x in _NEIGHBOURS])
    index = direction.long()[None]
    return torch.minimum(ahead.gather(0, index), ahead.gather(0, (index + 4) % 8))[0] > 0


def _hysteresis(ridge: np.ndarray, low: float, high: float) -> np.ndarray:
    """[H,W]: 1 on ridges above `low` that are connected, diagonals included, with one above `high`."""
    import scipy.ndimage

    labels, _ = scipy.ndimage.label(ridge > low, structure=np.ones((3, 3)))
    strong = np.unique(labels[ridge > high])
    return np.isin(labels, strong[strong > 0]).astype(ridge.dtype)


NODES = {
    "comfy_extras.nodes_canny": [Canny],
}
