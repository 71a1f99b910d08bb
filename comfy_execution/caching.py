"""What is kept of a run for the next one: results of nodes (four ways) and node objects.

Spec: execution.md section 8. A result is found by its node's key (see `signatures`). Inner results of an expansion
live in a scope of the expanding node, which lasts as long as prompts contain that node id with that class.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from comfy.system_memory import system_memory
from comfy_execution.graph import DynamicPrompt

log = logging.getLogger(__name__)

_GB = 1024**3
_UNKNOWN_SIZE = 0.05 * _GB  # what a result without measurable tensors is taken to weigh
_LARGE = 512 * 1024**2
_AGEING = 1.3  # a result of n prompts ago weighs this to the n-th
_RAM_POLL_SECONDS = 0.05
_PLAIN = frozenset({int, float, bool, str, type(None)})


class CacheType(Enum):
    """The ways to keep results; chosen on the command line."""

    CLASSIC = 0
    LRU = 1
    NONE = 2
    RAM_PRESSURE = 3


@dataclass
class CacheEntry:
    """The result of a node: one list of values per output slot, and its UI data.

    `ui` is `{"output": ui dict, "meta": {...}}` as the history shows it, or None.
    """

    outputs: list[list]
    ui: dict[str, Any] | None = None
    seconds: float = 0.0
    generation: int = 0


@dataclass
class CacheCounts:
    """What has become of results since the start of the worker.

    hits: nodes of submitted prompts whose result was there when their prompt started; misses: results that had to be
    made; evictions: results dropped to make room.
    """

    hits: int = 0
    misses: int = 0
    evictions: int = 0


@dataclass
class Scope:
    """Results of the nodes of one graph: of the prompt, or of one expansion."""

    entries: dict[bytes, CacheEntry] = field(default_factory=dict)
    inner: dict[tuple[str, str], Scope] = field(default_factory=dict)

    def prune(self, keys: Iterable[bytes], nodes: Container[tuple[str, str]]) -> None:
        """Keep only results with these keys and inner scopes of these (node id, class) pairs."""
        wanted = set(keys)
        self.entries = {key: entry for key, entry in self.entries.items() if key in wanted}
        self.inner = {node: scope for node, scope in self.inner.items() if node in nodes}

    def walk(self) -> Iterator[Scope]:
        """This scope and all below it."""
        stack = [self]
        while stack:
            scope = stack.pop()
            yield scope
            stack.extend(scope.inner.values())


class ResultCache:
    """`--cache-none`: keeps nothing, and is the interface of those that do."""

    keeps_results = False

    def __init__(self) -> None:
        self.counts = CacheCounts()

    def begin(self, keys: Iterable[bytes], nodes: Container[tuple[str, str]]) -> None:
        """A prompt with these keys and these (node id, class) pairs starts."""

    def scope(self, outer: Any = None, node: tuple[str, str] | None = None) -> Any:
        """Where results of the prompt are kept, or of what a node (id, class) of `outer` expands to.

        Only to be handed to the methods below.
        """
        return None

    def expand(self, scope: Any, keys: Iterable[bytes], nodes: Container[tuple[str, str]]) -> None:
        """A node has expanded to nodes with these keys and these (node id, class) pairs, kept in `scope`."""

    def get(self, scope: Any, key: bytes) -> CacheEntry | None:
        """The result for a key."""
        return None

    def put(self, scope: Any, key: bytes, entry: CacheEntry) -> None:
        """Keep a result."""

    def drop(self, scope: Any, key: bytes) -> None:
        """Forget a result."""

    def relieve(self, drop_unneeded: Callable[[], None]) -> None:
        """A node has run: make room if memory is short. `drop_unneeded` lets go of what the run itself holds."""

    def clear(self) -> None:
        """Forget everything."""

    def entries_now(self) -> list[CacheEntry]:
        """All results, as they are at this moment. Other threads may ask."""
        return []

    def __len__(self) -> int:
        return len(self.entries_now())

    def report(self) -> dict[str, int]:
        """`{"entries", "bytes", "hits", "misses", "evictions"}`; bytes are those of tensors in the machine's memory.

        Other threads than the worker's may ask. It looks at every result, so not for busy places.
        """
        entries = self.entries_now()
        return {"entries": len(entries), "bytes": int(_bytes_in(entries)), **asdict(self.counts)}


class ClassicCache(ResultCache):
    """`--cache-classic`: the results the newest prompt has keys for."""

    keeps_results = True

    def __init__(self) -> None:
        super().__init__()
        self.root = Scope()
        self.generation = 0

    def begin(self, keys: Iterable[bytes], nodes: Container[tuple[str, str]]) -> None:
        self.generation += 1
        self.root.prune(keys, nodes)

    def scope(self, outer: Any = None, node: tuple[str, str] | None = None) -> Any:
        if node is None:
            return self.root
        found = outer.inner.get(node)
        if found is None:
            found = outer.inner[node] = Scope()
        return found

    def expand(self, scope: Any, keys: Iterable[bytes], nodes: Container[tuple[str, str]]) -> None:
        scope.prune(keys, nodes)

    def get(self, scope: Any, key: bytes) -> CacheEntry | None:
        return scope.entries.get(key)

    def put(self, scope: Any, key: bytes, entry: CacheEntry) -> None:
        entry.generation = self.generation
        scope.entries[key] = entry

    def drop(self, scope: Any, key: bytes) -> None:
        scope.entries.pop(key, None)

    def clear(self) -> None:
        self.root = Scope()

    def entries_now(self) -> list[CacheEntry]:
        found: list[CacheEntry] = []
        for scope in self.root.walk():
            found.extend(scope.entries.values())  # one step for other threads
        return found

    def __len__(self) -> int:
        return sum(len(scope.entries) for scope in self.root.walk())


def _mark_used(entries: Mapping[bytes, CacheEntry], keys: Iterable[bytes], generation: int) -> None:
    """Note on the results with these keys that a prompt has them.

    In the order of the keys, which is that in which results were made: memory is then read forwards.
    """
    for key in keys:
        entry = entries.get(key)
        if entry is not None:
            entry.generation = generation


class LRUCache(ResultCache):
    """`--cache-lru N`: whole generations (one per prompt) go, oldest first, while more than N results are kept."""

    keeps_results = True

    def __init__(self, max_size: int) -> None:
        super().__init__()
        self.max_size = max_size
        self.entries: dict[bytes, CacheEntry] = {}
        self.generation = 0

    def begin(self, keys: Iterable[bytes], nodes: Container[tuple[str, str]]) -> None:
        self.generation += 1
        self._touch(keys)
        while len(self.entries) > self.max_size:
            oldest = min(entry.generation for entry in self.entries.values())
            if oldest == self.generation:
                break
            kept = {k: entry for k, entry in self.entries.items() if entry.generation != oldest}
            self.counts.evictions += len(self.entries) - len(kept)
            self.entries = kept

    def expand(self, scope: Any, keys: Iterable[bytes], nodes: Container[tuple[str, str]]) -> None:
        self._touch(keys)

    def get(self, scope: Any, key: bytes) -> CacheEntry | None:
        return self.entries.get(key)

    def put(self, scope: Any, key: bytes, entry: CacheEntry) -> None:
        entry.generation = self.generation
        self.entries[key] = entry

    def drop(self, scope: Any, key: bytes) -> None:
        self.entries.pop(key, None)

    def clear(self) -> None:
        self.entries = {}

    def entries_now(self) -> list[CacheEntry]:
        return list(self.entries.values())

    def __len__(self) -> int:
        return len(self.entries)

    def _touch(self, keys: Iterable[bytes]) -> None:
        _mark_used(self.entries, keys, self.generation)


class RamPressureCache(ClassicCache):
    """`--cache-ram`: like classic, and older results too while there is memory for them.

    Args:
        active: bytes of free memory below which results of the running prompt go as well.
        inactive: bytes of free memory below which results of older prompts go.
        free_memory: tells the free memory, in bytes.
        total: bytes of memory that there are at all; where `inactive` is no less, older results always go.
    """

    def __init__(
        self,
        active: float,
        inactive: float,
        free_memory: Callable[[], float] | None = None,
        total: float = math.inf,
    ) -> None:
        super().__init__()
        self.active = active
        self.inactive = inactive
        self._free_memory = free_memory or (lambda: float(system_memory().available))
        self._never_enough = inactive >= total
        self._last_look = 0.0
        self._may_hold_old = False  # whether there may be results of older prompts

    def begin(self, keys: Iterable[bytes], nodes: Container[tuple[str, str]]) -> None:
        self.generation += 1
        self._touch(self.root, keys)
        self._may_hold_old = True
        if not self._never_enough:
            self._last_look = 0.0

    def expand(self, scope: Any, keys: Iterable[bytes], nodes: Container[tuple[str, str]]) -> None:
        self._touch(scope, keys)
        self._may_hold_old = True

    def relieve(self, drop_unneeded: Callable[[], None]) -> None:
        if self._never_enough and self._may_hold_old:  # there is no need to ask the system
            self._drop_old()
            self._may_hold_old = False
        now = time.monotonic()
        if now - self._last_look < _RAM_POLL_SECONDS:
            return
        self._last_look = now
        free = self._free_memory()
        if free >= self.inactive and free >= self.active:
            return
        if free < self.inactive and self._may_hold_old:
            free = self._evict(free, self.inactive, lambda entry: entry.generation < self.generation)
            self._may_hold_old = free >= self.inactive  # else there was nothing left to drop
        if free < self.active:
            drop_unneeded()
            free = self._evict(free, self.active, lambda entry: _size_of(entry) >= _LARGE)
            if free < self.active:
                self._evict(free, self.active, lambda entry: True)

    def _touch(self, scope: Scope, keys: Iterable[bytes]) -> None:
        _mark_used(scope.entries, keys, self.generation)

    def _drop_old(self) -> None:
        for scope in self.root.walk():
            old = [key for key, entry in scope.entries.items() if entry.generation < self.generation]
            for key in old:
                del scope.entries[key]
            self.counts.evictions += len(old)

    def _evict(self, free: float, wanted: float, may_go: Callable[[CacheEntry], bool]) -> float:
        """Drop results, worst first, until `wanted` bytes are free. Returns what is free then."""
        found = []
        for scope in self.root.walk():
            for key, entry in scope.entries.items():
                if may_go(entry):
                    found.append((*self._score(entry), scope, key))
        found.sort(key=lambda item: item[0], reverse=True)
        for _, size, scope, key in found:
            del scope.entries[key]
            self.counts.evictions += 1
            if size:  # asking the system is slow, and dropping small things changes nothing it could see
                free = self._free_memory()
                if free >= wanted:
                    break
        return free

    def _score(self, entry: CacheEntry) -> tuple[float, float]:
        """How much better off we are without a result: its size and age, against what it took to make; and its size."""
        size = _size_of(entry)
        score = (
            (size or _UNKNOWN_SIZE) * _AGEING ** min(self.generation - entry.generation, 100) / (1.0 + entry.seconds)
        )
        return score, size


class ObjectStore:
    """Node objects of V1 classes: one per node id and class, kept while prompts contain that node."""

    def __init__(self, keeps: bool = True) -> None:
        self._keeps = keeps
        self._objects: dict[tuple[str, str], tuple[tuple[str, str], Any]] = {}

    def begin(self, prompt: Mapping[str, dict[str, Any]]) -> None:
        """A prompt starts; objects of nodes that are not in it, or of another class there, go."""
        if not self._keeps:
            self.clear()
            return
        node_of = prompt.get
        gone = [
            key
            for key, ((root, class_type), _) in self._objects.items()
            if (node := node_of(root)) is None or node["class_type"] != class_type
        ]
        for key in gone:
            del self._objects[key]

    def get(self, prompt: DynamicPrompt, node_id: str, class_type: str, make: Callable[[], Any]) -> Any:
        """The object of a node, made on first use."""
        key = (node_id, class_type)
        kept = self._objects.get(key)
        if kept is None:
            real_id = prompt.get_real_node_id(node_id)
            root = (real_id, prompt.get_node(real_id).get("class_type"))
            kept = self._objects[key] = (root, make())
        return kept[1]

    def clear(self) -> None:
        """Forget all objects."""
        self._objects = {}


def make_cache(cache_type: CacheType, **options: float) -> ResultCache:
    """The result cache of a type.

    Args:
        options: `lru` the number of results; `ram` and `ram_inactive` the two thresholds in GB (None: automatic).
    """
    if cache_type is CacheType.NONE:
        return ResultCache()
    if cache_type is CacheType.LRU:
        return LRUCache(int(options.get("lru") or 0))
    if cache_type is CacheType.CLASSIC:
        return ClassicCache()
    total = system_memory().total
    active, inactive = options.get("ram"), options.get("ram_inactive")
    if active is None:
        active = min(max(0.1 * total / _GB, 2.0), 10.0)
    if inactive is None:
        inactive = min(total / _GB, 128.0)
    return RamPressureCache(active * _GB, inactive * _GB, total=total)


def _size_of(entry: CacheEntry) -> float:
    """Bytes of the CPU tensors in a result, nested lists and dicts included; 0 when there are none."""
    return _bytes_in([entry])


def _bytes_in(entries: list[CacheEntry]) -> float:
    """Bytes of the CPU tensors in results; what several of them hold counts once."""
    torch = sys.modules.get("torch")
    if torch is None:
        return 0.0
    total = 0
    seen: set[int] = set()
    stack: list[Any] = [slot for entry in entries for slot in entry.outputs]
    while stack and len(seen) < 100_000 * len(entries):
        value = stack.pop()
        if type(value) in _PLAIN or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            if value.device.type == "cpu":
                total += value.numel() * value.element_size()
        elif isinstance(value, dict):
            stack.extend(value.values())
        elif isinstance(value, list | tuple):
            stack.extend(value)
    return float(total)
