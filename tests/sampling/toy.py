"""The toy denoiser of the goldens in the place of a network, on the real patcher and the real samplers."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

import comfy.conds
import comfy.latent_formats
import comfy.model_patcher
import comfy.model_sampling as ms
from tests.recorded_files import load_json, load_tensors

DATA = Path(__file__).resolve().parents[1] / "data" / "goldens"

TABLES = {
    "discrete": ms.ModelSamplingDiscrete,
    "discrete distilled (50 of 1000)": ms.ModelSamplingDiscreteDistilled,
    "continuous EDM": ms.ModelSamplingContinuousEDM,
    "continuous V": ms.ModelSamplingContinuousV,
    "stable cascade cosine": ms.StableCascadeSampling,
    "discrete flow": ms.ModelSamplingDiscreteFlow,
    "flux": ms.ModelSamplingFlux,
    "cosmos rflow": ms.ModelSamplingCosmosRFlow,
}
PARAMETRISATIONS = {
    "eps": ms.EPS,
    "v": ms.V_PREDICTION,
    "edm": ms.EDM,
    "x0": ms.X0,
    "v_ddpm": ms.V_PREDICTION_DDPM,
    "lcm": ms.LCM,
    "const": ms.CONST,
    "cosmos_rflow": ms.COSMOS_RFLOW,
}
# kinds of samplers.safetensors by their name in schedules.json
SCHEDULE_KIND = {
    "eps": "eps",
    "eps_sd15fmt": "eps",
    "flow3": "flow_sd3",
    "flow3_noisescale8": "flow_sd3",
    "flow": "flow_sd3",
    "v_zsnr": "v_zsnr",
    "edm_v_svd": "edm_v_svd",
    "flux": "flux",
    "cosmos_rflow": "cosmos_rflow",
}


@cache
def tensors(name: str) -> dict[str, Tensor]:
    return load_tensors(DATA / f"{name}.safetensors")


@cache
def meta(name: str) -> dict[str, Any]:
    return load_json(DATA / f"{name}.json")


SETTINGS = {"linear_start", "linear_end", "zsnr", "timesteps", "beta_schedule", "sigma_data", "shift", "multiplier"}
SETTINGS |= {"sigma_min", "sigma_max"}


def sampling_object(kind: str, **more: Any) -> nn.Module:
    """The sampling object of a kind of schedules.json."""
    facts = dict(meta("schedules")["kinds"][kind])
    settings = {k: facts[k] for k in SETTINGS if facts.get(k) is not None}
    if "beta_schedule" in settings:
        settings["beta_schedule"] = settings["beta_schedule"].split()[0]
    for name in ("sigma_min", "sigma_max"):  # recorded as float32; the settings are short decimals
        if name in settings:
            settings[name] = float(f"{settings[name]:.6g}")
    table, parametrisation = TABLES[facts["table"]], PARAMETRISATIONS[facts["param"]]
    return ms.combine(parametrisation, table)(SimpleNamespace(sampling_settings={**settings, **more}))


def per_item(value: Tensor, x: Tensor) -> Tensor:
    return value.reshape(value.shape[0], *([1] * (x.ndim - 1)))


def denoise(x: Tensor, sigma: Tensor, context: Tensor, flow: bool) -> Tensor:
    """D(x) of the goldens' section 3."""
    s = per_item(sigma, x)
    a = 1.0 - s if flow else torch.ones_like(s)
    mu = context[:, :, :4].mean(1).reshape(context.shape[0], 4, *([1] * (x.ndim - 2)))
    g = per_item(context[:, :, 4:8].mean((1, 2)), x)
    linear = mu + (x - a * mu) * (a * 0.25) / (a * a * 0.25 + s * s)
    return linear + 0.2 * (1.0 + g) * torch.tanh(x / torch.sqrt(a * a + s * s))


class ToyModel(nn.Module):
    """BaseModel's face; `calls` logs each evaluation as (sigma, rows, cond_or_uncond)."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        noise_scale = {"noise_scale": 8.0} if kind.endswith("noisescale8") else {}
        self.model_sampling = sampling_object(SCHEDULE_KIND[kind], **noise_scale)
        self.flow = kind.startswith("flow") or kind == "flux"
        self.latent_format = (
            comfy.latent_formats.SD15() if kind == "eps_sd15fmt" else comfy.latent_formats.LatentFormat()
        )
        self.model_config = SimpleNamespace(unet_config={}, sampling_settings={})
        self.current_patcher = None
        self.calls: list[tuple[float, int, list[int]]] = []
        self.anchor = nn.Parameter(torch.zeros(1), requires_grad=False)

    def apply_model(
        self, x: Tensor, t: Tensor, c_crossattn: Tensor, transformer_options: dict, **kwargs: Any
    ) -> Tensor:
        self.calls.append((float(t[0]), x.shape[0], list(transformer_options["cond_or_uncond"])))
        return denoise(x, t, c_crossattn, self.flow)

    def extra_conds(self, **kwargs: Any) -> dict[str, Any]:
        return {"c_crossattn": comfy.conds.CONDCrossAttn(kwargs["cross_attn"])}

    def process_latent_in(self, latent: Tensor) -> Tensor:
        return self.latent_format.process_in(latent)

    def process_latent_out(self, latent: Tensor) -> Tensor:
        return self.latent_format.process_out(latent)

    def scale_latent_inpaint(self, sigma: Tensor, noise: Tensor, latent_image: Tensor, **kwargs: Any) -> Tensor:
        return self.model_sampling.noise_scaling(per_item(sigma, noise), noise, latent_image)

    def memory_required(self, input_shape: Any, cond_shapes: Any = None) -> float:
        return 1.0 * math.prod(input_shape)

    def get_dtype(self) -> torch.dtype:
        return torch.float32


@cache
def patcher(kind: str) -> comfy.model_patcher.ModelPatcher:
    cpu = torch.device("cpu")
    return comfy.model_patcher.ModelPatcher(ToyModel(kind), load_device=cpu, offload_device=cpu)


def difference(got: Tensor, want: Tensor) -> float:
    """Largest absolute difference; nan in the same place is equal, a wrong shape infinitely far."""
    if got.shape != want.shape:
        return math.inf
    if not got.numel():
        return 0.0
    delta = (got.double() - want.double()).abs()
    both_nan = got.isnan() & want.isnan()
    delta = delta.masked_fill(both_nan, 0.0)
    return float(delta.max()) if not delta.isnan().any() else math.inf
