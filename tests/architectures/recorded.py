"""Building and running a recorded diffusion network, and real files' key maps."""

from __future__ import annotations

import gzip
import json
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from comfy.model_sampling import ModelType, model_sampling
from comfy.models import dit
from tests.networks.golden import DATA, Golden

KEYS = DATA / "keys"


def build(golden: Golden, config, network: type[nn.Module], prefix: str | None = None, **kwargs) -> nn.Module:
    """The network with the recorded weights: made on the meta device, then given the tensors themselves."""
    net = network(config, device="meta", **kwargs)
    net.load_state_dict(golden.module_weights(prefix), assign=True)
    return net.eval()


def run(net: nn.Module, golden: Golden, **kwargs) -> torch.Tensor:
    """The bare network on the recorded inputs; its concatenated channels go behind the latent."""
    inputs = {**golden.inputs, **kwargs}
    x = inputs.pop("x")
    if "c_concat" in inputs:
        x = torch.cat([x, inputs.pop("c_concat")], dim=1)
    inputs.pop("sigma")
    refs = [inputs.pop(k) for k in sorted(k for k in inputs if k.startswith("ref_latents."))]
    if refs:
        inputs["ref_latents"] = refs
    return net(x, inputs.pop("timesteps"), inputs.pop("context"), **inputs)


def denoise(net: nn.Module, golden: Golden, **kwargs) -> torch.Tensor:
    """The full call at the recorded sigma: input scaling, network at the sigma's timestep, conversion to the
    denoised latent."""
    settings = SimpleNamespace(sampling_settings=golden.config["sampling_settings"])
    sampling = model_sampling(settings, ModelType[golden.config["model_type"]])
    x, sigma = golden.inputs["x"], golden.inputs["sigma"]
    scaled = sampling.calculate_input(sigma, x)
    out = run(net, golden, x=scaled, timesteps=sampling.timestep(sigma).float(), **kwargs)
    return sampling.calculate_denoised(sigma, out, x)


def key_map(name: str) -> dict[str, torch.Tensor]:
    """Names and shapes of a real file, as tensors without memory."""
    shapes = json.loads(gzip.decompress((KEYS / f"{name}.json.gz").read_bytes()))
    return {key: torch.empty(shape, device="meta", dtype=torch.float16) for key, shape in shapes.items()}


def build_from_map(name: str, module: ModuleType, network: type[nn.Module], prefix: str = "", **overrides):
    """Config read from the map, and the network it builds after taking the map's tensors (strictly: no key
    missing, none left over, all shapes equal)."""
    sd = key_map(name)
    config = module.config_from_state_dict(sd, prefix, **overrides)
    net = network(config, device="meta", dtype=torch.float16)
    net.load_state_dict({k.removeprefix(prefix): v for k, v in sd.items() if k.startswith(prefix)}, assign=True)
    return config, net


def residual(*shape: int) -> torch.Tensor:
    """A fixed tensor to add to hidden states (not a constant: the next norm would remove it)."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def set_recorded_frequency(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have time embeddings of 256 use the frequency number 12 of the recording. Guidance 30 makes angles up to 30000,
    where its last place, which some processors' exponentials round the other way, moves outputs by 1.5e-4."""
    frequencies = dit._frequencies(128, torch.device("cpu")).clone()
    recorded = torch.tensor(0.4216965138912201)
    assert (frequencies[12] - recorded).abs() <= torch.finfo(torch.float32).eps / 2, "more than the last place"
    frequencies[12] = recorded
    monkeypatch.setattr(dit, "_frequencies", lambda half, device: frequencies)
