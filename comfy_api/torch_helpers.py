"""Compiling parts of a model (used by packs that bring a compile node)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_KEY = "torch.compile"


def set_torch_compile_wrapper(
    model: Any,
    backend: str,
    options: dict[str, str] | None = None,
    mode: str | None = None,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    keys: Sequence[str] = ("diffusion_model",),
    *args: Any,
    **kwargs: Any,
) -> None:
    """Let a model run with some of its modules compiled.

    Args:
        model: a ModelPatcher. keys: the modules to compile, by their names below the model.
        backend, options, mode, fullgraph, dynamic: as torch.compile takes them.
    """
    import torch

    from comfy.patcher_extension import WrappersMP

    model.remove_wrappers_with_key(WrappersMP.APPLY_MODEL, _KEY)
    compiled = {
        key: torch.compile(
            model=model.get_model_object(key),
            backend=backend,
            options=options,
            mode=mode,
            fullgraph=fullgraph,
            dynamic=dynamic,
        )
        for key in keys
    }

    def apply_compiled(executor: Any, *args: Any, **kwargs: Any) -> Any:
        """Put the compiled modules in place for the length of one call."""
        base = executor.class_obj
        originals = {key: _exchange(base, key, module) for key, module in compiled.items()}
        try:
            return executor(*args, **kwargs)
        finally:
            for key, module in originals.items():
                _exchange(base, key, module)

    model.add_wrapper_with_key(WrappersMP.APPLY_MODEL, _KEY, apply_compiled)


def _exchange(base: Any, path: str, module: Any) -> Any:
    *parents, name = path.split(".")
    for parent in parents:
        base = getattr(base, parent)
    previous = getattr(base, name)
    setattr(base, name, module)
    return previous
