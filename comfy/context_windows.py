"""Sampling a latent that is longer than a model can take at once: windows of it are evaluated one after the other, and
their predictions mixed. The windows run along one dimension, such as the frames of a video or the batch.

`model_options["context_handler"]` holds the handler; `comfy.sampling.cond_batch` asks it at each evaluation.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import comfy.interrupt
from comfy.conds import CONDRegular
from comfy.patcher_extension import WrappersMP
from comfy.sampling import window_schedules as schedules
from comfy.sampling.solvers.common import host_sigma

log = logging.getLogger(__name__)

HANDLER = "context_handler"
# An evaluation at a sigma a little off the schedule's is still that step.
SIGMA_TOLERANCE = 1e-4

Conds = list[list[dict[str, Any]] | None]


class UnknownWindowChoice(ValueError):
    """A schedule or a way of mixing that is not known here."""


@dataclasses.dataclass
class ContextSchedule:
    """Which windows a step evaluates: `func(total, shape)`."""

    name: str
    func: schedules.Windows


@dataclasses.dataclass
class ContextFuseMethod:
    """How much each cell of a window counts: `func(window, total, shape)`."""

    name: str
    func: schedules.Weights


class ContextSchedules:
    STATIC_STANDARD = "standard_static"
    UNIFORM_STANDARD = "standard_uniform"
    UNIFORM_LOOPED = "looped_uniform"
    BATCHED = "batched"


class ContextFuseMethods:
    PYRAMID = "pyramid"
    RELATIVE = "relative"
    FLAT = "flat"
    OVERLAP_LINEAR = "overlap-linear"
    LIST_STATIC = (PYRAMID, RELATIVE, FLAT, OVERLAP_LINEAR)


CONTEXT_MAPPING: dict[str, schedules.Windows] = {
    ContextSchedules.STATIC_STANDARD: schedules.static_windows,
    ContextSchedules.UNIFORM_STANDARD: schedules.uniform_windows,
    ContextSchedules.UNIFORM_LOOPED: schedules.looped_windows,
    ContextSchedules.BATCHED: schedules.batched_windows,
}
FUSE_MAPPING: dict[str, schedules.Weights] = {
    ContextFuseMethods.PYRAMID: schedules.pyramid_weights,
    ContextFuseMethods.RELATIVE: schedules.relative_weights,
    ContextFuseMethods.FLAT: schedules.flat_weights,
    ContextFuseMethods.OVERLAP_LINEAR: schedules.overlap_weights,
}


def get_matching_context_schedule(context_schedule: str) -> ContextSchedule:
    """The schedule of that name. Raises UnknownWindowChoice."""
    if context_schedule not in CONTEXT_MAPPING:
        raise UnknownWindowChoice(f"context schedule {context_schedule!r} is none of {', '.join(CONTEXT_MAPPING)}")
    return ContextSchedule(context_schedule, CONTEXT_MAPPING[context_schedule])


def get_matching_fuse_method(fuse_method: str) -> ContextFuseMethod:
    """The way of mixing of that name. Raises UnknownWindowChoice."""
    if fuse_method not in FUSE_MAPPING:
        raise UnknownWindowChoice(f"fuse method {fuse_method!r} is none of {', '.join(FUSE_MAPPING)}")
    return ContextFuseMethod(fuse_method, FUSE_MAPPING[fuse_method])


class IndexListContextWindow:
    """Cells of one dimension that are evaluated together. anchor: one more cell that goes before them, for networks to
    which the first frame is special; what is predicted for it is dropped."""

    def __init__(self, index_list: Sequence[int], dim: int = 0, total_frames: int = 0, anchor: int | None = None):
        self.index_list = list(index_list)
        self.dim = dim
        self.total_frames = total_frames
        self.anchor = anchor

    @property
    def center_ratio(self) -> float:
        """Where in the whole its middle is, 0..1."""
        return (min(self.index_list) + max(self.index_list)) / (2 * self.total_frames)

    @property
    def cells(self) -> list[int]:
        """What is evaluated."""
        return self.index_list if self.anchor is None else [self.anchor, *self.index_list]

    def get_region_index(self, num_regions: int) -> int:
        """Which of so many equal parts of the whole its middle is in."""
        return min(max(int(self.center_ratio * num_regions), 0), num_regions - 1)

    def cells_with(self, retained: Sequence[int]) -> list[int]:
        """`cells`, with each retained cell of the whole at its own place."""
        cells = list(self.cells)
        for index in retained:
            if index < len(cells):
                cells[index] = index
        return cells

    def get_tensor(self, full: Tensor, dim: int | None = None, retain_index_list: Sequence[int] = ()) -> Tensor:
        """Its part of `full`."""
        cells = torch.tensor(self.cells_with(retain_index_list), device=full.device)
        return full.index_select(self.dim if dim is None else dim, cells)


class IndexListContextHandler:
    """Evaluates a long latent window by window.

    context_length, context_overlap, context_stride, closed_loop: see `comfy.sampling.window_schedules`. dim: the
    latent's dimension they run along. freenoise: the noise of later windows is that of the first, shuffled.
    cond_retain_index_list, latent_retain_index_list: cells of the whole that each window sees at the same place in the
    conditioning (such as the picture a video starts with), or in the latent. split_conds_to_windows: of several
    conditionings, each window takes the one whose share of the whole it lies in. causal_window_fix: windows that do not
    begin at the start see one more frame before them.
    """

    def __init__(
        self,
        context_schedule: ContextSchedule,
        fuse_method: ContextFuseMethod,
        context_length: int = 1,
        context_overlap: int = 0,
        context_stride: int = 1,
        closed_loop: bool = False,
        dim: int = 0,
        freenoise: bool = False,
        cond_retain_index_list: Sequence[int] = (),
        split_conds_to_windows: bool = False,
        latent_retain_index_list: Sequence[int] = (),
        causal_window_fix: bool = True,
    ) -> None:
        self.context_schedule = context_schedule
        self.fuse_method = fuse_method
        self.context_length = context_length
        self.context_overlap = context_overlap
        self.context_stride = context_stride
        self.closed_loop = closed_loop
        self.dim = dim
        self.freenoise = freenoise
        self.cond_retain_index_list = list(cond_retain_index_list)
        self.split_conds_to_windows = split_conds_to_windows
        self.latent_retain_index_list = list(latent_retain_index_list)
        self.causal_window_fix = causal_window_fix
        self._step = 0
        self._schedule: tuple[Tensor, list[float]] | None = None
        self._controls: dict[tuple[int, tuple[int, ...]], tuple[Any, Any]] = {}

    def begin(self, *args: Any) -> None:
        """Forget what belongs to a run."""
        self._step, self._schedule, self._controls = 0, None, {}

    def should_use_context(
        self, model: Any, conds: Conds, x_in: Tensor, timestep: Tensor, model_options: dict[str, Any]
    ) -> bool:
        """Whether the latent is longer than a window. Raises UnknownWindowChoice where it lacks the dimension."""
        if self.dim >= x_in.ndim:
            raise UnknownWindowChoice(
                f"context windows along dimension {self.dim}: the latent has {x_in.ndim}, {tuple(x_in.shape)}"
            )
        return x_in.shape[self.dim] > self.context_length

    def shape(self) -> schedules.WindowShape:
        """How windows are laid out in the present step."""
        return schedules.WindowShape(
            self.context_length, self.context_overlap, self.context_stride, self.closed_loop, self._step
        )

    def get_context_windows(
        self, model: Any, x_in: Tensor, model_options: dict[str, Any]
    ) -> list[IndexListContextWindow]:
        """The windows of the present step."""
        total = x_in.shape[self.dim]
        lists = self.context_schedule.func(total, self.shape())
        windows = []
        for cells in schedules.covering(lists, total, self.context_length):
            # Items of a batch come from no causal encoder.
            fixed = self.causal_window_fix and self.dim > 0 and cells[0] > 0
            windows.append(IndexListContextWindow(cells, self.dim, total, cells[0] - 1 if fixed else None))
        return windows

    def set_step(self, timestep: Tensor, model_options: dict[str, Any]) -> None:
        """Find the present step among the run's sigmas; between two of them it is the earlier one."""
        sigmas = model_options.get("transformer_options", {}).get("sample_sigmas")
        if sigmas is None:
            return
        if self._schedule is None or self._schedule[0] is not sigmas:
            self._schedule = (sigmas, sigmas.tolist())
        present = host_sigma(timestep) * (1.0 - SIGMA_TOLERANCE)
        self._step = max(sum(sigma >= present for sigma in self._schedule[1][:-1]) - 1, 0)

    def execute(
        self,
        calc_cond_batch: Callable[..., list[Tensor]],
        model: Any,
        conds: Conds,
        x_in: Tensor,
        timestep: Tensor,
        model_options: dict[str, Any],
    ) -> list[Tensor]:
        """What `calc_cond_batch` would give for the whole, from its windows."""
        self.set_step(timestep, model_options)
        sums = [torch.zeros_like(x_in) for _ in conds]
        counts = torch.zeros([x_in.shape[self.dim] if i == self.dim else 1 for i in range(x_in.ndim)])
        for window in self.get_context_windows(model, x_in, model_options):
            comfy.interrupt.throw_exception_if_processing_interrupted()
            latent = window.get_tensor(x_in, retain_index_list=self.latent_retain_index_list)
            of_window = [self._conds_of(entries, x_in, window) for entries in conds]
            options = {
                **model_options,
                "transformer_options": {**model_options.get("transformer_options", {}), "context_window": window},
            }
            outputs = calc_cond_batch(model, of_window, latent, self._timestep(timestep, window, x_in), options)
            weights = self._weights(window, x_in.ndim)
            cells = torch.tensor(window.index_list)
            counts.index_add_(self.dim, cells, weights)
            cells, weights = cells.to(x_in.device), weights.to(x_in)
            for total, output in zip(sums, outputs):
                if window.anchor is not None:
                    output = output.narrow(self.dim, 1, output.shape[self.dim] - 1)
                total.index_add_(self.dim, cells, output * weights)
        counts = counts.to(x_in)
        return [total / counts for total in sums]

    def _weights(self, window: IndexListContextWindow, axes: int) -> Tensor:
        """[1, ..., cells, ..., 1], so many axes. Where a retained cell is seen instead of its own, as good as none."""
        weights = self.fuse_method.func(window.index_list, window.total_frames, self.shape())
        seen = window.cells_with(self.latent_retain_index_list)[len(window.cells) - len(window.index_list) :]
        weights = [
            weight if cell == own else weight * schedules.TINY_WEIGHT
            for weight, own, cell in zip(weights, window.index_list, seen)
        ]
        shape = [1] * axes
        shape[self.dim] = len(weights)
        return torch.tensor(weights).reshape(shape)

    # --- a window's part of what goes with the latent

    def _timestep(self, timestep: Tensor, window: IndexListContextWindow, x_in: Tensor) -> Tensor:
        if self.dim != 0 or timestep.shape[0] != x_in.shape[0]:
            return timestep
        part = timestep[: len(window.cells)]
        if (known := getattr(timestep, "host_sigma", None)) is not None:
            part.host_sigma = known
            return part
        return window.get_tensor(timestep, 0)

    def _conds_of(
        self, entries: list[dict[str, Any]] | None, x_in: Tensor, window: IndexListContextWindow
    ) -> list[dict[str, Any]] | None:
        if entries is None:
            return None
        if self.split_conds_to_windows and len(entries) > 1:
            entries = [entries[window.get_region_index(len(entries))]]
        return [self._entry_of(entry, x_in, window) for entry in entries]

    def _entry_of(self, entry: dict[str, Any], x_in: Tensor, window: IndexListContextWindow) -> dict[str, Any]:
        made = dict(entry)
        made["model_conds"] = {
            name: self._cond_of(cond, x_in, window) for name, cond in entry.get("model_conds", {}).items()
        }
        mask = entry.get("mask")
        if isinstance(mask, Tensor) and self.dim != 1:
            # A mask has no channels.
            axis = self.dim - (1 if self.dim > 1 else 0)
            if mask.ndim == x_in.ndim - 1 and mask.shape[axis] == x_in.shape[self.dim]:
                made["mask"] = window.get_tensor(mask, axis, self.cond_retain_index_list)
        if entry.get("area") is not None and self.dim >= 2:
            made["area"] = self._area_of(entry["area"], x_in, window)
        if entry.get("control") is not None and self.dim == 0:
            made["control"] = self._control_of(entry["control"], x_in.shape[0], window)
        return made

    def _area_of(self, area: tuple[int, ...], x_in: Tensor, window: IndexListContextWindow) -> tuple[int, ...]:
        axes = len(area) // 2
        axis = self.dim - (x_in.ndim - axes)
        if axis < 0:
            return area
        if area[axes + axis] != 0 or area[axis] < x_in.shape[self.dim]:
            raise UnknownWindowChoice(
                f"context windows along dimension {self.dim} do not go with a conditioning for a part of it: {area}"
            )
        return (*area[:axis], len(window.cells), *area[axis + 1 :])

    def _cond_of(self, cond: Any, x_in: Tensor, window: IndexListContextWindow) -> Any:
        """Its part, where it is laid out along the dimension like the latent; else itself."""
        if not isinstance(cond, CONDRegular):
            return cond
        if isinstance(cond.cond, list):
            parts = [self._tensor_of(t, x_in, window) for t in cond.cond]
            changed = any(part is not t for part, t in zip(parts, cond.cond))
            return cond._copy_with(parts) if changed else cond
        part = self._tensor_of(cond.cond, x_in, window)
        return cond if part is cond.cond else cond._copy_with(part)

    def _tensor_of(self, value: Any, x_in: Tensor, window: IndexListContextWindow) -> Any:
        if not isinstance(value, Tensor) or self.dim >= value.ndim:
            return value
        if value.ndim == x_in.ndim + 1 and value.shape[3:] == x_in.shape[2:] and self.dim > 1:
            # Videos side by side: one axis more before the channels.
            return window.get_tensor(value, self.dim + 1, self.cond_retain_index_list)
        like_latent = self.dim == 0 or value.ndim == x_in.ndim
        if not like_latent or value.shape[self.dim] != x_in.shape[self.dim]:
            return value
        return window.get_tensor(value, retain_index_list=self.cond_retain_index_list)

    def _control_of(self, control: Any, total: int, window: IndexListContextWindow) -> Any:
        """The control with its pictures of the window, where it has one for each item of the batch. Kept for the run,
        so that pictures are prepared once."""
        key = (id(control), tuple(window.cells))
        if key in self._controls:
            return self._controls[key][1]
        part = copy.copy(control)

        def selected(tensor: Any) -> Any:
            if isinstance(tensor, Tensor) and tensor.ndim > 0 and tensor.shape[0] == total:
                return window.get_tensor(tensor, 0)
            return tensor

        part.cond_hint_original = selected(getattr(control, "cond_hint_original", None))
        part.extra_concat_orig = [selected(t) for t in getattr(control, "extra_concat_orig", [])]
        part.cond_hint = part.extra_concat = None
        if getattr(control, "previous_controlnet", None) is not None:
            part.previous_controlnet = self._control_of(control.previous_controlnet, total, window)
        self._controls[key] = (control, part)
        return part


# --- around a run


def create_prepare_sampling_wrapper(model: Any) -> None:
    """Have the patcher's memory estimated for a window instead of the whole."""
    model.add_wrapper_with_key(WrappersMP.PREPARE_SAMPLING, "ContextWindows_prepare_sampling", _prepare_sampling)


def _prepare_sampling(
    executor: Any, model: Any, noise_shape: Any, conds: Any, *args: Any, model_options: Any = None, **kwargs: Any
) -> Any:
    options = model_options if model_options is not None else model.model_options
    handler = options.get(HANDLER)
    if handler is not None and handler.dim < len(noise_shape):
        handler.begin()
        shape = list(noise_shape)
        shape[handler.dim] = min(shape[handler.dim], handler.context_length)
        noise_shape = torch.Size(shape)
    return executor(model, noise_shape, conds, *args, model_options=model_options, **kwargs)


def create_sampler_sample_wrapper(model: Any) -> None:
    """Have the patcher's noise shuffled where its handler wants FreeNoise."""
    model.add_wrapper_with_key(WrappersMP.SAMPLER_SAMPLE, "ContextWindows_sampler_sample", _sampler_sample)


def _sampler_sample(
    executor: Any,
    guider: Any,
    sigmas: Tensor,
    extra_args: dict[str, Any],
    callback: Any,
    noise: Tensor,
    *args,
    **kwargs,
) -> Any:
    handler = extra_args.get("model_options", {}).get(HANDLER)
    if handler is not None and getattr(handler, "freenoise", False) and handler.dim < noise.ndim:
        noise = apply_freenoise(
            noise, handler.dim, handler.context_length, handler.context_overlap, extra_args.get("seed")
        )
    try:
        return executor(guider, sigmas, extra_args, callback, noise, *args, **kwargs)
    finally:
        if hasattr(handler, "begin"):
            handler.begin()


def apply_freenoise(noise: Tensor, dim: int, context_length: int, context_overlap: int, seed: int | None) -> Tensor:
    """The noise of the first window; what each later window adds is what its predecessor began with, shuffled.

    Source: Qiu et al. 2023, "FreeNoise" (arXiv 2310.15169).
    """
    generator = torch.Generator(device="cpu").manual_seed(seed or 0)
    total, delta = noise.shape[dim], max(context_length - context_overlap, 1)
    noise = noise.clone()
    for start in range(0, total - context_length, delta):
        place = start + context_length
        count = min(delta, total - place)
        if count <= 0:
            break
        source = (torch.randperm(count, generator=generator) + start).to(noise.device)
        noise.narrow(dim, place, count).copy_(noise.index_select(dim, source))
    return noise
