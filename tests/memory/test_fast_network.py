"""Compiled networks: same results, and a way back. Real kernels need a CUDA device (test_gpu.py)."""

import pytest
import torch

import comfy.fast_network
from comfy.fast_network import CheckedNetwork, is_plain
from tests.families.models import family_model
from tests.networks.golden import Golden

pytestmark = pytest.mark.slow  # torch.compile takes seconds, whatever it compiles to


def wrong(graph, inputs):
    """A backend whose kernels are off by a tenth."""
    return lambda *args: tuple(out * 1.1 if out.is_floating_point() else out for out in graph(*args))


def broken(graph, inputs):
    raise RuntimeError("no kernels today")


@pytest.fixture(scope="module")
def model():
    return family_model(Golden("unet_sd1"))


@pytest.fixture
def inputs(model):
    golden = Golden("unet_sd1")
    return golden.inputs["x"], golden.inputs["timesteps"], {"context": golden.inputs["context"]}


class Counting(CheckedNetwork):
    """Counts its runs."""

    runs = 0

    def __call__(self, *args, **kwargs):
        self.runs += 1
        return super().__call__(*args, **kwargs)


@pytest.fixture(scope="module")
def network(model):
    """The compiled network of this module's tests: tracing one takes seconds."""
    torch._dynamo.reset()
    return Counting(model.diffusion_model, backend="eager")


class Small(torch.nn.Module):
    """A network that is traced at once."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x, time, context):
        return self.layer(x) * time[:, None, None, None] + context.mean()


def check_results(network, plain, inputs):
    x, time, context = inputs
    with torch.inference_mode():
        expected = plain(x, time, **context)
        for _ in range(2):
            assert torch.allclose(network(x, time, **context), expected, atol=1e-5)


def test_results_are_the_networks(model, network, inputs):
    check_results(network, model.diffusion_model, inputs)
    assert network.works


@pytest.mark.parametrize("backend", [wrong, broken])
def test_a_network_with_other_results_or_none_runs_uncompiled(inputs, backend):
    plain = Small()
    network = CheckedNetwork(plain, backend=backend)
    check_results(network, plain, inputs)
    assert not network.works


def test_the_model_uses_it_when_nothing_hangs_in_its_blocks(model, network, inputs, monkeypatch):
    x, _time, context = inputs
    before = network.runs
    monkeypatch.setattr(comfy.fast_network, "compiled", lambda network_: network)
    monkeypatch.setattr(comfy.fast_network, "wanted", lambda device: True)
    sigma = torch.ones(x.shape[0])
    with torch.inference_mode():
        told = {"sigmas": sigma, "cond_or_uncond": [0, 1], "wrappers": {}, "patches": {}}
        compiled = model.apply_model(x, sigma, c_crossattn=context["context"], transformer_options=told)
        assert network.runs == before + 1 and network.works
        patched = {"patches": {"middle_patch": [lambda h, options: h]}}
        plain = model.apply_model(x, sigma, c_crossattn=context["context"], transformer_options=patched)
    assert network.runs == before + 1 and torch.allclose(compiled, plain, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "control", "plain"),
    [
        ({}, None, True),
        ({"sigmas": torch.ones(1), "uuids": [1]}, None, True),
        ({"patches_replace": {"attn1": {1: 2}}}, None, False),
        ({"wrappers": {"diffusion_model": {"k": [1]}}}, None, False),
        ({"some_pack": 3}, None, False),
        ({}, {"output": []}, False),
    ],
)
def test_what_is_plain(options, control, plain):
    assert is_plain(options, control) == plain
