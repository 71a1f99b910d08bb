"""Helpers that packs import from `node_helpers`."""

from __future__ import annotations

import hashlib

import pytest
import torch
from PIL import Image

import node_helpers


def test_setting_values_leaves_the_input_alone():
    tensor = torch.zeros(1)
    conditioning = [[tensor, {"a": 1}], [tensor, {}]]
    result = node_helpers.conditioning_set_values(conditioning, {"a": 2, "b": 3})
    assert [options for _, options in result] == [{"a": 2, "b": 3}, {"a": 2, "b": 3}]
    assert [options for _, options in conditioning] == [{"a": 1}, {}]
    assert result[0][0] is tensor
    assert node_helpers.conditioning_set_values(conditioning)[0][1] == {"a": 1}


def test_appending_values():
    conditioning = [[None, {"refs": [1]}], [None, {}]]
    result = node_helpers.conditioning_set_values(conditioning, {"refs": [2]}, append=True)
    assert [options["refs"] for _, options in result] == [[1, 2], [2]]
    assert conditioning[0][1]["refs"] == [1]


@pytest.mark.parametrize(
    ("options", "start", "end", "expected"),
    [
        ({}, 0.2, 0.6, [(0.0, 0.2, False), (0.2, 0.6, True), (0.6, 1.0, False)]),
        ({}, 0.0, 1.0, [(0.0, 1.0, True)]),
        ({"start_percent": 0.5}, 0.2, 0.6, [(0.5, 0.6, True), (0.6, 1.0, False)]),
        ({"start_percent": 0.7, "end_percent": 0.8}, 0.2, 0.6, [(0.7, 0.8, False)]),
    ],
)
def test_values_for_a_part_of_sampling(options, start, end, expected):
    result = node_helpers.conditioning_set_values_with_timestep_range([[None, options]], {"x": 1}, start, end)
    got = [(o.get("start_percent", 0.0), o.get("end_percent", 1.0), "x" in o) for _, o in result]
    assert got == expected


def test_alpha_is_added_or_dropped():
    rgb, rgba = torch.zeros(1, 2, 2, 3), torch.zeros(1, 2, 2, 4)
    assert node_helpers.image_alpha_fix(rgb, rgba)[1].shape[-1] == 3
    fixed = node_helpers.image_alpha_fix(rgba, rgb)[1]
    assert fixed.shape[-1] == 4 and fixed[..., 3].min() == 1


def test_pillow_reads_cut_off_files_when_asked(tmp_path):
    path = tmp_path / "cut.jpg"
    Image.effect_noise((64, 64), 50).save(path)
    path.write_bytes(path.read_bytes()[:-200])
    image = node_helpers.pillow(Image.open, path)
    assert node_helpers.pillow(lambda i: i.convert("RGB"), image).size == (64, 64)
    with pytest.raises(ZeroDivisionError):
        node_helpers.pillow(lambda x: 1 / x, 0)


def test_hash_and_dtypes():
    assert node_helpers.hasher() is hashlib.sha256
    assert node_helpers.string_to_torch_dtype("bf16") is torch.bfloat16
    assert node_helpers.string_to_torch_dtype("int9") is None
