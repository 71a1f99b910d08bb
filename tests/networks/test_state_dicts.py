"""Small tools on named tensors."""

import pytest
import torch

import comfy.utils


def test_prefixes():
    sd = {"a.x": 1, "a.y": 2, "b.z": 3}
    moved = comfy.utils.state_dict_prefix_replace(sd, {"a.": "c."}, filter_keys=True)
    assert (moved, sd) == ({"c.x": 1, "c.y": 2}, {"b.z": 3})
    assert comfy.utils.state_dict_prefix_replace(sd, {"b.": ""}) is sd
    assert sd == {"z": 3}


def test_counts():
    sd = {"a": torch.zeros(3, 4), "p.b": torch.zeros(20).half()}
    assert comfy.utils.calculate_parameters(sd) == 32
    assert comfy.utils.calculate_parameters(sd, "p.") == 20
    assert comfy.utils.weight_dtype(sd) == torch.float16
    assert comfy.utils.weight_dtype(sd, "a") == torch.float32
    assert comfy.utils.weight_dtype({}) is None


def test_attributes():
    net = torch.nn.Sequential(torch.nn.Linear(2, 2))
    old = comfy.utils.set_attr_param(net, "0.weight", torch.zeros(2, 2))
    assert old.shape == (2, 2)
    assert comfy.utils.get_attr(net, "0.weight").sum() == 0
    with pytest.raises(AttributeError):
        comfy.utils.get_attr(net, "0.nothing")


@pytest.mark.parametrize(("count", "expected"), [(1, [0]), (3, [0, 1, 0]), (5, [0, 1, 0, 1, 0])])
def test_repeat(count, expected):
    assert comfy.utils.repeat_to_batch_size(torch.tensor([0, 1]), count).tolist() == expected


def test_resize_batch():
    x = torch.arange(4)
    assert comfy.utils.resize_to_batch_size(x, 2).tolist() == [0, 3]
    assert comfy.utils.resize_to_batch_size(x, 1).tolist() == [0]
    assert comfy.utils.resize_to_batch_size(x, 8).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert comfy.utils.resize_to_batch_size(x, 4) is x


def test_packing():
    latents = [torch.arange(24.0).reshape(2, 3, 4), torch.arange(4.0).reshape(2, 1, 2)]
    packed, shapes = comfy.utils.pack_latents(latents)
    assert packed.shape == (2, 1, 14)
    assert all(torch.equal(a, b) for a, b in zip(comfy.utils.unpack_latents(packed, shapes), latents))
