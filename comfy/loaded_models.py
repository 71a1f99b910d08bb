"""The models that are on a device now, from most to least recently used.

Models stay there between prompts and are taken off, least recently used first, when memory is short. An entry
does not keep its model alive: it goes when the last patcher of that model goes.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from comfy import devices
from comfy.devices import get_free_memory, minimum_inference_memory, soft_empty_cache

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

log = logging.getLogger(__name__)

# Weights need a little more than their own size: alignment, and casts while they move.
WEIGHTS_MARGIN = 1.1


class LoadedModel:
    """One model on a device, and the patcher whose patches it carries."""

    def __init__(self, patcher: ModelPatcher):
        self._model = weakref.ref(patcher.model)
        self.device = patcher.load_device
        self.currently_used = True
        self.set_patcher(patcher)

    def set_patcher(self, patcher: ModelPatcher) -> None:
        """From now on the model is used with these patches."""
        self._patcher = weakref.ref(patcher)
        # Enough to undo the patches when the patcher itself is gone but a clone keeps the model alive.
        self._restorer = patcher.restorer()

    @property
    def model(self) -> ModelPatcher | None:
        return self._patcher()

    @property
    def real_model(self) -> torch.nn.Module | None:
        return self._model()

    def is_dead(self) -> bool:
        return self._model() is None

    def model_memory(self) -> int:
        """Bytes of the model's weights."""
        model = self.real_model
        return 0 if model is None else devices.module_size(model)

    def model_loaded_memory(self) -> int:
        """Bytes of weights on the device."""
        return getattr(self.real_model, "model_loaded_weight_memory", 0)

    def load(self, force_patch_weights: bool, budget: int | None) -> None:
        """Put the model on its device with its patches; at most `budget` bytes of weights (None: all)."""
        patcher = self.model
        if patcher is None:
            raise RuntimeError("the model to load was dropped while it was being loaded")
        patcher.patch_model(
            device_to=self.device,
            lowvram_model_memory=0 if budget is None else max(budget, 1),
            force_patch_weights=force_patch_weights,
        )

    def unload(self) -> None:
        """Take the patches off and the weights away from the device."""
        model = self.real_model
        if model is None:
            return
        patcher = self.model
        if patcher is not None:
            patcher.detach()
        else:
            self._restorer(model)


current_loaded_models: list[LoadedModel] = []


def loaded_models(only_currently_used: bool = False) -> list[ModelPatcher]:
    """Patchers of the loaded models, most recently used first."""
    return [
        entry.model
        for entry in current_loaded_models
        if entry.model is not None and (entry.currently_used or not only_currently_used)
    ]


def load_models_gpu(
    models: Sequence[ModelPatcher],
    memory_required: int = 0,
    force_patch_weights: bool = False,
    minimum_memory_required: int | None = None,
    force_full_load: bool = False,
) -> None:
    """Make the models ready to run, each on its load device with its patches applied.

    memory_required: bytes needed besides the weights while they run. What has to give way for that is taken
    off, least recently used first; a model that still does not fit is loaded in part, and the layers left
    behind move to the device each time they are called (not with `force_full_load`).
    """
    cleanup_models()
    wanted = list(dict.fromkeys(models))
    for model in models:
        wanted.extend(m for m in model.get_nested_additional_models() if m not in wanted)
    reserve = max(memory_required, minimum_memory_required or 0, minimum_inference_memory())

    entries: list[LoadedModel] = []
    needed: dict[torch.device, int] = {}
    for patcher in wanted:
        entry = _entry_of(patcher)
        if entry is None:
            entry = LoadedModel(patcher)
        else:
            current_loaded_models.remove(entry)
            entry.set_patcher(patcher)
        current_loaded_models.insert(0, entry)
        entry.currently_used = True
        entries.append(entry)
        missing = max(0, entry.model_memory() - entry.model_loaded_memory())
        needed[entry.device] = needed.get(entry.device, 0) + missing

    for device, size in needed.items():
        if not devices.is_device_cpu(device):
            free_memory(int(size * WEIGHTS_MARGIN) + reserve, device, keep_loaded=entries)

    for entry in entries:
        budget = None
        if not force_full_load and not devices.is_device_cpu(entry.device):
            room = get_free_memory(entry.device) - reserve + entry.model_loaded_memory()
            if devices.vram_state == devices.VRAMState.NO_VRAM:
                room = 0
            if room < entry.model_memory():
                budget = max(0, int(room))
                log.info(
                    "%s is loaded in part: %d of %d MB fit",
                    type(entry.real_model).__name__,
                    budget >> 20,
                    entry.model_memory() >> 20,
                )
        entry.load(force_patch_weights, budget)


def load_model_gpu(model: ModelPatcher) -> None:
    """`load_models_gpu` for one model."""
    load_models_gpu([model])


def free_memory(
    memory_required: float,
    device: torch.device,
    keep_loaded: Iterable[LoadedModel] = (),
    for_dynamic: bool = False,
    pins_required: int = 0,
    ram_required: int = 0,
) -> list[LoadedModel]:
    """Take models off `device`, least recently used first, until `memory_required` bytes are free or none is
    left but those of `keep_loaded`. Returns the entries taken off."""
    cleanup_models()
    keep = list(keep_loaded)
    unloaded: list[LoadedModel] = []
    for entry in reversed(current_loaded_models.copy()):
        if entry.device != torch.device(device) or entry in keep:
            continue
        if get_free_memory(device) >= memory_required:
            break
        entry.unload()
        current_loaded_models.remove(entry)
        unloaded.append(entry)
        soft_empty_cache()
    return unloaded


def unload_model(model: ModelPatcher, unload_weights_only: bool = True) -> bool:
    """Take one model off its device, whichever patches it carries. Returns whether it was there."""
    entry = _entry_of(model)
    if entry is None:
        return False
    entry.unload()
    current_loaded_models.remove(entry)
    return True


def unload_model_and_clones(model: ModelPatcher, unload_additional_models: bool = True, all_devices=False) -> None:
    """Take a model off, and those that belong to it."""
    unload_model(model)
    if unload_additional_models:
        for additional in model.get_nested_additional_models():
            unload_model(additional)


def unload_all_models() -> None:
    """Take everything off every device."""
    for entry in reversed(current_loaded_models.copy()):
        entry.unload()
    current_loaded_models.clear()
    soft_empty_cache()


def cleanup_models() -> None:
    """Forget entries whose model is gone."""
    current_loaded_models[:] = [entry for entry in current_loaded_models if not entry.is_dead()]


def cleanup_models_gc() -> None:
    """As `cleanup_models`, after collecting reference cycles."""
    import gc

    gc.collect()
    cleanup_models()


def _entry_of(patcher: ModelPatcher) -> LoadedModel | None:
    for entry in current_loaded_models:
        if entry.real_model is patcher.model and entry.device == patcher.load_device:
            return entry
    return None
