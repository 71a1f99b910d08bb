"""Result stores outside of the process, brought along by packs (spec execution.md 8.7).

A provider is asked on a local miss and told about every new result whose key means the same in another process.
"""

from __future__ import annotations

import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CacheContext:
    """Which result is meant. `cache_key_hash` is the SHA-256 of the node's key, in hex."""

    node_id: str
    class_type: str
    cache_key_hash: str


@dataclass
class CacheValue:
    """A result: one list of values per output slot, and UI data as the history shows it."""

    outputs: list[list]
    ui: dict[str, Any] | None = None


class CacheProvider(ABC):
    """A store of results. Methods may be coroutine functions; what they raise is logged and counts as a miss."""

    @abstractmethod
    async def on_lookup(self, context: CacheContext) -> CacheValue | None:
        """The result, or None."""

    @abstractmethod
    async def on_store(self, context: CacheContext, value: CacheValue) -> None:
        """A result has been made."""

    def should_cache(self, context: CacheContext, value: CacheValue | None = None) -> bool:
        """Whether to look for (value None) or keep this result."""
        return True

    def on_prompt_start(self, prompt_id: str) -> None:  # noqa: B027
        """A prompt starts."""

    def on_prompt_end(self, prompt_id: str) -> None:  # noqa: B027
        """A prompt has ended."""


_providers: list[CacheProvider] = []


def providers() -> tuple[CacheProvider, ...]:
    """The registered providers."""
    return tuple(_providers)


def register_cache_provider(provider: CacheProvider) -> None:
    """Add a store; it is asked after those added before it."""
    if provider not in _providers:
        _providers.append(provider)


def unregister_cache_provider(provider: CacheProvider) -> None:
    """Take a store out."""
    if provider in _providers:
        _providers.remove(provider)


async def look_up(context: CacheContext) -> CacheValue | None:
    """The first result that a provider has."""
    for provider in providers():
        try:
            if not provider.should_cache(context):
                continue
            value = await _resolved(provider.on_lookup(context))
        except Exception:
            log.warning("cache provider %r failed to look up node %s", provider, context.node_id, exc_info=True)
            continue
        if value is not None:
            return value
    return None


async def store(context: CacheContext, value: CacheValue) -> None:
    """Offer a result to all providers."""
    for provider in providers():
        try:
            if provider.should_cache(context, value):
                await _resolved(provider.on_store(context, value))
        except Exception:
            log.warning("cache provider %r failed to store node %s", provider, context.node_id, exc_info=True)


def announce(event: str, prompt_id: str) -> None:
    """Call `on_prompt_start` or `on_prompt_end` of all providers."""
    for provider in providers():
        try:
            getattr(provider, event)(prompt_id)
        except Exception:
            log.warning("cache provider %r failed in %s", provider, event, exc_info=True)


async def _resolved(value: Awaitable | Any) -> Any:
    return await value if inspect.isawaitable(value) else value
