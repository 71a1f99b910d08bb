"""Scenes, the pictures drawn of them, and the sentences written about them.

A scene is one to three equal shapes of one colour on a plain background. Everything is a function of the
`random.Random` handed in, so a seed names a data set.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from PIL import Image, ImageDraw

from tools.tiny_model.shapes import (
    COLOURS,
    COUNTS,
    OUTLINES,
    PALETTE,
    PICTURE,
    POSITIONS,
    RADII,
    SHAPES,
    SIZES,
    half_width,
)

SUPERSAMPLING = 4  # drawn this many times larger, then averaged: anti-aliased edges
COLOUR_JITTER = 6  # of 255, so that the decoder does not learn ten constants
MARGIN = 4.0

Rgb = tuple[int, int, int]


@dataclass(frozen=True)
class Scene:
    """What is in a picture. `position` is "center" when there are several shapes."""

    shape: str
    colour: str
    background: str
    size: str = "medium"
    count: int = 1
    position: str = "center"


def sample_scene(rng: random.Random) -> Scene:
    """A random scene; white backgrounds, single shapes and the centre are the most frequent ones."""
    colour = rng.choice(COLOURS)
    others = [c for c in COLOURS if c != colour]
    background = "white" if colour != "white" and rng.random() < 0.15 else rng.choice(others)
    count = rng.choices(COUNTS, (0.6, 0.22, 0.18))[0]
    size = rng.choice(SIZES if count == 1 else SIZES[:2])
    position = rng.choice(POSITIONS[1:]) if count == 1 and rng.random() < 0.5 else "center"
    return Scene(rng.choice(SHAPES), colour, background, size, count, position)


# --- drawing ---------------------------------------------------------------------------------------------------


def _radius(scene: Scene, rng: random.Random) -> float:
    low, high = RADII[scene.size]
    if scene.count == 3 and scene.size == "medium":
        low, high = 20.0, 22.0  # three of them have to fit
    return rng.uniform(low, high)


def place(scene: Scene, rng: random.Random) -> tuple[float, list[tuple[float, float]]]:
    """Radius and centres of the shapes of `scene`, in pixels."""
    radius = _radius(scene, rng)
    middle = PICTURE / 2

    def near(x: float, y: float, by: float = 2.0) -> tuple[float, float]:
        return x + rng.uniform(-by, by), y + rng.uniform(-by, by)

    if scene.count == 2:
        if rng.random() < 0.65:
            return radius, [near(33, middle), near(95, middle)]
        return radius, [near(middle, 33), near(middle, 95)]
    if scene.count == 3:
        if scene.size == "small" and rng.random() < 0.5:
            return radius, [near(x, middle) for x in (23, 64, 105)]
        if rng.random() < 0.7:
            return radius, [near(64, 35), near(34, 92), near(94, 92)]
        return radius, [near(34, 36), near(94, 36), near(64, 93)]

    edge = max(radius * max(1.0, half_width(scene.shape)) + MARGIN, 27.0)
    x, y = {
        "center": (middle, middle),
        "left": (edge, middle),
        "right": (PICTURE - edge, middle),
        "top": (middle, edge),
        "bottom": (middle, PICTURE - edge),
    }[scene.position]
    return radius, [near(x, y)]


def shade(colour: str, rng: random.Random) -> Rgb:
    """A palette colour, slightly varied."""
    r, g, b = (max(0, min(255, c + rng.randint(-COLOUR_JITTER, COLOUR_JITTER))) for c in PALETTE[colour])
    return r, g, b


def draw(scene: Scene, rng: random.Random) -> Image.Image:
    """The RGB picture (128 x 128) of `scene`."""
    radius, centres = place(scene, rng)
    mask = Image.new("L", (PICTURE * SUPERSAMPLING,) * 2, 0)
    pen = ImageDraw.Draw(mask)
    for cx, cy in centres:
        outline = [
            ((cx + radius * x) * SUPERSAMPLING, (cy + radius * y) * SUPERSAMPLING) for x, y in OUTLINES[scene.shape]
        ]
        pen.polygon(outline, fill=255)
    picture = Image.new("RGB", (PICTURE, PICTURE), shade(scene.background, rng))
    picture.paste(shade(scene.colour, rng), mask=mask.reduce(SUPERSAMPLING))
    return picture


# --- captions --------------------------------------------------------------------------------------------------

_SIZE_WORDS = {
    "small": ("small", "small", "small", "tiny", "little"),
    "medium": ("medium", "medium-sized", "medium sized"),
    "large": ("large", "large", "large", "big", "huge"),
}
_COLOUR_WORDS = {
    "purple": ("purple", "purple", "purple", "violet"),
    "cyan": ("cyan", "cyan", "cyan", "turquoise"),
}
_SHAPE_WORDS = {
    "circle": ("circle", "circle", "circle", "disc", "round shape"),
    "star": ("star", "star", "star", "five-pointed star"),
    "cross": ("cross", "cross", "cross", "plus sign"),
}
_POSITION_WORDS = {
    "center": ("in the center", "in the middle", "in the centre", "at the center"),
    "left": ("on the left", "on the left side", "at the left", "to the left"),
    "right": ("on the right", "on the right side", "at the right", "to the right"),
    "top": ("at the top", "at the top", "on the top", "at the top of the picture"),
    "bottom": ("at the bottom", "at the bottom", "on the bottom", "at the bottom of the picture"),
}
_NUMBER_WORDS = {
    1: ("a", "a", "a", "one", "a single", "the", ""),
    2: ("two", "two", "2"),
    3: ("three", "three", "3"),
}
_INTRODUCTIONS = (
    "a picture of",
    "an image of",
    "a drawing of",
    "a photo of",
    "a painting of",
    "an illustration of",
)
_FILLERS = (
    "best quality", "masterpiece", "high quality", "simple", "minimalist", "flat design", "vector art",
    "highly detailed", "4k", "sharp", "clean", "digital art", "icon", "geometric",
)  # fmt: skip


def _plural(noun: str) -> str:
    return noun + ("es" if noun.endswith("ss") else "s")


def _article(phrase: str) -> str:
    """`phrase` with a leading "a" turned into "an" where English wants it."""
    words = phrase.split()
    if len(words) > 1 and words[0] == "a" and words[1][0] in "aeiou" and words[1] != "one":
        words[0] = "an"
    return " ".join(words)


def plain_caption(scene: Scene) -> str:
    """The sentence which names every attribute: what the evaluation asks for."""
    noun = scene.shape if scene.count == 1 else _plural(scene.shape)
    number = {1: "a", 2: "two", 3: "three"}[scene.count]
    place_words = f" {_POSITION_WORDS[scene.position][0]}" if scene.count == 1 else ""
    return f"{number} {scene.size} {scene.colour} {noun}{place_words} on a {scene.background} background".replace(
        "on a orange", "on an orange"
    )


UNSAID = "unsaid"


def describe(scene: Scene, rng: random.Random) -> tuple[str, dict[str, str]]:
    """One of very many ways to describe `scene`, and attribute -> value as far as it says them (else UNSAID).

    The shape is always named, the other attributes are sometimes left out.
    """
    noun = rng.choice(_SHAPE_WORDS.get(scene.shape, (scene.shape,)))
    if scene.count > 1:
        noun = _plural(noun)
    colour = rng.choice(_COLOUR_WORDS.get(scene.colour, (scene.colour,))) if rng.random() < 0.95 else ""
    says_size = rng.random() < (0.45 if scene.size == "medium" else 0.85)
    size = rng.choice(_SIZE_WORDS[scene.size]) if says_size else ""
    says_position = scene.count == 1 and rng.random() < (0.3 if scene.position == "center" else 0.85)
    position = rng.choice(_POSITION_WORDS[scene.position]) if says_position else ""
    ground = rng.choice(_COLOUR_WORDS.get(scene.background, (scene.background,))) if rng.random() < 0.75 else ""
    number = rng.choice(_NUMBER_WORDS[scene.count])

    form = rng.random()
    if form < 0.12:
        text = _tags(number, size, colour, noun, position, ground, rng)
    else:
        text = _sentence(number, size, colour, noun, position, ground, rng)
    if rng.random() < 0.08:
        filler = ", ".join(rng.sample(_FILLERS, rng.randint(1, 2)))
        text = f"{filler}, {text}" if rng.random() < 0.5 else f"{text}, {filler}"
    said = {
        "shape": scene.shape,
        "count": str(scene.count),
        "colour": scene.colour if colour else UNSAID,
        "size": scene.size if size else UNSAID,
        "position": scene.position if position else UNSAID,
        "background": scene.background if ground else UNSAID,
    }
    return text, said


def caption(scene: Scene, rng: random.Random) -> str:
    """The sentence of `describe` alone."""
    return describe(scene, rng)[0]


def _tags(number: str, size: str, colour: str, noun: str, position: str, ground: str, rng: random.Random) -> str:
    """Comma separated: "red circle, small, blue background"."""
    if number in ("a", "the"):
        number = ""
    parts = [p for p in (size, position, f"{ground} background" if ground else "") if p]
    rng.shuffle(parts)
    return ", ".join([" ".join(f"{number} {colour} {noun}".split()), *parts])


def _sentence(number: str, size: str, colour: str, noun: str, position: str, ground: str, rng: random.Random) -> str:
    """Running words: "a small red circle at the top on a blue background"."""
    if colour and rng.random() < 0.04:
        verb = "is" if not noun.endswith("s") or noun.endswith("ss") else "are"
        thing = f"{number} {size} {noun} that {verb} {colour}"
    else:
        thing = f"{number} {size} {colour} {noun}"
    thing = _article(" ".join(f"{thing} {position}".split()))
    if rng.random() < 0.15:
        thing = f"{rng.choice(_INTRODUCTIONS)} {thing}"
    if not ground:
        return thing
    background = _article(f"a {ground} background")
    form = rng.random()
    if form < 0.7:
        return f"{thing} on {background}"
    if form < 0.8:
        return f"{thing} with {background}"
    if form < 0.88:
        return f"{thing}, {ground} background"
    if form < 0.94:
        return f"{thing} on {ground}"
    return f"{background} with {thing}"
