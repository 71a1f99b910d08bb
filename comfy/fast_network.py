"""Compiled networks and CUDA graphs (`--fast compile`).

A diffusion network is compiled with torch.compile when it runs plainly: all of it on the device, nothing hung into its
blocks. The first result for each shape is compared with the uncompiled network's; a network whose results differ, or
that cannot be compiled, runs uncompiled from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from comfy.cli_args import PerformanceFeature, args
from comfy.devices import is_device_cuda

log = logging.getLogger(__name__)

# How far results may be apart, as a share of the largest value: a few roundings of bfloat16.
TOLERANCE = 0.02
# What sampling tells in `transformer_options` and no network computes with.
_MERELY_TOLD = {
    "cond_or_uncond",
    "uuids",
    "sigmas",
    "sample_sigmas",
    "total_conds",
    "context_window",
    "callbacks",
    "wrappers",
    "patches",
}


def wanted(device: torch.device | None) -> bool:
    """Whether networks on that device are to be compiled."""
    return PerformanceFeature.Compile in args.fast and is_device_cuda(device)


def is_plain(options: Mapping[str, Any], control: Any) -> bool:
    """Whether a network runs with nothing hung into it."""
    if control is not None or any(options.get(name) for name in ("patches", "wrappers", "patches_replace")):
        return False
    return all(name in _MERELY_TOLD or not value for name, value in options.items())


class CheckedNetwork:
    """One network, compiled on first use.

    backend: of torch.compile; graphs: whether to capture CUDA graphs.
    """

    def __init__(self, network: nn.Module, backend: str = "inductor", graphs: bool | None = None) -> None:
        graphs = not args.disable_cuda_graphs if graphs is None else graphs
        options = {"mode": "reduce-overhead"} if graphs and backend == "inductor" else {}
        self._graphs = bool(options)
        self._plain: Callable[..., Tensor] = network.forward
        self._compiled: Callable[..., Tensor] | None = torch.compile(network.forward, backend=backend, **options)
        self._checked: set[tuple] = set()

    @property
    def works(self) -> bool:
        """Whether it is still used; False after a failed check."""
        return self._compiled is not None

    def __call__(self, *tensors: Tensor, **kwargs: Any) -> Tensor:
        """What the network's `forward` gives for these."""
        if self._compiled is None:
            return self._plain(*tensors, **kwargs)
        shapes = tuple(tuple(t.shape) for t in (*tensors, *kwargs.values()) if isinstance(t, Tensor))
        if shapes in self._checked:
            return self._run(*tensors, **kwargs)
        return self._first(shapes, *tensors, **kwargs)

    def _run(self, *tensors: Tensor, **kwargs: Any) -> Tensor:
        if self._graphs:
            torch.compiler.cudagraph_mark_step_begin()
        out = self._compiled(*tensors, **kwargs)
        return out.clone() if self._graphs else out  # a graph writes its next result to the same place

    def _first(self, shapes: tuple, *tensors: Tensor, **kwargs: Any) -> Tensor:
        expected = self._plain(*tensors, **kwargs)
        try:
            result = self._run(*tensors, **kwargs)
        except Exception as error:
            if "out of memory" in str(error):
                raise
            log.warning("the network cannot be compiled and runs uncompiled: %s", error)
            self._compiled = None
            return expected
        apart = float((result.float() - expected.float()).abs().max())
        largest = float(expected.float().abs().max())
        if not apart <= TOLERANCE * largest:
            log.warning("the compiled network differs by %.3g of %.3g and runs uncompiled", apart, largest)
            self._compiled = None
            return expected
        log.info("the network is compiled for %s; results differ by %.2g of %.2g", shapes[0], apart, largest)
        self._checked.add(shapes)
        return result


def compiled(network: nn.Module) -> CheckedNetwork:
    """The compiled form of a network, made once."""
    found = network.__dict__.get("compiled_network")
    if found is None:
        found = network.__dict__["compiled_network"] = CheckedNetwork(network)
    return found
