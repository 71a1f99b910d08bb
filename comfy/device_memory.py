"""A device as the memory policy sees it: how much there is, how much is free, and how weights get there.

The policy (`comfy.loaded_models`, `comfy.placement`, `comfy.streaming`) asks nothing else of a device, so it runs
unchanged on a simulated one of any size: see `SimulatedMemory`.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from comfy.cli_args import args
from comfy.system_memory import system_memory

OOM_EXCEPTION: type[BaseException] = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)

MB = 1024**2
GB = 1024**3
ASYNC_STREAMS = 2
# Page-locked memory cannot be swapped or given to others: never more than this share of the RAM.
PINNED_SHARE = 0.5
# Seconds. Sampling asks at every step, and the kernel sums up a control group's figures anew for each question.
RAM_FIGURE_HOLDS = 0.25


class DeviceMemory:
    """Memory of one device. All sizes in bytes.

    is_host: weights rest here anyway; nothing has to be loaded. streams: how many copies may run beside the
    computation; 0: copies wait for their turn.
    """

    is_host = False
    streams = 0

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def total(self) -> int:
        """All of it."""
        raise NotImplementedError

    def free(self) -> int:
        """What a new tensor could take, memory that torch holds in reserve included."""
        raise NotImplementedError

    def reserved(self) -> int:
        """What torch holds of it, in use or not."""
        return self.total()

    def unused(self) -> int:
        """What torch holds and nothing uses."""
        return self.free()

    def peak(self) -> int:
        """The most that tensors ever took since `reset_peak`; 0 where nobody counts."""
        return 0

    def reset_peak(self) -> None:
        """Start measuring the peak anew."""

    def release_unused(self) -> None:
        """Give what torch holds and nothing uses back to the device."""

    def claim(self, size: int) -> None:
        """Weights are about to take `size` bytes. Real devices find out by themselves."""

    def release(self, size: int) -> None:
        """Weights of `size` bytes are gone."""

    def account(self) -> Account:
        """For somebody who claims and releases, and whose claims end with them."""
        return Account(self)

    def put(self, tensor: Tensor) -> Tensor:
        """A copy of a host tensor on the device."""
        return tensor.to(self.device, copy=True)

    def back(self, tensor: Tensor) -> Tensor:
        """A tensor of the device on the host."""
        return tensor.to("cpu")

    def pin(self, tensor: Tensor) -> Tensor:
        """The tensor in page-locked memory, from which copies run beside the computation; the tensor itself where that
        is not possible or not allowed."""
        return tensor


class Account:
    """What one model claims of a device. It is released when the account goes."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._claimed = [0]
        self._memory = memory
        weakref.finalize(self, _settle, memory, self._claimed)

    def claim(self, size: int) -> None:
        """As `DeviceMemory.claim`."""
        self._memory.claim(size)
        self._claimed[0] += size

    def release(self, size: int) -> None:
        """As `DeviceMemory.release`."""
        self._memory.release(size)
        self._claimed[0] -= size


def _settle(memory: DeviceMemory, claimed: list[int]) -> None:
    memory.release(claimed[0])


class HostMemory(DeviceMemory):
    """RAM, as the control groups of a container allow it."""

    is_host = True

    def total(self) -> int:
        return system_memory().total

    def free(self) -> int:
        return _available_ram(int(time.monotonic() / RAM_FIGURE_HOLDS))

    def put(self, tensor: Tensor) -> Tensor:
        return tensor


@lru_cache(maxsize=1)
def _available_ram(_moment: int) -> int:
    return system_memory().available


class UnifiedMemory(HostMemory):
    """A graphics processor that shares the RAM (Apple)."""

    is_host = False

    def put(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device)

    def release_unused(self) -> None:
        torch.mps.empty_cache()


class CudaMemory(DeviceMemory):
    """A CUDA or ROCm device through torch's caching allocator."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        wanted = ASYNC_STREAMS if args.async_offload is None and torch.version.cuda else args.async_offload or 0
        self.streams = 0 if args.disable_async_offload else max(0, wanted)
        self._pinned = 0

    def total(self) -> int:
        return torch.cuda.mem_get_info(self.device)[1]

    def free(self) -> int:
        return torch.cuda.mem_get_info(self.device)[0] + self.unused()

    def reserved(self) -> int:
        return self._stat("reserved_bytes.all.current")

    def unused(self) -> int:
        return self.reserved() - self._stat("active_bytes.all.current")

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated(self.device)

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    def release_unused(self) -> None:
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        torch.cuda.ipc_collect()

    def put(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=tensor.is_pinned() or args.force_non_blocking, copy=True)

    def pin(self, tensor: Tensor) -> Tensor:
        size = tensor.nelement() * tensor.element_size()
        memory = system_memory()
        allowed = int(PINNED_SHARE * memory.total) - self._pinned
        if args.disable_pinned_memory or size > min(allowed, memory.available // 2) or size == 0:
            return tensor
        try:
            pinned = tensor.pin_memory()
        except RuntimeError:  # the system sets limits of its own
            return tensor
        self._pinned += size
        weakref.finalize(pinned, self._unpinned, size)
        return pinned

    def _unpinned(self, size: int) -> None:
        self._pinned -= size

    def _stat(self, name: str) -> int:
        return torch.cuda.memory_stats(self.device).get(name, 0)


class SimulatedMemory(DeviceMemory):
    """A device of `size` bytes that exists on paper: its tensors are in RAM, or on the meta device.

    What weights take is told by `claim` and `release`; whoever computes takes memory with `allocate`. More than there
    is raises torch.OutOfMemoryError, as a real device would.
    """

    def __init__(self, size: int, device: torch.device | None = None) -> None:
        super().__init__(device or torch.device("cpu", 0))
        self.size = size
        self.used = 0
        self._peak = 0

    def total(self) -> int:
        return self.size

    def free(self) -> int:
        return self.size - self.used

    def reserved(self) -> int:
        return self.used

    def unused(self) -> int:
        return 0

    def peak(self) -> int:
        return self._peak

    def reset_peak(self) -> None:
        self._peak = self.used

    def claim(self, size: int) -> None:
        if size > self.free():
            raise OOM_EXCEPTION(
                f"simulated device out of memory. Tried to allocate {size / MB:.2f} MiB. {self.device} has a total "
                f"capacity of {self.size / MB:.2f} MiB of which {self.free() / MB:.2f} MiB is free."
            )
        self.used += size
        self._peak = max(self._peak, self.used)

    def release(self, size: int) -> None:
        self.used -= size

    def put(self, tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor) if tensor.is_meta else super().put(tensor)

    def back(self, tensor: Tensor) -> Tensor:
        return tensor if tensor.is_meta else super().back(tensor)

    def allocate(self, size: int) -> Allocation:
        """Take `size` bytes for as long as the returned object lives."""
        self.claim(size)
        return Allocation(self, size)


class Allocation:
    """Bytes of a simulated device, freed like a tensor's when nothing refers to it any more."""

    def __init__(self, memory: SimulatedMemory, size: int) -> None:
        self.size = size
        weakref.finalize(self, memory.release, size)


_memories: dict[torch.device, DeviceMemory] = {}


def normalized(device: torch.device | str) -> torch.device:
    """The device with its number: "cuda" is the one in use."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def memory_of(device: torch.device | str) -> DeviceMemory:
    """The memory of a device."""
    device = normalized(device)
    found = _memories.get(device)
    if found is None:
        kinds = {"cuda": CudaMemory, "mps": UnifiedMemory}
        found = _memories[device] = kinds.get(device.type, HostMemory)(device)
    return found


def accelerators() -> list[DeviceMemory]:
    """The memories of devices other than the host that have been asked for so far."""
    return [memory for memory in list(_memories.values()) if not memory.is_host]


@contextlib.contextmanager
def simulated(memory: DeviceMemory) -> Iterator[DeviceMemory]:
    """Inside the block `memory` is what the policy finds for its device."""
    before = _memories.get(memory.device)
    _memories[memory.device] = memory
    try:
        yield memory
    finally:
        if before is None:
            _memories.pop(memory.device, None)
        else:
            _memories[memory.device] = before
