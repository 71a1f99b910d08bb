"""`queue.history` over a store: a mapping of which only the newest part is in memory."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from itertools import islice
from typing import Any

from comfy_execution import jsonbytes
from comfy_execution.history import HistoryEntry, joined
from comfy_execution.prompt_queue import QueueEntry
from jobs.store import JobStore, Payload, StoreUnavailable
from jobs.writer import Writer

RECENT_ENTRIES = 128  # how many of the newest stay in memory
RECENT_BYTES = 16 * 2**20  # and how large their JSON may be in all


class StoredHistory(MutableMapping[str, HistoryEntry]):
    """The newest `limit` entries by prompt id, oldest first; by id also older ones that the store still has.

    Changes go to the store by themselves. An entry that is changed in place is not written: assign it.

    Args:
        store: gives the store that is in use.
        limit: how many entries there are when one counts them or goes through them.
        adopt: told of entries that did not come from the queue.
        forget: deletes jobs by id; None: all that have ended.
        is_queued: whether a prompt waits or runs: then it has no entry, whatever the store has of an earlier run.
    """

    def __init__(
        self,
        store: Callable[[], JobStore],
        writer: Writer,
        limit: int,
        adopt: Callable[[str, Mapping[str, Any]], None],
        forget: Callable[[Sequence[str] | None], object],
        is_queued: Callable[[str], bool],
    ) -> None:
        self._store = store
        self._writer = writer
        self._adopt = adopt
        self._forget = forget
        self._is_queued = is_queued
        self.limit = max(1, limit)
        self._lock = threading.RLock()
        self._ids: dict[str, None] = dict.fromkeys(store().history_ids(self.limit))
        self._recent: OrderedDict[str, HistoryEntry] = OrderedDict()
        self._recent_bytes = 0

    def remember(self, prompt_id: str, record: HistoryEntry) -> None:
        """Add the newest entry."""
        encoded = jsonbytes.encode({key: value for key, value in record.items() if key != "prompt"})
        if record.prompt_json is None:
            record.prompt_json = jsonbytes.encode(record.get("prompt"))
        record._json = joined(record.prompt_json, encoded)
        with self._lock:
            self._writer.add("keep", prompt_id, encoded)
            self._ids.pop(prompt_id, None)
            while len(self._ids) >= self.limit:
                del self._ids[next(iter(self._ids))]
            self._ids[prompt_id] = None
            self._drop_recent(prompt_id)
            self._recent[prompt_id] = record
            self._recent_bytes += len(record._json)
            while len(self._recent) > RECENT_ENTRIES or (self._recent_bytes > RECENT_BYTES and len(self._recent) > 1):
                self._drop_recent(next(iter(self._recent)))

    def ids(self, start: int, stop: int) -> list[str]:
        """The ids from place `start` to before `stop`, oldest first."""
        with self._lock:
            return list(islice(self._ids, start, stop))

    def jsons(self, prompt_ids: Sequence[str]) -> list[tuple[str, bytes]]:
        """The JSON of entries; unknown ids are left out."""
        with self._lock:
            found = {ident: self._recent[ident].json for ident in prompt_ids if ident in self._recent}
        others = [ident for ident in prompt_ids if ident not in found and not self._is_queued(ident)]
        if others:
            self._writer.settle()
            for payload in self._store().payloads(others).values():
                if payload.result is not None:
                    found[payload.id] = joined(payload.entry, payload.result)
        return [(ident, found[ident]) for ident in prompt_ids if ident in found]

    def drop(self, prompt_id: str) -> None:
        """Forget an entry, if there is one, without a look at the disk: somebody holds a lock meanwhile."""
        self._forget([prompt_id])

    def shows(self, prompt_id: str) -> bool:
        """Whether the listing has an entry. Never looks at the disk."""
        return prompt_id in self._ids

    def is_at_hand(self, prompt_id: str) -> bool:
        """Whether it is known without the disk what there is of an id."""
        return prompt_id in self._recent or self._is_queued(prompt_id)

    def at_hand(self) -> list[tuple[str, HistoryEntry]]:
        """The newest entries, oldest of them first, that are known without the disk."""
        with self._lock:
            return list(self._recent.items())

    def discard(self, prompt_ids: Sequence[str]) -> None:
        """Forget ids that the store has not any more, or that are to run anew."""
        with self._lock:
            for ident in prompt_ids:
                self._ids.pop(ident, None)
                self._drop_recent(ident)

    def _drop_recent(self, prompt_id: str) -> None:
        record = self._recent.pop(prompt_id, None)
        if record is not None:
            self._recent_bytes -= len(record.json)

    # --- as a mapping --------------------------------------------------------------------------------------

    def __getitem__(self, prompt_id: str) -> HistoryEntry:
        with self._lock:
            record = self._recent.get(prompt_id)
        if record is not None:
            return record
        if self._is_queued(prompt_id):
            raise KeyError(prompt_id)
        self._writer.settle()
        payload = self._store().payloads([prompt_id]).get(prompt_id)
        if payload is None or payload.result is None:
            raise KeyError(prompt_id)
        return entry_of(payload)

    def __setitem__(self, prompt_id: str, record: Mapping[str, Any]) -> None:
        entry = HistoryEntry(record)
        self._adopt(prompt_id, entry)
        self.remember(prompt_id, entry)

    def __delitem__(self, prompt_id: str) -> None:
        if prompt_id not in self._ids and prompt_id not in self:
            raise KeyError(prompt_id)
        self._forget([prompt_id])

    def __contains__(self, prompt_id: object) -> bool:
        if prompt_id in self._ids:
            return True
        try:
            self[prompt_id]  # type: ignore[index]
        except KeyError:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            return iter(list(self._ids))

    def __len__(self) -> int:
        return len(self._ids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and len(self) == len(other) and dict(self.items()) == dict(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<history of {len(self)} prompts>"

    def clear(self) -> None:
        """Forget all jobs that have ended, also those that the listing does not reach."""
        self._forget(None)
        with self._lock:
            self._ids.clear()
            self._recent.clear()
            self._recent_bytes = 0


def entry_of(payload: Payload) -> HistoryEntry:
    """The history entry of a stored job that has a result. Raises StoreUnavailable if the file is damaged there."""
    result = payload.result or b"{}"
    with _told(payload):
        entry = HistoryEntry({"prompt": jsonbytes.decode(payload.entry), **jsonbytes.decode(result)})
    entry.prompt_json, entry._json = payload.entry, joined(payload.entry, result)
    return entry


def queue_entry_of(payload: Payload) -> QueueEntry:
    """The queue entry of a stored job. Raises StoreUnavailable if the file is damaged there."""
    with _told(payload):
        return QueueEntry.restored(payload.entry)


@contextlib.contextmanager
def _told(payload: Payload) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError) as error:
        raise StoreUnavailable(f"what is stored of job {payload.id} is damaged: {error}") from error
