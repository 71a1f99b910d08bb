"""What has ended: history entries by prompt id, oldest first, bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from comfy_execution import jsonbytes

MAXIMUM_HISTORY_SIZE = 10_000


class HistoryEntry(dict):
    """`{"prompt", "outputs", "status", "meta"}`; its JSON is made once, when first asked for.

    prompt_json: the JSON of "prompt", if there is one already.
    """

    _json: bytes | None = None
    prompt_json: bytes | None = None

    @property
    def json(self) -> bytes:
        """UTF-8 JSON of the entry."""
        if self._json is None:
            parts = dict(self)
            if self.prompt_json is not None:
                parts.pop("prompt", None)
                self._json = joined(self.prompt_json, jsonbytes.encode(parts))
            else:
                self._json = jsonbytes.encode(parts)
        return self._json


def joined(prompt: bytes, rest: bytes) -> bytes:
    """JSON of an entry, of the JSON of its prompt and of the object that the rest of it is."""
    return b'{"prompt":%b%b' % (prompt, b"}" if rest == b"{}" else b"," + rest[1:])


def json_of(record: Mapping[str, Any]) -> bytes:
    """JSON of a history entry, which may be any mapping that a pack has put there."""
    return record.json if isinstance(record, HistoryEntry) else jsonbytes.encode(dict(record))


class History(dict):
    """The history of a queue without a store: a dict that drops its oldest entries beyond `limit`."""

    limit = MAXIMUM_HISTORY_SIZE

    def remember(self, prompt_id: str, record: HistoryEntry) -> None:
        """Add the newest entry."""
        self.pop(prompt_id, None)
        while len(self) >= self.limit:
            del self[next(iter(self))]
        self[prompt_id] = record

    def discard(self, prompt_ids: Sequence[str]) -> None:
        """Forget entries of prompts that are to run anew."""
        for prompt_id in prompt_ids:
            self.pop(prompt_id, None)

    def drop(self, prompt_id: str) -> None:
        """Forget an entry, if there is one."""
        self.pop(prompt_id, None)

    def shows(self, prompt_id: str) -> bool:
        """Whether there is an entry, as far as that can be told at once; of a history on disk it may be not."""
        return prompt_id in self

    def is_at_hand(self, prompt_id: str) -> bool:
        """Whether looking for an id costs nothing; of a history on disk it may not be."""
        return True

    def ids(self, start: int, stop: int) -> list[str]:
        """The ids from place `start` to before `stop`, oldest first."""
        return list(islice(self, start, stop))

    def jsons(self, prompt_ids: Sequence[str]) -> list[tuple[str, bytes]]:
        """The JSON of entries; unknown ids are left out."""
        return [(ident, json_of(self[ident])) for ident in prompt_ids if ident in self]
