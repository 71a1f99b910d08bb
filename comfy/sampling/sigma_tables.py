"""The noise levels a model knows: tables of sigmas and the maps sigma <-> timestep <-> percent of the run.

Each class is a Module whose buffers `sigmas` (ascending, float32) and `log_sigmas` follow the model to its
device. Tables are built on the CPU in float64 and rounded once. `percent_to_sigma` takes 0 (start of a run,
all noise) to 1 (end) and returns a Python float; the two ends are special: everything, nothing.

A model's settings come from `model_config.sampling_settings` (names as in spec and goldens).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

# A sigma above every real one: "from the very beginning" for models without an upper bound on sigma.
BEYOND_ANY_SIGMA = 999999999.9
# cumulative alpha given to the last step of a zero-terminal-SNR table, instead of 0 (an infinite sigma)
ZSNR_LAST_ALPHA_CUMPROD = 4.8973451890853435e-08


class SamplingSettingsError(ValueError):
    """A model's sampling settings hold a value that no sigma table is made from."""


def settings_of(model_config: Any) -> dict[str, Any]:
    """`model_config.sampling_settings`, or an empty dict when there is no config."""
    return dict(getattr(model_config, "sampling_settings", None) or {})


def _linspace64(start: float, end: float, steps: int) -> Tensor:
    return torch.linspace(start, end, steps, dtype=torch.float64, device="cpu")


def make_betas(schedule: str, timesteps: int, linear_start: float, linear_end: float) -> Tensor:
    """Variance schedule, float64 [timesteps]. `linear` is linear in sqrt(beta), `sqrt_linear` in beta."""
    if schedule == "linear":
        return _linspace64(linear_start**0.5, linear_end**0.5, timesteps) ** 2
    if schedule == "sqrt_linear":
        return _linspace64(linear_start, linear_end, timesteps)
    raise SamplingSettingsError(f"beta_schedule {schedule!r}: expected 'linear' or 'sqrt_linear'")


def rescale_zero_terminal_snr_sigmas(sigmas: Tensor) -> Tensor:
    """The table with zero terminal SNR (Lin et al. 2023, arXiv:2305.08891, algorithm 1), in sigmas."""
    root = (1.0 / (sigmas.double() ** 2 + 1.0)).sqrt()
    first, last = root[0].clone(), root[-1].clone()
    alphas_cumprod = ((root - last) * (first / (first - last))) ** 2
    alphas_cumprod[-1] = ZSNR_LAST_ALPHA_CUMPROD
    return ((1.0 - alphas_cumprod) / alphas_cumprod) ** 0.5


def time_snr_shift(alpha: float, t: Any) -> Any:
    """Timestep shift of SD3 (arXiv:2403.03206, eq. 23): alpha*t / (1 + (alpha-1)*t)."""
    if alpha == 1.0:
        return t
    return alpha * t / (1 + (alpha - 1) * t)


def flux_time_shift(mu: float, sigma: float, t: Any) -> Any:
    """Timestep shift of Flux: e^mu / (e^mu + (1/t - 1)^sigma)."""
    return math.exp(mu) / (math.exp(mu) + (1 / t - 1) ** sigma)


class SigmaTable(nn.Module):
    """A model's sigmas, ascending; the base of all tables."""

    def _store(self, sigmas: Tensor, with_logs: bool = True) -> None:
        self.register_buffer("sigmas", sigmas.float(), persistent=False)
        if with_logs:
            # the log of the unrounded sigmas: near sigma 1 the rounded ones would lose digits
            self.register_buffer("log_sigmas", sigmas.log().float(), persistent=False)

    @property
    def sigma_min(self) -> Tensor:
        return self.sigmas[0]

    @property
    def sigma_max(self) -> Tensor:
        return self.sigmas[-1]


class ModelSamplingDiscrete(SigmaTable):
    """DDPM table: sigma = sqrt((1-a)/a) of the cumulative alphas; timesteps are table indices."""

    def __init__(self, model_config: Any = None, zsnr: bool | None = None) -> None:
        super().__init__()
        settings = settings_of(model_config)
        self.linear_start: float = settings.get("linear_start", 0.00085)
        self.linear_end: float = settings.get("linear_end", 0.012)
        self.zsnr: bool = settings.get("zsnr", False) if zsnr is None else zsnr
        self.sigma_data: float = 1.0
        betas = make_betas(
            settings.get("beta_schedule", "linear"),
            settings.get("timesteps", 1000),
            self.linear_start,
            self.linear_end,
        )
        self.num_timesteps: int = betas.shape[0]
        alphas_cumprod = torch.cumprod(1.0 - betas, dim=0)
        sigmas = ((1 - alphas_cumprod) / alphas_cumprod) ** 0.5
        self.set_sigmas(rescale_zero_terminal_snr_sigmas(sigmas) if self.zsnr else sigmas)

    def set_sigmas(self, sigmas: Tensor) -> None:
        """Replace the table by `sigmas` (ascending, [T])."""
        self._store(sigmas)

    def _nearest(self, sigma: Tensor) -> Tensor:
        distance = (sigma.log().reshape(1, -1) - self.log_sigmas.to(sigma.device)[:, None]).abs()
        return distance.argmin(dim=0).view(sigma.shape)

    def _interpolate(self, position: Tensor) -> Tensor:
        position = torch.clamp(position.float(), min=0, max=len(self.sigmas) - 1)
        low, high, fraction = position.floor().long(), position.ceil().long(), position.frac()
        logs = self.log_sigmas.to(position.device)
        return ((1 - fraction) * logs[low] + fraction * logs[high]).exp()

    def timestep(self, sigma: Tensor) -> Tensor:
        """Index (int64) of the table entry nearest to `sigma` in log space."""
        return self._nearest(sigma)

    def sigma(self, timestep: Tensor) -> Tensor:
        """Sigma at a fractional index, interpolated in log space."""
        return self._interpolate(timestep)

    def percent_to_sigma(self, percent: float) -> float:
        if percent <= 0.0:
            return BEYOND_ANY_SIGMA
        if percent >= 1.0:
            return 0.0
        return self.sigma(torch.tensor((1.0 - percent) * 999.0)).item()


class ModelSamplingDiscreteEDM(ModelSamplingDiscrete):
    """The discrete table with EDM timesteps, 0.25 * ln(sigma)."""

    def timestep(self, sigma: Tensor) -> Tensor:
        return 0.25 * sigma.log()

    def sigma(self, timestep: Tensor) -> Tensor:
        return (timestep / 0.25).exp()


class ModelSamplingDiscreteDistilled(ModelSamplingDiscrete):
    """The steps a distilled model was trained on: every 20th of 1000, counted from the end."""

    original_timesteps = 50

    def __init__(self, model_config: Any = None, zsnr: bool | None = None) -> None:
        super().__init__(model_config, zsnr)
        full = self.sigmas
        self.skip_steps: int = self.num_timesteps // self.original_timesteps
        last = self.num_timesteps - 1
        kept = [last - i * self.skip_steps for i in range(self.original_timesteps)]
        self.set_sigmas(full[kept[::-1]])

    def timestep(self, sigma: Tensor) -> Tensor:
        return self._nearest(sigma) * self.skip_steps + (self.skip_steps - 1)

    def sigma(self, timestep: Tensor) -> Tensor:
        return self._interpolate((timestep.float() - (self.skip_steps - 1)) / self.skip_steps)


class ModelSamplingContinuousEDM(SigmaTable):
    """Log-spaced sigmas between two bounds; timestep 0.25 * ln(sigma) (Karras et al. 2022)."""

    default_sigma_min, default_sigma_max, default_sigma_data = 0.002, 120.0, 1.0

    def __init__(self, model_config: Any = None) -> None:
        super().__init__()
        settings = settings_of(model_config)
        self.set_parameters(
            settings.get("sigma_min", self.default_sigma_min),
            settings.get("sigma_max", self.default_sigma_max),
            settings.get("sigma_data", self.default_sigma_data),
        )

    def set_parameters(self, sigma_min: float, sigma_max: float, sigma_data: float) -> None:
        """New bounds; `sigma_data` is the standard deviation of the data the network was trained on."""
        if not 0 < sigma_min < sigma_max:
            raise SamplingSettingsError(f"sigma_min {sigma_min}, sigma_max {sigma_max}: 0 < min < max needed")
        self.sigma_data = sigma_data
        logs = torch.linspace(math.log(sigma_min), math.log(sigma_max), 1000, device="cpu")
        self.register_buffer("sigmas", logs.exp(), persistent=False)
        self.register_buffer("log_sigmas", logs.exp().log(), persistent=False)

    def timestep(self, sigma: Tensor) -> Tensor:
        return 0.25 * sigma.log()

    def sigma(self, timestep: Tensor) -> Tensor:
        return (timestep / 0.25).exp()

    def percent_to_sigma(self, percent: float) -> float:
        if percent <= 0.0:
            return BEYOND_ANY_SIGMA
        if percent >= 1.0:
            return 0.0
        low, high = math.log(self.sigma_min), math.log(self.sigma_max)
        return math.exp((high - low) * (1.0 - percent) + low)


class ModelSamplingContinuousV(ModelSamplingContinuousEDM):
    """As EDM with timestep = atan(sigma) * 2/pi."""

    default_sigma_min, default_sigma_max = 0.03, 500.0

    def timestep(self, sigma: Tensor) -> Tensor:
        return sigma.atan() / math.pi * 2

    def sigma(self, timestep: Tensor) -> Tensor:
        return (timestep * math.pi / 2).tan()


class ModelSamplingCosmosRFlow(ModelSamplingContinuousEDM):
    """As EDM with timestep = sigma / (sigma + 1)."""

    default_sigma_max = 80.0

    def timestep(self, sigma: Tensor) -> Tensor:
        return sigma / (sigma + 1)

    def sigma(self, timestep: Tensor) -> Tensor:
        # near t = 1 a rounding of t is many roundings of sigma: from sigma_max on it is exactly that
        limit = self.sigma_max.to(timestep.device)
        return torch.where(timestep >= limit / (limit + 1), limit, timestep / (1 - timestep))


class StableCascadeSampling(SigmaTable):
    """Cosine table of Stable Cascade (Nichol & Dhariwal 2021, arXiv:2102.09672), shifted in log SNR."""

    cosine_s = 8e-3
    num_timesteps = 10000

    def __init__(self, model_config: Any = None) -> None:
        super().__init__()
        self.sigma_data: float = 1.0
        self.set_parameters(settings_of(model_config).get("shift", 1.0))

    def set_parameters(self, shift: float = 1.0, cosine_s: float = 8e-3) -> None:
        """`shift` > 1 moves the table towards more noise; `cosine_s` is the offset of the cosine."""
        self.shift, self.cosine_s = shift, cosine_s
        # float32 on purpose: near sigma_min 1 - alpha loses all but four digits, and those must agree
        self._start = float(torch.cos(torch.tensor(cosine_s / (1 + cosine_s)) * math.pi / 2) ** 2)
        steps = torch.arange(1, self.num_timesteps + 1, device="cpu") / self.num_timesteps
        sigmas = self.sigma(steps)
        self.register_buffer("sigmas", sigmas, persistent=False)
        self.register_buffer("log_sigmas", sigmas.log(), persistent=False)

    def sigma(self, timestep: Tensor) -> Tensor:
        angle = (timestep + self.cosine_s) / (1 + self.cosine_s) * (math.pi / 2)
        alpha_cumprod = torch.cos(angle) ** 2 / self._start
        if self.shift != 1.0:
            log_snr = (alpha_cumprod / (1 - alpha_cumprod)).log() + 2 * math.log(1 / self.shift)
            alpha_cumprod = log_snr.sigmoid()
        alpha_cumprod = alpha_cumprod.clamp(0.0001, 0.9999)
        return ((1 - alpha_cumprod) / alpha_cumprod) ** 0.5

    def timestep(self, sigma: Tensor) -> Tensor:
        alpha_cumprod = (1 / (sigma**2 + 1)).clamp(0, 1.0)
        angle = (alpha_cumprod * self._start).sqrt().acos()
        return angle / (math.pi / 2) * (1 + self.cosine_s) - self.cosine_s

    def percent_to_sigma(self, percent: float) -> float:
        if percent <= 0.0:
            return BEYOND_ANY_SIGMA
        if percent >= 1.0:
            return 0.0
        return self.sigma(torch.tensor(1.0 - percent)).item()


class ModelSamplingDiscreteFlow(SigmaTable):
    """Rectified flow with SD3's shift; sigma and time both run from 0 to 1, timestep = sigma * multiplier."""

    def __init__(self, model_config: Any = None) -> None:
        super().__init__()
        settings = settings_of(model_config)
        self.noise_scale: float = settings.get("noise_scale", 1.0)
        self.set_parameters(
            shift=settings.get("shift", 1.0),
            multiplier=settings.get("multiplier", 1000),
        )

    def set_parameters(self, shift: float = 1.0, timesteps: int = 1000, multiplier: float = 1000) -> None:
        """`multiplier`: what the network calls the timestep of pure noise."""
        self.shift, self.multiplier = shift, multiplier
        steps = torch.arange(1, timesteps + 1, 1, device="cpu") / timesteps
        self.register_buffer("sigmas", self.sigma(steps * multiplier), persistent=False)

    def timestep(self, sigma: Tensor) -> Tensor:
        return sigma * self.multiplier

    def sigma(self, timestep: Tensor) -> Tensor:
        return time_snr_shift(self.shift, timestep / self.multiplier)

    def percent_to_sigma(self, percent: float) -> float:
        if percent <= 0.0:
            return 1.0
        if percent >= 1.0:
            return 0.0
        return time_snr_shift(self.shift, 1.0 - percent)


class ModelSamplingFlux(SigmaTable):
    """Rectified flow with Flux's exponential shift; the timestep is sigma itself."""

    def __init__(self, model_config: Any = None) -> None:
        super().__init__()
        settings = settings_of(model_config)
        self.noise_scale: float = settings.get("noise_scale", 1.0)
        self.set_parameters(shift=settings.get("shift", 1.15))

    def set_parameters(self, shift: float = 1.15, timesteps: int = 10000) -> None:
        """`shift` is mu, the log of the factor of the odds t/(1-t)."""
        self.shift = shift
        steps = torch.arange(1, timesteps + 1, 1, device="cpu") / timesteps
        self.register_buffer("sigmas", self.sigma(steps), persistent=False)

    def timestep(self, sigma: Tensor) -> Tensor:
        return sigma

    def sigma(self, timestep: Tensor) -> Tensor:
        return flux_time_shift(self.shift, 1.0, timestep)

    def percent_to_sigma(self, percent: float) -> float:
        if percent <= 0.0:
            return 1.0
        if percent >= 1.0:
            return 0.0
        return flux_time_shift(self.shift, 1.0, 1.0 - percent)
