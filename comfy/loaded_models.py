"""The models that are on a device now, from most to least recently used, and who has to go for whom.

Models stay there between prompts and are taken off, least recently used first, when memory is short. An entry
does not keep its model alive: it goes when the last patcher of that model goes. What is decided here is written into
the device's ledger (`comfy.ledger`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from comfy import devices
from comfy.device_memory import memory_of, normalized
from comfy.devices import get_free_memory, minimum_inference_memory, soft_empty_cache
from comfy.ledger import ledger_of, name_of
from comfy.placement import Placement

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

log = logging.getLogger(__name__)

# Weights need a little more than their own size: alignment, and casts while they move.
WEIGHTS_MARGIN = 1.1

# Of a model that has to give way for a smaller need only some layers go: bringing them back is cheaper. If this share
# of what is loaded would have to go, all of it goes.
LARGEST_PART = 0.75

HOST = torch.device("cpu")


class LoadedModel:
    """One model on a device, and the patcher whose patches it carries."""

    def __init__(self, patcher: ModelPatcher):
        self._model = weakref.ref(patcher.model)
        self.device = patcher.load_device
        self.currently_used = False  # whether the last call of `load_models_gpu` was for it
        self.fresh = True  # not in the ledger since it was put here
        self.working = (0, 0)  # bytes that the run it was loaded for wants besides weights, and needs at least
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
        patcher, model = self.model, self.real_model
        if patcher is not None:
            return patcher.model_size()
        return 0 if model is None else devices.module_size(model)

    def model_loaded_memory(self) -> int:
        """Bytes of weights on the device."""
        model = self.real_model
        place = getattr(model, "placement", None)
        if place is not None and not place.memory.is_host:
            return place.loaded_bytes() if place.device == self.device else 0
        return getattr(model, "model_loaded_weight_memory", 0)

    def load(self, force_patch_weights: bool, budget: int | None) -> None:
        """Put the model on its device with its patches; at most `budget` bytes of weights (None: all)."""
        patcher = self.model
        if patcher is None:
            raise RuntimeError("the model to load was dropped while it was being loaded")
        counters = ledger_of(self.device).counters
        before, was_loaded = counters.copied_bytes, self.model_loaded_memory()
        patcher.patch_model(
            device_to=self.device,
            lowvram_model_memory=0 if budget is None else max(budget, 1),
            force_patch_weights=force_patch_weights,
        )
        moved, now = counters.copied_bytes - before, self.model_loaded_memory()
        if moved or was_loaded != now or self.fresh:  # a model that is streamed as a whole moves nothing here
            self.fresh = False
            ledger_of(self.device).loaded(patcher.model, self.model_memory(), now, moved, self._pinned_bytes())

    def _pinned_bytes(self) -> int:
        place = getattr(self.real_model, "placement", None)
        return 0 if place is None else place.pinned_bytes()

    def give_way_in_part(self, size: int, by: str) -> bool:
        """Take layers of at least `size` bytes off the device, if that leaves a good part of the model there; the model
        can still run. Returns whether it was done."""
        patcher = self.model
        loaded = self.model_loaded_memory()
        if patcher is None or size > loaded * LARGEST_PART or memory_of(self.device).is_host:
            return False
        freed = patcher.partially_unload(HOST, size)
        ledger_of(self.device).shrunk(patcher.model, self.model_loaded_memory(), freed, self._pinned_bytes(), by)
        return freed >= size

    def unload(self, by: str = "a request to unload it") -> None:
        """Take the patches off and the weights away from the device. by: why, for the ledger."""
        model = self.real_model
        if model is None:
            return
        patcher = self.model
        if patcher is not None:
            patcher.detach()
        else:
            self._restorer(model)
        place = getattr(model, "placement", None)
        if place is not None and not place.memory.is_host and place.loaded_bytes():
            place.leave(model)  # its place to wait is the device itself, but the memory is needed
            model.model_loaded_weight_memory = 0
            model.device = HOST
        ledger_of(self.device).evicted(model, by)


current_loaded_models: list[LoadedModel] = []
# Workers of several devices share the list.
_lock = threading.RLock()


def loaded_models(only_currently_used: bool = False) -> list[ModelPatcher]:
    """Patchers of the loaded models, most recently used first."""
    with _lock:
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
    off, least recently used first; a model that still does not fit beside `minimum_memory_required` (default: the
    same) is loaded in part, and the layers left behind visit the device each time they are called (not with
    `force_full_load`).
    """
    with _lock:
        cleanup_models()
        wanted = list(dict.fromkeys(models))
        for model in models:
            wanted.extend(m for m in model.get_nested_additional_models() if m not in wanted)
        entries = [_to_the_front(patcher) for patcher in wanted]
        least = memory_required if minimum_memory_required is None else minimum_memory_required
        for entry in current_loaded_models:
            entry.currently_used = entry in entries
        for entry in entries:
            entry.working = (memory_required, least)
        _make_room_for(entries, _reserve(max(memory_required, least)))
        # The smaller ones first: of several that do not fit together the largest is streamed.
        for entry in sorted(entries, key=LoadedModel.model_memory):
            budget = None if force_full_load else _budget(entry, _reserve(least))
            entry.load(force_patch_weights, budget)
            ledger_of(entry.device).used(entry.real_model)


@contextlib.contextmanager
def run_goes_on() -> Iterator[None]:
    """Around something that loads models of its own in the middle of a run, such as a VAE for a control's picture:
    behind it the models of the run are there again, beside the memory that the run works in."""
    with _lock:
        entries = [entry for entry in current_loaded_models if entry.currently_used and entry.model is not None]
        in_use = [entry.model for entry in entries]
        working = max((entry.working[0] for entry in entries), default=0)
        least = max((entry.working[1] for entry in entries), default=0)
    yield
    load_models_gpu(in_use, memory_required=working, minimum_memory_required=least)


def _to_the_front(patcher: ModelPatcher) -> LoadedModel:
    """The entry of a model, now the most recently used, with these patches."""
    entry = _entry_of(patcher)
    if entry is None:
        entry = LoadedModel(patcher)
    else:
        current_loaded_models.remove(entry)
        entry.set_patcher(patcher)
    current_loaded_models.insert(0, entry)
    return entry


def _make_room_for(entries: Sequence[LoadedModel], reserve: float) -> None:
    needed: dict[torch.device, int] = {}
    for entry in entries:
        missing = max(0, entry.model_memory() - entry.model_loaded_memory())
        needed[entry.device] = needed.get(entry.device, 0) + missing
    for device, size in needed.items():
        _end_visits(device)
        if not memory_of(device).is_host:
            names = ", ".join(name_of(e.real_model) for e in entries if e.device == device)
            free_memory(int(size * WEIGHTS_MARGIN) + reserve, device, keep_loaded=entries, by=names)


def _reserve(working: float) -> float:
    """Bytes to keep free for a run that says it takes `working`: estimates are rough, and others need some, too."""
    return max(working + devices.extra_reserved_memory(), minimum_inference_memory())


def _budget(entry: LoadedModel, reserve: float) -> int | None:
    """Bytes of weights of this model that may be on its device; None: all."""
    memory, size = memory_of(entry.device), entry.model_memory()
    if memory.is_host:
        return None
    if devices.vram_state == devices.VRAMState.NO_VRAM:
        return 0
    room = get_free_memory(entry.device) - reserve + entry.model_loaded_memory()
    if size <= room:
        return None
    place = getattr(entry.real_model, "placement", None)
    if place is None or place.device != entry.device:
        place = Placement(entry.device)
    budget = max(0, int(room) - place.buffer_bytes(entry.real_model))
    log.info("%s is loaded in part: %d of %d MB fit", name_of(entry.real_model), budget >> 20, size >> 20)
    return budget


def load_model_gpu(model: ModelPatcher) -> None:
    """`load_models_gpu` for one model."""
    load_models_gpu([model])


def load_if_it_fits(patcher: ModelPatcher) -> bool:
    """Put a model onto its device if there is room now; nothing gives way for it, so that this may be done while others
    run. Returns whether it is there."""
    with _lock:
        cleanup_models()
        entry = _entry_of(patcher)
        missing = patcher.model_size() - (0 if entry is None else entry.model_loaded_memory())
        if not memory_of(patcher.load_device).is_host and missing * WEIGHTS_MARGIN > get_free_memory(
            patcher.load_device
        ):
            return False
        entry = _to_the_front(patcher)
        entry.currently_used = False  # the run that it stands beside knows nothing of it
        entry.load(False, None)
        ledger_of(entry.device).used(patcher.model)
        return True


def free_memory(
    memory_required: float,
    device: torch.device,
    keep_loaded: Iterable[LoadedModel] = (),
    for_dynamic: bool = False,
    pins_required: int = 0,
    ram_required: int = 0,
    by: str = "a node that needs memory",
) -> list[LoadedModel]:
    """Take models off `device`, least recently used first, until `memory_required` bytes are free or none is
    left but those of `keep_loaded`. Returns the entries taken off. by: who needs the memory, for the ledger."""
    with _lock:
        cleanup_models()
        keep = list(keep_loaded)
        unloaded: list[LoadedModel] = []
        for entry in reversed(current_loaded_models.copy()):
            if entry.device != normalized(device) or entry in keep:
                continue
            short = memory_required - get_free_memory(device)
            if short <= 0:
                break
            if entry.give_way_in_part(int(short), by):
                break
            entry.unload(by)
            current_loaded_models.remove(entry)
            unloaded.append(entry)
        if unloaded:
            soft_empty_cache()
        return unloaded


def unload_model(model: ModelPatcher, unload_weights_only: bool = True) -> bool:
    """Take one model off its device, whichever patches it carries. Returns whether it was there."""
    with _lock:
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


def unload_all_models(by: str = "a request to unload all models") -> None:
    """Take everything off every device. by: why, for the ledger."""
    with _lock:
        for entry in reversed(current_loaded_models.copy()):
            entry.unload(by)
        current_loaded_models.clear()
        soft_empty_cache()


def cleanup_models() -> None:
    """Forget entries whose model is gone."""
    with _lock:
        current_loaded_models[:] = [entry for entry in current_loaded_models if not entry.is_dead()]


def _end_visits(device: torch.device) -> None:
    """Layers that a run which has ended left on their way to the device leave it."""
    for entry in current_loaded_models:
        place = getattr(entry.real_model, "placement", None)
        if place is not None and entry.device == device:
            place.end_visits()


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
