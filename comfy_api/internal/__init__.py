"""What the engine relies on in a schema based node class, whatever version of the interface it was written for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, NamedTuple


class ResolvedInputs(NamedTuple):
    """The inputs a node declares, given what was sent to it; sections map names to `(type, options)`.

    `dynamic` maps dotted names to the path at which the node receives them, `dynamic_roots` names the inputs that have
    inner ones, `empty` are the paths of those that are an empty dict when nothing was sent. `depends_on_sent`: whether
    another prompt may get other inputs.
    """

    required: dict[str, tuple]
    optional: dict[str, tuple]
    hidden: dict[str, str]
    dynamic: dict[str, tuple[str, ...]]
    dynamic_roots: tuple[str, ...]
    empty: tuple[tuple[str, ...], ...]
    depends_on_sent: bool


class _ComfyNodeInternal:
    """Marks schema based node classes of all versions."""


class _NodeOutputInternal:
    """Marks what schema based nodes return, in all versions."""


class classproperty:
    """A property of a class, computed at each reading."""

    def __init__(self, getter: Callable[[Any], Any]) -> None:
        self._getter = getter
        self.__doc__ = getter.__doc__

    def __get__(self, _instance: Any, owner: type) -> Any:
        return self._getter(owner)


def run_to_end(coroutine: Coroutine) -> Any:
    """The result of a coroutine that does not wait for anything, as those of the interface are made.

    Raises:
        RuntimeError: it does wait, which plain code cannot.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise RuntimeError(f"{coroutine.__qualname__} has to wait; it can only be awaited")


def synchronous(cls: type) -> type:
    """A class like `cls` whose coroutine methods are plain ones, and whose nested parts are, too."""

    def plain(method: Callable) -> Callable:
        @wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            return run_to_end(method(self, *args, **kwargs))

        return call

    members: dict[str, Any] = {}
    for name in dir(cls):
        member = inspect.getattr_static(cls, name)
        if inspect.iscoroutinefunction(member):
            members[name] = plain(member)
        elif isinstance(member, type) and not name.startswith("__"):
            members[name] = synchronous(member)
    return type(cls.__name__ + "Sync", (cls,), members)
