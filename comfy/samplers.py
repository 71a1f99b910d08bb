"""The face of sampling: KSampler, guiders, samplers, schedulers, by the names the ecosystem knows.

A run goes KSampler -> CFGGuider.sample -> outer_sample (load) -> inner_sample (conditioning) ->
KSAMPLER.sample (noise, solver) -> for each evaluation KSamplerX0Inpaint (mask) -> CFGGuider.predict_noise ->
sampling_function (guidance) -> calc_cond_batch (entries, batching) -> the model.
The parts are in `comfy/sampling`; names of this module are looked up at call time, because packs replace them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from comfy import patcher_extension, sampler_helpers
from comfy.k_diffusion import sampling as k_diffusion_sampling
from comfy.patcher_extension import WrapperExecutor, WrappersMP
from comfy.sampling.areas import (
    calculate_start_end_timesteps,
    get_area_and_mult,
    resolve_areas_and_cond_masks,
    resolve_areas_and_cond_masks_multidim,
)
from comfy.sampling.cond_batch import calc_cond_batch, can_concat_cond, cond_cat, cond_equal_size
from comfy.sampling.cond_prepare import (
    apply_empty_x_to_equal_area,
    create_cond_with_same_area_if_none,
    encode_model_conds,
    pre_run_control,
    process_conds,
)
from comfy.sampling.guidance import cfg_function, sampling_function
from comfy.sampling.sampler_objects import KSAMPLER, KSamplerX0Inpaint, Sampler, ksampler, sampler_object
from comfy.sampling.schedules import (
    SCHEDULER_HANDLERS,
    SCHEDULER_NAMES,
    SchedulerHandler,
    beta_scheduler,
    calculate_sigmas,
    ddim_scheduler,
    kl_optimal_scheduler,
    linear_quadratic_schedule,
    normal_scheduler,
    simple_scheduler,
)
from comfy.sampling.solvers import SAMPLERS, UnknownSamplerError

__all__ = [
    "KSAMPLER",
    "KSAMPLER_NAMES",
    "SAMPLER_NAMES",
    "SCHEDULER_HANDLERS",
    "SCHEDULER_NAMES",
    "CFGGuider",
    "KSampler",
    "KSamplerX0Inpaint",
    "Sampler",
    "SchedulerHandler",
    "UnknownSamplerError",
    "apply_empty_x_to_equal_area",
    "beta_scheduler",
    "calc_cond_batch",
    "calculate_sigmas",
    "calculate_start_end_timesteps",
    "can_concat_cond",
    "cast_transformer_options",
    "cfg_function",
    "cond_cat",
    "cond_equal_size",
    "create_cond_with_same_area_if_none",
    "ddim_scheduler",
    "encode_model_conds",
    "get_area_and_mult",
    "k_diffusion_sampling",
    "kl_optimal_scheduler",
    "ksampler",
    "linear_quadratic_schedule",
    "normal_scheduler",
    "pre_run_control",
    "process_conds",
    "resolve_areas_and_cond_masks",
    "resolve_areas_and_cond_masks_multidim",
    "sample",
    "sampler_object",
    "sampling_function",
    "simple_scheduler",
]

SAMPLER_NAMES: list[str] = list(SAMPLERS)
# those that k_diffusion.sampling has as sample_<name>
KSAMPLER_NAMES: list[str] = [n for n in SAMPLER_NAMES if n not in ("ddim", "uni_pc", "uni_pc_bh2")]


def _clone_model_options(model_options: dict[str, Any]) -> dict[str, Any]:
    return patcher_extension.copy_nested_dicts(model_options)


def cast_transformer_options(transformer_options: dict[str, Any], device: Any = None, dtype: Any = None) -> None:
    """Move what patches and wrappers hold (anything with a `to` of its own) to the run's device and dtype."""
    casts = {k: v for k, v in (("device", device), ("dtype", dtype)) if v is not None}

    def visit(container: Any) -> None:
        items = container.items() if isinstance(container, dict) else enumerate(container)
        for key, value in list(items):
            if isinstance(value, (dict, list)):
                visit(value)
            elif callable(value) and hasattr(value, "to") and not isinstance(value, type):
                container[key] = value.to(**casts)

    if casts:
        for name in ("patches", "patches_replace", "wrappers", "callbacks"):
            if name in transformer_options:
                visit(transformer_options[name])


class CFGGuider:
    """Guidance with a positive and a negative; the base class of other guiders.

    Subclasses override `predict_noise` (and use `inner_set_conds` for conditionings of their own); during a
    run `inner_model` is the loaded model and `conds` its prepared conditioning.
    """

    def __init__(self, model_patcher: Any) -> None:
        self.model_patcher = model_patcher
        self.model_options = model_patcher.model_options
        self.original_conds: dict[str, list[dict[str, Any]]] = {}
        self.cfg = 1.0

    def set_conds(self, positive: list[Any], negative: list[Any]) -> None:
        """CONDITIONING of both sides."""
        self.inner_set_conds({"positive": positive, "negative": negative})

    def set_cfg(self, cfg: float) -> None:
        """Guidance scale."""
        self.cfg = cfg

    def inner_set_conds(self, conds: dict[str, list[Any]]) -> None:
        """Conditionings under any names."""
        for name in conds:
            self.original_conds[name] = sampler_helpers.convert_cond(conds[name])

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.outer_predict_noise(*args, **kwargs)

    def outer_predict_noise(
        self, x: Tensor, timestep: Tensor, model_options: dict[str, Any] | None = None, seed: int | None = None
    ) -> Tensor:
        """`predict_noise` inside its wrappers (PREDICT_NOISE)."""
        options = model_options or {}
        return WrapperExecutor.new_class_executor(
            self.predict_noise,
            self,
            patcher_extension.get_all_wrappers(WrappersMP.PREDICT_NOISE, options, is_model_options=True),
        ).execute(x, timestep, options, seed)

    def predict_noise(
        self, x: Tensor, timestep: Tensor, model_options: dict[str, Any] | None = None, seed: int | None = None
    ) -> Tensor:
        """The guided denoised prediction for `x` at sigma `timestep` [batch]."""
        return sampling_function(
            self.inner_model,
            x,
            timestep,
            self.conds.get("negative", None),
            self.conds.get("positive", None),
            self.cfg,
            model_options=model_options,
            seed=seed,
        )

    def prepare_conds(
        self,
        noise: Tensor,
        device: Any,
        latent_image: Tensor | None,
        denoise_mask: Tensor | None,
        seed: int | None,
        latent_shapes: list[Any] | None,
    ) -> dict[str, list[dict[str, Any]]]:
        """The conditionings as the evaluations of this run take them (see `process_conds`)."""
        return process_conds(
            self.inner_model, noise, self.conds, device, latent_image, denoise_mask, seed, latent_shapes
        )

    def inner_sample(
        self,
        noise: Tensor,
        latent_image: Tensor,
        device: Any,
        sampler: Sampler,
        sigmas: Tensor,
        denoise_mask: Tensor | None,
        callback: Callable[..., Any] | None,
        disable_pbar: bool,
        seed: int | None,
        latent_shapes: list[Any] | None = None,
    ) -> Tensor:
        """Sampling with the model loaded and everything on `device`."""
        if latent_image is not None and torch.count_nonzero(latent_image) > 0:
            latent_image = self.inner_model.process_latent_in(latent_image)
        self.conds = self.prepare_conds(noise, device, latent_image, denoise_mask, seed, latent_shapes)
        options = _clone_model_options(self.model_options)
        options.setdefault("transformer_options", {})["sample_sigmas"] = sigmas
        extra_args = {"model_options": options, "seed": seed}
        executor = WrapperExecutor.new_class_executor(
            sampler.sample,
            sampler,
            patcher_extension.get_all_wrappers(WrappersMP.SAMPLER_SAMPLE, options, is_model_options=True),
        )
        samples = executor.execute(self, sigmas, extra_args, callback, noise, latent_image, denoise_mask, disable_pbar)
        return self.inner_model.process_latent_out(samples.to(torch.float32))

    def outer_sample(
        self,
        noise: Tensor,
        latent_image: Tensor,
        sampler: Sampler,
        sigmas: Tensor,
        denoise_mask: Tensor | None = None,
        callback: Callable[..., Any] | None = None,
        disable_pbar: bool = False,
        seed: int | None = None,
        latent_shapes: list[Any] | None = None,
    ) -> Tensor:
        """Load the model, sample on its device, let go of what was loaded for the run."""
        self.inner_model, self.conds, self.loaded_models = sampler_helpers.prepare_sampling(
            self.model_patcher, noise.shape, self.conds, self.model_options
        )
        device = self.model_patcher.load_device
        if denoise_mask is not None:
            denoise_mask = sampler_helpers.prepare_mask(denoise_mask, noise.shape, device)
        # sampling arithmetic is float32 whatever the model computes in
        noise = noise.to(device=device, dtype=torch.float32)
        latent_image = latent_image.to(device=device, dtype=torch.float32)
        sigmas = sigmas.to(device)
        dtype = self.model_patcher.model_dtype()
        cast_transformer_options(self.model_options.get("transformer_options", {}), device, dtype)
        try:
            self.model_patcher.pre_run()
            return self.inner_sample(
                noise,
                latent_image,
                device,
                sampler,
                sigmas,
                denoise_mask,
                callback,
                disable_pbar,
                seed,
                latent_shapes=latent_shapes,
            )
        finally:
            self.model_patcher.cleanup()
            sampler_helpers.cleanup_models(self.conds, self.loaded_models)
            del self.inner_model
            del self.loaded_models

    def sample(
        self,
        noise: Tensor,
        latent_image: Tensor,
        sampler: Sampler,
        sigmas: Tensor,
        denoise_mask: Tensor | None = None,
        callback: Callable[..., Any] | None = None,
        disable_pbar: bool = False,
        seed: int | None = None,
    ) -> Tensor:
        """The denoised latent, float32. An empty schedule returns the latent itself. Wrappers: OUTER_SAMPLE."""
        if sigmas.shape[-1] == 0:
            return latent_image
        latent_shapes = None
        if getattr(latent_image, "is_nested", False):
            import comfy.utils

            latent_image, latent_shapes = comfy.utils.pack_latents(latent_image.unbind())
            noise, _ = comfy.utils.pack_latents(noise.unbind())
            if denoise_mask is not None:
                denoise_mask = _pack_masks(denoise_mask, latent_shapes)
        self.conds = {name: [c.copy() for c in entries] for name, entries in self.original_conds.items()}
        original_options = self.model_options
        try:
            self.model_options = _clone_model_options(self.model_options)
            sampler_helpers.prepare_model_patcher(self.model_patcher, self.conds, self.model_options)
            executor = WrapperExecutor.new_class_executor(
                self.outer_sample,
                self,
                patcher_extension.get_all_wrappers(WrappersMP.OUTER_SAMPLE, self.model_options, is_model_options=True),
            )
            output = executor.execute(
                noise,
                latent_image,
                sampler,
                sigmas,
                denoise_mask,
                callback,
                disable_pbar,
                seed,
                latent_shapes=latent_shapes,
            )
        finally:
            self.model_options = original_options
            del self.conds
        if latent_shapes is not None:
            from comfy.nested_tensor import NestedTensor

            output = NestedTensor(comfy.utils.unpack_latents(output, latent_shapes))
        return output


def _pack_masks(denoise_mask: Any, latent_shapes: list[Any]) -> Tensor:
    """One mask for a packed latent: each part's own, or ones where there is none."""
    import comfy.utils

    masks = list(denoise_mask.unbind()) if getattr(denoise_mask, "is_nested", False) else [denoise_mask]
    masks += [None] * (len(latent_shapes) - len(masks))
    shaped = [
        torch.ones(tuple(shape)) if mask is None else sampler_helpers.prepare_mask(mask, shape, "cpu")
        for mask, shape in zip(masks, latent_shapes)
    ]
    packed, _ = comfy.utils.pack_latents(shaped)
    return packed


def sample(
    model: Any,
    noise: Tensor,
    positive: list[Any],
    negative: list[Any],
    cfg: float,
    device: Any,
    sampler: Sampler,
    sigmas: Tensor,
    model_options: dict[str, Any] | None = None,
    latent_image: Tensor | None = None,
    denoise_mask: Tensor | None = None,
    callback: Callable[..., Any] | None = None,
    disable_pbar: bool = False,
    seed: int | None = None,
) -> Tensor:
    """Sample `model` (a ModelPatcher) with classifier-free guidance."""
    guider = CFGGuider(model)
    guider.set_conds(positive, negative)
    guider.set_cfg(cfg)
    return guider.sample(noise, latent_image, sampler, sigmas, denoise_mask, callback, disable_pbar, seed)


class KSampler:
    """Sampler, scheduler and step count together: what the KSampler nodes run.

    `denoise` < 1 runs the last `steps` steps of a longer schedule; 0 is an empty schedule.
    """

    SCHEDULERS = SCHEDULER_NAMES
    SAMPLERS = SAMPLER_NAMES
    DISCARD_PENULTIMATE_SIGMA_SAMPLERS = {"dpm_2", "dpm_2_ancestral", "uni_pc", "uni_pc_bh2"}

    def __init__(
        self,
        model: Any,
        steps: int,
        device: Any,
        sampler: str | None = None,
        scheduler: str | None = None,
        denoise: float | None = None,
        model_options: dict[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.device = device
        self.scheduler = scheduler if scheduler in self.SCHEDULERS else self.SCHEDULERS[0]
        self.sampler = sampler if sampler in self.SAMPLERS else self.SAMPLERS[0]
        self.set_steps(steps, denoise)
        self.denoise = denoise
        self.model_options = model_options or {}

    def calculate_sigmas(self, steps: int) -> Tensor:
        """The full schedule. Second-order samplers that end badly at the smallest sigma do without it."""
        discard = self.sampler in self.DISCARD_PENULTIMATE_SIGMA_SAMPLERS
        model_sampling = self.model.get_model_object("model_sampling")
        sigmas = calculate_sigmas(model_sampling, self.scheduler, steps + 1 if discard else steps)
        return torch.cat([sigmas[:-2], sigmas[-1:]]) if discard else sigmas

    def set_steps(self, steps: int, denoise: float | None = None) -> None:
        """Compute `sigmas` for `steps` steps that cover the last `denoise` of the noise levels."""
        self.steps = steps
        if denoise is None or denoise > 0.9999:
            self.sigmas = self.calculate_sigmas(steps).to(self.device)
        elif denoise <= 0.0:
            self.sigmas = torch.FloatTensor([])
        else:
            self.sigmas = self.calculate_sigmas(int(steps / denoise)).to(self.device)[-(steps + 1) :]

    def sample(
        self,
        noise: Tensor,
        positive: list[Any],
        negative: list[Any],
        cfg: float,
        latent_image: Tensor | None = None,
        start_step: int | None = None,
        last_step: int | None = None,
        force_full_denoise: bool = False,
        denoise_mask: Tensor | None = None,
        sigmas: Tensor | None = None,
        callback: Callable[..., Any] | None = None,
        disable_pbar: bool = False,
        seed: int | None = None,
    ) -> Tensor:
        """Run steps start_step..last_step; with `force_full_denoise` the last one goes to sigma 0.

        A window without steps returns the latent.
        """
        sigmas = self.sigmas if sigmas is None else sigmas
        if last_step is not None and last_step < len(sigmas) - 1:
            sigmas = sigmas[: last_step + 1]
            if force_full_denoise:
                sigmas = sigmas.clone()
                sigmas[-1] = 0
        if start_step is not None:
            if start_step >= len(sigmas) - 1:
                return latent_image if latent_image is not None else torch.zeros_like(noise)
            sigmas = sigmas[start_step:]
        return sample(
            self.model,
            noise,
            positive,
            negative,
            cfg,
            self.device,
            sampler_object(self.sampler),
            sigmas,
            self.model_options,
            latent_image=latent_image,
            denoise_mask=denoise_mask,
            callback=callback,
            disable_pbar=disable_pbar,
            seed=seed,
        )
