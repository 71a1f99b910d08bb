"""Sigma tables, timesteps, percents and schedulers against schedules.safetensors (goldens, section 1)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import toy

import comfy.model_sampling as ms
import comfy.samplers
from comfy.sampling import schedules

TOLERANCE = 2e-6
KINDS = sorted(toy.meta("schedules")["kinds"])
EXACT_SCHEDULERS = {"simple", "ddim_uniform", "beta"}


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    """Largest difference over max(1, value)."""
    if got.shape != want.shape:
        return float("inf")
    return toy.difference(
        got.double() / want.double().abs().clamp(min=1), want.double() / want.double().abs().clamp(min=1)
    )


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def test_table(kind):
    assert relative(toy.sampling_object(kind).sigmas, toy.tensors("schedules")[f"table/{kind}"]) <= TOLERANCE


def test_timestep_of_sigma(kind):
    sigmas = toy.tensors("schedules")[f"probe_sigma/{kind}"].float()
    got = toy.sampling_object(kind).timestep(sigmas)
    assert str(got.dtype) == toy.meta("schedules")["kinds"][kind]["timestep_dtype"]
    assert relative(got, toy.tensors("schedules")[f"timestep_of_sigma/{kind}"]) <= TOLERANCE


def test_sigma_of_timestep(kind):
    timesteps = toy.tensors("schedules")[f"probe_timestep/{kind}"].float()
    got = toy.sampling_object(kind).sigma(timesteps)
    assert relative(got, toy.tensors("schedules")[f"sigma_of_timestep/{kind}"]) <= TOLERANCE


def test_percent_to_sigma(kind):
    percents = toy.tensors("schedules")["common/percents"].tolist()
    model_sampling = toy.sampling_object(kind)
    values = [model_sampling.percent_to_sigma(p) for p in percents]
    assert all(isinstance(v, float) for v in values)
    got = torch.tensor(values, dtype=torch.float64)
    assert relative(got, toy.tensors("schedules")[f"percent_to_sigma/{kind}"]) <= TOLERANCE


class _Patcher(SimpleNamespace):
    def get_model_object(self, name):
        return getattr(self, name)


def test_ksampler_schedules(kind):
    """Every scheduler, step count and denoise, as KSampler computes it for euler and for dpm_2."""
    model = _Patcher(model_sampling=toy.sampling_object(kind))
    failures, checked = [], 0
    for key, want in toy.tensors("schedules").items():
        if not key.startswith(f"ksampler/{kind}/"):
            continue
        _, _, scheduler, steps, denoise, *discard = key.split("/")
        sampler = "dpm_2" if discard else "euler"
        got = comfy.samplers.KSampler(
            model, int(steps[5:]), "cpu", sampler, scheduler, denoise=float(denoise[7:])
        ).sigmas
        error = relative(got, want)
        if not error <= TOLERANCE:
            failures.append(f"{key}: {error:.1e}")
        checked += 1
    assert checked > 50
    assert not failures


def test_names_and_special_denoise():
    facts = toy.meta("schedules")
    assert facts["scheduler_names"] == comfy.samplers.SCHEDULER_NAMES == comfy.samplers.KSampler.SCHEDULERS
    assert facts["sampler_names"] == comfy.samplers.SAMPLER_NAMES == comfy.samplers.KSampler.SAMPLERS
    assert (
        set(facts["discard_penultimate_sigma_samplers"]) == comfy.samplers.KSampler.DISCARD_PENULTIMATE_SIGMA_SAMPLERS
    )
    model = _Patcher(model_sampling=toy.sampling_object("eps"))
    assert len(comfy.samplers.KSampler(model, 8, "cpu", "euler", "karras", denoise=0.0).sigmas) == 0
    full = comfy.samplers.KSampler(model, 8, "cpu", "euler", "karras", denoise=1.0).sigmas
    nearly = comfy.samplers.KSampler(model, 8, "cpu", "euler", "karras", denoise=0.99995).sigmas
    assert torch.equal(full, nearly)


def _node_schedule(case: str, facts: dict) -> torch.Tensor | None:
    """What a scheduler node that is a plain function of this room computes."""
    args = dict(facts["args"])
    kind = args.pop("kind", None)
    match facts["node"]:
        case "KarrasScheduler":
            return schedules.get_sigmas_karras(args.pop("steps"), **args)
        case "ExponentialScheduler":
            return schedules.get_sigmas_exponential(args.pop("steps"), **args)
        case "PolyexponentialScheduler":
            return schedules.get_sigmas_polyexponential(args.pop("steps"), **args)
        case "LaplaceScheduler":
            return schedules.get_sigmas_laplace(args.pop("steps"), **args)
        case "VPScheduler":
            return schedules.get_sigmas_vp(args.pop("steps"), **args)
        case "BetaSamplingScheduler":
            return schedules.beta_scheduler(toy.sampling_object(toy.SCHEDULE_KIND.get(kind, kind)), **args)
    return None


def test_schedules_of_nodes():
    failures, checked = [], 0
    for case, facts in toy.meta("schedules")["nodes"].items():
        got = _node_schedule(case, facts)
        if got is None:
            continue
        checked += 1
        error = relative(got, toy.tensors("scheduler_nodes")[f"{case}/out0"])
        if not error <= TOLERANCE:
            failures.append(f"{case}: {error:.1e}")
    assert checked == 60
    assert not failures


def test_unknown_names_are_told():
    model_sampling = toy.sampling_object("eps")
    with pytest.raises(schedules.UnknownSchedulerError, match="'nonsense'"):
        comfy.samplers.calculate_sigmas(model_sampling, "nonsense", 4)
    with pytest.raises(comfy.samplers.UnknownSamplerError, match="'nonsense'"):
        comfy.samplers.sampler_object("nonsense")
    with pytest.raises(ms.SamplingSettingsError, match="nonsense"):
        ms.ModelSamplingDiscrete(SimpleNamespace(sampling_settings={"beta_schedule": "nonsense"}))
    with pytest.raises(ms.SamplingSettingsError, match="sigma_min"):
        ms.ModelSamplingContinuousEDM(SimpleNamespace(sampling_settings={"sigma_min": 3.0, "sigma_max": 2.0}))
    with pytest.raises(ms.SamplingSettingsError):
        ms.model_sampling(None, "EPS")


def test_a_pack_can_add_a_scheduler(monkeypatch):
    def two_steps(model_sampling, steps):
        return torch.tensor([1.0, 0.5, 0.0])

    monkeypatch.setitem(comfy.samplers.SCHEDULER_HANDLERS, "two_steps", comfy.samplers.SchedulerHandler(two_steps))
    got = comfy.samplers.calculate_sigmas(toy.sampling_object("eps"), "two_steps", 9)
    assert got.tolist() == [1.0, 0.5, 0.0]


@pytest.mark.parametrize("model_type", list(ms.ModelType))
def test_every_model_type_has_sampling(model_type):
    model_sampling = ms.model_sampling(SimpleNamespace(sampling_settings={}), model_type)
    assert model_sampling.sigmas.ndim == 1
    assert (model_sampling.sigmas.diff() >= 0).all()
    assert not model_sampling.state_dict(), "tables are not weights"
