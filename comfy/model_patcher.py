"""A model plus what is wanted changed about it: weight patches, replaced objects, options for sampling.

Clones share the model and differ in their wishes. Only one clone's wishes are in force at a time:
`patch_model` puts them into the model, keeping what was there in a backup that all clones share, and
`unpatch_model` undoes them.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

import comfy.model_management
import comfy.state_dicts
import comfy.weight_patches
from comfy.model_options import OptionSetters, create_model_options_clone, set_model_options_patch_replace
from comfy.patcher_attachments import Attachments
from comfy.patcher_extension import CallbacksMP
from comfy.patcher_hooks import HookedWeights

__all__ = [
    "CoreModelPatcher",
    "ModelPatcher",
    "create_model_options_clone",
    "set_model_options_patch_replace",
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
        self.load_device = torch.device(load_device)
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
            original = self.backup.get(key, weight)
            out[key] = [(original, _identity), *self.patches.get(key, [])]
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
        out = {}
        for key, weight in self.model_state_dict(filter_prefix).items():
            original = self.backup.get(key, weight)
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
        """A new tensor: `weight` with this patcher's patches, in its own dtype."""
        work = weight.to(device=device or weight.device, dtype=PATCH_DTYPE, copy=True)
        return self.calculate_weight(self.patches[key], work, key).to(weight.dtype)

    def patch_weight_to_device(
        self,
        key: str,
        device_to: torch.device | None = None,
        inplace_update: bool = False,
        return_weight: bool = False,
        force_cast: bool = False,
    ) -> Tensor | None:
        """Apply the patches of one weight, keeping the original in the backup; with `return_weight` only
        return it."""
        weight = comfy.state_dicts.get_attr(self.model, key)
        if key not in self.patches:
            return weight if return_weight else None
        original = self.backup.get(key, weight.data)
        patched = self._patched_weight(key, original, device_to)
        if return_weight:
            return patched
        inplace = (self.weight_inplace_update or inplace_update) and weight.shape == patched.shape
        if key not in self.backup:
            # A weight written to in place needs a copy kept; otherwise the old tensor itself can wait.
            self.backup[key] = original.to(self.offload_device, copy=inplace)
        if inplace:
            comfy.state_dicts.copy_to_param(self.model, key, patched)
        elif isinstance(weight, nn.Parameter):
            comfy.state_dicts.set_attr_param(self.model, key, patched)
        else:
            comfy.state_dicts.set_attr(self.model, key, patched)
        return None

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
            self.load(device_to, lowvram_model_memory, force_patch_weights)
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
        device_to = self.load_device if device_to is None else torch.device(device_to)
        model = self.model
        self.release_hooks()
        if model.current_weight_patches_uuid != self.patches_uuid or force_patch_weights:
            self._restore_weights()
            for key in self.patches:
                self.patch_weight_to_device(key)
            model.current_weight_patches_uuid = self.patches_uuid
        if lowvram_model_memory > 0 and not full_load:
            model.model_loaded_weight_memory = _move_in_part(model, device_to, lowvram_model_memory)
        else:
            _cast_on_call(model, False)
            if model.device != device_to:
                model.to(device_to)
            model.model_loaded_weight_memory = self.model_size()
        model.device = device_to
        for callback in self.get_all_callbacks(CallbacksMP.ON_LOAD):
            callback(self, device_to, lowvram_model_memory, force_patch_weights, full_load)

    def unpatch_model(self, device_to: torch.device | None = None, unpatch_weights: bool = True) -> None:
        """Take the wishes out again; the weights go to `device_to` if one is given."""
        self.eject_model()
        self.release_hooks()
        if unpatch_weights:
            self._restore_weights()
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

    def _restore_weights(self) -> None:
        _restore_weights(self.model, self.backup)

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


def _restore_weights(model: nn.Module, backup: dict[str, Tensor]) -> None:
    for key, original in backup.items():
        current = comfy.state_dicts.get_attr(model, key)
        if isinstance(current, nn.Parameter):
            comfy.state_dicts.set_attr_param(model, key, original.to(current.device))
        else:
            comfy.state_dicts.set_attr(model, key, original.to(current.device))
    backup.clear()
    model.current_weight_patches_uuid = None


def _restore_objects(model: nn.Module, backup: dict[str, Any]) -> None:
    for name, original in backup.items():
        comfy.state_dicts.set_attr(model, name, original)
    backup.clear()


def _leave_device(model: nn.Module, device: torch.device | None) -> None:
    if device is None:
        return
    _cast_on_call(model, False)
    if model.device != device or model.model_loaded_weight_memory > 0:
        model.to(device)
    model.device = device
    model.model_loaded_weight_memory = 0


def _move_in_part(model: nn.Module, device: torch.device, budget: int) -> int:
    """Move layers to `device`, the largest first, up to `budget` bytes; returns the bytes moved. Layers that
    cannot cast themselves always move: they are small (norms of unusual kinds, loose parameters)."""
    _cast_on_call(model, False)
    castable, moved = [], 0
    for layer in model.modules():
        own = sum(p.nelement() * p.element_size() for p in layer.parameters(recurse=False))
        if hasattr(layer, "comfy_cast_weights"):
            castable.append((own, layer))
        else:
            for tensors in (layer._parameters, layer._buffers):
                for name, tensor in tensors.items():
                    if tensor is not None:
                        _move_tensor(layer, tensors, name, tensor, device)
            moved += own
    castable.sort(key=lambda item: item[0], reverse=True)
    for size, layer in castable:
        if moved + size <= budget:
            layer.to(device)
            moved += size
        else:
            layer.to("cpu")
            layer.cast_weights_before = layer.comfy_cast_weights
            layer.comfy_cast_weights = True
    return moved


def _move_tensor(layer: nn.Module, tensors: dict, name: str, tensor: Tensor, device: torch.device) -> None:
    if isinstance(tensor, nn.Parameter):
        tensors[name] = nn.Parameter(tensor.to(device), requires_grad=False)
    else:
        tensors[name] = tensor.to(device)


def _cast_on_call(model: nn.Module, enabled: bool) -> None:
    """Undo what `_move_in_part` set."""
    for layer in model.modules():
        if hasattr(layer, "cast_weights_before"):
            layer.comfy_cast_weights = layer.cast_weights_before
            del layer.cast_weights_before
