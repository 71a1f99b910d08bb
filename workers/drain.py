"""The end of a server's work: what runs is finished if there is time, or else put back for the next start."""

from __future__ import annotations

import asyncio
import logging

from comfy_execution.attempts import StopOrder
from comfy_execution.outcomes import SHUTDOWN
from comfy_execution.prompt_queue import PromptQueue
from workers.local import PromptWorker

log = logging.getLogger(__name__)

GRACE_SECONDS = 0.8  # for what runs to notice that it is to stop
_LOOK_SECONDS = 0.02


async def drain(queue: PromptQueue, worker: PromptWorker, seconds: float, hurry: asyncio.Event) -> None:
    """Take no more prompts; let what runs end within `seconds` (or until `hurry` is set), interrupt it and put it back
    after that. Returns when nothing runs that still counts."""
    queue.close()
    worker.stop()
    if queue.attempts() and seconds > 0:
        log.info("what runs may take %g s more; a second signal interrupts it", seconds)
        await _until_idle(queue, seconds, hurry)
    stopped = queue.stop(StopOrder(SHUTDOWN))
    if stopped:
        log.info("%s is interrupted and put back", ", ".join(stopped))
    await _until_idle(queue, GRACE_SECONDS, asyncio.Event())
    for attempt in queue.attempts():  # its node does not look, and will be left behind with the process
        await asyncio.to_thread(worker.give_up, attempt)


async def _until_idle(queue: PromptQueue, seconds: float, hurry: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while queue.attempts() and not hurry.is_set() and loop.time() < deadline:
        await asyncio.sleep(_LOOK_SECONDS)
