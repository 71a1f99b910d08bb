"""Around a run: loading the model and what its conditioning needs, masks, and the clean-up."""

from __future__ import annotations

import logging
from typing import Any

from torch import Tensor

from comfy import patcher_extension
from comfy.hooks import HookGroup
from comfy.resize import reshape_mask
from comfy.sampling.cond_prepare import Conds, convert_cond

__all__ = [
    "cleanup_additional_models",
    "cleanup_models",
    "convert_cond",
    "estimate_memory",
    "get_additional_models",
    "get_additional_models_from_model_options",
    "get_models_from_cond",
    "prepare_mask",
    "prepare_model_patcher",
    "prepare_sampling",
]

log = logging.getLogger(__name__)


def prepare_mask(noise_mask: Tensor, shape: Any, device: Any) -> Tensor:
    """A noise mask in the shape of the latent `shape`, on `device`."""
    return reshape_mask(noise_mask, shape).to(device)


def get_models_from_cond(cond: list[dict[str, Any]], model_type: str) -> list[Any]:
    """What the entries hold under `model_type` ("control", "gligen", "additional_models")."""
    found = []
    for entry in cond:
        if entry.get(model_type) is not None:
            value = entry[model_type]
            found += value if isinstance(value, list) else [value]
    return found


def get_additional_models(conds: Conds, dtype: Any) -> tuple[list[Any], float]:
    """(models that the conditioning needs loaded, memory their inference takes)."""
    controls, gligen, additional = [], [], []
    for entries in conds.values():
        controls += get_models_from_cond(entries, "control")
        gligen += [g[1] for g in (e.get("gligen") for e in entries) if g is not None]
        additional += get_models_from_cond(entries, "additional_models")
    control_models, memory = [], 0.0
    for control in _unique(controls):
        control_models += control.get_models()
        memory += control.inference_memory_requirements(dtype)
    return _unique(control_models + gligen + additional), memory


def _unique(items: list[Any]) -> list[Any]:
    """`items` without repetitions (by identity), in order."""
    return list({id(item): item for item in items}.values())


def get_additional_models_from_model_options(model_options: dict[str, Any] | None = None) -> list[Any]:
    """Models that hooks registered in the model options bring along."""
    registered = (model_options or {}).get("registered_hooks")
    models = []
    if registered is not None and hasattr(registered, "hooks"):
        for hook in registered.hooks:
            models += getattr(hook, "models", [])
    return models


def cleanup_additional_models(models: list[Any]) -> None:
    """Tell the models that came along that the run is over."""
    for model in models:
        if hasattr(model, "cleanup"):
            model.cleanup()


def estimate_memory(model: Any, noise_shape: Any, conds: Conds, cond_shapes: Any = None) -> tuple[float, float]:
    """(memory for positive and negative in one batch, memory for one alone), in bytes."""
    rows = noise_shape[0]
    rest = list(noise_shape[1:])
    return model.memory_required([rows * 2, *rest]), model.memory_required([rows, *rest])


def prepare_sampling(
    model: Any,
    noise_shape: Any,
    conds: Conds,
    model_options: dict[str, Any] | None = None,
    **kwargs: Any,
) -> tuple[Any, Conds, list[Any]]:
    """Load the model and all it needs: (the loaded model, conds, additional models).

    Wrappers: PREPARE_SAMPLING.
    """
    options = model_options if model_options is not None else model.model_options
    executor = patcher_extension.WrapperExecutor.new_executor(
        _prepare_sampling,
        patcher_extension.get_all_wrappers(
            patcher_extension.WrappersMP.PREPARE_SAMPLING, options, is_model_options=True
        ),
    )
    return executor.execute(model, noise_shape, conds, model_options=model_options, **kwargs)


def _prepare_sampling(
    model: Any, noise_shape: Any, conds: Conds, model_options: dict[str, Any] | None = None, **kwargs: Any
) -> tuple[Any, Conds, list[Any]]:
    import comfy.model_management

    models, inference_memory = get_additional_models(conds, model.model_dtype())
    models += get_additional_models_from_model_options(model_options)
    nested = getattr(model, "get_nested_additional_models", None)
    if nested is not None:
        models += nested()
    wanted, minimum = estimate_memory(model, noise_shape, conds)
    comfy.model_management.load_models_gpu(
        [model, *models],
        memory_required=wanted + inference_memory,
        minimum_memory_required=minimum + inference_memory,
    )
    return model.model, conds, models


def cleanup_models(conds: Conds, models: list[Any]) -> None:
    """End of a run: additional models and controls forget what they kept for it."""
    cleanup_additional_models(models)
    controls = []
    for entries in conds.values():
        controls += get_models_from_cond(entries, "control")
    cleanup_additional_models(_unique(controls))


def prepare_model_patcher(model: Any, conds: Conds, model_options: dict[str, Any]) -> None:
    """Register the hooks that the conditioning carries, so that the patcher can switch them during the run."""
    groups = _unique([e["hooks"] for entries in conds.values() for e in entries if e.get("hooks")])
    register = getattr(model, "register_all_hook_patches", None)
    if register is None or (not groups and getattr(model, "registered_hooks", None) is None):
        return
    # The entries' own hooks, not clones: their keyframes are to advance with the run.
    combined = HookGroup()
    combined.hooks = [hook for group in groups for hook in group.hooks]
    register(combined, {}, model_options)
