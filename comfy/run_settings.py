"""Settings of the process that a node may switch and forget to switch back: the next prompt finds them as they were.

Nodes share one thread and one torch. A pack that leaves autocast on, say, or another default dtype, would change what
everybody's prompts compute from then on. Settings that packs switch on purpose for all that follows (precision of
matrix products, attention kernels, threads) are left alone, and so is whatever a pack does while it is imported.
"""

from __future__ import annotations

import contextlib
import locale
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

log = logging.getLogger(__name__)

_AUTOCAST_TYPES = ("cpu", "cuda")


class RunSettings:
    """The settings of the moment; `restore` sets back what has changed since. For one thread."""

    def __init__(self) -> None:
        self._before = {name: read() for name, read, _ in _SETTINGS}

    def restore(self) -> list[str]:
        """Set back what has changed. Returns the names of it. Never raises."""
        changed = []
        for name, read, write in _SETTINGS:
            before = self._before[name]
            try:
                if read() == before:
                    continue
                write(before)
                changed.append(name)
            except Exception:
                log.warning("%s cannot be set back", name, exc_info=True)
        return changed


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it has been deleted
        return None


def _set_folder(path: str | None) -> None:
    if path is not None:
        os.chdir(path)


def _autocast() -> tuple:
    types = [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _AUTOCAST_TYPES]
    return (_autocast_depth(), torch.is_autocast_cache_enabled(), *types)


def _autocast_depth() -> int:
    torch.autocast_increment_nesting()  # there is no other way to ask
    return torch.autocast_decrement_nesting()


def _set_autocast(state: tuple) -> None:
    depth, cached, *types = state
    for kind, (enabled, dtype) in zip(_AUTOCAST_TYPES, types, strict=True):
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)
    torch.set_autocast_cache_enabled(cached)
    left = _autocast_depth() - depth
    for _ in range(abs(left)):
        (torch.autocast_decrement_nesting if left > 0 else torch.autocast_increment_nesting)()
    if depth == 0:
        torch.clear_autocast_cache()


def _modes() -> tuple:
    """The default device, and the modes (of which a `with torch.device(…)` is one) that are in force."""
    return torch.get_default_device(), tuple(torch.overrides._get_current_function_mode_stack())


def _set_modes(state: tuple) -> None:
    device, modes = state
    with contextlib.suppress(Exception):  # it looks for its own mode, which others may lie upon
        torch.set_default_device(None)
    # Not by leaving them: a `torch.device` that was entered cannot be left by way of its mode.
    for _ in torch.overrides._get_current_function_mode_stack():
        torch.overrides._pop_mode()
    for mode in modes:
        torch.overrides._push_mode(mode)
    if torch.get_default_device() != device:
        torch.set_default_device(device)


def _least_recursion() -> int:
    """The recursion limit, as far as it has been lowered; a higher one harms nobody."""
    return min(sys.getrecursionlimit(), _RECURSION)


_RECURSION = sys.getrecursionlimit()

Setting = tuple[str, Callable[[], Any], Callable[[Any], None]]


def _settings() -> Iterator[Setting]:
    yield "the recursion limit", _least_recursion, sys.setrecursionlimit  # first: the others need it
    yield "the default dtype", torch.get_default_dtype, torch.set_default_dtype
    yield "the default device", _modes, _set_modes
    yield "autocast", _autocast, _set_autocast
    yield "deterministic algorithms", torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode
    yield "the working directory", _folder, _set_folder
    yield "the locale", lambda: locale.setlocale(locale.LC_ALL), lambda name: locale.setlocale(locale.LC_ALL, name)
    yield "standard output", lambda: (sys.stdout, sys.stderr), _set_output
    yield "the log's lowest level", lambda: logging.root.manager.disable, logging.disable


def _set_output(streams: tuple) -> None:
    sys.stdout, sys.stderr = streams


_SETTINGS = tuple(_settings())
