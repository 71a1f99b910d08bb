"""What is done when a device runs out of memory while a node runs, and how the failure is told.

The engine catches the error at the node and asks here: models are taken off, and the node runs once more. If that fails
too, its error says how much was asked for and how much had been in use.
"""

from __future__ import annotations

import gc
import logging
import re
import traceback
from typing import Any

import torch

from comfy import devices, loaded_models
from comfy.device_memory import OOM_EXCEPTION, Allocation, accelerators, memory_of

log = logging.getLogger(__name__)

_UNITS = {"bytes": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}
# "Tried to allocate 2.50 GiB" (CUDA); "you tried to allocate 123456 bytes" (CPU).
_REQUESTED = re.compile(r"tried to allocate ([\d.]+) (bytes|[KMGT]iB)", re.IGNORECASE)
_LONGEST_CHAIN = 100
BY_OUT_OF_MEMORY = "a node that ran out of memory"


def requested_bytes(error: BaseException) -> int | None:
    """How much was asked for, as the error's text says; None if it does not."""
    found = _REQUESTED.search(str(error))
    return None if found is None else int(float(found.group(1)) * _UNITS[found.group(2)])


def start_measuring() -> None:
    """A prompt starts: from now on peaks are its own."""
    for memory in accelerators():
        memory.reset_peak()


def forget_frames(error: BaseException) -> None:
    """Let go of what the frames that an error passed hold: their tensors stay in memory as long as the error does."""
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain and len(seen) < _LONGEST_CHAIN:
        link = chain.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        traceback.clear_frames(link.__traceback__)
        link.__traceback__ = None
        chain += [link.__cause__, link.__context__]


def make_room() -> None:
    """Take all models off, and give back whatever nobody uses."""
    loaded_models.unload_all_models(BY_OUT_OF_MEMORY)
    gc.collect()
    for memory in accelerators():
        memory.release_unused()
    log.warning("out of memory: all models were taken off the device")


def out_of_memory(error: BaseException) -> BaseException:
    """The error to report: torch.OutOfMemoryError that names the bytes asked for and the peak of each device."""
    if isinstance(error, MemoryError):
        return error  # Python's own
    asked = requested_bytes(error)
    facts = [] if asked is None else [f"{asked} bytes were requested"]
    measured = [memory for memory in accelerators() if memory.peak() > 0]
    for memory in measured:
        facts.append(f"the peak was {memory.peak()} bytes of {memory.total()} on {memory.device}")
    if not measured:
        memory = memory_of(devices.get_torch_device())
        facts.append(f"{memory.free()} bytes of {memory.total()} are free on {memory.device}")
    told = OOM_EXCEPTION(f"{error}\n{'; '.join(facts)}; models had been taken off and the node was tried again.")
    return told.with_traceback(error.__traceback__)


def is_on_device(value: Any) -> bool:
    """Whether a value, or something in it, occupies memory of an accelerator."""
    stack, seen = [value], set()
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Allocation) or (isinstance(item, torch.Tensor) and item.device.type not in ("cpu", "meta")):
            return True
        if isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list | tuple):
            stack.extend(item)
    return False
