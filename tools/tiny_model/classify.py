"""Reads a picture of coloured shapes back into a `Scene`: a deterministic judge, nothing learned.

The background is the median colour of the border, the foreground is every pixel far from it, shapes are its
connected components. A component's outline, stretched to a square, is compared with the outlines of
`shapes.OUTLINES`; the best overlap (intersection over union) names the shape, unless even the best one is poor.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache

import numpy as np
from PIL import Image, ImageDraw
from scipy import ndimage

from tools.tiny_model.data import Scene
from tools.tiny_model.shapes import OUTLINES, PALETTE, PICTURE

CONTRAST = 45.0  # RGB distance from the background that makes a pixel foreground; palette colours are >= 80 apart
MIN_AREA = 60  # pixels; smaller specks are not shapes (the smallest drawn shape has about 150)
MIN_OVERLAP = 0.75  # of the stretched outlines; below it the shape counts as unknown
TEMPLATE = 48
OFF_CENTRE = 13.0  # pixels from the middle at which a shape counts as standing on a side
SMALL_BELOW, LARGE_FROM = 18.5, 30.5  # radius in pixels

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Reading:
    """What the judge sees. `overlap` is the worst of the components' best overlaps (1 = perfect outline)."""

    shape: str
    colour: str
    background: str
    size: str
    count: int
    position: str
    overlap: float

    def agrees(self, scene: Scene) -> dict[str, bool]:
        """Attribute -> whether it is what `scene` asks for. Position is only asked of single shapes."""
        names = ["shape", "colour", "background", "size", "count"]
        if scene.count == 1:
            names.append("position")
        return {name: getattr(self, name) == getattr(scene, name) for name in names}


def nearest_colour(rgb: np.ndarray) -> str:
    """Name of the palette entry nearest to `rgb` (3 values, 0..255)."""
    distances = {name: float(np.linalg.norm(rgb - np.array(value))) for name, value in PALETTE.items()}
    return min(distances, key=distances.__getitem__)


def _stretch(mask: np.ndarray) -> np.ndarray:
    """The bounding box of a boolean mask, resized to TEMPLATE x TEMPLATE."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    cut = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    picture = Image.fromarray((cut * 255).astype(np.uint8)).resize((TEMPLATE, TEMPLATE), Image.Resampling.BILINEAR)
    return np.asarray(picture) > 127


@cache
def _templates() -> dict[str, np.ndarray]:
    found = {}
    for name, outline in OUTLINES.items():
        picture = Image.new("L", (400, 400), 0)
        ImageDraw.Draw(picture).polygon([(200 + 160 * x, 200 + 160 * y) for x, y in outline], fill=255)
        found[name] = _stretch(np.asarray(picture) > 127)
    return found


@cache
def _unit_areas() -> dict[str, float]:
    """Area of each outline of radius 1 (shoelace formula)."""
    areas = {}
    for name, points in OUTLINES.items():
        x, y = np.array(points).T
        areas[name] = float(abs(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1))) / 2)
    return areas


def name_shape(mask: np.ndarray) -> tuple[str, float]:
    """The best fitting shape of one component (boolean mask) and its overlap."""
    stretched = _stretch(mask)
    overlaps = {
        name: float((stretched & template).sum() / (stretched | template).sum())
        for name, template in _templates().items()
    }
    best = max(overlaps, key=overlaps.__getitem__)
    height, width = (np.ptp(np.flatnonzero(mask.any(axis))) + 1 for axis in (1, 0))
    if overlaps[best] < MIN_OVERLAP or not 0.7 < width / height < 1.45:
        return UNKNOWN, overlaps[best]
    return best, overlaps[best]


def _middle(mask: np.ndarray) -> tuple[float, float]:
    """x and y of the middle of the bounding box, in pixels."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return (columns[0] + columns[-1] + 1) / 2, (rows[0] + rows[-1] + 1) / 2


def _position(x: float, y: float) -> str:
    dx, dy = x - PICTURE / 2, y - PICTURE / 2
    if max(abs(dx), abs(dy)) < OFF_CENTRE:
        return "center"
    if abs(dx) >= abs(dy):
        return "left" if dx < 0 else "right"
    return "top" if dy < 0 else "bottom"


def _size(area: float, shape: str) -> str:
    radius = (area / _unit_areas().get(shape, 2.5)) ** 0.5
    return "small" if radius < SMALL_BELOW else "large" if radius >= LARGE_FROM else "medium"


def classify(picture: Image.Image | np.ndarray) -> Reading:
    """Read a 128 x 128 RGB picture (PIL, or uint8 HWC)."""
    pixels = np.asarray(picture)[..., :3].astype(np.float32)
    border = np.concatenate([pixels[:2].reshape(-1, 3), pixels[-2:].reshape(-1, 3), pixels[:, 0], pixels[:, -1]])
    ground = np.median(border, axis=0)
    foreground = np.linalg.norm(pixels - ground, axis=-1) > CONTRAST
    labels, number = ndimage.label(foreground)
    components = [labels == k for k in range(1, number + 1)]
    components = [c for c in components if c.sum() >= MIN_AREA]
    background = nearest_colour(ground)
    if not components:
        return Reading(UNKNOWN, UNKNOWN, background, UNKNOWN, 0, UNKNOWN, 0.0)

    inside = ndimage.binary_erosion(np.any(components, axis=0), iterations=2)
    if not inside.any():
        inside = np.any(components, axis=0)
    colour = nearest_colour(np.median(pixels[inside], axis=0))
    named = [name_shape(c) for c in components]
    shapes = Counter(name for name, _ in named)
    shape = named[0][0] if len(shapes) == 1 else UNKNOWN  # all of them have to be the same
    x, y = np.mean([_middle(c) for c in components], axis=0)
    area = float(np.mean([c.sum() for c in components]))
    return Reading(
        shape=shape,
        colour=colour,
        background=background,
        size=_size(area, shape),
        count=len(components),
        position=_position(float(x), float(y)),
        overlap=min(overlap for _, overlap in named),
    )
