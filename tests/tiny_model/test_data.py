"""The scenes, pictures and captions the small model is trained on, and the judge which reads pictures back."""

import random
from collections import Counter

import numpy as np
import pytest

from tools.tiny_model.classify import UNKNOWN, classify, nearest_colour
from tools.tiny_model.data import Scene, caption, draw, plain_caption, sample_scene
from tools.tiny_model.shapes import COLOURS, PALETTE, PICTURE, SHAPES


def test_a_seed_names_scene_picture_and_caption():
    def once():
        rng = random.Random(11)
        scene = sample_scene(rng)
        return scene, np.asarray(draw(scene, rng)).tobytes(), caption(scene, rng)

    assert once() == once()


def test_scenes_cover_every_colour_and_shape_and_never_hide_the_shape():
    rng = random.Random(0)
    scenes = [sample_scene(rng) for _ in range(2000)]
    assert {s.colour for s in scenes} == set(COLOURS)
    assert {s.shape for s in scenes} == set(SHAPES)
    assert {s.count for s in scenes} == {1, 2, 3}
    assert all(s.colour != s.background for s in scenes)
    assert all(s.position == "center" for s in scenes if s.count > 1)
    assert all(s.size != "large" for s in scenes if s.count > 1)


def test_pictures_are_rgb_and_keep_the_shapes_inside():
    rng = random.Random(1)
    for _ in range(200):
        scene = sample_scene(rng)
        picture = draw(scene, rng)
        assert picture.mode == "RGB" and picture.size == (PICTURE, PICTURE)
        pixels = np.asarray(picture)
        border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
        assert (border == border[0]).all(), scene


@pytest.mark.parametrize(
    ("scene", "sentence"),
    [
        (
            Scene("circle", "red", "orange", "small", 1, "top"),
            "a small red circle at the top on an orange background",
        ),
        (Scene("cross", "blue", "white", "medium", 2), "two medium blue crosses on a white background"),
        (Scene("star", "pink", "black", "small", 3), "three small pink stars on a black background"),
    ],
)
def test_plain_captions_name_every_attribute(scene, sentence):
    assert plain_caption(scene) == sentence


def test_captions_vary_but_stay_true():
    scene = Scene("triangle", "orange", "green", "large", 1, "left")
    rng = random.Random(2)
    captions = Counter(caption(scene, rng) for _ in range(300))
    assert len(captions) > 150
    for text in captions:
        assert "triangle" in text
        assert "  " not in text and text == text.strip()
        assert "a orange" not in text
        wrong = {
            "small",
            "tiny",
            "medium",
            "right",
            "top",
            "bottom",
            "two",
            "three",
            "triangles",
            "red",
            "blue",
        }
        assert not wrong & set(text.replace(",", " ").split()), text


def test_the_judge_is_right_about_drawn_pictures():
    rng = random.Random(3)
    asked, right = Counter(), Counter()
    for _ in range(600):
        scene = sample_scene(rng)
        for name, agrees in classify(draw(scene, rng)).agrees(scene).items():
            asked[name] += 1
            right[name] += agrees
    assert {name: right[name] / asked[name] >= 0.99 for name in asked} == dict.fromkeys(asked, True)


def test_the_judge_withstands_noise_and_rejects_what_is_no_shape():
    rng = random.Random(4)
    scene = Scene("heart", "red", "white", "medium")
    noise = np.random.default_rng(0).normal(0, 8, (PICTURE, PICTURE, 3))
    noisy = np.clip(np.asarray(draw(scene, rng)) + noise, 0, 255).astype(np.uint8)
    assert all(classify(noisy).agrees(scene).values())

    empty = np.full((PICTURE, PICTURE, 3), PALETTE["blue"], np.uint8)
    assert (classify(empty).count, classify(empty).shape, classify(empty).background) == (0, UNKNOWN, "blue")
    bar = empty.copy()
    bar[30:100, 50:60] = PALETTE["red"]
    assert classify(bar).shape == UNKNOWN
    elbow = empty.copy()
    elbow[30:90, 30:42] = elbow[78:90, 30:90] = PALETTE["red"]
    assert classify(elbow).shape == UNKNOWN


def test_every_palette_colour_is_its_own_nearest():
    assert all(nearest_colour(np.array(value)) == name for name, value in PALETTE.items())
