"""A model plus what is wanted changed about it: weight patches, replaced objects, options for sampling.

Clones share the model and differ in their wishes. Only one clone's wishes are in force at a time:
`patch_model` puts them into the model, keeping what was there in a backup that all clones share, and
`unpatch_model` undoes them.
"""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

import comfy.model_management
import comfy.state_dicts
import comfy.weight_patches
from comfy.cli_args import args
from comfy.device_memory import memory_of, normalized
from comfy.model_options import (
    OptionSetters,
    create_model_options_clone,
    set_model_options_patch_replace,
    set_model_options_post_cfg_function,
    set_model_options_pre_cfg_function,
)
from comfy.patcher_attachments import Attachments
from comfy.patcher_extension import CallbacksMP, PatcherInjection
from comfy.patcher_hooks import HookedWeights
from comfy.placement import Placement
from comfy.quantization import to_dtype
from comfy.quantized_layers import QuantizedWeight, is_scale_buffer, weight_key
from comfy.weight_adapter.base import WeightAdapter

__all__ = [
    "CoreModelPatcher",
    "ModelPatcher",
    "PatcherInjection",
    "create_model_options_clone",
    "set_model_options_patch_replace",
    "set_model_options_post_cfg_function",
    "set_model_options_pre_cfg_function",
]

log = logging.getLogger(__name__)

# What patch arithmetic is done in, whatever the weight rests in.
PATCH_DTYPE = torch.float32


class ModelPatcher(OptionSetters, Attachments, HookedWeights):
    """See the module. `load_device` is where the model runs, `offload_device` where it waits."""

    def __init__(
        self,
        model: nn.Module,
        load_device: torch.device,
        offload_device: torch.device,
        size: int = 0,
        weight_inplace_update: bool = False,
    ):
        self.model = model
        self.load_device = normalized(load_device)
        self.offload_device = torch.device(offload_device)
        self.size = size
        self.weight_inplace_update = weight_inplace_update
        self.patches: dict[str, list[tuple]] = {}
        self.patches_uuid = uuid.uuid4()
        self.backup: dict[str, Tensor] = {}
        self.object_patches: dict[str, Any] = {}
        self.object_patches_backup: dict[str, Any] = {}
        self.model_options: dict[str, Any] = {"transformer_options": {}}
        self.parent: ModelPatcher | None = None
        self.cached_patcher_init: tuple | None = None
        self.is_clip = False
        self.init_attachments()
        self.init_hooks()
        if not hasattr(model, "model_loaded_weight_memory"):
            model.device = self.offload_device
            model.model_loaded_weight_memory = 0
            model.current_weight_patches_uuid = None

    # --- identity and size

    def clone(self) -> ModelPatcher:
        """Same model, own patches and options (copies of these)."""
        n = self.__class__(self.model, self.load_device, self.offload_device, self.size, self.weight_inplace_update)
        n.patches = {key: entries[:] for key, entries in self.patches.items()}
        n.patches_uuid = self.patches_uuid
        n.object_patches = self.object_patches.copy()
        n.model_options = create_model_options_clone(self.model_options)
        n.backup = self.backup
        n.object_patches_backup = self.object_patches_backup
        n.parent = self
        n.cached_patcher_init = self.cached_patcher_init
        n.is_clip = self.is_clip
        self.copy_attachments_to(n)
        self.copy_hooks_to(n)
        for callback in self.get_all_callbacks(CallbacksMP.ON_CLONE):
            callback(self, n)
        return n

    def is_clone(self, other: Any) -> bool:
        """Whether `other` is a patcher of the same model."""
        return getattr(other, "model", None) is self.model

    def clone_has_same_weights(self, clone: ModelPatcher) -> bool:
        """Whether a clone wants the very same weights."""
        return self.is_clone(clone) and clone.patches_uuid == self.patches_uuid

    def model_size(self) -> int:
        """Bytes of all weights."""
        if self.size <= 0:
            self.size = comfy.model_management.module_size(self.model)
        return self.size

    def loaded_size(self) -> int:
        """Bytes of weights on the load device."""
        return self.model.model_loaded_weight_memory

    def model_dtype(self) -> torch.dtype | None:
        """The dtype of the weights, if the model says."""
        return self.model.get_dtype() if hasattr(self.model, "get_dtype") else None

    def current_loaded_device(self) -> torch.device:
        return self.model.device

    def is_dynamic(self) -> bool:
        return False

    def memory_required(self, input_shape: Iterable[int]) -> float:
        """Bytes needed besides the weights for an input of that shape."""
        return self.model.memory_required(input_shape=list(input_shape))

    def lowvram_patch_counter(self) -> int:
        return 0

    # --- wishes: objects

    def add_object_patch(self, name: str, obj: Any) -> None:
        """Replace the attribute of the model with that dotted name while this patcher is in force."""
        self.object_patches[name] = obj

    def get_model_object(self, name: str) -> Any:
        """The attribute of that dotted name as this patcher sees it."""
        if name in self.object_patches:
            return self.object_patches[name]
        if name in self.object_patches_backup:
            return self.object_patches_backup[name]
        # A replaced submodule shows through: "diffusion_model.out" may be patched below "diffusion_model".
        for patched in (self.object_patches_backup, self.object_patches):
            for prefix, obj in patched.items():
                if name.startswith(prefix + "."):
                    return comfy.state_dicts.get_attr(obj, name[len(prefix) + 1 :])
        return comfy.state_dicts.get_attr(self.model, name)

    # --- wishes: weights

    def add_patches(
        self, patches: dict[Any, Any], strength_patch: float = 1.0, strength_model: float = 1.0
    ) -> list[Any]:
        """Add patches key -> patch (see `comfy.weight_patches`); a key may be (name, offset) or (name,
        offset, function). Returns the keys that name a weight of the model; others are left out."""
        names = self._weight_names()
        used = []
        for key, patch in patches.items():
            name, offset, function = key, None, None
            if not isinstance(key, str):
                name, offset = key[0], key[1]
                function = key[2] if len(key) > 2 else None
            if name in names:
                self.patches.setdefault(name, []).append((strength_patch, patch, strength_model, offset, function))
                used.append(key)
        self.patches_uuid = uuid.uuid4()
        return used

    def _weight_names(self) -> set[str]:
        return {name for name, _ in self.model.named_parameters()} | {name for name, _ in self.model.named_buffers()}

    def get_key_patches(self, filter_prefix: str | None = None) -> dict[str, list[Any]]:
        """key -> [(original weight, convert), patches...]: what a patch on another model can be made of."""
        out = {}
        for key, weight in self.model_state_dict(filter_prefix).items():
            if is_scale_buffer(key):
                continue
            original = self.backup.get(key, weight)
            quantized = QuantizedWeight.find(self.model, key, self.backup)
            # Of a quantised weight the patch gets the stored values in float32, which are exact there.
            convert = _identity if quantized is None else functools.partial(_numbers_of, quantized, original.dtype)
            out[key] = [(original, convert), *self.patches.get(key, [])]
        return out

    def model_state_dict(self, filter_prefix: str | None = None) -> dict[str, Tensor]:
        """The model's weights by name, as they are now."""
        sd = self.model.state_dict()
        return {k: v for k, v in sd.items() if filter_prefix is None or k.startswith(filter_prefix)}

    def state_dict_for_saving(
        self, clip_state_dict=None, vae_state_dict=None, clip_vision_state_dict=None
    ) -> dict[str, Tensor]:
        """Weights with patches applied, named as in a checkpoint file."""
        patched = {
            f"diffusion_model.{k}" if not k.startswith("diffusion_model.") else k: v
            for k, v in self._patched_state_dict("diffusion_model.").items()
        }
        return self.model.state_dict_for_saving(patched, clip_state_dict, vae_state_dict, clip_vision_state_dict)

    def _patched_state_dict(self, filter_prefix: str | None = None) -> dict[str, Tensor]:
        """The weights with patches, as files have them."""
        out = {}
        for key, weight in self.model_state_dict(filter_prefix).items():
            original = self.backup.get(key, weight)
            quantized = QuantizedWeight.find(self.model, key, self.backup)
            if quantized is not None:
                stored, scales = original, None
                if key in self.patches:
                    stored, scales = quantized.store(self._patched_weight(key, original), original)
                out.update(quantized.in_file(stored, scales))
            elif not is_scale_buffer(key):
                out[key] = self._patched_weight(key, original) if key in self.patches else original
        return out

    def calculate_weight(
        self,
        patches: list[tuple],
        weight: Tensor,
        key: str,
        intermediate_dtype: torch.dtype = PATCH_DTYPE,
        original_weights: dict[str, list[tuple]] | None = None,
    ) -> Tensor:
        """`weight` with `patches`; the place where packs put their own arithmetic."""
        import comfy.lora

        return comfy.lora.calculate_weight(
            patches, weight, key, intermediate_dtype=intermediate_dtype, original_weights=original_weights
        )

    def _patched_weight(self, key: str, weight: Tensor, device: torch.device | None = None) -> Tensor:
        """A new tensor: `weight` with this patcher's patches, in its own dtype; of a quantised one its numbers."""
        if device is not None and device != weight.device:
            weight = weight.to(device=device)  # first the copy, which is small, then the cast
        quantized = QuantizedWeight.find(self.model, key, self.backup)
        if quantized is not None:
            return self.calculate_weight(self.patches[key], quantized.values(weight, PATCH_DTYPE), key)
        return to_dtype(
            self.calculate_weight(self.patches[key], weight.to(dtype=PATCH_DTYPE, copy=True), key), weight.dtype
        )

    def patch_weight_to_device(
        self,
        key: str,
        device_to: torch.device | None = None,
        inplace_update: bool = False,
        return_weight: bool = False,
        force_cast: bool = False,
    ) -> Tensor | None:
        """Apply the patches of one weight, keeping the original in the backup; with `return_weight` only
        return it. device_to: where to compute."""
        weight = comfy.state_dicts.get_attr(self.model, key)
        if key not in self.patches:
            return weight if return_weight else None
        current = weight.detach()
        original = self.backup.get(key, current)
        if return_weight:
            return self._patched_weight(key, original, device_to)
        place = placement_of(self.model)
        source, compute_on = original, device_to
        if place is not None and not place.memory.is_host:
            if key not in self.backup:
                original = place.original(key, weight)
            if key in self.backup or not place.holds(key, weight):
                source = place.copied(original)
            compute_on = None  # the source is on the device
        patched = self._patched_weight(key, source, compute_on)
        quantized = QuantizedWeight.find(self.model, key, self.backup)
        if quantized is not None:
            patched, scales = quantized.store(patched, source)
            for name, scale in scales.items():
                current_scale = comfy.state_dicts.get_attr(self.model, name)
                self.backup.setdefault(name, current_scale)
                comfy.state_dicts.set_attr(self.model, name, scale.to(current_scale.device))
        inplace = (self.weight_inplace_update or inplace_update) and weight.shape == patched.shape
        if key not in self.backup:
            # A weight written to in place needs a copy kept; otherwise the old tensor itself can wait.
            own = original is current or original is weight
            self.backup[key] = original.clone() if inplace and own else original
        self._replace(key, weight, patched, inplace, place)
        return None

    def _replace(self, key: str, weight: Tensor, patched: Tensor, inplace: bool, place: Placement | None) -> None:
        """Make `patched` the model's weight of that name."""
        on_device = place is not None and not place.memory.is_host
        if on_device and place.waits(key):
            patched = place.memory.back(patched)
        if inplace:
            comfy.state_dicts.copy_to_param(self.model, key, patched)
            patched = weight
        elif isinstance(weight, nn.Parameter):
            comfy.state_dicts.set_attr_param(self.model, key, patched)
        else:
            comfy.state_dicts.set_attr(self.model, key, patched)
        if on_device and not place.waits(key) and (not inplace or place.holds(key, weight)):
            place.took(key, comfy.state_dicts.get_attr(self.model, key))

    # --- in force

    def patch_model(
        self,
        device_to: torch.device | None = None,
        lowvram_model_memory: int = 0,
        load_weights: bool = True,
        force_patch_weights: bool = False,
    ) -> nn.Module:
        """Put the wishes into the model and its weights onto `device_to`.

        lowvram_model_memory: most bytes of weights to put there (0: all); layers beyond it stay where they
        are and cast themselves to the device when called.
        """
        self._patch_objects()
        if load_weights:
            # By name: patchers of packs override `load` and pass on what they do not look at.
            self.load(
                device_to,
                lowvram_model_memory=lowvram_model_memory,
                force_patch_weights=force_patch_weights,
                full_load=False,
            )
        self.inject_model()
        return self.model

    def _patch_objects(self) -> None:
        """Bring the model's objects in line with this patcher, whichever clone's were there before."""
        for name in [n for n in self.object_patches_backup if n not in self.object_patches]:
            comfy.state_dicts.set_attr(self.model, name, self.object_patches_backup.pop(name))
        for name, obj in self.object_patches.items():
            previous = comfy.state_dicts.set_attr(self.model, name, obj)
            self.object_patches_backup.setdefault(name, previous)

    def load(
        self,
        device_to: torch.device | None = None,
        lowvram_model_memory: int = 0,
        force_patch_weights: bool = False,
        full_load: bool = False,
    ) -> None:
        """The weights part of `patch_model`."""
        device_to = self.load_device if device_to is None else normalized(device_to)
        self.release_hooks()
        budget = lowvram_model_memory if lowvram_model_memory > 0 and not full_load else None
        # Nodes run in inference mode, but weights outlive it: only ordinary tensors can be patched in place later.
        with torch.inference_mode(False), torch.no_grad():
            self._place(device_to, budget, force_patch_weights)
        self.model.device = device_to
        for callback in self.get_all_callbacks(CallbacksMP.ON_LOAD):
            callback(self, device_to, lowvram_model_memory, force_patch_weights, full_load)

    def _place(self, device: torch.device, budget: int | None, force_patch_weights: bool) -> None:
        model = self.model
        place = placement_of(model)
        if place is not None and place.device != device:
            place.leave(model)
            place = None
        if place is None:
            if memory_of(device).is_host and model.device != device and model.device is not None:
                model.to(device)
            place = model.placement = Placement(device)
        as_wanted = model.current_weight_patches_uuid == self.patches_uuid and not force_patch_weights
        if as_wanted and place.complete and budget is None:
            return
        if args.force_channels_last and not model.__dict__.get("is_channels_last"):
            place.leave(model)
            model.to(memory_format=torch.channels_last)
            model.is_channels_last = True
        plan = place.plan(model, budget)
        if not as_wanted:
            self._update_patches(place, force_patch_weights)
        if place.memory.is_host and not plan.streamed and place.streamer is None:
            place.complete = True  # nothing has to move
        else:
            place.apply(model, plan)
        whole = place.memory.is_host and not plan.streamed
        model.model_loaded_weight_memory = self.model_size() if whole else place.loaded_bytes()

    def _update_patches(self, place: Placement, force: bool) -> None:
        """Bring the weights in line with this patcher, whichever clone's patches were there before. Weights whose
        patches are the same stay as they are."""
        model = self.model
        applied = applied_patches(model)
        gone = [key for key in self.backup if weight_key(key) not in self.patches]
        _restore_weights(model, self.backup, gone)
        place.counters.restores += len(gone)
        for key, entries in self.patches.items():
            if not force and key in self.backup and _same_entries(applied.get(key), entries):
                continue
            self.patch_weight_to_device(key, device_to=None if place.memory.is_host else place.device)
            applied[key] = entries[:]
            place.counters.patches += 1
        model.current_weight_patches_uuid = self.patches_uuid

    def partially_unload(
        self, device_to: torch.device, memory_to_free: int = 0, force_patch_weights: bool = False
    ) -> int:
        """Take layers of at least `memory_to_free` bytes off the load device; they are streamed from now on. Returns
        the bytes freed."""
        place = placement_of(self.model)
        if place is None or place.memory.is_host:
            return 0
        before = place.loaded_bytes()
        with torch.inference_mode(False), torch.no_grad():
            place.shrink(self.model, memory_to_free)
        self.model.model_loaded_weight_memory = place.loaded_bytes()
        return before - place.loaded_bytes()

    def unpatch_model(self, device_to: torch.device | None = None, unpatch_weights: bool = True) -> None:
        """Take the wishes out again; the weights go to `device_to` if one is given."""
        self.eject_model()
        self.release_hooks()
        if unpatch_weights:
            _restore_weights(self.model, self.backup)
            _leave_device(self.model, device_to)
        self._restore_objects()

    def detach(self, unpatch_all: bool = True) -> nn.Module:
        """Off the load device, nothing in force."""
        self.eject_model()
        self.unpatch_model(self.offload_device, unpatch_weights=unpatch_all)
        for callback in self.get_all_callbacks(CallbacksMP.ON_DETACH):
            callback(self, unpatch_all)
        return self.model

    def restorer(self) -> Callable[[nn.Module], None]:
        """A function that does what `detach` does to the weights and objects, without holding this
        patcher."""
        backup, objects, device = self.backup, self.object_patches_backup, self.offload_device

        def restore(model: nn.Module) -> None:
            _restore_weights(model, backup)
            _leave_device(model, device)
            _restore_objects(model, objects)

        return restore

    def _restore_objects(self) -> None:
        _restore_objects(self.model, self.object_patches_backup)

    # --- around a run

    def pre_run(self) -> None:
        """Called before sampling starts."""
        self.model.current_patcher = self
        for callback in self.get_all_callbacks(CallbacksMP.ON_PRE_RUN):
            callback(self)

    def prepare_state(self, timestep: Tensor) -> None:
        """Called before each evaluation of the model."""
        self.advance_hooks(timestep)
        for callback in self.get_all_callbacks(CallbacksMP.ON_PREPARE_STATE):
            callback(self, timestep)

    def cleanup(self) -> None:
        """Called when sampling has ended, also after an error."""
        self.release_hooks()
        place = placement_of(self.model)
        if place is not None:
            place.end_visits()
        if getattr(self.model, "current_patcher", None) is self:
            self.model.current_patcher = None
        for callback in self.get_all_callbacks(CallbacksMP.ON_CLEANUP):
            callback(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {type(self.model).__name__}, {len(self.patches)} weights patched>"


CoreModelPatcher = ModelPatcher


# --- the weights of a model, without a patcher


def _identity(weight: Tensor, **kwargs: Any) -> Tensor:
    return weight


def _numbers_of(quantized: QuantizedWeight, stored_as: torch.dtype, stored: Tensor, **kwargs: Any) -> Tensor:
    return quantized.values(stored.to(stored_as), stored.dtype)


def placement_of(model: nn.Module) -> Placement | None:
    """Where the weights of a model are; None before it was loaded for the first time."""
    return getattr(model, "placement", None)


def applied_patches(model: nn.Module) -> dict[str, list[tuple]]:
    """The patches in force by weight name; the entries themselves, so that they can be compared by identity."""
    return model.__dict__.setdefault("weight_patches_in_force", {})


def _same_entries(applied: list[tuple] | None, wanted: list[tuple]) -> bool:
    """Whether two lists of patches give the same weight: equal strengths, the same patches."""
    if applied is None or len(applied) != len(wanted):
        return False
    for (strength, patch, scale, offset, function), other in zip(applied, wanted):
        if (strength, scale, offset) != (other[0], other[2], other[3]):
            return False
        if function is not other[4] or not _same_patch(patch, other[1]):
            return False
    return True


def _same_patch(patch: Any, other: Any) -> bool:
    """Whether two patches are made of the very same tensors. They are different objects when a LoRA loader ran again
    because something before it changed."""
    if patch is other:
        return True
    if type(patch) is not type(other):
        return False
    if isinstance(patch, Tensor):
        if patch.is_meta or patch.is_sparse:
            return False
        return patch.data_ptr() == other.data_ptr() and _layout(patch) == _layout(other)
    if isinstance(patch, WeightAdapter):
        return _same_patch(patch.parts, other.parts)
    if isinstance(patch, dict):
        return patch.keys() == other.keys() and all(_same_patch(value, other[key]) for key, value in patch.items())
    if isinstance(patch, (list, tuple)):
        return len(patch) == len(other) and all(_same_patch(a, b) for a, b in zip(patch, other))
    return isinstance(patch, (int, float, str)) and patch == other


def _layout(tensor: Tensor) -> tuple:
    return tensor.device, tensor.dtype, tensor.shape, tensor.stride()


def _restore_weights(model: nn.Module, backup: dict[str, Tensor], keys: Iterable[str] | None = None) -> None:
    """Put the original tensors back, of all weights or of these."""
    applied = applied_patches(model)
    for key in list(backup if keys is None else keys):
        original = backup.pop(key)
        original = getattr(original, "weight", original)  # packs put (weight, inplace_update) there
        applied.pop(key, None)
        if isinstance(comfy.state_dicts.get_attr(model, key), nn.Parameter):
            comfy.state_dicts.set_attr_param(model, key, original)
        else:
            comfy.state_dicts.set_attr(model, key, original)
        model.current_weight_patches_uuid = None


def _restore_objects(model: nn.Module, backup: dict[str, Any]) -> None:
    for name, original in backup.items():
        comfy.state_dicts.set_attr(model, name, original)
    backup.clear()


def _leave_device(model: nn.Module, device: torch.device | None) -> None:
    """The weights go to `device`; None: they stay where they are, restored ones included."""
    place = placement_of(model)
    with torch.inference_mode(False), torch.no_grad():
        if device is None or (place is not None and device == place.device and not place.memory.is_host):
            if place is not None and not place.memory.is_host:
                place.apply(model, place.plan(model, place.budget))
            return
        if place is not None:
            place.leave(model)
        elif model.device is not None and model.device != device:
            model.to(device)
    model.device = device
    model.model_loaded_weight_memory = 0
