"""Wrappers and callbacks: how packs put their own code around the stages of sampling.

Both are kept in plain dicts, type -> key -> list of callables, in `transformer_options` (for one model) or
under `transformer_options` of model options. A wrapper is called as wrapper(executor, *args, **kwargs) and
calls `executor(...)` to go on; a callback is called and its result ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Registry = dict[str, dict[Any, list[Callable[..., Any]]]]


class CallbacksMP:
    """Moments in a ModelPatcher's life that callbacks are called at."""

    ON_CLONE = "on_clone"
    ON_LOAD = "on_load_after"
    ON_DETACH = "on_detach_after"
    ON_CLEANUP = "on_cleanup"
    ON_PRE_RUN = "on_pre_run"
    ON_PREPARE_STATE = "on_prepare_state"
    ON_APPLY_HOOKS = "on_apply_hooks"
    ON_REGISTER_ALL_HOOK_PATCHES = "on_register_all_hook_patches"
    ON_INJECT_MODEL = "on_inject_model"
    ON_EJECT_MODEL = "on_eject_model"

    @classmethod
    def init_callbacks(cls) -> Registry:
        """An empty registry with every type."""
        return {t: {} for t in _constants(cls)}


class WrappersMP:
    """Stages of sampling that wrappers go around."""

    OUTER_SAMPLE = "outer_sample"
    PREPARE_SAMPLING = "prepare_sampling"
    SAMPLER_SAMPLE = "sampler_sample"
    PREDICT_NOISE = "predict_noise"
    CALC_COND_BATCH = "calc_cond_batch"
    APPLY_MODEL = "apply_model"
    DIFFUSION_MODEL = "diffusion_model"

    @classmethod
    def init_wrappers(cls) -> Registry:
        """An empty registry with every type."""
        return {t: {} for t in _constants(cls)}


def _constants(cls: type) -> list[str]:
    return [v for k, v in vars(cls).items() if k.isupper()]


def _options(transformer_options: dict[str, Any], is_model_options: bool) -> dict[str, Any]:
    if is_model_options:
        return transformer_options.setdefault("transformer_options", {})
    return transformer_options


def _add(kind: str, entry_type: str, key: Any, entry: Callable[..., Any], options: dict[str, Any]) -> None:
    options.setdefault(kind, {}).setdefault(entry_type, {}).setdefault(key, []).append(entry)


def _with_key(kind: str, entry_type: str, key: Any, options: dict[str, Any]) -> list[Callable[..., Any]]:
    return list(options.get(kind, {}).get(entry_type, {}).get(key, []))


def _all(kind: str, entry_type: str, options: dict[str, Any]) -> list[Callable[..., Any]]:
    return [entry for entries in options.get(kind, {}).get(entry_type, {}).values() for entry in entries]


def add_callback_with_key(
    call_type: str,
    key: Any,
    callback: Callable[..., Any],
    transformer_options: dict[str, Any],
    is_model_options: bool = False,
) -> None:
    """Register `callback` under `key`; `is_model_options`: the dict given holds transformer_options."""
    _add("callbacks", call_type, key, callback, _options(transformer_options, is_model_options))


def add_callback(
    call_type: str,
    callback: Callable[..., Any],
    transformer_options: dict[str, Any],
    is_model_options: bool = False,
) -> None:
    """Register `callback` without a key."""
    add_callback_with_key(call_type, None, callback, transformer_options, is_model_options)


def get_callbacks_with_key(
    call_type: str, key: Any, transformer_options: dict[str, Any], is_model_options: bool = False
) -> list[Callable[..., Any]]:
    """The callbacks of one key, in order of registration."""
    return _with_key("callbacks", call_type, key, _options(transformer_options, is_model_options))


def get_all_callbacks(
    call_type: str, transformer_options: dict[str, Any], is_model_options: bool = False
) -> list[Callable[..., Any]]:
    """The callbacks of every key."""
    return _all("callbacks", call_type, _options(transformer_options, is_model_options))


def add_wrapper_with_key(
    wrapper_type: str,
    key: Any,
    wrapper: Callable[..., Any],
    transformer_options: dict[str, Any],
    is_model_options: bool = False,
) -> None:
    """Register `wrapper` under `key`; `is_model_options`: the dict given holds transformer_options."""
    _add("wrappers", wrapper_type, key, wrapper, _options(transformer_options, is_model_options))


def add_wrapper(
    wrapper_type: str,
    wrapper: Callable[..., Any],
    transformer_options: dict[str, Any],
    is_model_options: bool = False,
) -> None:
    """Register `wrapper` without a key."""
    add_wrapper_with_key(wrapper_type, None, wrapper, transformer_options, is_model_options)


def get_wrappers_with_key(
    wrapper_type: str, key: Any, transformer_options: dict[str, Any], is_model_options: bool = False
) -> list[Callable[..., Any]]:
    """The wrappers of one key, in order of registration."""
    return _with_key("wrappers", wrapper_type, key, _options(transformer_options, is_model_options))


def get_all_wrappers(
    wrapper_type: str, transformer_options: dict[str, Any], is_model_options: bool = False
) -> list[Callable[..., Any]]:
    """The wrappers of every key; the first is the outermost."""
    return _all("wrappers", wrapper_type, _options(transformer_options, is_model_options))


class WrapperExecutor:
    """A callable that runs a chain of wrappers around `original`.

    In a wrapper, `executor(...)` runs what is further in; `executor.original` is the innermost function and
    `executor.class_obj` the object whose method is wrapped, if any.
    """

    def __init__(
        self, original: Callable[..., Any], class_obj: Any, wrappers: list[Callable[..., Any]], idx: int = 0
    ) -> None:
        self.original = original
        self.class_obj = class_obj
        self.wrappers = list(wrappers)
        self.idx = idx
        self.is_last = idx == len(self.wrappers)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Go one step further in."""
        return WrapperExecutor(self.original, self.class_obj, self.wrappers, self.idx + 1).execute(*args, **kwargs)

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Run from the wrapper this executor stands at."""
        if self.is_last:
            return self.original(*args, **kwargs)
        return self.wrappers[self.idx](self, *args, **kwargs)

    @classmethod
    def new_executor(cls, original: Callable[..., Any], wrappers: list[Callable[..., Any]]) -> WrapperExecutor:
        """For a function."""
        return cls(original, None, wrappers)

    @classmethod
    def new_class_executor(
        cls, original: Callable[..., Any], class_obj: Any, wrappers: list[Callable[..., Any]]
    ) -> WrapperExecutor:
        """For a bound method of `class_obj`."""
        return cls(original, class_obj, wrappers)


class PatcherInjection:
    """Two functions that put something into a loaded model and take it out again, each given the patcher."""

    def __init__(self, inject: Callable[[Any], None], eject: Callable[[Any], None]) -> None:
        self.inject = inject
        self.eject = eject


def copy_nested_dicts(input_dict: dict[Any, Any]) -> dict[Any, Any]:
    """A copy in which dicts and lists are new at every depth and everything else is shared."""
    return {key: _copy_value(value) for key, value in input_dict.items()}


def _copy_value(value: Any) -> Any:
    if isinstance(value, dict):
        return copy_nested_dicts(value)
    return value.copy() if isinstance(value, list) else value


def merge_nested_dicts(dict1: dict[Any, Any], dict2: dict[Any, Any], copy_dict1: bool = True) -> dict[Any, Any]:
    """dict2 put into dict1: dicts are merged, lists joined, anything else replaced."""
    merged = copy_nested_dicts(dict1) if copy_dict1 else dict1
    for key, value in dict2.items():
        present = merged.get(key)
        if isinstance(value, dict) and isinstance(present, dict):
            merged[key] = merge_nested_dicts(present, value, copy_dict1=False)
        elif isinstance(value, list) and isinstance(present, list):
            merged[key] = present + value
        else:
            merged[key] = _copy_value(value)
    return merged
