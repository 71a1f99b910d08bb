"""Functions that packs have put around the engine's own, to see what nodes are given and what they return.

They replace `execution.execute` and `execution._async_map_node_over_list`, and are looked up there at each node. What
cannot be called as the engine calls it, as something for another version cannot, is told once and left out.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from comfy_execution.run import Run

log = logging.getLogger(__name__)

run_waits: ContextVar[bool] = ContextVar("run_waits", default=False)  # whether a run waits for coroutines itself
_unfit: set[Callable] = set()  # functions of packs that cannot be called


class PackHooks:
    """The `run_company.Hooks` of one executor.

    Args:
        names: where packs replace functions.
        own: what was there before, by name.
    """

    def __init__(self, executor: Any, names: Mapping[str, Any], own: Mapping[str, Callable]) -> None:
        self._executor = executor
        self._names = names
        self._own = own

    def _of_a_pack(self, name: str) -> Callable | None:
        function = self._names[name]
        return None if function is self._own[name] or function in _unfit else function

    async def step(self, run: Run, node_id: str) -> None:
        """See `run_company.Hooks`."""
        execute = self._of_a_pack("execute")
        if execute is None:
            return await run.take_up(node_id)
        executor, before = self._executor, run.steps
        node = executor.server, run.prompt, executor.caches, node_id, run.extra_data, run.executed, run.prompt_id
        try:
            await execute(*node, run, {}, {}, run.ui_outputs)
        except TypeError as error:
            if run.steps != before:
                raise
            _leave_out(execute, error)
        if run.steps == before:  # it did not come to what it is put around
            await run.take_up(node_id)

    def mapping(self) -> Callable[..., Awaitable[list[Any]]] | None:
        """See `run_company.Hooks`."""
        return None if self._of_a_pack("_async_map_node_over_list") is None else self._map

    async def _map(self, *args: Any, **kwargs: Any) -> list[Any]:
        name = "_async_map_node_over_list"
        function = self._of_a_pack(name) or self._own[name]
        token = run_waits.set(True)
        try:
            try:
                results = function(*args, **kwargs)
            except TypeError as error:
                _leave_out(function, error)
                results = self._own[name](*args, **kwargs)
            return await results
        finally:
            run_waits.reset(token)


def _leave_out(function: Callable, error: Exception) -> None:
    _unfit.add(function)
    name = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', function)}"
    log.warning("%s, which a pack has put in the place of a function of the engine, is left out: %s", name, error)
