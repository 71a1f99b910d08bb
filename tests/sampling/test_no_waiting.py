"""No step of a run waits for the device: whole steps on a device whose values cannot be read.

The "meta" device has shapes and no values: reading one fails. Copies from and to it, which on a real device would be
waited for, are counted.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import toy
from conditioning_cases import RECORDED
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import comfy.model_patcher
import comfy.samplers
import nodes
from comfy.sampling import solvers
from comfy.sampling.solvers.common import sigma_batch

CPU, DEVICE = torch.device("cpu"), torch.device("meta")
STEPS = 5
A, B, C, NEG = ([[RECORDED[f"cond/{name}"], {}]] for name in ("A", "B", "C", "NEG"))


class Transfers(TorchDispatchMode):
    """Counts copies of values between host and device; single numbers a kernel takes as arguments are none."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and func.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.copy_):
            source = args[1] if func.overloadpacket is torch.ops.aten.copy_ else args[0]
            if source.device != result.device:
                self.seen.append(f"{func} from {source.device} to {result.device}")
        return result


class DeviceModel(toy.ToyModel):
    """The toy without its log, which would read sigma."""

    def apply_model(self, x, t, c_crossattn, transformer_options, **kwargs):
        return toy.denoise(x, t, c_crossattn, self.flow)


@cache
def patcher(kind: str) -> comfy.model_patcher.ModelPatcher:
    """A patcher of a model on the device. What a solver asks before its first step it asks the patcher, which has the
    noise levels on the host here."""
    model = DeviceModel(kind)
    on_host = copy.deepcopy(model.model_sampling)
    made = comfy.model_patcher.ModelPatcher(model.to(DEVICE), DEVICE, DEVICE)
    made.add_object_patch("model_sampling", on_host)
    return made


def cfg(model: Any, scale: float = 3.0) -> comfy.samplers.CFGGuider:
    guider = comfy.samplers.CFGGuider(model)
    guider.set_conds(A, NEG)
    guider.set_cfg(scale)
    return guider


def on_device(guider: Any, video: bool = False) -> tuple[Any, Tensor]:
    """(denoiser as a solver gets it, x): conditioning made ready, all on the device."""
    model = guider.model_patcher.model
    x = torch.zeros((1, 4, 3, 16, 16) if video else (1, 4, 16, 16), device=DEVICE)
    host = copy.copy(model)
    host.__dict__ = {**model.__dict__, "_modules": {**model._modules}}
    host.model_sampling = guider.model_patcher.get_model_object("model_sampling")
    guider.inner_model = model
    guider.conds = comfy.samplers.process_conds(host, x, dict(guider.original_conds), DEVICE)
    sigmas = comfy.samplers.calculate_sigmas(host.model_sampling, "simple", STEPS)
    denoiser = comfy.samplers.KSamplerX0Inpaint(guider, sigmas.to(DEVICE))
    denoiser.latent_image, denoiser.noise = x, x
    guider.host_sigmas = sigmas
    return denoiser, x


def run(guider: Any, sampler: str = "euler", mask: bool = False, video: bool = False) -> list[str]:
    """Copies between host and device in a run, from the first step on."""
    denoiser, x = on_device(guider, video=video)
    options = comfy.samplers._clone_model_options(guider.model_options)
    options.setdefault("transformer_options", {})["sample_sigmas"] = denoiser.sigmas
    extra = {"model_options": options, "seed": 1}
    if mask:
        extra["denoise_mask"] = torch.ones_like(x)
    solver = comfy.samplers.sampler_object(sampler).sampler_function
    more = {}
    if "noise_sampler" in inspect.signature(solver).parameters:
        more["noise_sampler"] = lambda sigma, sigma_next: torch.zeros_like(x)
    with Transfers() as transfers:
        result = solver(denoiser, x, guider.host_sigmas, extra_args=extra, **more)
    assert result.device == DEVICE and result.shape == x.shape
    return transfers.seen


def test_waiting_would_be_noticed():
    x = torch.zeros(3, device=DEVICE)
    for read in (lambda: float(x[0]), lambda: bool(x[0] > 0), lambda: x.tolist(), lambda: x[x > 0], lambda: x.cpu()):
        with pytest.raises((RuntimeError, NotImplementedError)):
            read()
    with Transfers() as transfers:
        torch.zeros(2).to(DEVICE)
        torch.empty(2, device=DEVICE).copy_(torch.ones(2))
        x * torch.tensor(2.0)
        sigma_batch(x, 2.0)
        x.to(torch.float16)
    assert len(transfers.seen) == 2


def node(name: str, **inputs: Any) -> Callable[[Any], Any]:
    def make(model: Any) -> Any:
        cls = nodes.NODE_CLASS_MAPPINGS[name]
        call = cls.execute if hasattr(cls, "GET_SCHEMA") else getattr(cls(), cls.FUNCTION)
        result = call(model=model, **inputs)
        return (result.args if hasattr(result, "args") else result)[0]

    return make


# Nodes that patch guidance, and values with which they do something in each step.
METHODS: dict[str, dict[str, Any]] = {
    "RescaleCFG": {"multiplier": 0.7},
    "CFGZeroStar": {},
    "CFGNorm": {"strength": 1.0},
    "Mahiro": {},
    "Epsilon Scaling": {"scaling_factor": 1.01},
    "TemporalScoreRescaling": {"tsr_k": 0.95, "tsr_sigma": 1.0},
    "TCFG": {},
    "FreSca": {"scale_low": 1.0, "scale_high": 1.25, "freq_cutoff": 4},
    "RenormCFG": {"cfg_trunc": 100.0, "renorm_cfg": 1.0},
    "VideoLinearCFGGuidance": {"min_cfg": 1.0},
    "VideoTriangleCFGGuidance": {"min_cfg": 1.0},
    "CFGOverride": {"cfg": 2.0, "start_percent": 0.2, "end_percent": 0.8},
    "APG": {"eta": 0.5, "norm_threshold": 5.0, "momentum": -0.5},
    "PerpNeg": {"empty_conditioning": C, "neg_scale": 0.5},
}
GUIDERS: dict[str, dict[str, Any]] = {
    "BasicGuider": {"conditioning": A},
    "CFGGuider": {"positive": A, "negative": NEG, "cfg": 3.0},
    "PerpNegGuider": {"positive": A, "negative": NEG, "empty_conditioning": C, "cfg": 3.0, "neg_scale": 0.5},
    "DualCFGGuider": {
        "cond1": A, "cond2": B, "negative": NEG, "cfg_conds": 3.0, "cfg_cond2_negative": 2.0, "style": "regular",
    },
}  # fmt: skip


# Reads the error of each of its steps: that is what it adapts to.
@pytest.mark.parametrize("sampler", [name for name in solvers.SAMPLERS if name != "dpm_adaptive"])
@pytest.mark.parametrize("kind", ["eps", "flow3"])
def test_no_solver_waits(kind, sampler):
    assert not run(cfg(patcher(kind)), sampler)


@pytest.mark.parametrize("kind", ["eps", "flow3", "v_zsnr", "edm_v_svd", "cosmos_rflow"])
def test_no_parametrisation_and_no_mask_waits(kind):
    assert not run(cfg(patcher(kind)), mask=True)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", ["eps", "flow3"])
def test_no_guidance_waits(kind, name):
    seen = run(cfg(node(name, **METHODS[name])(patcher(kind))))
    # A conditioning of its own is brought to the device by the first evaluation.
    assert len(seen) == (1 if name == "PerpNeg" else 0)


@pytest.mark.parametrize("name", GUIDERS)
def test_no_guider_waits(name):
    assert not run(node(name, **GUIDERS[name])(patcher("eps")))


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("LatentOperationTonemapReinhard", {"multiplier": 1.0}),
        ("LatentOperationSharpen", {"sharpen_radius": 2, "sigma": 1.0, "alpha": 0.1}),
    ],
)
def test_no_operation_on_the_guidance_waits(name, inputs):
    (operation,) = nodes.NODE_CLASS_MAPPINGS[name].execute(**inputs).args
    seen = run(cfg(node("LatentApplyOperationCFG", operation=operation)(patcher("eps"))))
    assert not seen


def test_every_node_for_guidance_is_here():
    modules = ("guidance", "guidance_methods", "perp_neg", "projected_guidance", "differential_diffusion")
    known = {cls for module in modules for table in getattr(nodes, module).NODES.values() for cls in table}
    named = {nodes.NODE_CLASS_MAPPINGS[name] for name in [*METHODS, *GUIDERS, "DifferentialDiffusion"]}
    assert known <= named


@pytest.mark.parametrize("kind", ["eps", "flow3"])
def test_differential_diffusion_does_not_wait(kind):
    assert not run(cfg(node("DifferentialDiffusion", strength=0.5)(patcher(kind))), mask=True)


def test_a_guider_of_two_models_does_not_wait():
    guider = node("DualModelGuider", positive=A, negative=NEG, cfg=3.0, model_negative=patcher("v_zsnr"))(
        patcher("eps")
    )
    assert not run(guider)


def test_areas_masks_ranges_and_hooks_do_not_wait():
    """All of them are settled before the first step, or decided by the host's own sigma."""
    import comfy.hooks

    group = comfy.hooks.HookGroup()
    patch = ("diff", (torch.ones(1),))
    group.add(comfy.hooks.WeightHook(1.0, 1.0, {"anchor": patch}, is_diff=True))
    keyframes = comfy.hooks.HookKeyframeGroup()
    keyframes.add(comfy.hooks.HookKeyframe(1.0, 0.0))
    keyframes.add(comfy.hooks.HookKeyframe(0.0, 0.5))
    group.set_keyframes_on_hooks(keyframes)
    model = patcher("eps")
    positive = [
        [A[0][0], {"area": (8, 8, 4, 4), "strength": 0.5}],
        [B[0][0], {"mask": RECORDED["mask/m128"], "mask_strength": 0.7}],
        [C[0][0], {"start_percent": 0.2, "end_percent": 0.7}],
        [A[0][0], {"default": True}],
        [B[0][0], {"hooks": group}],
    ]
    guider = comfy.samplers.CFGGuider(model)
    guider.set_conds(positive, NEG)
    guider.set_cfg(3.0)
    model.register_all_hook_patches(group, {})
    model.pre_run()
    seen = run(guider)
    model.cleanup()
    # The ramp of the area's edges and the hook's patch come from the host once; the steps themselves copy nothing.
    assert len(seen) <= 2


def test_conditioning_comes_to_the_device_once():
    """Text encoders leave it on the host."""
    guider = cfg(patcher("eps"))
    on_device(guider)
    for entries in guider.conds.values():
        for entry in entries:
            assert entry["model_conds"]["c_crossattn"].cond.device == DEVICE
