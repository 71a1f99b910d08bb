"""How an exception of a node is told to people and clients (spec execution.md, section 11)."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import traceback
from collections.abc import Collection
from typing import Any

import folder_paths

HIDDEN = "(hidden)"  # stands for a secret
_LEAST_SECRET = 6  # characters; a shorter one is found as a whole value only, or it would be found everywhere
_LONGEST_TEXT = 100_000  # of one shown value; a node's inputs may print without end

_HOST_IS_FULL = "DefaultCPUAllocator: can't allocate memory"
# What the drivers call errors after which every later call fails, too (CUDA runtime API, "sticky" errors).
_OF_A_DEVICE = ("CUDA error", "HIP error", "cuDNN error", "CUBLAS_STATUS", "cudaError")
_LOST = (
    "device-side assert",
    "illegal memory access",
    "illegal instruction",
    "illegal address",
    "misaligned address",
    "unspecified launch failure",
    "launchfailure",
    "launch timed out",
    "hardware stack error",
    "uncorrectable ecc",
    "device is lost",
    "gpu is lost",
)
_DEVICE_LOST_ADVICE = (
    "The device is in a state from which only a new process recovers. The server ends itself (its exit status tells "
    "why) and goes on with the queue when it is started again."
)
_OUT_OF_MEMORY_ADVICE = (
    "The device ran out of memory. Models have been unloaded; the next run may succeed. If it does not, use a smaller "
    "image or batch, tiled decoding, or a smaller model."
)
_SHAPE_ADVICE = (
    "Shapes do not match inside the model. Often the text encoder (or its type) is not the one the diffusion model "
    "was made for: check the loader that makes the conditioning."
)


def type_name(exception: BaseException) -> str:
    """Class name with its module; bare for builtins."""
    cls = type(exception)
    try:
        if cls.__module__ in ("builtins", "", None):
            return cls.__qualname__
        return f"{cls.__module__}.{cls.__qualname__}"
    except BaseException:  # a metaclass is a pack's code, too
        return "(an exception whose class has no name)"


def ends_the_caller(exception: BaseException) -> bool:
    """Whether an exception that code on an event loop has raised is the loop's way of ending the coroutine around it.

    False for one that the code has made itself, like everything else that it may raise: SystemExit, for instance.
    """
    if isinstance(exception, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or not hasattr(task, "cancelling") or task.cancelling() > 0  # Python 3.11 and later tell
    return isinstance(exception, GeneratorExit)


def text_of(exception: BaseException) -> str:
    """`str(exception)`, even if that raises."""
    try:
        return str(exception)
    except BaseException:
        return f"<{type_name(exception)} without a readable message>"


def frames_of(exception: BaseException) -> list[str]:
    """The formatted frames of the traceback, outermost first; files are named without the folders of this machine."""
    try:
        return [_FRAME_FILE.sub(_without_folders, frame) for frame in traceback.format_tb(exception.__traceback__)]
    except BaseException:
        return []


_FRAME_FILE = re.compile(r'(?<=^  File ")[^"]+(?=")')


def _without_folders(path: re.Match[str]) -> str:
    """A path relative to the program, to a folder of packs, or to where Python keeps its libraries."""
    full = path.group()
    for root in (folder_paths.program_path, folder_paths.base_path, *sys.path):
        if root and full.startswith(root.rstrip(os.sep) + os.sep):
            return os.path.relpath(full, root)
    return os.path.basename(full)


def shown_value(value: Any) -> Any:
    """A value as error reports show it: null, numbers, booleans and texts as they are, others as their text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float | str):
        return value if type(value) in (int, float, str) else str(value)
    try:
        text = str(value)
    except BaseException:
        text = f"<{type(value).__name__} without a readable form>"
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "..."


def shown_inputs(data: dict[str, Any]) -> dict[str, list]:
    """Gathered inputs as error reports show them: input name -> list of values."""
    return {name: [shown_value(value) for value in values] for name, values in data.items()}


def secrets_of(value: Any) -> set[str]:
    """All texts in a value, which is secret: the keys of an account, say."""
    if isinstance(value, str):
        return {value} if value else set()
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return set().union(*map(secrets_of, items))


def without_secrets(value: Any, secrets: Collection[str]) -> Any:
    """A copy of a report without secrets: nodes are given them as inputs, and put them into their messages."""
    if isinstance(value, str):
        if value in secrets:
            return HIDDEN
        for secret in secrets:
            if len(secret) >= _LEAST_SECRET:
                value = value.replace(secret, HIDDEN)
        return value
    if isinstance(value, dict):
        return {key: without_secrets(item, secrets) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(item, secrets) for item in value]
    return value


def is_out_of_memory(exception: BaseException) -> bool:
    """Whether the exception says that a device (or the host) ran out of memory."""
    torch = sys.modules.get("torch")
    oom = getattr(torch, "OutOfMemoryError", None)
    if oom is not None and isinstance(exception, oom):
        return True
    accelerator_error = getattr(torch, "AcceleratorError", None)
    if accelerator_error is not None and isinstance(exception, accelerator_error):
        return "out of memory" in text_of(exception).lower()
    return isinstance(exception, RuntimeError) and _HOST_IS_FULL in text_of(exception)


def is_device_lost(exception: BaseException) -> bool:
    """Whether the exception says that a device is in a state from which only a new process recovers."""
    accelerator_error = getattr(sys.modules.get("torch"), "AcceleratorError", RuntimeError)
    if not isinstance(exception, accelerator_error | RuntimeError):
        return False
    text = text_of(exception)
    return any(mark in text for mark in _OF_A_DEVICE) and any(mark in text.lower() for mark in _LOST)


def advice_for(exception: BaseException, class_type: str) -> str:
    """What the user can do about it; empty when there is nothing to say."""
    if is_device_lost(exception):
        return _DEVICE_LOST_ADVICE
    if is_out_of_memory(exception):
        return _OUT_OF_MEMORY_ADVICE
    shapes = "mat1 and mat2 shapes cannot be multiplied" in text_of(exception)
    if shapes and "Sampler" in class_type:
        return _SHAPE_ADVICE
    return ""


def describe(exception: BaseException, class_type: str) -> dict[str, Any]:
    """The three exception fields of an execution_error event."""
    return {
        "exception_message": f"{text_of(exception)}\n{advice_for(exception, class_type)}",
        "exception_type": type_name(exception),
        "traceback": frames_of(exception),
    }
