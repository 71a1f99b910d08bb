"""Ways to guide other than the plain classifier-free formula. Each is an object to hang into model options.

Three hooks exist: `sampler_cfg_function` (returns x minus the guided latent), `sampler_pre_cfg_function` (changes
the predictions before the formula) and `sampler_post_cfg_function` (changes its result). Every class says
which it is for. Predictions are denoised latents [batch, channels, ...]; norms and products are taken per batch
item unless said otherwise. Numbers are checked by goldens, section 6 (`step/guid`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from comfy.sampling.cond_batch import calc_cond_batch
from comfy.sampling.cond_prepare import convert_cond, process_conds
from comfy.sampling.parametrisation import CONST, reshape_sigma
from comfy.sampling.solvers.common import host_sigma

Args = dict[str, Any]


def _item_norm(a: Tensor) -> Tensor:
    return torch.linalg.vector_norm(a, dim=tuple(range(1, a.ndim)), keepdim=True)


class RenormCFG:
    """cfg function: guidance below sigma `cfg_trunc` only, its norm kept to `renorm_cfg` times the positive's.

    `renorm_cfg` 0 leaves the norm alone (Lumina-Image 2.0, arXiv:2503.21758).
    """

    def __init__(self, cfg_trunc: float = 100.0, renorm_cfg: float = 1.0) -> None:
        self.cfg_trunc, self.renorm_cfg = cfg_trunc, renorm_cfg

    def __call__(self, args: Args) -> Tensor:
        x, cond, uncond = args["input"], args["cond_denoised"], args["uncond_denoised"]
        if host_sigma(args["timestep"]) >= self.cfg_trunc:
            return x - cond
        guided = uncond + args["cond_scale"] * (cond - uncond)
        if self.renorm_cfg > 0:
            limit, norm = _item_norm(cond) * self.renorm_cfg, _item_norm(guided)
            guided = guided * torch.where(norm >= limit, limit / norm, torch.ones_like(norm))
        return x - guided


class TangentialDampingCFG:
    """pre-cfg: of the negative's noise keep what lies along the leading direction of both (arXiv:2503.18137)."""

    def __call__(self, args: Args) -> list[Tensor]:
        cond, uncond, *others = args["conds_out"]
        if len(args["conds_out"]) < 2 or args["conds"][1] is None:
            return args["conds_out"]
        x = args["input"]
        leading = _leading_direction((x - cond).flatten(1).double(), (x - uncond).flatten(1).double())
        noise = (x - uncond).flatten(1).double()
        kept = (noise * leading).sum(dim=1, keepdim=True) * leading
        return [cond, x - kept.to(uncond.dtype).reshape(uncond.shape), *others]


def _leading_direction(a: Tensor, b: Tensor) -> Tensor:
    """The unit vector [batch, n] along which a and b [batch, n] lie most: their first singular vector.

    In closed form from their three products; a general decomposition would wait for the device.
    """
    aa, ab, bb = ((p * q).sum(dim=1, keepdim=True) for p, q in ((a, a), (a, b), (b, b)))
    angle = torch.atan2(2 * ab, aa - bb) / 2
    return torch.nn.functional.normalize(angle.cos() * a + angle.sin() * b, dim=1)


class FreSca:
    """pre-cfg: low and high frequencies of the guidance scaled apart (Huang et al. 2025, arXiv:2504.02154).

    `freq_cutoff`: half the side of the square of low frequencies, in Fourier cells.
    """

    def __init__(self, scale_low: float = 1.0, scale_high: float = 1.25, freq_cutoff: int = 20) -> None:
        self.scale_low, self.scale_high, self.freq_cutoff = scale_low, scale_high, freq_cutoff

    def _filter(self, guidance: Tensor) -> Tensor:
        spectrum = torch.fft.fftshift(torch.fft.fft2(guidance.float()), dim=(-2, -1))
        height, width = guidance.shape[-2:]
        row, column, cutoff = height // 2, width // 2, self.freq_cutoff
        gain = torch.full((height, width), self.scale_high, device=guidance.device)
        gain[max(row - cutoff, 0) : row + cutoff, max(column - cutoff, 0) : column + cutoff] = self.scale_low
        filtered = torch.fft.ifft2(torch.fft.ifftshift(spectrum * gain, dim=(-2, -1))).real
        return filtered.to(guidance.dtype)

    def __call__(self, args: Args) -> list[Tensor]:
        if len(args["conds_out"]) < 2 or args["conds"][1] is None:
            return args["conds_out"]
        cond, uncond, *others = args["conds_out"]
        return [uncond + self._filter(cond - uncond), uncond, *others]


class TemporalScoreRescaling:
    """post-cfg: the score scaled so that samples are sharper (`k` < 1) or more diverse (arXiv:2510.01184).

    `sigma`: the scale of structure that is affected.
    """

    def __init__(self, k: float = 0.95, sigma: float = 1.0) -> None:
        self.k, self.sigma = k, sigma

    def __call__(self, args: Args) -> Tensor:
        x, guided = args["input"], args["denoised"]
        if self.k == 1.0:
            return guided
        noise = reshape_sigma(args["sigma"], x.ndim)
        signal = 1 - noise if isinstance(args["model"].model_sampling, CONST) else torch.ones_like(noise)
        strength = (signal / noise) ** 2 * self.sigma**2
        ratio = (strength + 1) / (strength / self.k + 1)
        # (1 - ratio)/signal without the division, which pure noise would make 0/0
        share = signal / noise**2 * self.sigma**2 * (1 / self.k - 1) / (strength / self.k + 1)
        return x * share + ratio * guided


def perp_neg(cond: Tensor, uncond: Tensor, empty: Tensor, neg_scale: float, cond_scale: float) -> Tensor:
    """Guidance whose negative keeps only what is perpendicular to the positive (arXiv:2304.04968).

    All relative to the prediction for an empty prompt; one product over the whole batch.
    """
    positive, negative = cond - empty, uncond - empty
    parallel = (negative * positive).sum() / positive.norm() ** 2 * positive
    return empty + cond_scale * (positive - neg_scale * (negative - parallel))


class PerpNeg:
    """post-cfg: `perp_neg` with an evaluation of its own for the empty conditioning."""

    def __init__(self, empty_conditioning: list[Any], neg_scale: float = 1.0) -> None:
        self.empty_conditioning, self.neg_scale = empty_conditioning, neg_scale
        self._run: Any = None
        self._prepared: list[dict[str, Any]] = []

    def _conds(self, args: Args) -> list[dict[str, Any]]:
        """The empty conditioning made ready, once a run: each has model options of its own."""
        run = args["model_options"].get("transformer_options", {}).get("sample_sigmas")
        if run is None or run is not self._run:
            conds = {"negative": convert_cond(self.empty_conditioning)}
            self._prepared = process_conds(args["model"], args["input"], conds, args["input"].device)["negative"]
            self._run = run
        return self._prepared

    def __call__(self, args: Args) -> Tensor:
        conds = [self._conds(args)]
        (empty,) = calc_cond_batch(args["model"], conds, args["input"], args["sigma"], args["model_options"])
        return perp_neg(args["cond_denoised"], args["uncond_denoised"], empty, self.neg_scale, args["cond_scale"])
