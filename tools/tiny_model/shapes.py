"""The vocabulary of the pictures: palette, outlines, sizes and where things stand.

Lengths are pixels of a 128 x 128 picture; y points down. Outlines are given for a shape of radius 1 around (0, 0).
"""

from __future__ import annotations

import math

PICTURE = 128

PALETTE: dict[str, tuple[int, int, int]] = {
    "red": (220, 40, 40),
    "orange": (245, 140, 30),
    "yellow": (250, 220, 50),
    "green": (50, 165, 70),
    "cyan": (70, 205, 225),
    "blue": (45, 80, 210),
    "purple": (140, 55, 185),
    "pink": (245, 145, 195),
    "white": (250, 250, 250),
    "black": (25, 25, 25),
}
COLOURS = tuple(PALETTE)

SIZES = ("small", "medium", "large")
RADII: dict[str, tuple[float, float]] = {"small": (13.0, 16.0), "medium": (21.0, 26.0), "large": (35.0, 43.0)}

POSITIONS = ("center", "left", "right", "top", "bottom")
COUNTS = (1, 2, 3)

Point = tuple[float, float]


def _centred(points: list[Point]) -> list[Point]:
    """Shift an outline so that its bounding box is centred on (0, 0)."""
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    dx, dy = (min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2
    return [(x - dx, y - dy) for x, y in points]


def _on_circle(radius: float, degrees: float) -> Point:
    return radius * math.cos(math.radians(degrees)), radius * math.sin(math.radians(degrees))


def _circle() -> list[Point]:
    return [_on_circle(1.0, 5 * k) for k in range(72)]


def _square() -> list[Point]:
    return [(-0.86, -0.86), (0.86, -0.86), (0.86, 0.86), (-0.86, 0.86)]


def _triangle() -> list[Point]:
    return _centred([_on_circle(1.15, -90 + 120 * k) for k in range(3)])


def _star() -> list[Point]:
    return _centred([_on_circle(1.1 if k % 2 == 0 else 0.46, -90 + 36 * k) for k in range(10)])


def _heart() -> list[Point]:
    curve = []
    for k in range(72):
        t = math.radians(5 * k)
        y = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
        curve.append((math.sin(t) ** 3, -y / 16))
    return _centred(curve)


def _cross() -> list[Point]:
    a, b = 0.32, 1.0
    return [
        (-a, -b), (a, -b), (a, -a), (b, -a), (b, a), (a, a),
        (a, b), (-a, b), (-a, a), (-b, a), (-b, -a), (-a, -a),
    ]  # fmt: skip


OUTLINES: dict[str, list[Point]] = {
    "circle": _circle(),
    "square": _square(),
    "triangle": _triangle(),
    "star": _star(),
    "heart": _heart(),
    "cross": _cross(),
}
SHAPES = tuple(OUTLINES)


def half_width(shape: str) -> float:
    """Half the width of the outline of radius 1."""
    return max(x for x, _ in OUTLINES[shape])
