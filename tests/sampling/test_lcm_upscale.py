"""Consistency sampling of a growing latent: sizes, noise and the case without growth against plain consistency
sampling."""

from __future__ import annotations

import pytest
import torch
import toy

import comfy.samplers
import nodes
from comfy.sampling.solvers.lcm_upscale import MaskedUpscaleError

SIGMAS = torch.tensor([8.0, 4.0, 2.0, 1.0, 0.0])


class Recorder:
    """Halves what it is given, and remembers it."""

    inner_model = None

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def __call__(self, x, sigma, **kwargs):
        self.seen.append(x)
        return x / 2


def solve(scale: float, steps: int, method: str = "bilinear", **extra):
    sampler = nodes.NODE_CLASS_MAPPINGS["SamplerLCMUpscale"].execute(scale, steps, method).args[0]
    model = Recorder()
    torch.manual_seed(5)
    x = torch.full((1, 4, 8, 12), 8.0)
    result = sampler.sampler_function(model, x, SIGMAS, extra_args=extra, **sampler.extra_options)
    return result, model.seen


@pytest.mark.parametrize(
    ("steps", "widths"),
    [
        (-1, [12, 18, 24, 24, 24]),  # half of five sigmas: two steps
        (1, [12, 24, 24, 24, 24]),
        (3, [12, 16, 20, 24, 24]),
        (0, [12, 12, 12, 12, 12]),
    ],
)
def test_it_grows_in_equal_parts_over_the_first_steps(steps, widths):
    result, seen = solve(2.0, steps)
    assert [x.shape[-1] for x in seen] + [result.shape[-1]] == widths
    assert [x.shape[-2] for x in seen] == [round(width * 8 / 12) for width in widths[:-1]]


def test_the_noise_continues_the_global_generator():
    _, seen = solve(1.0, 0)
    torch.manual_seed(5)
    for before, after, sigma in zip(seen, seen[1:], SIGMAS.tolist()[1:]):
        assert torch.equal(after, before / 2 + sigma * torch.randn(1, 4, 8, 12))


@pytest.mark.parametrize("kind", ["eps", "flow3"])
def test_without_growth_it_is_consistency_sampling(kind):
    patcher = toy.patcher(kind)
    sigmas = comfy.samplers.calculate_sigmas(patcher.get_model_object("model_sampling"), "simple", 4)
    noise = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    conds = [[[toy.tensors("sampler_inputs")[name], {}]] for name in ("pos", "neg")]

    def draw(sigma, sigma_next):
        return torch.randn(1, 4, 8, 8)

    samplers = (
        nodes.NODE_CLASS_MAPPINGS["SamplerLCMUpscale"].execute(1.0, -1, "bilinear").args[0],
        comfy.samplers.ksampler("lcm", {"noise_sampler": draw}),
    )
    results = []
    for sampler in samplers:
        torch.manual_seed(2)
        results.append(
            comfy.samplers.sample(
                patcher, noise, *conds, 3.0, "cpu", sampler, sigmas, latent_image=torch.zeros(1, 4, 8, 8), seed=3
            )
        )
    assert toy.difference(*results) <= 1e-6


def test_a_mask_cannot_follow():
    with pytest.raises(MaskedUpscaleError, match="noise mask"):
        solve(2.0, -1, denoise_mask=torch.ones(1, 4, 8, 12))
