"""A node pack for bench/protocol.py: prompts that wait, nodes that report, and a look at the server from inside."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
import uuid

from aiohttp import web

import gateway.events
from comfy.interrupt import interrupt_current_processing
from comfy.utils import ProgressBar
from comfy_execution.progress import get_progress_state
from comfy_execution.prompt_queue import ExecutionStatus
from comfy_execution.utils import get_executing_context
from server import PromptServer

released = [threading.Event()]  # the one that the present BenchWait waits for


class BenchWait:
    """Keeps the worker busy, deaf to interrupts, until /bench/release is asked for."""

    RETURN_TYPES = ()
    FUNCTION = "run"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"number": ("INT", {"default": 0, "max": 1 << 30})}}

    def run(self, number):
        released[0].wait()
        return {"ui": {"text": ["released"]}}


class BenchProgress:
    """Reports its progress `updates` times by each interface; its ui holds the microseconds one report took."""

    RETURN_TYPES = ()
    FUNCTION = "run"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls):
        number = ("INT", {"default": 0, "max": 1 << 30})
        return {"required": {"updates": number, "number": number}}

    def run(self, updates, number):
        bar, registry, server = ProgressBar(updates), get_progress_state(), PromptServer.instance
        node_id = get_executing_context().node_id
        ways = {
            "bar": lambda value: bar.update(1),
            "registry": lambda value: registry.update_progress(node_id, value, updates),
            "event": lambda value: server.send_sync("bench.tick", {"value": value}),
            "kept": lambda value: server.send_sync("bench.kept", {"value": value}, "bench-away"),
        }
        return {"ui": {"bench": [{"way": way, **spent(report, updates)} for way, report in ways.items()]}}


def spent(report, updates: int) -> dict[str, float]:
    """Microseconds per call: of this thread's processor time, and as the clock goes."""
    wall, cpu = time.perf_counter(), time.thread_time()
    for value in range(1, updates + 1):
        report(value)
    cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
    return {"cpu": 1e6 * cpu / updates, "wall": 1e6 * wall / updates}


NODE_CLASS_MAPPINGS = {"BenchWait": BenchWait, "BenchProgress": BenchProgress}

server = PromptServer.instance


def entry(number: float, prompt: dict) -> tuple:
    """A queue entry as POST /prompt makes them."""
    extra = {"client_id": "bench", "create_time": int(time.time() * 1000)}
    return number, str(uuid.uuid4()), prompt, extra, ["9"], {}


@server.routes.post("/bench/release")
async def release(request: web.Request) -> web.Response:
    """Let BenchWait end; the next one waits again."""
    released[0].set()
    released[0] = threading.Event()
    return web.Response()


@server.routes.post("/bench/fill")
async def fill(request: web.Request) -> web.Response:
    """Put `history` finished and `pending` waiting prompts behind the one that runs."""
    order = await request.json()
    queue, prompt = server.prompt_queue, order["prompt"]
    for _ in range(order["history"]):
        queue.put(entry(-1.0, prompt))
        item, task = queue.get()
        now = item[3]["create_time"]
        started = ("execution_start", {"prompt_id": item[1], "timestamp": now})
        ended = ("execution_success", {"prompt_id": item[1], "timestamp": now + 1500})
        image = {"filename": f"bench_{task:05}_.png", "subfolder": "", "type": "output"}
        outputs = {"outputs": {"9": {"images": [image]}}, "meta": {}}
        queue.task_done(task, outputs, ExecutionStatus("success", True, [started, ended]))
    for number in range(order["pending"]):
        queue.put(entry(float(number + 1), prompt))
    return web.json_response({"pending": len(queue.queue), "history": len(queue.history)})


@server.routes.get("/bench/operations")
async def operations(request: web.Request) -> web.Response:
    """Median milliseconds of single operations at the queue as it is."""
    queue = server.prompt_queue
    pending = [item[1] for item in queue.queue]
    count = min(200, len(pending) // 4)
    (running,) = queue.running_ids()

    def measure(operate, arguments) -> float:
        spent = []
        for argument in arguments:
            started = time.perf_counter()
            operate(argument)
            spent.append(time.perf_counter() - started)
        return 1e3 * statistics.median(spent)

    middle = pending[len(pending) // 2 :]
    measured = {
        "delete": measure(lambda ident: queue.delete_queue_items([ident]), middle[:count]),
        "cancel": measure(lambda ident: queue.cancel([ident]), middle[count : 2 * count]),
        "interrupt": measure(lambda ident: queue.interrupt(None, ident), [running] * count),
    }
    interrupt_current_processing(False)
    return web.json_response(measured)


@server.routes.get("/bench/encodings")
async def encodings(request: web.Request) -> web.Response:
    """How often an event sent to all connections is encoded."""
    original, calls = gateway.events.encode_event, 0

    def counting(event, data):
        nonlocal calls
        calls += event == "bench.once"
        return original(event, data)

    gateway.events.encode_event = counting
    try:
        for number in range(100):
            server.send_sync("bench.once", {"number": number})
        await asyncio.sleep(0.2)
    finally:
        gateway.events.encode_event = original
    return web.json_response({"per_event": calls / 100, "sockets": len(server.sockets)})
