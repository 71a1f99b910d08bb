"""Parametrisations on a toy network: net/* of samplers.safetensors (goldens, section 3)."""

from __future__ import annotations

import pytest
import sampler_cases
import torch
import toy
from torch import Tensor

import comfy.model_patcher
import comfy.sample

CASES = {k: v for k, v in toy.meta("samplers").items() if k.startswith("net/")}
KINDS = sorted({k.split("/")[1] for k in CASES})
TOLERANCE = 1e-4


def network(x: Tensor, t: Tensor, context: Tensor) -> Tensor:
    mu = context[:, :, :4].mean(1).reshape(context.shape[0], 4, 1, 1)
    g = toy.per_item(context[:, :, 4:8].mean((1, 2)), x)
    return 0.6 * x + 0.3 * torch.tanh(x + mu) + 0.05 * (1 + g) * torch.cos(0.004 * toy.per_item(t.float(), x))


class NetworkModel(toy.ToyModel):
    """The toy network behind a real parametrisation."""

    def __init__(self, kind: str) -> None:
        super().__init__("eps")
        self.model_sampling = toy.sampling_object(kind)

    def apply_model(self, x, t, c_crossattn, transformer_options, **kwargs):
        sampling = self.model_sampling
        output = network(sampling.calculate_input(t, x), sampling.timestep(t), c_crossattn)
        return sampling.calculate_denoised(t, output, x)


@pytest.mark.parametrize("kind", KINDS)
def test_functions(kind):
    inputs, recorded = toy.tensors("sampler_inputs"), toy.tensors("samplers")
    sampling = toy.sampling_object(kind)
    x, noise, latent = 1.7 * inputs["latent/a"], inputs["noise/b1/seed0"], inputs["latent/a"]
    checked = 0
    for i, value in enumerate(CASES[f"net/{kind}/apply"]["sigmas"]):
        sigma = torch.tensor([value])
        scaled = sampling.calculate_input(sigma, x)
        got = {
            "xc": scaled,
            "t": sampling.timestep(sigma).float(),
            "denoised": sampling.calculate_denoised(sigma, network(scaled, sampling.timestep(sigma), inputs["pos"]), x),
            "noise_scaling": sampling.noise_scaling(sigma, noise, latent),
            "noise_scaling_max": sampling.noise_scaling(sigma, noise, latent, max_denoise=True),
            "inverse_noise_scaling": sampling.inverse_noise_scaling(sigma, x),
        }
        for name, tensor in got.items():
            want = recorded.get(f"net/{kind}/apply/{i}/{name}")
            if want is not None:
                scale = max(1.0, float(want.float().abs().max()))
                error = toy.difference(tensor.reshape(want.shape), want.float()) / scale
                assert error <= 2e-6, f"{name} at sigma {value}"
                checked += 1
    assert checked >= 16


@pytest.mark.parametrize("kind", KINDS)
def test_runs(kind):
    cpu = torch.device("cpu")
    patcher = comfy.model_patcher.ModelPatcher(NetworkModel(kind), load_device=cpu, offload_device=cpu)
    positive, negative = sampler_cases.conditioning()
    failures = []
    for key, facts in CASES.items():
        if not key.startswith(f"net/{kind}/") or key.endswith("/apply"):
            continue
        latent = sampler_cases.latent_of(key, facts)
        noise = comfy.sample.prepare_noise(latent, facts["seed"])
        got = comfy.sample.sample(
            patcher, noise, facts["steps"], facts["cfg"], facts["sampler"], facts["scheduler"], positive, negative,
            latent, denoise=facts["denoise"], seed=facts["seed"],
        )  # fmt: skip
        want = toy.tensors("samplers")[key]
        error = toy.difference(got, want) / max(1.0, float(want.abs().max()) / 5)
        if not error <= TOLERANCE:
            failures.append(f"{key}: {error:.1e}")
    assert not failures
