"""What packs hang on a patcher: attachments, additional models, injections, callbacks, wrappers.

All are kept under a key of the pack's own choice and follow the patcher into its clones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from comfy.patcher_extension import CallbacksMP, PatcherInjection, copy_nested_dicts


class Attachments:
    """The part of ModelPatcher that keeps them."""

    model: Any
    model_options: dict[str, Any]

    def init_attachments(self) -> None:
        self.attachments: dict[str, Any] = {}
        self.additional_models: dict[str, list[Any]] = {}
        self.injections: dict[str, list[PatcherInjection]] = {}
        self.callbacks: dict[str, dict[Any, list[Callable]]] = {}
        self.is_injected = False
        self.skip_injection = False

    def copy_attachments_to(self, other: Attachments) -> None:
        """Additional models and attachments that can be cloned are (attachments through their
        `on_model_patcher_clone`,
        if they have it)."""
        for key, attachment in self.attachments.items():
            if hasattr(attachment, "on_model_patcher_clone"):
                attachment = attachment.on_model_patcher_clone()
            other.attachments[key] = attachment
        other.additional_models = {k: [m.clone() for m in v] for k, v in self.additional_models.items()}
        other.injections = {k: v[:] for k, v in self.injections.items()}
        other.callbacks = copy_nested_dicts(self.callbacks)

    # attachments

    def set_attachments(self, key: str, attachment: Any) -> None:
        self.attachments[key] = attachment

    def get_attachment(self, key: str) -> Any:
        return self.attachments.get(key)

    def remove_attachments(self, key: str) -> None:
        self.attachments.pop(key, None)

    # additional models

    def set_additional_models(self, key: str, models: list[Any]) -> None:
        """Patchers that are loaded whenever this one is."""
        self.additional_models[key] = models

    def add_additional_model(self, key: str, model: Any) -> None:
        """One more patcher beside those of `key`."""
        self.set_additional_models(key, [*self.get_additional_models_with_key(key), model])

    def remove_additional_models(self, key: str) -> None:
        self.additional_models.pop(key, None)

    def get_additional_models_with_key(self, key: str) -> list[Any]:
        return self.additional_models.get(key, [])

    def get_additional_models(self) -> list[Any]:
        return [model for models in self.additional_models.values() for model in models]

    def get_nested_additional_models(self) -> list[Any]:
        """Additional models, theirs, and so on."""
        found: list[Any] = []
        queue = self.get_additional_models()
        while queue:
            model = queue.pop(0)
            if model not in found:
                found.append(model)
                queue.extend(model.get_additional_models())
        return found

    # injections

    def set_injections(self, key: str, injections: list[PatcherInjection]) -> None:
        self.injections[key] = injections

    def remove_injections(self, key: str) -> None:
        self.injections.pop(key, None)

    def get_injections(self, key: str) -> list[PatcherInjection] | None:
        return self.injections.get(key)

    def inject_model(self) -> None:
        """Put in what is to be injected, once. What another clone put into the same model comes out first."""
        other = getattr(self.model, "injected_by", None)
        if other is not None and other is not self:
            other.eject_model()
        if self.is_injected or self.skip_injection:
            return
        for injections in self.injections.values():
            for injection in injections:
                injection.inject(self)
                self.is_injected = True
        if self.is_injected:
            # The clone that knows how to undo it stays alive as long as it is needed for that.
            self.model.injected_by = self
            for callback in self.get_all_callbacks(CallbacksMP.ON_INJECT_MODEL):
                callback(self)

    def eject_model(self) -> None:
        """Take it out again."""
        if not self.is_injected:
            return
        for injections in self.injections.values():
            for injection in injections:
                injection.eject(self)
        self.is_injected = False
        self.model.injected_by = None
        for callback in self.get_all_callbacks(CallbacksMP.ON_EJECT_MODEL):
            callback(self)

    @contextlib.contextmanager
    def use_ejected(self, skip_and_inject_on_exit_only: bool = False) -> Iterator[None]:
        """Without the injections inside the block."""
        was_injected, skipped = self.is_injected, self.skip_injection
        self.eject_model()
        self.skip_injection = skip_and_inject_on_exit_only
        try:
            yield
        finally:
            self.skip_injection = skipped
            if was_injected or skip_and_inject_on_exit_only:
                self.inject_model()

    # callbacks

    def add_callback(self, call_type: str, callback: Callable) -> None:
        self.add_callback_with_key(call_type, None, callback)

    def add_callback_with_key(self, call_type: str, key: Any, callback: Callable) -> None:
        self.callbacks.setdefault(call_type, {}).setdefault(key, []).append(callback)

    def remove_callbacks_with_key(self, call_type: str, key: Any) -> None:
        self.callbacks.get(call_type, {}).pop(key, None)

    def get_callbacks(self, call_type: str, key: Any) -> list[Callable]:
        return self.callbacks.get(call_type, {}).get(key, [])

    def get_all_callbacks(self, call_type: str) -> list[Callable]:
        return [c for callbacks in self.callbacks.get(call_type, {}).values() for c in callbacks]

    # wrappers

    @property
    def wrappers(self) -> dict[str, dict[Any, list[Callable]]]:
        """Kept where sampling looks for them."""
        return self.model_options.setdefault("transformer_options", {}).setdefault("wrappers", {})

    def add_wrapper(self, wrapper_type: str, wrapper: Callable) -> None:
        self.add_wrapper_with_key(wrapper_type, None, wrapper)

    def add_wrapper_with_key(self, wrapper_type: str, key: Any, wrapper: Callable) -> None:
        self.wrappers.setdefault(wrapper_type, {}).setdefault(key, []).append(wrapper)

    def remove_wrappers_with_key(self, wrapper_type: str, key: Any) -> None:
        self.wrappers.get(wrapper_type, {}).pop(key, None)

    def get_wrappers(self, wrapper_type: str, key: Any) -> list[Callable]:
        return self.wrappers.get(wrapper_type, {}).get(key, [])

    def get_all_wrappers(self, wrapper_type: str) -> list[Callable]:
        return [w for wrappers in self.wrappers.get(wrapper_type, {}).values() for w in wrappers]
