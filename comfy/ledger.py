"""What is on each device, how it came there, and who had to go for it.

A `Ledger` is the book of one device: a record per model (also of those that were taken off and may come back),
counters of everything that was moved or computed, and the last events in words. `comfy.loaded_models` decides and
writes here; tests, `GET /api/memory` and `bench/memory.py` read.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from comfy.device_memory import DeviceMemory

_EVENTS_KEPT = 100


@dataclass
class Counters:
    """Sums since the start. Copies and their bytes are of weights only.

    streamed: weights that came for one call of their layer and went again. patches: weights that were computed anew
    because of LoRAs and the like; restores: weights put back to what the file says.
    """

    disk_reads: int = 0
    disk_bytes: int = 0
    copies: int = 0
    copied_bytes: int = 0
    streamed: int = 0
    streamed_bytes: int = 0
    patches: int = 0
    restores: int = 0
    loads: int = 0
    evictions: int = 0

    def __sub__(self, other: Counters) -> Counters:
        return Counters(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    def __add__(self, other: Counters) -> Counters:
        return Counters(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def moved(self) -> int:
        """Bytes of weights that went from the host to the device."""
        return self.copied_bytes + self.streamed_bytes


@dataclass
class ModelRecord:
    """What is known of one model on one device. `bytes`: all its weights; times: seconds since the epoch."""

    name: str
    file: str | None
    bytes: int
    loaded_bytes: int = 0
    pinned_bytes: int = 0
    loads: int = 0
    evictions: int = 0
    last_use: float = 0.0
    evicted_by: str | None = None


@dataclass
class Ledger:
    """The book of one device."""

    device: torch.device
    counters: Counters = field(default_factory=Counters)
    events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_EVENTS_KEPT))
    _records: weakref.WeakKeyDictionary[torch.nn.Module, ModelRecord] = field(default_factory=weakref.WeakKeyDictionary)

    def record(self, model: torch.nn.Module) -> ModelRecord:
        """The record of a model, made on first use."""
        with _lock:
            found = self._records.get(model)
            if found is None:
                found = ModelRecord(name_of(model), getattr(model, "weights_file", None), 0)
                self._records[model] = found
            return found

    def models(self) -> list[ModelRecord]:
        """The records of all models that are still alive, last used first."""
        with _lock:
            return sorted(self._records.values(), key=lambda record: record.last_use, reverse=True)

    def loaded(self, model: torch.nn.Module, size: int, loaded: int, moved: int, pinned: int) -> None:
        """A model was made ready; `loaded` of its `size` bytes are on the device, `moved` of them went there now."""
        record = self.record(model)
        record.bytes, record.loaded_bytes, record.pinned_bytes = size, loaded, pinned
        record.loads += 1
        self.counters.loads += 1
        self._note("load", record, moved, None)

    def used(self, model: torch.nn.Module) -> None:
        """A model is about to run."""
        self.record(model).last_use = time.time()

    def evicted(self, model: torch.nn.Module, by: str) -> None:
        """A model was taken off the device, because of what `by` says."""
        record = self.record(model)
        freed, record.loaded_bytes, record.pinned_bytes = record.loaded_bytes, 0, 0
        record.evictions += 1
        record.evicted_by = by
        self.counters.evictions += 1
        self._note("evict", record, freed, by)

    def shrunk(self, model: torch.nn.Module, loaded: int, freed: int, pinned: int, by: str) -> None:
        """Some layers of a model were taken off; `loaded` bytes of it are left, and `pinned` wait page-locked."""
        record = self.record(model)
        record.loaded_bytes, record.pinned_bytes = loaded, pinned
        self._note("shrink", record, freed, by)

    def _note(self, what: str, record: ModelRecord, size: int, by: str | None) -> None:
        event = {"time": time.time(), "event": what, "model": record.name, "file": record.file, "bytes": size, "by": by}
        self.events.append(event)


_lock = threading.RLock()
_ledgers: dict[torch.device, Ledger] = {}
files = Counters()  # what was read from disk; belongs to no device


def ledger_of(device: torch.device) -> Ledger:
    """The book of a device."""
    with _lock:
        return _ledgers.setdefault(device, Ledger(device))


def ledgers() -> Iterator[Ledger]:
    """All books."""
    with _lock:
        yield from list(_ledgers.values())


def totals() -> Counters:
    """The counters of all devices and of the disk, as they are now."""
    return sum((ledger.counters for ledger in ledgers()), files + Counters())


def files_in_memory() -> set[str]:
    """The files whose models are alive, on a device or on the host."""
    return {record.file for ledger in ledgers() for record in ledger.models() if record.file is not None}


def name_of(model: torch.nn.Module) -> str:
    """What a model is called in reports: its class, and the network's where the class says little."""
    network = getattr(model, "diffusion_model", None)
    name = type(model).__name__
    return name if network is None else f"{name} ({type(network).__name__})"


def report() -> dict[str, Any]:
    """All books as JSON; sizes in bytes, times in seconds since the epoch. Models are listed with their last use first,
    those that were taken off and are still known, too."""
    from comfy import devices
    from comfy.device_memory import memory_of
    from comfy.system_memory import system_memory

    ram = system_memory()
    found = {ledger.device: ledger for ledger in ledgers()}
    for device in devices.get_all_torch_devices():
        found.setdefault(device, ledger_of(device))
    return {
        "ram": {"total": ram.total, "available": ram.available},
        "vram_state": devices.vram_state.name,
        "files": {"disk_reads": files.disk_reads, "disk_bytes": files.disk_bytes},
        "devices": [_of_device(ledger, memory_of(device)) for device, ledger in found.items()],
    }


def _shown(entry: dict[str, Any]) -> dict[str, Any]:
    """A record or an event with the file as loaders list it: clients need not know this machine's folders."""
    import folder_paths

    path = entry["file"]
    if path is not None:
        known = [folder for folders, _ in folder_paths.folder_names_and_paths.values() for folder in folders]
        inside = [os.path.relpath(path, folder) for folder in known if path.startswith(os.path.join(folder, ""))]
        entry = {**entry, "file": min(inside, key=len, default=os.path.basename(path))}
    return entry


def _of_device(ledger: Ledger, memory: DeviceMemory) -> dict[str, Any]:
    models = ledger.models()
    counted = asdict(ledger.counters)
    del counted["disk_reads"], counted["disk_bytes"]
    return {
        "device": str(ledger.device),
        "total": memory.total(),
        "free": memory.free(),
        "reserved": memory.reserved(),
        "peak": memory.peak(),
        "loaded_bytes": sum(record.loaded_bytes for record in models),
        "counters": counted,
        "models": [_shown(asdict(record)) for record in models],
        "events": [_shown(event) for event in list(ledger.events)],
    }
