"""Diffusion networks run through torch.compile, without becoming another module: weights keep their names, so patches
and LoRA go on working."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from comfy.patcher_extension import WrapperExecutor, WrappersMP

KEY = "torch_compile"


class CompiledNetwork:
    """Wrapper DIFFUSION_MODEL that runs the compiled network in place of the plain one. It is compiled on the first
    call; another network (of a model put in its place) is compiled anew."""

    def __init__(self, backend: str, **options: Any):
        self.backend = backend
        self.options = options
        self.network: nn.Module | None = None
        self.compiled: Callable | None = None

    def __call__(self, executor: WrapperExecutor, *args: Any, **kwargs: Any) -> Any:
        import torch

        network = executor.class_obj
        if network is not self.network:
            self.network = network
            self.compiled = torch.compile(network.forward, backend=self.backend, **self.options)
        # What is further in still runs, around the compiled network.
        inner = WrapperExecutor(self.compiled, executor.class_obj, executor.wrappers, executor.idx + 1)
        return inner.execute(*args, **kwargs)


def compile_model(patcher: Any, backend: str, **options: Any) -> None:
    """Let a patcher's model run compiled. options: of torch.compile."""
    patcher.remove_wrappers_with_key(WrappersMP.DIFFUSION_MODEL, KEY)
    patcher.add_wrapper_with_key(WrappersMP.DIFFUSION_MODEL, KEY, CompiledNetwork(backend, **options))
