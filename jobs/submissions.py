"""Idempotency: a body that comes twice with an id of the client's choice is one job."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from typing import Any

import orjson

from comfy_execution import jobs, jsonbytes
from jobs.job import Job

_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS


class PromptIdConflict(Exception):
    """The id belongs to another prompt that waits or runs; the message says so."""


def digest_of(body: Any, sensitive: Collection[str]) -> bytes:
    """What tells two bodies of POST /prompt apart, the order of keys aside.

    sensitive: keys of extra_data that are no part of it, so that nothing is stored that depends on them.
    """
    extra_data = body.get("extra_data")
    if isinstance(extra_data, dict):
        kept = {key: value for key, value in extra_data.items() if key not in (*sensitive, "create_time")}
        body = {**body, "extra_data": kept} if kept else {key: body[key] for key in body if key != "extra_data"}
    try:
        encoded = orjson.dumps(body, option=_OPTIONS)
    except (TypeError, ValueError, RecursionError):  # numbers beyond 64 bits, lone surrogates
        encoded = json.dumps(body, sort_keys=True, default=str).encode("ascii")
    return hashlib.sha256(encoded).digest()


def answer_of_known(job: Job | None, digest: bytes) -> dict[str, Any] | None:
    """What was answered to this body before; None if it is to be queued.

    An id whose job has ended may be used again for another prompt, as everywhere in this ecosystem.

    Args:
        job: the job that has the id, if there is one.

    Raises:
        PromptIdConflict: a job of this id waits or runs, and its body was another one.
    """
    if job is None:
        return None
    if job.digest == digest and job.answer is not None:
        return jsonbytes.decode(job.answer)
    if job.state in jobs.QUEUED:
        raise PromptIdConflict(f"another prompt with the prompt_id {job.id} is {job.state}")
    return None
