"""The interrupt flag: one per process, set by a client or a signal, raised where work is polled.

Lives apart from `comfy.model_management` so that the server can interrupt before torch is imported.
Meaning: spec execution.md section 12.
"""

from __future__ import annotations

import threading

_flag = threading.Event()


class InterruptProcessingException(BaseException):
    """The running prompt was told to stop.

    A BaseException, so that a node's `except Exception` does not swallow it.
    """


def interrupt_current_processing(value: bool = True) -> None:
    """Ask the running prompt to stop (or take the request back with `value=False`)."""
    if value:
        _flag.set()
    else:
        _flag.clear()


def processing_interrupted() -> bool:
    """Whether a stop was asked for and not yet raised."""
    return _flag.is_set()


def throw_exception_if_processing_interrupted() -> None:
    """Raise InterruptProcessingException once if a stop was asked for."""
    if _flag.is_set():
        _flag.clear()
        raise InterruptProcessingException()
