"""A step costs the same however many came before it: Python's calls and what is kept of the past are counted."""

from __future__ import annotations

import inspect
import itertools
import statistics
import sys
import weakref

import pytest
import torch
import toy

import comfy.samplers
from comfy.sampling.solvers import SAMPLERS

STEPS = 64
EARLY, LATE = slice(16, 32), slice(44, 60)  # of the reports; past the start of the highest order


class NoModel:
    """Denoises at no cost; knows which of its answers are still kept."""

    def __init__(self) -> None:
        self.answers: list[weakref.ref] = []
        self.inner_model = self.model_patcher = self
        self.model_sampling = toy.sampling_object("eps")

    def get_model_object(self, name):
        return getattr(self, name)

    def __call__(self, x, sigma, model_options=None, **kwargs):
        for function in (model_options or {}).get("sampler_post_cfg_function", []):
            function({"uncond_denoised": x, "denoised": x})
        answer = x * 0.5
        self.answers.append(weakref.ref(answer))
        return answer


def run(name: str, model: NoModel, callback) -> None:
    x = torch.ones(1, 4, 2, 2)
    sampler = comfy.samplers.sampler_object(name)
    options = {}
    if "noise_sampler" in inspect.signature(sampler.sampler_function).parameters:
        options["noise_sampler"] = lambda sigma, sigma_next: torch.zeros_like(x)
    sigmas = comfy.samplers.calculate_sigmas(model.model_sampling, "karras", STEPS)
    sampler.sampler_function(model, x, sigmas, extra_args={"seed": 1}, callback=callback, **options)


# Its steps are of different orders, and few.
@pytest.mark.parametrize("name", [name for name in SAMPLERS if name not in ("dpm_fast", "dpm_adaptive")])
def test_late_steps_are_as_early_ones(name):
    calls = [0]
    marks: list[int] = []
    kept: list[int] = []
    model = NoModel()

    def count(frame, event, argument):
        if event in ("call", "c_call"):
            calls[0] += 1

    def callback(step):
        marks.append(calls[0])
        sys.setprofile(None)
        kept.append(sum(answer() is not None for answer in model.answers))
        sys.setprofile(count)

    sys.setprofile(count)
    try:
        run(name, model, callback)
    finally:
        sys.setprofile(None)
    assert len(marks) == STEPS
    steps = [after - before for before, after in itertools.pairwise(marks)]
    early, late = statistics.median(steps[EARLY]), statistics.median(steps[LATE])
    assert late <= early * 1.02 + 2
    assert max(kept[LATE]) <= max(kept[EARLY]) <= 8
