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


@pytest.mark.parametrize(("backend", "works"), [("eager", True), (wrong, False), (broken, False)])
def test_results_are_checked(model, inputs, backend, works):
    torch._dynamo.reset()
    x, time, context = inputs
    network = CheckedNetwork(model.diffusion_model, backend=backend)
    with torch.inference_mode():
        expected = model.diffusion_model(x, time, **context)
        for _ in range(2):
            assert torch.allclose(network(x, time, **context), expected, atol=1e-5)
    assert network.works == works


def test_the_model_uses_it_when_nothing_hangs_in_its_blocks(model, inputs, monkeypatch):
    torch._dynamo.reset()
    x, _time, context = inputs
    runs = []

    class Counting(CheckedNetwork):
        def __call__(self, *args, **kwargs):
            runs.append(1)
            return super().__call__(*args, **kwargs)

    network = Counting(model.diffusion_model, backend="eager")
    monkeypatch.setattr(comfy.fast_network, "compiled", lambda network_: network)
    monkeypatch.setattr(comfy.fast_network, "wanted", lambda device: True)
    sigma = torch.ones(x.shape[0])
    with torch.inference_mode():
        told = {"sigmas": sigma, "cond_or_uncond": [0, 1], "wrappers": {}, "patches": {}}
        compiled = model.apply_model(x, sigma, c_crossattn=context["context"], transformer_options=told)
        assert runs == [1]
        patched = {"patches": {"middle_patch": [lambda h, options: h]}}
        plain = model.apply_model(x, sigma, c_crossattn=context["context"], transformer_options=patched)
    assert runs == [1] and torch.allclose(compiled, plain, atol=1e-5)


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
