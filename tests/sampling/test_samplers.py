"""All samplers against samplers.safetensors and samplers_trace.safetensors (goldens, section 3)."""

from __future__ import annotations

import math

import pytest
import sampler_cases
import torch
import toy

import comfy.sample
import comfy.samplers
from comfy.sampling.solvers import multistep

# absolute, on values of size 2 to 6; larger results may differ in proportion
TOLERANCE = 2e-4
USUAL_SIZE = 5.0
# Cases whose result hangs on roundings of float32 (shown below), and how far they may be: an adaptive solver's own
# steps (with AVX instructions it is met exactly, without them 5e-3 off) and DEIS beyond its time axis.
ADAPTIVE_FROM_4518 = "v_zsnr/dpm_adaptive/karras/cfg5/d1/seed0"
DEIS_FROM_4518 = "v_zsnr/deis/karras/cfg5/d1/seed0"
LOOSE = {ADAPTIVE_FROM_4518: 1e-2, DEIS_FROM_4518: 2e-3}
# Own steps, or midpoints of steps down to a sigma that float32 knows to a digit or two.
INNER_SIGMAS_VARY = (
    "dpm_adaptive",
    "SamplerDPMAdaptative",
    "dpmpp_2s_ancestral",
    "dpmpp_2s_ancestral_cfg_pp",
)

CASES = toy.meta("samplers")
BY_SAMPLER: dict[str, list[str]] = {}
for _key, _facts in CASES.items():
    if not _key.startswith(("custom/", "net/")):
        BY_SAMPLER.setdefault(_facts["sampler"], []).append(_key)
CUSTOM: dict[str, list[str]] = {}
for _key in CASES:
    if _key.startswith("custom/"):
        CUSTOM.setdefault(_key.split("/")[2], []).append(_key)


def size(tensor: torch.Tensor) -> float:
    return max(1.0, float(tensor.abs().max()) / USUAL_SIZE) if tensor.numel() else 1.0


def by_last_digits(key: str, outcome: sampler_cases.Outcome, want: torch.Tensor) -> float:
    """How far a result moves when the last digit of the noise does.

    A few cases (SVD's noise of 700, solvers whose terms cancel) multiply it a thousandfold. Their recordings are met
    by processors that round like the one they were made on; on others the result may be off by about as much as this.
    """
    if key.startswith("custom/"):
        return 0.0
    others = (sampler_cases.run(key, 1 + units * 2.0**-23).samples for units in (-2, -1, 1, 2, 4))
    return 2 * max(toy.difference(other, outcome.samples) for other in others) / size(want)


def problems(key: str, outcome: sampler_cases.Outcome) -> list[str]:
    """What is wrong with the outcome of a case, in words."""
    facts, want = CASES[key], toy.tensors("samplers")[key]
    found = []
    error = toy.difference(outcome.samples, want) / size(want)
    if not error <= LOOSE.get(key, TOLERANCE) and not error <= by_last_digits(key, outcome, want):
        found.append(f"differs by {error:.1e}")
    if len(outcome.calls) != facts["evals"]:
        found.append(f"{len(outcome.calls)} evaluations, not {facts['evals']}")
    if "rows" in facts and sum(rows for _, rows, _ in outcome.calls) != facts["rows"]:
        found.append("other batch rows")
    if "order" in facts and outcome.calls and outcome.calls[0][2] != facts["order"]:
        found.append(f"order {outcome.calls[0][2]}, not {facts['order']}")
    if not any(f"/{name}" in key for name in INNER_SIGMAS_VARY):
        for (sigma, _, _), recorded in zip(outcome.calls, facts["sigmas_evaluated"]):
            if abs(sigma - recorded) > 2e-6 * max(1.0, recorded):
                found.append(f"sigma {sigma}, not {recorded}")
                break
    if "callback_steps" in facts and [c[0] for c in outcome.callbacks] != facts["callback_steps"]:
        found.append(f"callbacks {[c[0] for c in outcome.callbacks]}, not {facts['callback_steps']}")
    return found


def trace_problems(key: str, outcome: sampler_cases.Outcome) -> list[str]:
    recorded = toy.tensors("samplers_trace")
    found = []
    for name, position in (("x", 2), ("denoised", 1)):
        want = recorded.get(f"{key}/{name}")
        if want is not None:
            got = torch.stack([c[position] for c in outcome.callbacks])
            error = toy.difference(got, want) / size(want)
            if not error <= TOLERANCE:
                found.append(f"trace of {name} differs by {error:.1e}")
    return found


@pytest.mark.parametrize("sampler", BY_SAMPLER)
def test_sampler(sampler):
    failures = []
    for key in BY_SAMPLER[sampler]:
        outcome = sampler_cases.run(key)
        if CASES[key].get("error"):
            # the recorded failure is the overflow of seed + 1, which wraps here
            found = [] if torch.isfinite(outcome.samples).all() else ["not finite"]
        else:
            found = problems(key, outcome) + trace_problems(key, outcome)
        failures += [f"{key}: {p}" for p in found]
    assert not failures


@pytest.mark.parametrize("node", CUSTOM)
def test_sampler_options(node):
    failures = []
    for key in CUSTOM[node]:
        failures += [f"{key}: {p}" for p in problems(key, sampler_cases.run_custom(key))]
    assert not failures


def test_every_recorded_case_is_run():
    run = sum(map(len, BY_SAMPLER.values())) + sum(map(len, CUSTOM.values()))
    assert run + sum(key.startswith("net/") for key in CASES) == len(CASES) == 2642
    assert set(BY_SAMPLER) == set(comfy.samplers.SAMPLER_NAMES)


def spread(key: str, results: list[torch.Tensor]) -> float:
    """How far results of a case are from each other, as `problems` measures it."""
    return max(toy.difference(results[0], other) for other in results[1:]) / size(results[0])


def test_an_adaptive_solver_from_sigma_4518_hangs_on_roundings(monkeypatch):
    """Noise that differs in its last digit alone moves the result by more than the usual tolerance."""
    prepare = comfy.sample.prepare_noise
    results = [sampler_cases.run(ADAPTIVE_FROM_4518).samples]
    for factor in (1 - 1e-7, 1 + 1e-7, 1 + 2e-7):
        monkeypatch.setattr(comfy.sample, "prepare_noise", lambda *args, f=factor: prepare(*args) * f)
        results.append(sampler_cases.run(ADAPTIVE_FROM_4518).samples)
    assert spread(ADAPTIVE_FROM_4518, results) > TOLERANCE


def test_deis_beyond_its_time_axis_hangs_on_roundings(monkeypatch):
    """It takes sigmas up to 80. Times of larger ones bunch up, until one unit in the last place of the logarithm of
    80^2 + 1, a constant of the method, moves the result by more than the recording is away."""
    key = DEIS_FROM_4518
    results = [sampler_cases.run(key).samples]
    exact_log = torch.log
    for target in (math.inf, -math.inf):
        monkeypatch.setattr(torch, "log", lambda x, t=target: torch.nextafter(exact_log(x), torch.tensor(t)))
        multistep._vp_time.cache_clear()
        results.append(sampler_cases.run(key).samples)
        monkeypatch.undo()
    multistep._vp_time.cache_clear()
    away = toy.difference(results[0], toy.tensors("samplers")[key])
    assert spread(key, results) > max(TOLERANCE, away / 2)
