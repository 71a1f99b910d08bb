"""Noise against noise.safetensors (goldens, section 2): bit-identical, but for the last digit of Brownian noise."""

from __future__ import annotations

import hashlib

import pytest
import torch
import toy

import comfy.sample
from comfy.k_diffusion.sampling import BrownianTreeNoiseSampler, default_noise_sampler
from comfy.sampling.noise import SEED_RANGE

# torchsde's arithmetic differs in the last digit between versions of torch
BROWNIAN_TOLERANCE = 5e-7


def test_initial_noise():
    wrong = []
    for key, facts in toy.meta("noise").items():
        if key.startswith("prepare_noise/"):
            noise = comfy.sample.prepare_noise(torch.zeros(facts["shape"]), int(key.split("/")[1][4:]))
            if hashlib.sha256(noise.numpy().tobytes()).hexdigest() != facts["sha256_f32le"]:
                wrong.append(key)
    assert not wrong


@pytest.mark.parametrize("name,dtype", [("f16", torch.float16), ("bf16", torch.bfloat16)])
def test_noise_of_half_latents(name, dtype):
    for seed in (0, 42):
        noise = comfy.sample.prepare_noise(torch.zeros(1, 4, 8, 8, dtype=dtype), seed)
        assert torch.equal(noise, toy.tensors("noise")[f"half/seed{seed}/{name}"])


def test_batch_index():
    for key, want in toy.tensors("noise").items():
        if key.startswith("batch_index/"):
            indices = [int(i) for i in key.split("/")[2].replace("single_", "").split("_")]
            got = comfy.sample.prepare_noise(torch.zeros(len(indices), 4, 8, 8), int(key.split("/")[1][4:]), indices)
            assert torch.equal(got, want), key


def test_nested_latents_share_one_generator():
    from comfy.nested_tensor import NestedTensor

    for seed in (0, 42):
        want = [toy.tensors("noise")[f"nested/seed{seed}/{i}"] for i in (0, 1)]
        got = comfy.sample.prepare_noise(NestedTensor([torch.zeros(w.shape) for w in want]), seed)
        assert all(torch.equal(g, w) for g, w in zip(got.unbind(), want))


def test_step_noise():
    x = torch.zeros(1, 4, 8, 8)
    for key, want in toy.tensors("noise").items():
        if key.startswith("ancestral_stream/"):
            draw = default_noise_sampler(x, int(key.split("/")[1][4:]))
            assert torch.equal(torch.stack([draw(None, None) for _ in range(4)]), want), key


def test_step_noise_of_the_largest_seed_wraps():
    x = torch.zeros(1, 4, 8, 8)
    largest = default_noise_sampler(x, SEED_RANGE - 1)(None, None)
    assert torch.equal(largest, torch.randn(x.shape, generator=torch.Generator().manual_seed(0)))


def _brownian(name: str) -> BrownianTreeNoiseSampler:
    sigmas = toy.tensors("noise")["brownian/sigmas"]
    shape = (2, 4, 8, 8) if "batch2" in name else (1, 4, 8, 8)
    seed = [42, 0] if "seeds42_0" in name else int(name.split("seed")[1])
    return BrownianTreeNoiseSampler(torch.zeros(shape), sigmas.min(), sigmas.max(), seed=seed)


def test_brownian_noise():
    sigmas, middle = (toy.tensors("noise")[f"brownian/{n}"] for n in ("sigmas", "midpoints"))
    checked = 0
    for key, want in toy.tensors("noise").items():
        if key.count("/") != 2 or not key.startswith("brownian/"):
            continue
        _, name, order = key.split("/")
        noise = _brownian(name)
        steps = range(len(sigmas) - 1)
        if order == "with_midpoints":
            got = [n for i in steps for n in (noise(sigmas[i], middle[i]), noise(sigmas[i], sigmas[i + 1]))]
        elif order == "reverse_order":
            got = [noise(sigmas[i], sigmas[i + 1]) for i in reversed(steps)][::-1]
        else:
            got = [noise(sigmas[i], sigmas[i + 1]) for i in steps]
        assert toy.difference(torch.stack(got), want) <= BROWNIAN_TOLERANCE, key
        checked += 1
    assert checked == 14


def test_brownian_seeds_must_fit_the_batch():
    with pytest.raises(ValueError, match="3 seeds for a batch of 2"):
        BrownianTreeNoiseSampler(torch.zeros(2, 4, 8, 8), 0.1, 10.0, seed=[1, 2, 3])
