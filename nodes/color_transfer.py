"""A node that gives images the colours of another."""

from __future__ import annotations

from typing import Any

import torch

from comfy_api.latest import io

# sRGB to XYZ (IEC 61966-2-1), and the white of D65 in XYZ.
_TO_XYZ = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750), (0.0193339, 0.1191920, 0.9503041))
_WHITE = (0.95047, 1.0, 1.08883)
# CIE 1976: below this share of the white, lightness is linear.
_KNEE = 6 / 29
# Channels that do not vary cannot be stretched; in units of L*, a*, b* squared.
_LEAST_VARIANCE = 1e-2


class ColorTransfer(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ColorTransfer",
            display_name="Transfer Color",
            category="image/filters",
            description="Gives images the colours of another.",
            search_aliases=["color match", "color grading", "histogram matching"],
            inputs=[
                io.Image.Input("image_target", tooltip="Images to change."),
                io.Image.Input("image_ref", tooltip="Images that have the colours; the last one serves all further."),
                io.Combo.Input(
                    "method",
                    options=["reinhard_lab", "mkl_lab", "histogram"],
                    tooltip="Mean and spread of each channel, those of all channels together, or every value.",
                ),
                io.DynamicCombo.Input(
                    "source_stats",
                    options=[
                        io.DynamicCombo.Option("per_frame", []),
                        io.DynamicCombo.Option("uniform", []),
                        io.DynamicCombo.Option(
                            "target_frame",
                            [io.Int.Input("target_index", tooltip="Number of the image.", default=0, min=0, max=10000)],
                        ),
                    ],
                    tooltip="Which images to measure: each for itself, all together, or one of them.",
                ),
                io.Float.Input(
                    "strength", tooltip="How much of the change to make.", default=1.0, min=0.0, max=10.0, step=0.01
                ),
            ],
            outputs=[io.Image.Output(display_name="image")],
        )

    @classmethod
    def execute(
        cls,
        image_target: torch.Tensor,
        image_ref: torch.Tensor,
        method: str,
        source_stats: dict[str, Any],
        strength: float,
    ) -> io.NodeOutput:
        target, reference = (_three_channels(image) for image in (image_target, image_ref))
        reference = reference.to(target.device)
        measured, index = source_stats["source_stats"], source_stats.get("target_index", 0)
        if measured == "target_frame" and index >= len(target):
            raise ValueError(f"target_index is {index}, and there are {len(target)} images")
        change = _METHODS[method]
        if measured == "per_frame":
            parts = [change(one, one, reference[min(i, len(reference) - 1)]) for i, one in enumerate(target)]
        else:
            source = target if measured == "uniform" else target[index]
            parts = [change(one, source, reference) for one in target]
        result = target + (torch.stack(parts) - target) * strength
        # An alpha channel is no colour.
        return io.NodeOutput(torch.cat([result.clamp(0, 1), image_target[..., 3:].to(result)], dim=-1))


def _three_channels(images: torch.Tensor) -> torch.Tensor:
    images = images[..., :3].float()
    return images if images.shape[-1] == 3 else images[..., :1].expand(*images.shape[:-1], 3)


# --- methods: (image, what is measured of its kind, what has the colours) -> image, all [..., 3] in 0..1


def _means_and_spreads(image: torch.Tensor, source: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Reinhard et al. 2001, "Color Transfer between Images", in CIE L*a*b*."""
    image, source, reference = (to_lab(part) for part in (image, source, reference))
    (mean, covariance), (wanted_mean, wanted) = _moments(source), _moments(reference)
    spread, wanted_spread = (part.diagonal().clamp(min=_LEAST_VARIANCE).sqrt() for part in (covariance, wanted))
    return from_lab((image - mean) * (wanted_spread / spread).to(image.dtype) + wanted_mean)


def _least_movement(image: torch.Tensor, source: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Pitie and Kokaram 2007, "The linear Monge-Kantorovitch linear colour mapping": of all linear mappings that give
    the wanted mean and covariance the one that moves colours the least; in CIE L*a*b*."""
    image, source, reference = (to_lab(part) for part in (image, source, reference))
    (mean, covariance), (wanted_mean, wanted) = _moments(source), _moments(reference)
    root = _root(covariance)
    inverse = torch.linalg.inv(root)
    mapping = inverse @ _root(root @ wanted @ root) @ inverse
    return from_lab(((image - mean).double() @ mapping).to(image.dtype) + wanted_mean)


def _every_value(image: torch.Tensor, source: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Histogram matching: in each channel the value that as many pixels of the reference lie below."""
    return torch.stack(
        [
            _matched(*(part[..., channel].flatten() for part in (image, source, reference))).view(image.shape[:-1])
            for channel in range(3)
        ],
        dim=-1,
    )


_METHODS = {"reinhard_lab": _means_and_spreads, "mkl_lab": _least_movement, "histogram": _every_value}


def _moments(lab: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean [3] and covariance [3, 3], the latter in float64."""
    pixels = lab.reshape(-1, 3).double()
    mean = pixels.mean(dim=0)
    centred = pixels - mean
    return mean.to(lab.dtype), centred.mT @ centred / len(pixels)


def _root(matrix: torch.Tensor) -> torch.Tensor:
    """The symmetric square root of a covariance."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag(values.clamp(min=_LEAST_VARIANCE).sqrt()) @ vectors.mT


def _matched(values: torch.Tensor, source: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    below = torch.searchsorted(source.sort().values, values.contiguous(), right=True)
    # The same share of the reference, rounded up to a whole pixel.
    place = (below * reference.numel() + source.numel() - 1) // source.numel() - 1
    return reference.sort().values[place.clamp(min=0)]


# --- CIE L*a*b*


def to_lab(image: torch.Tensor) -> torch.Tensor:
    """sRGB in 0..1 -> L* in 0..100, a*, b*."""
    linear = torch.where(image <= 0.04045, image / 12.92, ((image.clamp(min=0.04045) + 0.055) / 1.055) ** 2.4)
    xyz = linear @ image.new_tensor(_TO_XYZ).mT / image.new_tensor(_WHITE)
    root = torch.where(xyz > _KNEE**3, xyz.clamp(min=_KNEE**3) ** (1 / 3), xyz / (3 * _KNEE**2) + 4 / 29)
    x, y, z = root.unbind(-1)
    return torch.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], dim=-1)


def from_lab(lab: torch.Tensor) -> torch.Tensor:
    """The inverse of `to_lab`; colours that sRGB does not have are outside 0..1."""
    lightness, a, b = lab.unbind(-1)
    y = (lightness + 16) / 116
    root = torch.stack([y + a / 500, y, y - b / 200], dim=-1)
    xyz = torch.where(root > _KNEE, root**3, (root - 4 / 29) * 3 * _KNEE**2)
    linear = (xyz * lab.new_tensor(_WHITE)) @ torch.linalg.inv(lab.new_tensor(_TO_XYZ)).mT
    high = 1.055 * linear.clamp(min=0.0031308) ** (1 / 2.4) - 0.055
    return torch.where(linear <= 0.0031308, linear * 12.92, high)


NODES = {"comfy_extras.nodes_post_processing": [ColorTransfer]}
