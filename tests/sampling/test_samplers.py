"""All samplers against samplers.safetensors and samplers_trace.safetensors (goldens, section 3)."""

from __future__ import annotations

import pytest
import sampler_cases
import torch
import toy

import comfy.samplers

# absolute, on values of size 2 to 6; larger results may differ in proportion
TOLERANCE = 2e-4
USUAL_SIZE = 5.0
# Cases whose result hangs on roundings of float32, and how far they are: an adaptive solver's own steps and
# DEIS beyond its time axis, both from sigma 4518.
LOOSE = {
    "v_zsnr/dpm_adaptive/karras/cfg5/d1/seed0": 5e-3,
    "v_zsnr/deis/karras/cfg5/d1/seed0": 2e-3,
}
# Their options were not recorded.
UNKNOWN_OPTIONS = {f"custom/{kind}/SamplerDPMAdaptative/order3_tight/cfg5/seed42" for kind in ("eps", "flow3")}
# Own steps, or midpoints of steps down to a sigma that float32 knows to a digit or two.
INNER_SIGMAS_VARY = ("dpm_adaptive", "SamplerDPMAdaptative", "dpmpp_2s_ancestral", "dpmpp_2s_ancestral_cfg_pp")

CASES = toy.meta("samplers")
BY_SAMPLER: dict[str, list[str]] = {}
for _key, _facts in CASES.items():
    if not _key.startswith(("custom/", "net/")):
        BY_SAMPLER.setdefault(_facts["sampler"], []).append(_key)
CUSTOM: dict[str, list[str]] = {}
for _key in CASES:
    if _key.startswith("custom/") and _key not in UNKNOWN_OPTIONS:
        CUSTOM.setdefault(_key.split("/")[2], []).append(_key)


def size(tensor: torch.Tensor) -> float:
    return max(1.0, float(tensor.abs().max()) / USUAL_SIZE) if tensor.numel() else 1.0


def problems(key: str, outcome: sampler_cases.Outcome) -> list[str]:
    """What is wrong with the outcome of a case, in words."""
    facts, want = CASES[key], toy.tensors("samplers")[key]
    found = []
    error = toy.difference(outcome.samples, want) / size(want)
    if not error <= LOOSE.get(key, TOLERANCE):
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
    run = sum(map(len, BY_SAMPLER.values())) + sum(map(len, CUSTOM.values())) + len(UNKNOWN_OPTIONS)
    assert run + sum(key.startswith("net/") for key in CASES) == len(CASES) == 2642
    assert set(BY_SAMPLER) == set(comfy.samplers.SAMPLER_NAMES)
