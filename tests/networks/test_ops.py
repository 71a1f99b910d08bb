"""Layers that cast their weights, against torch's own."""

import copy

import pytest
import torch
from torch import nn

import comfy.ops

LAYERS = {
    "Linear": ((4, 3), (2, 5, 4)),
    "Conv1d": ((4, 3, 3), (2, 4, 9)),
    "Conv2d": ((4, 3, 3), (2, 4, 9, 9)),
    "Conv3d": ((4, 3, 3), (2, 4, 5, 5, 5)),
    "ConvTranspose1d": ((4, 3, 3), (2, 4, 9)),
    "ConvTranspose2d": ((4, 3, 3), (2, 4, 9, 9)),
    "GroupNorm": ((2, 4), (2, 4, 5)),
    "LayerNorm": ((4,), (2, 5, 4)),
    "RMSNorm": ((4,), (2, 5, 4)),
}


def pair(name: str, family) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    args, shape = LAYERS[name]
    torch.manual_seed(0)
    expected = getattr(nn, name)(*args)
    for parameter in expected.parameters():
        nn.init.normal_(parameter)
        parameter.copy_(parameter.half())
    layer = getattr(family, name)(*args, device="meta")
    layer.load_state_dict(copy.deepcopy(expected.state_dict()), assign=True)
    return layer, expected, torch.randn(shape)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("family", [comfy.ops.disable_weight_init, comfy.ops.manual_cast])
def test_same_as_torch(name, family):
    layer, expected, x = pair(name, family)
    assert torch.equal(layer(x), expected(x))


@pytest.mark.parametrize("name", LAYERS)
def test_resting_in_another_format(name):
    layer, expected, x = pair(name, comfy.ops.manual_cast)
    layer.half()
    out = layer(x)
    assert out.dtype == torch.float32
    assert torch.equal(out, expected(x))
    assert all(p.dtype == torch.float16 for p in layer.parameters())


@pytest.mark.parametrize("name", LAYERS)
def test_functions_on_each_call(name):
    layer, expected, x = pair(name, comfy.ops.disable_weight_init)
    layer.weight_function = [lambda weight: weight * 2]
    expected.weight.mul_(2)
    assert torch.allclose(layer(x), expected(x), atol=1e-5)
    # Of this layer only.
    assert comfy.ops.disable_weight_init.Linear.weight_function == []


def test_layers_without_weights():
    x = torch.randn(2, 4)
    for name, kwargs in (("LayerNorm", {"elementwise_affine": False}), ("RMSNorm", {"elementwise_affine": False})):
        layer = getattr(comfy.ops.manual_cast, name)(4, **kwargs)
        assert torch.allclose(layer(x), getattr(nn, name)(4, **kwargs)(x))
    assert torch.allclose(comfy.ops.manual_cast.GroupNorm(2, 4, affine=False)(x), nn.GroupNorm(2, 4, affine=False)(x))


def test_embedding_casts_rows_only():
    table = comfy.ops.manual_cast.Embedding(10, 4, dtype=torch.float16, device="meta")
    table.load_state_dict({"weight": torch.arange(40.0).reshape(10, 4).half()}, assign=True)
    ids = torch.tensor([[1, 9]])
    assert table(ids).dtype == torch.float16
    rows = table(ids, out_dtype=torch.float32)
    assert rows.dtype == torch.float32
    assert rows[0, 1].tolist() == [36, 37, 38, 39]


def test_building_initialises_nothing(monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("a weight was initialised")

    for name in ("kaiming_uniform_", "uniform_", "normal_", "ones_", "zeros_"):
        monkeypatch.setattr(nn.init, name, fail)
    for name, (args, _) in LAYERS.items():
        getattr(comfy.ops.disable_weight_init, name)(*args)
    comfy.ops.manual_cast.Embedding(10, 4)


def test_initialising_for_training():
    net = nn.Sequential(
        *(getattr(comfy.ops.disable_weight_init, name)(*args, device="meta") for name, (args, _) in LAYERS.items())
    )
    net.append(comfy.ops.disable_weight_init.Embedding(10, 4, device="meta"))
    comfy.ops.init_weights(net.to_empty(device="cpu"), seed=3)
    first = {k: v.clone() for k, v in net.state_dict().items()}
    assert all(torch.isfinite(v).all() for v in first.values())
    assert net[0].weight.std() > 0.1
    assert (net[7].weight == 1).all() and (net[7].bias == 0).all()
    comfy.ops.init_weights(net, seed=3)
    assert all(torch.equal(v, first[k]) for k, v in net.state_dict().items())


def test_choosing_a_family():
    pick = comfy.ops.pick_operations
    assert pick(torch.float32, None) is comfy.ops.disable_weight_init
    assert pick(torch.float16, torch.float16) is comfy.ops.disable_weight_init
    assert pick(torch.float16, torch.float32) is comfy.ops.manual_cast


def test_convolution_by_dimensions():
    assert isinstance(comfy.ops.manual_cast.conv_nd(3, 4, 3, 1), comfy.ops.manual_cast.Conv3d)
    with pytest.raises(ValueError, match="4 dimensions"):
        comfy.ops.manual_cast.conv_nd(4, 4, 3, 1)
