"""One guided evaluation: the entries of positive and negative, batched as memory allows, merged by weight."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from comfy import patcher_extension
from comfy.sampling.areas import CondEntry, crop, get_area_and_mult

# keeps the quotient finite where no entry has weight
TINY_WEIGHT = 1e-37
# An evaluation is allowed to need this share of the free memory.
MEMORY_MARGIN = 1.5

# (entry, index of the list it belongs to: 0 positive, 1 negative...)
Job = tuple[CondEntry, int]


def cond_equal_size(c1: dict[str, Any], c2: dict[str, Any]) -> bool:
    """Whether two entries' model inputs can be joined into one batch."""
    if c1 is c2:
        return True
    return c1.keys() == c2.keys() and all(c1[k].can_concat(c2[k]) for k in c1)


def can_concat_cond(c1: CondEntry, c2: CondEntry) -> bool:
    """Whether two entries can be evaluated in one call of the network."""
    if c1.input_x.shape != c2.input_x.shape:
        return False
    if c1.control is not c2.control or c1.patches != c2.patches:
        return False
    return cond_equal_size(c1.conditioning, c2.conditioning)


def cond_cat(c_list: list[dict[str, Any]]) -> dict[str, Any]:
    """The model inputs of several entries joined along the batch."""
    return {name: c_list[0][name].concat([c[name] for c in c_list[1:]]) for name in c_list[0]}


def _fitting(model: Any, jobs: list[Job], x: Tensor) -> list[Job]:
    """As many of `jobs` as the device has memory for, at least one."""
    if len(jobs) == 1:
        return jobs
    import comfy.model_management

    free = comfy.model_management.get_free_memory(x.device)
    first_shape = list(jobs[0][0].input_x.shape)
    for divisor in range(1, len(jobs) + 1):
        batch = jobs[: len(jobs) // divisor]
        cond_shapes: dict[str, list[Any]] = {}
        for entry, _ in batch:
            for name, cond in entry.conditioning.items():
                cond_shapes.setdefault(name, []).append(cond.size())
        shape = [len(batch) * first_shape[0], *first_shape[1:]]
        if model.memory_required(shape, cond_shapes=cond_shapes) * MEMORY_MARGIN < free:
            return batch
    return jobs[:1]


class _Merge:
    """Sum of weighted predictions over the sum of weights, for one list of entries."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.out: Tensor | None = None
        self.count: Tensor | None = None

    def add(self, entry: CondEntry, output: Tensor) -> None:
        weighted = output * entry.mult
        if self.out is None and entry.area is None:
            self.out, self.count = weighted, entry.mult
            return
        if self.out is None:
            self.out, self.count = torch.zeros_like(self.x), torch.zeros_like(self.x)
        if entry.area is None:
            self.out, self.count = self.out + weighted, self.count + entry.mult
            return
        if self.count.shape != self.x.shape:
            self.count = self.count.expand_as(self.x).clone()
        crop(self.out, entry.area).add_(weighted)
        crop(self.count, entry.area).add_(entry.mult)

    def result(self) -> Tensor:
        if self.out is None:
            return torch.zeros_like(self.x)
        return self.out / (self.count + TINY_WEIGHT)


def _default_entries(
    default_conds: list[list[dict[str, Any]]], jobs: list[Job], x: Tensor, timestep: Tensor
) -> list[Job]:
    """Entries marked as default get the weight that the others leave over: max(0, 1 - sum)."""
    found = []
    for index, defaults in enumerate(default_conds):
        if not defaults:
            continue
        left_over = torch.ones_like(x)
        for entry, owner in jobs:
            if owner == index:
                part = left_over if entry.area is None else crop(left_over, entry.area)
                part -= entry.mult
        left_over = torch.relu(left_over)
        for cond in defaults:
            entry = get_area_and_mult(cond, x, timestep)
            if entry is not None:
                weight = left_over if entry.area is None else crop(left_over, entry.area)
                found.append((entry._replace(mult=weight), index))
    return found


def _group_by_hooks(jobs: list[Job]) -> list[tuple[Any, list[Job]]]:
    groups: list[tuple[Any, list[Job]]] = []
    for job in jobs:
        for hooks, members in groups:
            if hooks is job[0].hooks or hooks == job[0].hooks:
                members.append(job)
                break
        else:
            groups.append((job[0].hooks, [job]))
    return groups


def calc_cond_batch(
    model: Any,
    conds: list[list[dict[str, Any]] | None],
    x_in: Tensor,
    timestep: Tensor,
    model_options: dict[str, Any],
) -> list[Tensor]:
    """The merged denoised prediction of each list of entries; zeros for a list without an active entry.

    `x_in` [batch, channels, ...], `timestep` sigma [batch]. Wrappers: CALC_COND_BATCH. With a `context_handler` in the
    model options (see `comfy.context_windows`), a latent too long for it is evaluated in windows.
    """
    handler = model_options.get("context_handler")
    if handler is None or not handler.should_use_context(model, conds, x_in, timestep, model_options):
        return _calc_cond_batch_wrapped(model, conds, x_in, timestep, model_options)
    return handler.execute(_calc_cond_batch_wrapped, model, conds, x_in, timestep, model_options)


def _calc_cond_batch_wrapped(
    model: Any,
    conds: list[list[dict[str, Any]] | None],
    x_in: Tensor,
    timestep: Tensor,
    model_options: dict[str, Any],
) -> list[Tensor]:
    executor = patcher_extension.WrapperExecutor.new_executor(
        _calc_cond_batch,
        patcher_extension.get_all_wrappers(
            patcher_extension.WrappersMP.CALC_COND_BATCH, model_options, is_model_options=True
        ),
    )
    return executor.execute(model, conds, x_in, timestep, model_options)


def _calc_cond_batch(
    model: Any,
    conds: list[list[dict[str, Any]] | None],
    x_in: Tensor,
    timestep: Tensor,
    model_options: dict[str, Any],
) -> list[Tensor]:
    jobs: list[Job] = []
    default_conds: list[list[dict[str, Any]]] = []
    for index, entries in enumerate(conds):
        defaults = []
        for cond in entries or []:
            if cond.get("default"):
                defaults.append(cond)
                continue
            entry = get_area_and_mult(cond, x_in, timestep)
            if entry is not None:
                jobs.append((entry, index))
        default_conds.append(defaults)
    if any(default_conds):
        jobs += _default_entries(default_conds, jobs, x_in, timestep)

    merges = [_Merge(x_in) for _ in conds]
    patcher = getattr(model, "current_patcher", None)
    for hooks, members in _group_by_hooks(jobs):
        transformer_options: dict[str, Any] = {}
        if patcher is not None and hasattr(patcher, "apply_hooks"):
            patcher.prepare_state(timestep)
            transformer_options = patcher.apply_hooks(hooks=hooks) or {}
        while members:
            first = members[0][0]
            batchable = [job for job in members if can_concat_cond(job[0], first)][::-1]
            batch = _fitting(model, batchable, x_in)
            members = [job for job in members if not any(job is b for b in batch)]
            outputs = _evaluate(model, batch, timestep, model_options, transformer_options)
            for (entry, index), output in zip(batch, outputs):
                merges[index].add(entry, output)
    return [merge.result() for merge in merges]


def _evaluate(
    model: Any,
    batch: list[Job],
    timestep: Tensor,
    model_options: dict[str, Any],
    hook_options: dict[str, Any],
) -> list[Tensor]:
    """One call of the model for all entries of `batch`; one output per entry."""
    entries = [entry for entry, _ in batch]
    cond_or_uncond = [index for _, index in batch]
    count = len(batch)
    input_x = torch.cat([e.input_x for e in entries]) if count > 1 else entries[0].input_x
    sigma = _repeat(timestep, count)
    inputs = cond_cat([e.conditioning for e in entries])

    transformer_options = dict(model_options.get("transformer_options", {}))
    if hook_options:
        transformer_options = patcher_extension.merge_nested_dicts(transformer_options, hook_options, copy_dict1=True)
    patches = entries[0].patches
    if patches is not None:
        merged = dict(transformer_options.get("patches", {}))
        for name, functions in patches.items():
            merged[name] = merged.get(name, []) + functions
        transformer_options["patches"] = merged
    transformer_options["cond_or_uncond"] = cond_or_uncond
    transformer_options["uuids"] = [e.uuid for e in entries]
    transformer_options["sigmas"] = timestep
    inputs["transformer_options"] = transformer_options
    control = entries[0].control
    if control is not None:
        inputs["control"] = control.get_control(input_x, sigma, inputs, count, transformer_options)

    wrapper = model_options.get("model_function_wrapper")
    if wrapper is not None:
        output = wrapper(
            model.apply_model,
            {"input": input_x, "timestep": sigma, "c": inputs, "cond_or_uncond": cond_or_uncond},
        )
    else:
        output = model.apply_model(input_x, sigma, **inputs)
    return list(output.chunk(count))


def _repeat(timestep: Tensor, times: int) -> Tensor:
    if times == 1:
        return timestep
    repeated = torch.cat([timestep] * times)
    known = getattr(timestep, "host_sigma", None)
    if known is not None:
        repeated.host_sigma = known
    return repeated
