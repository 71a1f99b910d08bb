"""Weights that visit the device for one call of their layer.

A model that does not fit keeps some layers on the host. A `Streamer` copies such a layer's weight and bias when the
layer is called. The order of the calls is the same in every step, so while one layer computes, the next ones are
copied already: from page-locked memory, on streams of their own, where the device has them.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from comfy.device_memory import DeviceMemory
from comfy.ledger import Counters

STREAMED_NAMES = ("weight", "bias")


@dataclass
class _Visit:
    """A layer's tensors on the device, and which host tensors they are copies of."""

    sources: tuple[Tensor | None, ...]
    copies: tuple[Tensor | None, ...]
    size: int
    done: Any = None  # an event of the stream that copies


class Streamer:
    """Brings the layers of one model to one device."""

    def __init__(self, memory: DeviceMemory, counters: Counters) -> None:
        self.memory = memory
        self.counters = counters
        self._account = memory.account()
        # How many layers ahead of the running one are copied. Without streams that gains no time, but it is done all
        # the same, so that a simulated device shows the memory that a real one takes.
        self.ahead = max(1, memory.streams)
        self._follows: dict[int, weakref.ref[nn.Module]] = {}
        self._last: weakref.ref[nn.Module] | None = None
        self._coming: dict[int, _Visit] = {}
        self._held = 0  # bytes of the layer that runs
        self._streams: list[Any] = []
        self._next_stream = 0

    def __deepcopy__(self, memo: dict) -> Streamer:
        """Copied layers go on being streamed."""
        return self

    def buffers(self, largest: int) -> int:
        """Bytes that visiting layers of at most `largest` bytes take at a time."""
        return largest * (self.ahead + 1)

    def fetch(self, layer: nn.Module) -> tuple[Tensor | None, Tensor | None]:
        """Weight and bias of a layer on the device, in the dtype in which they rest."""
        self._release_held()
        visit = self._coming.pop(id(layer), None)
        sources = self._sources(layer)
        if visit is not None and any(a is not b for a, b in zip(visit.sources, sources)):
            self._drop(visit)  # patched meanwhile
            visit = None
        if visit is None:
            self._make_room_in_queue(0)
            visit = self._copy(sources, None)
        self._held = visit.size
        self._learn(layer)
        self._copy_ahead(layer)
        if visit.done is not None:
            current = torch.cuda.current_stream(self.memory.device)
            current.wait_event(visit.done)
            for tensor in visit.copies:
                if tensor is not None:
                    tensor.record_stream(current)
        return visit.copies[0], visit.copies[1]

    def clear(self) -> None:
        """A run has ended: nothing is on its way any more."""
        self._release_held()
        self._make_room_in_queue(0)
        self._last = None

    # --- the order of calls

    def _learn(self, layer: nn.Module) -> None:
        last = self._last() if self._last is not None else None
        if last is not None:
            self._follows[id(last)] = weakref.ref(layer)
        self._last = weakref.ref(layer)

    def _copy_ahead(self, layer: nn.Module) -> None:
        wanted: list[nn.Module] = []
        following = layer
        for _ in range(self.ahead):
            reference = self._follows.get(id(following))
            following = reference() if reference is not None else None
            if following is None or following is layer or following.streamer is not self:
                break
            wanted.append(following)
        keep = {id(item) for item in wanted}
        for key in [key for key in self._coming if key not in keep]:  # the order was another this time
            self._drop(self._coming.pop(key))
        for item in wanted:
            if id(item) not in self._coming:
                self._coming[id(item)] = self._copy(self._sources(item), self._side_stream())

    # --- copying

    @staticmethod
    def _sources(layer: nn.Module) -> tuple[Tensor | None, ...]:
        return tuple(getattr(layer, name, None) for name in STREAMED_NAMES)

    def _copy(self, sources: tuple[Tensor | None, ...], stream: Any) -> _Visit:
        size = sum(t.nelement() * t.element_size() for t in sources if t is not None)
        self._account.claim(size)
        done = None
        if stream is None:
            copies = tuple(None if t is None else self.memory.put(t.detach()) for t in sources)
        else:
            with torch.cuda.stream(stream):
                copies = tuple(None if t is None else self.memory.put(t.detach()) for t in sources)
                done = stream.record_event()
        self.counters.streamed += 1
        self.counters.streamed_bytes += size
        return _Visit(sources, copies, size, done)

    def _side_stream(self) -> Any:
        if self.memory.streams == 0 or self.memory.device.type != "cuda":
            return None
        if not self._streams:
            self._streams = [torch.cuda.Stream(self.memory.device) for _ in range(self.memory.streams)]
        self._next_stream = (self._next_stream + 1) % len(self._streams)
        return self._streams[self._next_stream]

    def _make_room_in_queue(self, places: int) -> None:
        while len(self._coming) > places:
            self._drop(self._coming.pop(next(iter(self._coming))))

    def _drop(self, visit: _Visit) -> None:
        if visit.done is not None:
            # The allocator may hand the memory out again only after the copy into it has ended.
            current = torch.cuda.current_stream(self.memory.device)
            current.wait_event(visit.done)
            for tensor in visit.copies:
                if tensor is not None:
                    tensor.record_stream(current)
        self._account.release(visit.size)

    def _release_held(self) -> None:
        if self._held:
            self._account.release(self._held)
            self._held = 0
