"""What a process that a node forks off must not have: it may live on when the server is killed.

A copy of the listening socket keeps the port taken, a copy of the lock keeps the file of the jobs taken; the next
server could use neither. Programs that are started (`exec`) get neither; only bare forks, as of `multiprocessing`, do.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class HasDescriptor(Protocol):
    """A socket, a file."""

    def fileno(self) -> int:
        """Its descriptor; negative if it is closed."""


_kept: WeakSet[HasDescriptor] = WeakSet()


def keep_from_children(thing: HasDescriptor) -> None:
    """In processes forked off from now on, the descriptor of `thing` leads nowhere."""
    _kept.add(thing)


def _in_child() -> None:
    # Not closed: the number would come into use again, and the copy of `thing` would close that at its end.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for thing in list(_kept):
        descriptor = thing.fileno()
        if descriptor >= 0:
            os.dup2(nowhere, descriptor, inheritable=False)
    os.close(nowhere)


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing is forked
    os.register_at_fork(after_in_child=_in_child)
