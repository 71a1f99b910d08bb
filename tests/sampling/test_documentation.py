"""docs/sampling.md says about samplers and schedulers what the registries say, and that is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import toy
from sampler_cases import conditioning

import comfy.sample
import comfy.samplers
from comfy.sampling.solvers import SAMPLERS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "sampling.md").read_text(encoding="utf-8")
STEPS = 12
# Choose how often they ask: on average, or by the error.
BY_THEMSELVES = {"dpm_fast": "1 on average", "dpm_adaptive": "3 per own step"}


def table(heading: str) -> list[list[str]]:
    """Rows of the table below a heading, as cells without backticks."""
    section = PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in rows[2:]]


def test_the_table_of_samplers_is_the_registry():
    expected = [
        [name, str(e.order or "-"), str(e.converges or "-"), e.evaluations, "yes" if e.stochastic else "no", e.paper]
        for name, e in SAMPLERS.items()
    ]
    assert table("Samplers") == expected


def test_the_table_of_schedulers_is_the_registry():
    assert [row[0] for row in table("Schedulers")] == comfy.samplers.SCHEDULER_NAMES


def test_every_solver_names_its_source():
    for name, entry in SAMPLERS.items():
        assert re.search(r"\d{4}", entry.paper) or "k-diffusion" in entry.paper, name
        assert entry.function.__doc__, name


def evaluated(name: str, noise: float) -> tuple[torch.Tensor, int]:
    """(result, evaluations) of a run whose noise of steps is this number everywhere."""
    patcher = toy.patcher("eps")
    sigmas = comfy.samplers.calculate_sigmas(patcher.get_model_object("model_sampling"), "karras", STEPS)
    latent = torch.zeros(1, 4, 8, 8)
    sampler = comfy.samplers.sampler_object(name)
    if SAMPLERS[name].stochastic:
        sampler.extra_options = {"noise_sampler": lambda sigma, sigma_next: torch.full_like(latent, noise)}
    patcher.model.calls.clear()
    result = comfy.sample.sample_custom(
        patcher, comfy.sample.prepare_noise(latent, 1), 3.0, sampler, sigmas, *conditioning(), latent, seed=1
    )
    return result, len(patcher.model.calls)


@pytest.mark.parametrize("name", SAMPLERS)
def test_what_the_table_says_is_so(name, monkeypatch):
    """Noise of steps matters to the random ones, and is drawn by no other; evaluations are as many as it says, but that
    the last step, and with some the one before it, takes fewer."""
    entry = SAMPLERS[name]
    still, calls = evaluated(name, 0.0)
    if entry.stochastic:
        assert not torch.equal(still, evaluated(name, 1.0)[0])
    else:

        def refuse(*args, **kwargs):
            raise AssertionError(f"{name} draws noise")

        monkeypatch.setattr("comfy.k_diffusion.sampling.default_noise_sampler", refuse)
        monkeypatch.setattr("comfy.k_diffusion.sampling.BrownianTreeNoiseSampler", refuse)
        assert torch.equal(still, evaluated(name, 0.0)[0])
    if name in BY_THEMSELVES:
        assert entry.evaluations == BY_THEMSELVES[name] and calls >= STEPS
    else:
        count = int(entry.evaluations)
        assert count * (STEPS - 2) < calls <= count * STEPS
