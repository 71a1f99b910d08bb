"""What the engine relies on in a schema based node class, whatever version of the interface it was written for."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
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


def run_to_end(awaitable: Awaitable) -> Any:
    """The result of an awaitable, for code that cannot await.

    Most finish without waiting; one that does wait gets a loop of its own in another thread, since the caller's thread
    may be running one.
    """

    async def wait() -> Any:
        return await awaitable

    coroutine = wait()
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise RuntimeError("this call has to wait; await it on ComfyAPI instead of calling it on ComfyAPISync")


def synchronous(cls: type) -> type:
    """A class like `cls` whose coroutine methods are plain ones, and whose nested parts are, too."""

    def plain(method: Callable) -> Callable:
        @wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            return _run(lambda: method(self, *args, **kwargs))

        return call

    members: dict[str, Any] = {}
    for name in dir(cls):
        member = inspect.getattr_static(cls, name)
        if inspect.iscoroutinefunction(member):
            members[name] = plain(member)
        elif isinstance(member, type) and not name.startswith("__"):
            members[name] = synchronous(member)
    return type(cls.__name__ + "Sync", (cls,), members)


def _run(make: Callable[[], Awaitable]) -> Any:
    try:
        return run_to_end(make())
    except RuntimeError as error:
        if "has to wait" not in str(error):
            raise
    result: dict[str, Any] = {}

    def run() -> None:
        try:
            result["value"] = asyncio.run(make())
        except BaseException as failure:
            result["error"] = failure

    thread = threading.Thread(target=run, name="comfy-api-sync")
    thread.start()
    thread.join()
    if "error" in result:
        raise result["error"]
    return result["value"]
