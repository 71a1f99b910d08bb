"""The jobs view: queue and history as one list of jobs with a state and a summary of their outputs.

Spec: execution.md section 15, http-api.md section 5. Works on queue entries and history entries as they are; it never
fails on what a prompt or a node may have put into them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

PENDING, IN_PROGRESS, COMPLETED, FAILED, CANCELLED = "pending", "in_progress", "completed", "failed", "cancelled"
QUEUED = (PENDING, IN_PROGRESS)


class JobStatus:
    """The states of a job."""

    PENDING, IN_PROGRESS, COMPLETED, FAILED, CANCELLED = PENDING, IN_PROGRESS, COMPLETED, FAILED, CANCELLED
    ALL = (PENDING, IN_PROGRESS, COMPLETED, FAILED, CANCELLED)


SORT_KEYS = ("created_at", "execution_duration")

_PREVIEWABLE_KEYS = frozenset(("images", "video", "audio", "3d", "text"))
_3D_EXTENSIONS = (".obj", ".fbx", ".gltf", ".glb", ".usdz")
_TEXT_EXTENSIONS = (".txt", ".md", ".json")
_LONGEST_TEXT = 1024


def queued_job(entry: Any, state: str) -> dict[str, Any]:
    """A pending or running job."""
    job = {
        "id": entry[1],
        "status": state,
        "priority": entry[0],
        "create_time": _dict(entry[3]).get("create_time"),
        "outputs_count": 0,
        "previewable_outputs_count": 0,
        "workflow_id": workflow_id_of(entry[3]),
    }
    return _without_none(job)


def finished_job(entry: Mapping[str, Any], detailed: bool = False) -> dict[str, Any]:
    """A job from the history; `detailed` adds its outputs, its status and its workflow."""
    number, prompt_id, prompt, extra_data = entry["prompt"][:4]
    state = state_of(entry)
    messages = _messages(entry)
    count, previewable, preview = summarize(entry.get("outputs"))
    error = next((data for name, data in messages if name == "execution_error"), None)
    job = {
        "id": prompt_id,
        "status": state,
        "priority": number,
        "create_time": _dict(extra_data).get("create_time"),
        "execution_start_time": _time_of(messages, ("execution_start",)),
        "execution_end_time": _time_of(messages, ("execution_success", "execution_error", "execution_interrupted")),
        "execution_error": error if state == FAILED else None,
        "outputs_count": count,
        "previewable_outputs_count": previewable,
        "preview_output": preview,
        "workflow_id": workflow_id_of(extra_data),
    }
    if detailed:
        job["outputs"] = normalize_outputs(entry.get("outputs"))
        job["execution_status"] = entry.get("status")
        job["workflow"] = {"prompt": prompt, "extra_data": extra_data}
    return _without_none(job)


def created_at(item: Any) -> Any:
    """The `create_time` of a queue item, None without one."""
    return _dict(item[3]).get("create_time")


def workflow_id_of(extra_data: Any) -> str | None:
    """`extra_data.extra_pnginfo.workflow.id`, if there is such a thing."""
    return _dict(_dict(_dict(extra_data).get("extra_pnginfo")).get("workflow")).get("id")


def normalize_outputs(outputs: Any) -> dict[str, Any]:
    """Outputs with names of 3D files turned into file entries; null items are dropped from lists."""
    normalized = {}
    for node_id, ui in _dict(outputs).items():
        if not isinstance(ui, dict):
            normalized[node_id] = ui
            continue
        normalized[node_id] = {
            key: [_as_file(item) for item in items if item is not None]
            if isinstance(items, list) and key != "animated"
            else items
            for key, items in ui.items()
        }
    return normalized


def summarize(outputs: Any) -> tuple[int, int, dict[str, Any] | None]:
    """How many outputs there are, how many can be previewed, and the one to show.

    The one to show: the first previewable file of type "output"; else the first previewable one; else the first text
    file; else the first text itself.
    """
    count = previewable = 0
    saved = other = text_file = text = None
    for node_id, ui in _dict(outputs).items():
        for key, items in _dict(ui).items():
            if key == "animated" or not isinstance(items, list):
                continue
            for item in map(_as_file, items):
                shown = {"nodeId": node_id, "mediaType": key}
                if not isinstance(item, dict):
                    if text is None and key == "text" and isinstance(item, str):
                        text = _shown_text(item, shown)
                    continue
                count += 1
                if not is_previewable(key, item):
                    continue
                previewable += 1
                shown = {**item, **shown, "mediaType": item.get("mediaType", key)}
                if _is_text(key, item):
                    text_file = text_file or shown
                elif item.get("type") == "output":
                    saved = saved or shown
                else:
                    other = other or shown
    return count, previewable, saved or other or text_file or text


def is_previewable(key: str, item: Mapping[str, Any]) -> bool:
    """Whether an output item can be shown as a preview."""
    if key in _PREVIEWABLE_KEYS or item.get("mediaType") in _PREVIEWABLE_KEYS:
        return True
    if str(item.get("format") or "").startswith(("video/", "audio/")):
        return True
    return _ends_with(item.get("filename"), (*_3D_EXTENSIONS, *_TEXT_EXTENSIONS))


def _is_text(key: str, item: Mapping[str, Any]) -> bool:
    return key == "text" or _ends_with(item.get("filename"), _TEXT_EXTENSIONS)


def _as_file(item: Any) -> Any:
    if isinstance(item, str) and _ends_with(item, _3D_EXTENSIONS):
        return {"filename": item, "type": "output", "subfolder": "", "mediaType": "3d"}
    return item


def _shown_text(text: str, shown: dict[str, Any]) -> dict[str, Any]:
    if len(text) <= _LONGEST_TEXT:
        return {"content": text, **shown}
    return {"content": text[:_LONGEST_TEXT], "truncated": True, **shown}


def _ends_with(name: Any, extensions: tuple[str, ...]) -> bool:
    return isinstance(name, str) and name.lower().endswith(extensions)


def state_of(entry: Mapping[str, Any]) -> str:
    """The state of a job in the history."""
    if _dict(entry.get("status")).get("status_str") == "success":
        return COMPLETED
    if any(name == "execution_interrupted" for name, _ in _messages(entry)):
        return CANCELLED
    return FAILED


def _messages(entry: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(message[0], message[1]) for message in _dict(entry.get("status")).get("messages") or ()]


def _time_of(messages: Iterable[tuple[str, dict[str, Any]]], names: tuple[str, ...]) -> int | None:
    found = [data.get("timestamp") for name, data in messages if name in names]
    return found[-1] if found else None


def _dict(value: Any) -> Mapping[str, Any]:
    return value if type(value) is dict or isinstance(value, Mapping) else {}


def _without_none(job: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in job.items() if value is not None}
