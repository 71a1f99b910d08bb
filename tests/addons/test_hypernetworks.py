"""Hypernetworks in the layout of stable-diffusion-webui."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import folder_paths
import nodes
from comfy.hypernetworks import HypernetworkFileError, load_hypernetwork
from comfy.weights import UnsafeWeightsError
from tests.addons.guided_step import guided
from tests.addons.recorded_addons import host
from tests.addons.transformer_controls import random
from tests.networks.golden import error


@pytest.fixture
def folder(tmp_path, monkeypatch):
    _, extensions = folder_paths.folder_names_and_paths["hypernetworks"]
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "hypernetworks", ([str(tmp_path)], extensions))
    return tmp_path


def trained(width: int, *layers: nn.Module) -> nn.Module:
    """As the training program builds it: layers numbered through below `linear`."""
    net = nn.Module()
    net.linear = nn.Sequential(*layers)
    for i, parameter in enumerate(net.parameters()):
        parameter.requires_grad_(False).copy_(random(f"{width} {i}", *parameter.shape) * 0.3)
    return net


def file_for(width: int, path, activation: str = "relu", **facts) -> tuple[nn.Module, nn.Module]:
    kinds = {"relu": nn.ReLU, "mish": nn.Mish, "linear": nn.Identity}
    nets = []
    for name in "kv":
        layers: list[nn.Module] = []
        for i, (before, after) in enumerate(((width, 2 * width), (2 * width, 11), (11, width))):
            layers.append(nn.Linear(before, after))
            if activation != "linear" and (i < 2 or facts.get("activate_output")):
                layers.append(kinds[activation]())
            if facts.get("is_layer_norm"):
                layers.append(nn.LayerNorm(after))
        net = trained(width, *layers)
        net.linear[0].weight.mul_(1.0 if name == "k" else -1.0)
        nets.append(net)
    content = {width: tuple(net.state_dict() for net in nets), "step": 10, "name": "test", "layer_structure": [1, 2, 1]}
    torch.save({**content, "activation_func": activation, **facts}, path)
    return nets[0], nets[1]


@pytest.mark.parametrize(
    "activation, facts",
    [
        ("relu", {}),
        ("linear", {}),
        ("mish", {"activate_output": True}),
        ("relu", {"is_layer_norm": True, "use_dropout": True}),
    ],
)
def test_keys_and_values_are_changed(folder, activation, facts):
    nets = file_for(24, folder / "net.pt", activation, **facts)
    patch = load_hypernetwork(str(folder / "net.pt"), strength=0.7)
    q, k, v = random("q", 2, 5, 32), random("k", 2, 7, 24), random("v", 2, 7, 24)
    new_q, new_k, new_v = patch(q, k, v, {})
    assert torch.equal(new_q, q)
    assert torch.allclose(new_k, k + 0.7 * nets[0].linear(k), atol=1e-5)
    assert torch.allclose(new_v, v + 0.7 * nets[1].linear(v), atol=1e-5)
    other = random("other", 2, 7, 32)
    assert patch(q, other, other, {})[1] is other


def test_many_layers_are_taken_in_the_order_of_their_numbers(folder):
    layers = [nn.Linear(24, 24) for _ in range(12)]
    net = trained(24, *layers)
    torch.save({24: (net.state_dict(), net.state_dict()), "activation_func": "linear"}, folder / "deep.pt")
    k = random("k", 1, 3, 24)
    assert torch.allclose(load_hypernetwork(str(folder / "deep.pt"))(k, k, k, {})[1], k + net.linear(k), atol=1e-5)


def test_through_the_node(folder):
    file_for(24, folder / "net.pt")
    model, _ = host("sd1")
    loader = nodes.NODE_CLASS_MAPPINGS["HypernetworkLoader"]
    positive, negative = ([[random(side, 1, 13, 24), {}]] for side in ("positive", "negative"))
    x, sigma = random("x", 1, 4, 16, 16), torch.tensor([3.0])
    plain = guided(model, x, sigma, positive, negative, 5.0)
    changed = guided(loader.execute(model, "net.pt", 1.0).result[0], x, sigma, positive, negative, 5.0)
    nothing = guided(loader.execute(model, "net.pt", 0.0).result[0], x, sigma, positive, negative, 5.0)
    assert error(changed, plain) > 1e-3
    assert error(nothing, plain) < 1e-5
    assert torch.equal(guided(model, x, sigma, positive, negative, 5.0), plain)


class Evil:
    def __reduce__(self):
        return (print, ("hello",))


def test_bad_files_are_named(folder):
    torch.save({"a": torch.zeros(2), "b": 1}, folder / "none.pt")
    with pytest.raises(HypernetworkFileError, match=r"none\.pt.*no hypernetwork"):
        load_hypernetwork(str(folder / "none.pt"))
    torch.save({24: ({}, {}), "activation_func": "relu"}, folder / "empty.pt")
    with pytest.raises(HypernetworkFileError, match=r"empty\.pt.*width 24"):
        load_hypernetwork(str(folder / "empty.pt"))
    file_for(24, folder / "unknown.pt", "linear")
    content = torch.load(folder / "unknown.pt")
    torch.save({**content, "activation_func": "cosine"}, folder / "unknown.pt")
    with pytest.raises(HypernetworkFileError, match=r"unknown\.pt.*'cosine'"):
        load_hypernetwork(str(folder / "unknown.pt"))
    torch.save({**content, "is_layer_norm": True, "activation_func": "relu"}, folder / "norms.pt")
    with pytest.raises(HypernetworkFileError, match=r"norms\.pt.*width 24"):  # it has none
        load_hypernetwork(str(folder / "norms.pt"))
    torch.save({24: Evil(), "activation_func": "relu"}, folder / "evil.pt")
    with pytest.raises(UnsafeWeightsError, match=r"evil\.pt"):
        load_hypernetwork(str(folder / "evil.pt"))
