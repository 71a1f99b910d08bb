"""What the job store costs: submitting with and without it, starting again, pages of long lists, memory.

    python bench/jobs.py [--jobs 1000000] [--only submit,run,restart,pages,memory]

Times are CPU time of the whole process where it says CPU, else wall time; medians of several runs. Goals in brackets.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import types
import uuid
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from comfy_execution.prompt_queue import ExecutionStatus, PromptQueue, QueueEntry  # noqa: E402
from jobs import pages  # noqa: E402
from jobs.ledger import Ledger  # noqa: E402
from jobs.recovery import recover  # noqa: E402
from jobs.sqlite_store import SqliteStore  # noqa: E402
from jobs.store import Query  # noqa: E402

ALL = ("pending", "in_progress", "completed", "failed", "cancelled")
ENDED = ExecutionStatus(
    "success", True, [["execution_start", {"timestamp": 1000}], ["execution_success", {"timestamp": 2500}]]
)
RESULT = {
    "outputs": {"9": {"images": [{"filename": "a_00001_.png", "subfolder": "", "type": "output"}]}},
    "meta": {"9": {"node_id": "9", "display_node": "9", "parent_node": None, "real_node_id": "9"}},
}


def prompt_of(size: int) -> dict[str, Any]:
    """A graph of about `size` bytes of JSON."""
    node = {"class_type": "CLIPTextEncode", "inputs": {"text": "a photograph of " + "x" * 180, "clip": ["4", 1]}}
    return {str(number): node for number in range(max(1, size // 260))}


def entry_of(number: int, prompt: dict[str, Any]) -> QueueEntry:
    extra = {"client_id": f"client-{number % 50}", "create_time": int(time.time() * 1000)}
    return QueueEntry((number, str(uuid.uuid4()), prompt, extra, ["9"], {}))


def new_queue() -> PromptQueue:
    return PromptQueue(types.SimpleNamespace(queue_updated=lambda: None, send_sync=lambda *event: None))


def show(what: str, value: float, unit: str, goal: str = "") -> None:
    print(f"  {what:<62} {value:10.3f} {unit:<4} {goal}")


# --- submitting ---------------------------------------------------------------------------------------------


async def submit(queue: PromptQueue, ledger: Ledger | None, count: int, in_flight: int, prompt: dict[str, Any]) -> None:
    numbers = iter(range(count))

    async def client() -> None:
        for number in numbers:
            queue.put(entry_of(number, prompt))
            if ledger is not None:
                await ledger.stored()
            else:
                await asyncio.sleep(0)

    await asyncio.gather(*(client() for _ in range(in_flight)))


def cpu_per_prompt(folder: str, kind: str, in_flight: int, size: int, count: int = 3000) -> float:
    """ms of CPU time."""
    queue, ledger = new_queue(), None
    if kind != "none":
        path = ":memory:" if kind == "memory" else os.path.join(folder, f"{uuid.uuid4()}.db")
        ledger = Ledger(SqliteStore(path))
        ledger.attach(queue)
    started = time.process_time()
    asyncio.run(submit(queue, ledger, count, in_flight, prompt_of(size)))
    spent = time.process_time() - started
    if ledger is not None:
        ledger.close()
    return spent / count * 1000


def bench_submit(folder: str) -> None:
    print("Submitting, CPU per accepted prompt")
    for size in (1_000, 10_000):
        for in_flight in (1, 16):
            taken = {
                kind: statistics.median(cpu_per_prompt(folder, kind, in_flight, size) for _ in range(3))
                for kind in ("none", "memory", "disk")
            }
            where = f"{size // 1000} KB, {in_flight} in flight"
            for kind in ("memory", "disk"):
                goal = "[<= 0.15]" if in_flight == 16 and kind == "disk" else ""
                show(f"store in {kind} adds ({where})", taken[kind] - taken["none"], "ms", goal)


# --- running ------------------------------------------------------------------------------------------------


def bench_run(folder: str) -> None:
    print("Running: what the store adds to each job, which is stored before its first node and before its last event")
    count, taken = 500, {}
    for kind in ("none", "disk"):
        queue, ledger = new_queue(), None
        if kind == "disk":
            ledger = Ledger(SqliteStore(os.path.join(folder, "run.db")))
            ledger.attach(queue)
        for number in range(count):
            queue.put(entry_of(number, prompt_of(2000)))
        queue.observer.settle()
        wall, cpu = [], time.process_time()
        for _ in range(count):
            started = time.perf_counter()
            task_id = queue.get(0)[1]
            queue.observer.settle()
            queue.finish(task_id, RESULT, ENDED)
            queue.observer.settle()
            wall.append(time.perf_counter() - started)
        taken[kind] = statistics.median(wall) * 1000, (time.process_time() - cpu) / count * 1000
        if ledger is not None:
            ledger.close()
    show("median wall time", taken["disk"][0] - taken["none"][0], "ms")
    show("CPU", taken["disk"][1] - taken["none"][1], "ms")


# --- starting again -----------------------------------------------------------------------------------------


def bench_restart(folder: str) -> None:
    print("Starting again with 5,000 pending prompts of 10 KB")
    path = os.path.join(folder, "restart.db")
    ledger, queue = Ledger(SqliteStore(path)), new_queue()
    ledger.attach(queue)
    prompt = prompt_of(10_000)
    for number in range(5000):
        queue.put(entry_of(number, prompt))
    ledger.close()
    times, spent = [], []
    del ledger, queue
    for _ in range(3):
        started, started_cpu = time.perf_counter(), time.process_time()
        ledger, queue = Ledger(SqliteStore(path)), new_queue()
        ledger.attach(queue)
        assert recover(ledger, queue) == 5000
        times.append(time.perf_counter() - started)
        spent.append(time.process_time() - started_cpu)
        ledger.close()
        del ledger, queue
    show("until all wait again", statistics.median(times), "s", "[<= 1]")
    show("CPU of that", statistics.median(spent), "s")


# --- pages --------------------------------------------------------------------------------------------------


def fill(path: str, count: int) -> None:
    """A store with `count` ended jobs, written directly: through the queue it would take minutes."""
    ledger, queue = Ledger(SqliteStore(path)), new_queue()
    ledger.attach(queue)
    queue.put(entry_of(0, prompt_of(300)))
    queue.finish(queue.get(0)[1], RESULT, ENDED)
    ledger.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        columns = [row[1] for row in connection.execute("PRAGMA table_info(jobs)")]
        changed = {
            "seq": "n + 1",
            "id": "lower(hex(randomblob(16)))",
            "state": "CASE n % 20 WHEN 0 THEN 'failed' WHEN 1 THEN 'cancelled' ELSE 'completed' END",
            "created": "created - 1000 * n",
            "client_id": "'client-' || (n % 50)",
            "workflow_id": "'workflow-' || (n % 200)",
            "duration": "abs(random()) % 60000",
            "ended": "ended - 1000 * n",
            "kept": "n + 1",
        }
        values = ", ".join(changed.get(column, column) for column in columns)
        connection.execute(
            f"WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < {count - 1}) "
            f"INSERT INTO jobs SELECT {values} FROM jobs, t WHERE seq = 1"
        )
        connection.execute(
            f"WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < {count - 1}) "
            "INSERT INTO payloads SELECT n + 1, entry, result FROM payloads, t WHERE seq = 1"
        )
        counts = dict(connection.execute("SELECT state, count(*) FROM jobs GROUP BY state"))
        connection.execute("UPDATE meta SET value = ? WHERE key = 'counts'", (json.dumps(counts),))


def page_times(ledger: Ledger, count: int, goal: str) -> None:
    def median(make: Any, runs: int = 15) -> float:
        times = []
        for _ in range(runs):
            started = time.perf_counter()
            make()
            times.append(time.perf_counter() - started)
        return statistics.median(times) * 1000

    def cursor(query: Query, text: str = "") -> Any:
        return lambda: pages.by_cursor(ledger, query, text)

    middle = 1_000_000_000_000 if count < 1000 else None
    plain = Query(ALL, limit=50)
    rows = ledger.page(Query(ALL, limit=1, offset=count // 2))
    deep = pages.write_cursor(rows[0], plain) if middle is None else ""
    slowest = Query(ALL, by_duration=True, limit=50)
    row = ledger.page(Query(ALL, by_duration=True, limit=1, offset=count // 2))[0]
    show("newest 50, by offset with total", median(lambda: pages.by_offset(ledger, plain)), "ms", goal)
    show("newest 50, by cursor", median(cursor(plain)), "ms", goal)
    show("50 from the middle, by cursor", median(cursor(plain, deep)), "ms", goal)
    show("50 failed ones, by cursor", median(cursor(Query(("failed",), limit=50))), "ms", goal)
    show("50 of a client, by cursor", median(cursor(Query(ALL, client_id="client-7", limit=50))), "ms", goal)
    show("50 of a workflow, by cursor", median(cursor(Query(ALL, workflow_id="workflow-7", limit=50))), "ms", goal)
    show("50 longest, by cursor", median(cursor(slowest)), "ms", goal)
    show("50 from the middle by duration", median(cursor(slowest, pages.write_cursor(row, slowest))), "ms", goal)
    one = ledger.page(Query(ALL, limit=1, offset=count // 3))[0].id
    show("one job in full", median(lambda: ledger.shown(one)), "ms")
    shown = Query(ALL, workflow_id="workflow-7", limit=50)
    show("50 of a workflow, by offset with total", median(lambda: pages.by_offset(ledger, shown)), "ms")


def bench_pages(folder: str, most: int) -> None:
    for count, goal in ((10_000, "[<= 3]"), (most, "[<= 5]")):
        path = os.path.join(folder, f"pages{count}.db")
        fill(path, count)
        started = time.perf_counter()
        ledger = Ledger(SqliteStore(path))
        opened = time.perf_counter() - started
        print(f"Pages of {count:,} jobs ({os.path.getsize(path) / 1e6:.0f} MB on disk, opened in {opened:.2f} s)")
        page_times(ledger, count, goal)
        ledger.close()


# --- memory -------------------------------------------------------------------------------------------------

MEMORY_PROGRAM = """
import sys; sys.path.insert(0, sys.argv[1])
from bench import jobs as b
import psutil, os
path, count = sys.argv[2], int(sys.argv[3])
ledger, queue = b.Ledger(b.SqliteStore(path)), b.new_queue()
ledger.attach(queue)
prompt = b.prompt_of(2000)
for number in range(count):
    queue.put(b.entry_of(number, prompt))
    queue.finish(queue.get(0)[1], b.RESULT, b.ENDED)
    if number % 200 == 0:
        ledger.settle()
ledger.settle()
print(psutil.Process(os.getpid()).memory_info().rss)
"""


def bench_memory(folder: str) -> None:
    print("Memory of a process that ran prompts")

    def rss(count: int) -> float:
        command = [
            sys.executable,
            "-c",
            MEMORY_PROGRAM,
            str(ROOT),
            os.path.join(folder, f"memory{count}.db"),
            str(count),
        ]
        return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout) / 1e6

    few, many = rss(100), rss(100_000)
    show("after 100,000 more than after 100", many - few, "MB", "[< 50]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="length of the long list (%(default)s)")
    parser.add_argument("--only", default="submit,run,restart,pages,memory", help="parts to run (%(default)s)")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",")
    with tempfile.TemporaryDirectory() as folder:
        if "submit" in wanted:
            bench_submit(folder)
        if "run" in wanted:
            bench_run(folder)
        if "restart" in wanted:
            bench_restart(folder)
        if "pages" in wanted:
            bench_pages(folder, arguments.jobs)
        if "memory" in wanted:
            bench_memory(folder)


if __name__ == "__main__":
    main()
