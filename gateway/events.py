"""From what `send_sync` is given to a frame: encoded, within its size, and knowing what may be dropped for it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from gateway.outbox import Frame
from protocol import JPEG_IMAGE, BinaryEventTypes, encode_event

LARGEST_EVENT = 4 << 20  # bytes of a run's JSON event; the default limit of common WebSocket clients is 4 MiB
_FLEETING = ("logs", "feature_flags")  # not of a job

# The parts of a run's events that nodes fill, and that may be of any size.
_UNBOUNDED = {
    "executed": ("output",),
    "execution_error": ("current_inputs", "traceback", "exception_message"),
}


def frame_of(event: str | int, data: Any) -> Frame:
    """The frame of an event. Raises UnsendableError, or whatever encoding an image raises."""
    encoded, binary = encode_event(event, data)
    if len(encoded) > LARGEST_EVENT and event in _UNBOUNDED and isinstance(data, dict):
        encoded, _ = encode_event(event, _shortened(data, _UNBOUNDED[event], len(encoded)))
    return Frame(encoded, binary, _replace_key(event, data, encoded), event in _FLEETING)


def is_replaceable(event: str | int) -> bool:
    """Whether events of this name are superseded by newer ones, whatever their data; told without encoding them."""
    return event in ("progress", "progress_state")


def _replace_key(event: str | int, data: Any, frame: bytes) -> Hashable:
    """What a newer frame of the same key makes superfluous; None for events that must all arrive."""
    if event == "progress" and isinstance(data, dict):
        return event, data.get("prompt_id"), data.get("node")
    if event == "progress_state" and isinstance(data, dict):
        return event, data.get("prompt_id")
    if event in (BinaryEventTypes.PREVIEW_IMAGE, BinaryEventTypes.UNENCODED_PREVIEW_IMAGE):
        # PNG frames are how nodes deliver final images; only samplers' JPEG previews are replaceable.
        return ("preview",) if frame[4:8] == JPEG_IMAGE.to_bytes(4, "big") else None
    if event == BinaryEventTypes.PREVIEW_IMAGE_WITH_METADATA:
        metadata = data[1] if isinstance(data, tuple) else {}
        return "preview", metadata.get("prompt_id"), metadata.get("node_id")
    return None


def _shortened(data: dict[str, Any], parts: tuple[str, ...], size: int) -> dict[str, Any]:
    """An event's data with its large parts replaced by where to read them: the history, once the prompt has ended."""
    where = {"bytes": size, "limit": LARGEST_EVENT, "url": f"/history/{data.get('prompt_id')}"}
    short = dict(data)
    for part in parts:
        value = data.get(part)
        if isinstance(value, dict):
            short[part] = {"oversized": [where]}
        elif isinstance(value, list):
            short[part] = [str(line)[:1000] for line in value[:50]]
        elif isinstance(value, str):
            short[part] = value[:10_000]
    return short
