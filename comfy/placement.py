"""Where each weight of a model is: on its device, or on the host.

The host keeps its copy of every weight that goes to a device. For a file that is memory-mapped this costs nothing, and
taking a model off copies nothing back: the host's tensors simply take their places again. A model that does not fit
keeps its largest layers on the device and streams the others (`comfy.streaming`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from comfy.device_memory import MB, DeviceMemory, memory_of
from comfy.ledger import ledger_of
from comfy.streaming import STREAMED_NAMES, Streamer

# Layers up to this size stay on the device before larger ones do: streaming one costs more time than it saves memory.
SMALL_LAYER = MB
# A model that is streamed gets more layers onto the device when at least this share of it fits in addition.
REARRANGE_SHARE = 0.05


@dataclass
class Unit:
    """Tensors of one layer that are in one place together. names: of the tensors in the layer."""

    path: str
    layer: nn.Module
    names: tuple[str, ...]
    size: int
    streamable: bool

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Dotted name and tensor."""
        for name in self.names:
            tensor = self.layer._parameters.get(name)
            yield f"{self.path}{name}", self.layer._buffers[name] if tensor is None else tensor


@dataclass
class Plan:
    """Which units are to be on the device, and which wait on the host."""

    resident: list[Unit]
    streamed: list[Unit]

    def waiting(self) -> frozenset[str]:
        """Names of the tensors that wait on the host."""
        return frozenset(key for unit in self.streamed for key, _ in unit.tensors())


def size_of(tensor: Tensor) -> int:
    """Bytes of a tensor's values."""
    return tensor.nelement() * tensor.element_size()


def units_of(model: nn.Module) -> list[Unit]:
    """All tensors of a model. A layer of `comfy.ops` can fetch weight and bias when it is called; whatever else there
    is has to be on the device before the model runs."""
    units = []
    for path, layer in model.named_modules():
        prefix = f"{path}." if path else ""
        names = [n for kind in (layer._parameters, layer._buffers) for n, t in kind.items() if t is not None]
        fetched = tuple(n for n in names if n in STREAMED_NAMES) if hasattr(layer, "comfy_cast_weights") else ()
        for group, streamable in ((fetched, True), (tuple(n for n in names if n not in fetched), False)):
            if group:
                unit = Unit(prefix, layer, group, 0, streamable)
                unit.size = sum(size_of(tensor) for _, tensor in unit.tensors())
                units.append(unit)
    return units


class Placement:
    """The places of one model's weights. Holds tensors, but never the model."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.memory: DeviceMemory = memory_of(device)
        self.counters = ledger_of(device).counters
        self._account = self.memory.account()
        self.streamer: Streamer | None = None
        # A tensor of a simulated device does not know where it is; there and on the host only the book tells.
        self.on_paper = device.type == "cpu"
        self.complete = False  # everything is on the device
        self.budget: int | None = None  # of the plan in force
        self._waiting: frozenset[str] = frozenset()
        self._there: dict[str, Tensor] = {}  # what we put on the device, by name
        self._shared: set[str] = set()  # names of these whose tensor has another name, too
        self._host: dict[str, Tensor] = {}  # the host's tensors of these
        self._pinned: dict[str, tuple[Tensor, Tensor]] = {}  # page-locked copy and its original, of waiting tensors

    # --- deciding

    def plan(self, model: nn.Module, budget: int | None) -> Plan:
        """What is to be on the device with at most `budget` bytes of weights there (None: all). What cannot be
        streamed always is. From now on the plan is in force, also for weights that are patched before `apply`."""
        units = units_of(model)
        plan = Plan(units, [])
        if budget is not None and self.streamer is not None:
            # More room for a layer or two is not worth moving anything; less room is.
            loaded = self.loaded_bytes()
            if loaded <= budget < loaded + REARRANGE_SHARE * sum(unit.size for unit in units):
                budget = loaded
        if budget is not None and sum(unit.size for unit in units) > budget:
            plan = Plan([unit for unit in units if not unit.streamable], [])
            left = budget - sum(unit.size for unit in plan.resident)
            movable = (unit for unit in units if unit.streamable)
            for unit in sorted(movable, key=lambda unit: (unit.size > SMALL_LAYER, -unit.size)):
                fits = unit.size <= left
                (plan.resident if fits else plan.streamed).append(unit)
                left -= unit.size if fits else 0
        self.budget = budget
        self._waiting = plan.waiting()
        return plan

    def buffer_bytes(self, model: nn.Module) -> int:
        """Bytes that visiting layers take when the model is streamed."""
        largest = max((unit.size for unit in units_of(model) if unit.streamable), default=0)
        return Streamer(self.memory, self.counters).buffers(largest)

    # --- acting

    def apply(self, model: nn.Module, plan: Plan) -> int:
        """Bring every weight to its place. Returns the bytes that went to the device."""
        before = self.counters.copied_bytes
        self._forget_replaced(model)
        for unit in plan.streamed:
            self._wait_on_host(unit)
        streamer = self._streamer_for(plan)
        moved: dict[int, Tensor] = {}
        for unit in plan.resident:
            self._stop_streaming(unit.layer)
            for key, tensor in unit.tensors():
                if not self.holds(key, tensor):
                    self._bring(unit.layer, key, tensor, moved)
        for unit in plan.streamed:
            self._stream(unit, streamer)
        self.complete = not plan.streamed
        return self.counters.copied_bytes - before

    def leave(self, model: nn.Module) -> None:
        """Put the host's tensors back in their places; nothing of the model is on the device any more."""
        self._forget_replaced(model)
        for path, layer in model.named_modules():
            self._stop_streaming(layer)
            prefix = f"{path}." if path else ""
            for tensors in (layer._parameters, layer._buffers):
                for name, tensor in tensors.items():
                    key = prefix + name
                    pinned = self._pinned.get(key)
                    if tensor is None:
                        continue
                    if tensor is self._there.get(key) or (tensor.device == self.device and not self.on_paper):
                        host = self._host.get(key)
                        tensors[name] = _like(tensor, self.memory.back(tensor.detach()) if host is None else host)
                    elif pinned is not None and pinned[0] is tensor:
                        tensors[name] = pinned[1]
        self._account.release(self.loaded_bytes())
        self.end_visits()
        self.streamer = None
        self._there.clear()
        self._shared.clear()
        self._host.clear()
        self._pinned.clear()
        self._waiting = frozenset()
        self.complete = False

    def shrink(self, model: nn.Module, size: int) -> None:
        """Take units of at least `size` bytes in all off the device and stream them from now on. Those go first whose
        values the host has: they need no copy back."""
        units = units_of(model)
        movable = [unit for unit in units if unit.streamable and all(self.holds(*item) for item in unit.tensors())]
        movable.sort(key=lambda unit: (any(key not in self._host for key, _ in unit.tensors()), -unit.size))
        leaving: set[int] = set()
        left = size
        for unit in movable:
            if left <= 0:
                break
            leaving.add(id(unit))
            left -= unit.size
        going = [u for u in units if u.streamable and (id(u) in leaving or self.waits(next(u.tensors())[0]))]
        there = {id(unit) for unit in going}
        plan = Plan([unit for unit in units if id(unit) not in there], going)
        self._waiting = plan.waiting()
        self.budget = max(1, self.loaded_bytes() - size)
        self.apply(model, plan)

    def end_visits(self) -> None:
        """A run has ended: layers that were fetched ahead leave."""
        if self.streamer is not None:
            self.streamer.clear()

    # --- asking

    def loaded_bytes(self) -> int:
        """Bytes of weights on the device."""
        return sum(size_of(tensor) for key, tensor in self._there.items() if key not in self._shared)

    def pinned_bytes(self) -> int:
        """Bytes of weights that wait in page-locked memory."""
        return sum(size_of(pinned) for pinned, _ in self._pinned.values())

    def holds(self, key: str, tensor: Tensor) -> bool:
        """Whether `tensor`, the model's tensor of that name, is on the device."""
        return self._there.get(key) is tensor and (self.on_paper or tensor.device == self.device)

    def original(self, key: str, tensor: Tensor) -> Tensor:
        """The host's tensor of the same values as `tensor`, the model's tensor of that name; else `tensor`."""
        if self._there.get(key) is tensor and key in self._host:
            return self._host[key]
        pinned = self._pinned.get(key)
        return pinned[1] if pinned is not None and pinned[0] is tensor else tensor

    def waits(self, key: str) -> bool:
        """Whether the tensor of that name is to wait on the host, by the plan in force."""
        return key in self._waiting

    def took(self, key: str, tensor: Tensor) -> None:
        """The model's tensor of that name is now `tensor`, which was computed on the device."""
        self._gone(key)
        self._account.claim(size_of(tensor))
        self._there[key] = tensor

    def __deepcopy__(self, memo: dict) -> Placement:
        """A copied model starts with a book of its own."""
        return Placement(self.device)

    def copied(self, tensor: Tensor) -> Tensor:
        """A copy of a host tensor on the device, counted."""
        self.counters.copies += 1
        self.counters.copied_bytes += size_of(tensor)
        return self.memory.put(tensor)

    # --- single tensors

    def _forget_replaced(self, model: nn.Module) -> None:
        """Let go of tensors that are no longer the model's: it was patched, or a pack put others in."""
        if not self._there and not self._pinned:
            return
        current = dict(model.named_parameters(remove_duplicate=False))
        current.update(model.named_buffers(remove_duplicate=False))
        for key in [key for key in self._there if not self.holds(key, current.get(key))]:
            self._gone(key)
        for key in [key for key, (pinned, _) in self._pinned.items() if current.get(key) is not pinned]:
            del self._pinned[key]

    def _gone(self, key: str) -> Tensor | None:
        """What we had on the device under that name is gone. Returns the host's tensor of the same values."""
        old = self._there.pop(key, None)
        if old is not None and key not in self._shared:
            self._account.release(size_of(old))
        self._shared.discard(key)
        return self._host.pop(key, None)

    def _bring(self, layer: nn.Module, key: str, tensor: Tensor, moved: dict[int, Tensor]) -> None:
        """Put one tensor on the device. moved: what went there in this round; two names may share one tensor."""
        name = key.rpartition(".")[2]
        shared = moved.get(id(tensor))
        if shared is not None:
            self._there[key] = shared
            self._shared.add(key)
            self._host[key] = tensor
            _put(layer, name, shared)
            return
        if self.memory.is_host or (tensor.device == self.device and not self.on_paper):
            copy = self._there[key] = tensor  # it is there already
            self._account.claim(size_of(tensor))
        else:
            self._account.claim(size_of(tensor))
            copy = _like(tensor, self.copied(tensor.detach()))
            self._host[key] = self._pinned.pop(key, (None, tensor))[1]
            self._there[key] = copy
        moved[id(tensor)] = copy
        _put(layer, name, copy)

    def _wait_on_host(self, unit: Unit) -> None:
        for key, tensor in unit.tensors():
            if self.holds(key, tensor):
                host = self._gone(key)
                waiting = _like(tensor, self.memory.back(tensor.detach())) if host is None else host
                _put(unit.layer, key.rpartition(".")[2], waiting)

    def _stream(self, unit: Unit, streamer: Streamer) -> None:
        layer = unit.layer
        if not hasattr(layer, "cast_weights_before"):
            layer.cast_weights_before = layer.comfy_cast_weights
            layer.comfy_cast_weights = True
        layer.streamer = streamer
        if isinstance(layer, nn.Embedding):
            return  # a few rows are looked up on the host
        for key, tensor in unit.tensors():
            if key not in self._pinned and not tensor.is_meta:
                pinned = self.memory.pin(tensor.detach())
                if pinned.data_ptr() != tensor.data_ptr():
                    copy = _like(tensor, pinned)
                    self._pinned[key] = (copy, tensor)
                    _put(layer, key.rpartition(".")[2], copy)

    def _streamer_for(self, plan: Plan) -> Streamer | None:
        if not plan.streamed:
            self.end_visits()
            self.streamer = None
        elif self.streamer is None:
            self.streamer = Streamer(self.memory, self.counters)
        return self.streamer

    @staticmethod
    def _stop_streaming(layer: nn.Module) -> None:
        if hasattr(layer, "cast_weights_before"):
            layer.comfy_cast_weights = layer.cast_weights_before
            del layer.cast_weights_before
        layer.__dict__.pop("streamer", None)


def _like(old: Tensor, new: Tensor) -> Tensor:
    """`new` as a parameter, if `old` is one."""
    if isinstance(old, nn.Parameter) and not isinstance(new, nn.Parameter):
        return nn.Parameter(new, requires_grad=False)
    return new


def _put(layer: nn.Module, name: str, tensor: Tensor) -> None:
    kind = layer._parameters if name in layer._parameters else layer._buffers
    kind[name] = tensor
