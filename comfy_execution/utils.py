"""Which node is running right here: readable from inside a node (spec execution.md, 5.2)."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import NamedTuple


class ExecutionContext(NamedTuple):
    """The call in progress. `list_index` numbers the calls of a node that is run per list item."""

    prompt_id: str
    node_id: str
    list_index: int | None


_current: ContextVar[ExecutionContext | None] = ContextVar("executing_node", default=None)


def get_executing_context() -> ExecutionContext | None:
    """(prompt_id, node_id, list_index) of the node whose code is running; None outside of one."""
    return _current.get()


class CurrentNodeContext:
    """`with CurrentNodeContext(prompt_id, node_id, list_index):` makes that call the current one."""

    __slots__ = ("_context", "_token")

    def __init__(self, prompt_id: str, node_id: str, list_index: int | None = None) -> None:
        self._context = ExecutionContext(prompt_id, node_id, list_index)
        self._token: Token | None = None

    def __enter__(self) -> CurrentNodeContext:
        self._token = _current.set(self._context)
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._token is not None:
            _current.reset(self._token)
            self._token = None
