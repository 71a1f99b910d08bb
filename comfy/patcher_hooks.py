"""The part of ModelPatcher that puts hooks of conditioning entries in force and takes them out again.

Before a run all hooks are registered: what they patch is worked out once. During the run, for each group of entries
with the same hooks, the weights they patch are computed from the original ones and the patcher's own patches; the
tensors that were there are kept and put back when other hooks, or none, are wanted. Where memory allows, computed
weights are kept until the end of the run: a step that goes from one group to another and back only swaps tensors.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

import comfy.devices
import comfy.state_dicts
from comfy.hooks import Hook, HookGroup, WeightHook, create_transformer_options_from_hooks
from comfy.patcher_extension import CallbacksMP
from comfy.quantized_layers import QuantizedWeight

log = logging.getLogger(__name__)

# Computed weights are kept while they take less than this part of the free memory, and so many sets of them.
KEPT_SHARE = 0.25
KEPT_SETS = 4

# (identity of a hook, its strength) of each hook in force, in order.
InForce = tuple[tuple[Any, float], ...]


class HookedWeights:
    """See the module. To be mixed into ModelPatcher."""

    model: nn.Module
    patches: dict[str, list[tuple]]
    backup: dict[str, Tensor]
    is_clip: bool

    def init_hooks(self) -> None:
        # Identity of a hook -> weight name -> (patch, offset, function).
        self.hook_patches: dict[Any, dict[str, list[tuple]]] = {}
        self.registered_hooks: HookGroup | None = None
        # Hooks that are always in force when a text encoder runs.
        self.forced_hooks: HookGroup | None = None
        self.hook_backup: dict[str, Tensor] = {}
        self._in_force: InForce = ()
        self._kept_weights: dict[InForce, dict[str, Tensor]] = {}

    def copy_hooks_to(self, other: HookedWeights) -> None:
        """A clone knows the same patches; nothing of it is in force."""
        other.hook_patches = dict(self.hook_patches)
        other.forced_hooks = self.forced_hooks

    def register_all_hook_patches(
        self, hooks: HookGroup, target_dict: dict[str, Any], model_options: dict | None = None, registered: Any = None
    ) -> HookGroup:
        """Make ready for these hooks. target_dict: accepted for the interface's sake. Returns what is registered; model
        options get it as `registered_hooks`, where additional models are found."""
        self.hook_patches = {}
        for hook in hooks.hooks:
            if isinstance(hook, WeightHook) and hook.hook_ref not in self.hook_patches:
                self.hook_patches[hook.hook_ref] = self._by_weight(hook.patches_for(self))
            if not hook.hook_keyframe.is_empty() and not self.is_clip:
                # As this patcher sees it: another schedule may have been put in its place.
                seen = SimpleNamespace(model_sampling=self.get_model_object("model_sampling"))
                hook.hook_keyframe.initialize_timesteps(seen)
        self.registered_hooks = hooks
        if model_options is not None:
            model_options["registered_hooks"] = hooks
        for callback in self.get_all_callbacks(CallbacksMP.ON_REGISTER_ALL_HOOK_PATCHES):
            callback(self, hooks, target_dict, model_options, registered)
        return hooks

    def _by_weight(self, patches: dict[Any, Any]) -> dict[str, list[tuple]]:
        known = self._weight_names()
        out: dict[str, list[tuple]] = {}
        unfitting = []
        for key, patch in patches.items():
            name, offset, function = (key, None, None) if isinstance(key, str) else (*key, None)[:3]
            if name not in known:
                continue
            if self._fits(name, patch):
                out.setdefault(name, []).append((patch, offset, function))
            else:
                unfitting.append(name)
        if unfitting:
            log.warning(
                "%d weights of the model used as LoRA have another shape and are left out, such as %s",
                len(unfitting),
                unfitting[0],
            )
        return out

    def _fits(self, name: str, patch: Any) -> bool:
        """Whether a whole weight of another model has the shape of the one it would be subtracted from."""
        if not isinstance(patch, tuple) or patch[0] != "model_as_lora":
            return True
        return patch[1][0].shape == comfy.state_dicts.get_attr(self.model, name).shape

    def advance_hooks(self, sigma: Tensor) -> None:
        """Let the keyframes of all registered hooks go on to this sigma."""
        if self.registered_hooks is None:
            return
        groups = {id(hook.hook_keyframe): hook.hook_keyframe for hook in self.registered_hooks.hooks}
        if any(not group.is_empty() for group in groups.values()):
            from comfy.sampling.solvers.common import host_sigma

            value = host_sigma(sigma)
            for group in groups.values():
                group.prepare_current_keyframe(value)

    def apply_hooks(
        self, hooks: HookGroup | None = None, transformer_options: dict | None = None, force_apply: bool = False
    ) -> dict[str, Any]:
        """Put exactly these hooks in force; returns what they add to `transformer_options`."""
        active = list(hooks.hooks) if hooks is not None else []
        self.patch_hooks(active, force_apply)
        for callback in self.get_all_callbacks(CallbacksMP.ON_APPLY_HOOKS):
            callback(self, hooks)
        return create_transformer_options_from_hooks(active)

    def patch_hooks(self, hooks: list[Hook], force_apply: bool = False) -> None:
        """Patch the weights that these hooks ask for and restore all others."""
        strengths = [(hook, self._strength(hook)) for hook in hooks if hook.hook_ref in self.hook_patches]
        wanted = tuple((hook.hook_ref, strength) for hook, strength in strengths if strength != 0)
        if wanted == self._in_force and not force_apply:
            return
        self.unpatch_hooks()
        weights = self._kept_weights.get(wanted)
        if weights is None:
            weights = self._computed(wanted)
            self._keep(wanted, weights)
        for name, weight in weights.items():
            # The very object, no copy of it: the placement knows it by identity.
            self.hook_backup[name] = comfy.state_dicts.get_attr(self.model, name)
            self._put(name, weight)
        self._in_force = wanted

    def _computed(self, wanted: InForce) -> dict[str, Tensor]:
        """The weights these hooks patch, by name, as they are with them."""
        entries: dict[str, list[tuple]] = {}
        for reference, strength in wanted:
            for name, patches in self.hook_patches[reference].items():
                entries.setdefault(name, []).extend((strength, patch, 1.0, *where) for patch, *where in patches)
        out = {}
        for name, patches in entries.items():
            current = comfy.state_dicts.get_attr(self.model, name)
            original = self.backup.get(name, current).detach()
            quantized = QuantizedWeight.find(self.model, name, self.backup)
            if quantized is None:
                work = original.to(device=current.device, dtype=torch.float32, copy=True)
            else:
                stored = original.to(device=current.device)
                original = quantized.values(stored)
                work = original.clone()
            patched = self.calculate_weight(
                [*self.patches.get(name, []), *patches], work, name, original_weights={name: [(original, None)]}
            )
            if quantized is None:
                out[name] = patched.to(current.dtype)
            else:
                out[name], scales = quantized.store(patched, stored)
                out.update(scales)
        return out

    def _keep(self, wanted: InForce, weights: dict[str, Tensor]) -> None:
        size = sum(w.nelement() * w.element_size() for w in weights.values())
        device = next(iter(weights.values())).device if weights else torch.device("cpu")
        if size > KEPT_SHARE * comfy.devices.get_free_memory(device):
            return
        while len(self._kept_weights) >= KEPT_SETS:
            del self._kept_weights[next(iter(self._kept_weights))]
        self._kept_weights[wanted] = weights

    def release_hooks(self) -> None:
        """Put back the weights as they were without hooks, and forget what was computed for them."""
        self.unpatch_hooks()
        self._kept_weights.clear()

    def unpatch_hooks(self, whitelist_keys_set: set[str] | None = None) -> None:
        """Put back the weights as they were without hooks; those named in `whitelist_keys_set` only, if given."""
        for name in [n for n in self.hook_backup if whitelist_keys_set is None or n in whitelist_keys_set]:
            self._put(name, self.hook_backup.pop(name))
        self._in_force = ()

    def _strength(self, hook: Hook) -> float:
        return hook.strength_clip if self.is_clip else hook.strength_model

    def _put(self, name: str, value: Tensor) -> None:
        if isinstance(comfy.state_dicts.get_attr(self.model, name), nn.Parameter):
            comfy.state_dicts.set_attr_param(self.model, name, value)
        else:
            comfy.state_dicts.set_attr(self.model, name, value)
