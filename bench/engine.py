"""What the engine itself costs: CPU time of runs whose nodes do nothing.

    python bench/engine.py [--json]

Times are CPU milliseconds of the executing thread, the best of several runs, with a server that swallows events.
Limits are those that the engine promises; the exit status is 1 when one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import sys
import threading
import time
import types
import uuid
from collections.abc import Callable
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Number:
    RETURN_TYPES = ("INT",)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"value": ("INT", {"default": 0, "min": 0, "max": 10**9})}}

    def run(self, value: int) -> tuple[int]:
        return (value,)


class Add:
    RETURN_TYPES = ("INT",)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"a": ("INT", {"forceInput": True}), "b": ("INT", {"default": 1})}}

    def run(self, a: int, b: int) -> tuple[int]:
        return (a + b,)


class Show:
    RETURN_TYPES = ()
    FUNCTION = "run"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"value": ("*", {})}}

    def run(self, value: Any) -> dict[str, Any]:
        return {"ui": {"text": [str(value)]}}


class Server:
    """As much of a server as the engine needs."""

    def __init__(self) -> None:
        self.client_id: str | None = None
        self.last_node_id: str | None = None
        self.last_prompt_id: str | None = None
        self.sockets_metadata: dict[str, Any] = {}
        self.prompt_queue: Any = None
        self.nodes_ready = threading.Event()
        self.nodes_ready.set()
        self.sent = 0
        self.ended = threading.Event()

    def send_sync(self, event: str | int, data: Any, sid: str | None = None) -> None:
        self.sent += 1
        if event == "executing" and data["node"] is None:
            self.ended.set()

    def queue_updated(self) -> None:
        self.sent += 1


def chain(length: int, seed: int) -> dict[str, dict]:
    """Number -> length x Add -> Show."""
    prompt = {"0": {"class_type": "Number", "inputs": {"value": seed}}}
    for index in range(1, length + 1):
        prompt[str(index)] = {"class_type": "Add", "inputs": {"a": [str(index - 1), 0], "b": index}}
    prompt["out"] = {"class_type": "Show", "inputs": {"value": [str(length), 0]}}
    return prompt


def wide(width: int, seed: int) -> dict[str, dict]:
    """width x (Number -> Show)."""
    prompt: dict[str, dict] = {}
    for index in range(width):
        prompt[f"n{index}"] = {"class_type": "Number", "inputs": {"value": seed * 100_000 + index}}
        prompt[f"s{index}"] = {"class_type": "Show", "inputs": {"value": [f"n{index}", 0]}}
    return prompt


def outputs_of(prompt: dict[str, dict]) -> list[str]:
    """The output nodes."""
    return [node_id for node_id, node in prompt.items() if node["class_type"] == "Show"]


class Bench:
    """One executor, as the worker has it."""

    def __init__(self) -> None:
        import execution
        from comfy_execution.caching import CacheType

        self.server = Server()
        self.seeds = itertools.count(1)
        self.executor = execution.PromptExecutor(self.server, CacheType.RAM_PRESSURE)
        self.validate_prompt = execution.validate_prompt

    def run(self, prompt: dict[str, dict]) -> float:
        """CPU milliseconds of a run."""
        outputs = outputs_of(prompt)
        started = time.thread_time()
        self.executor.execute(prompt, str(uuid.uuid4()), {"client_id": "bench"}, outputs)
        spent = (time.thread_time() - started) * 1000
        assert self.executor.success, self.executor.status_messages[-1]
        return spent

    def uncached(self, make: Callable[[int, int], dict], size: int, repeats: int) -> float:
        """Best of runs of which each has other values."""
        return min(self.run(make(size, next(self.seeds))) for _ in range(repeats))

    def cached(self, make: Callable[[int, int], dict], size: int, repeats: int) -> float:
        """Best of runs in which nothing has to be executed."""
        prompt = make(size, 0)
        self.run(prompt)
        return min(self.run(prompt) for _ in range(repeats))

    def growth(self, make: Callable[[int, int], dict], state: str, rounds: int = 6) -> float:
        """How many times the time of 1,000 nodes 10,000 take; measured in turns, as machines change their speed."""
        measure = getattr(self, state)
        size = 500 if make is wide else 1000  # two nodes each
        pairs = [(measure(make, size, 4), measure(make, 10 * size, 2)) for _ in range(rounds)]
        return min(large for _, large in pairs) / min(small for small, _ in pairs)

    def validation(self, make: Callable[[int, int], dict], size: int, repeats: int) -> float:
        """Best of checks of a prompt."""
        best = float("inf")
        for _ in range(repeats):
            prompt = make(size, 0)
            started = time.thread_time()
            asyncio.run(self.validate_prompt("bench", prompt, None))
            best = min(best, (time.thread_time() - started) * 1000)
        return best


def small_prompts(count: int) -> float:
    """Milliseconds (of the whole process) per three-node prompt: checked, queued, run by a worker, recorded.

    The median of seven times `count` prompts.
    """
    import execution
    from workers.local import PromptWorker

    server = Server()
    queue = execution.PromptQueue(server)
    worker = PromptWorker(server, queue, execution.PromptExecutor)
    worker.start()
    loop = asyncio.new_event_loop()  # one for all prompts, as the server's

    def one(seed: int) -> None:
        prompt = chain(1, seed)
        prompt_id = str(uuid.uuid4())
        _, _, outputs, _ = loop.run_until_complete(execution.validate_prompt(prompt_id, prompt, None))
        server.ended.clear()
        queue.put((seed, prompt_id, prompt, {"client_id": "bench"}, outputs, {}))
        server.ended.wait(10)

    one(-1)  # what a worker does once, when it starts
    spent = []
    for part in range(7):
        started = time.process_time()
        for seed in range(part * count, (part + 1) * count):
            one(seed)
        spent.append((time.process_time() - started) * 1000 / count)
    loop.close()
    worker.stop()
    worker.join(5)
    return statistics.median(spent)


def measure() -> dict[str, tuple[float, float | None]]:
    """Name -> (measured, limit)."""
    bench = Bench()
    bench.run(chain(3, 0))  # imports what is imported with the first run
    result: dict[str, tuple[float, float | None]] = {
        "chain of 1,000, cached, ms": (bench.cached(chain, 1000, 7), 25.0),
        "wide 1,000, cached, ms": (bench.cached(wide, 1000, 7), 25.0),
        "chain of 1,000, uncached, ms": (bench.uncached(chain, 1000, 5), 250.0),
        "wide 1,000, uncached, ms": (bench.uncached(wide, 1000, 5), 250.0),
        "chain of 1,000, validated, ms": (bench.validation(chain, 1000, 5), None),
        "wide 1,000, validated, ms": (bench.validation(wide, 1000, 5), None),
        "three nodes end to end, ms": (small_prompts(100), 1.5),
    }
    for name, make in (("chain", chain), ("wide", wide)):
        for state in ("cached", "uncached"):
            result[f"{name}, {state}: 10,000 against 1,000 nodes, times"] = (bench.growth(make, state), 12.0)
    return result


def main() -> int:
    """Measure, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    nodes = types.ModuleType("nodes")
    nodes.NODE_CLASS_MAPPINGS = {cls.__name__: cls for cls in (Number, Add, Show)}
    sys.modules["nodes"] = nodes
    import gc

    gc.collect()
    gc.freeze()
    gc.set_threshold(700, 10, 1_000_000)  # as the worker sets it
    result = measure()
    if arguments.json:
        print(json.dumps({name: round(value, 3) for name, (value, _) in result.items()}))
    else:
        for name, (value, limit) in result.items():
            verdict = "" if limit is None else f"  limit {limit:g}  {'ok' if value <= limit else 'MISSED'}"
            print(f"{name:55} {value:9.2f}{verdict}")
    return int(any(limit is not None and value > limit for value, limit in result.values()))


if __name__ == "__main__":
    sys.exit(main())
