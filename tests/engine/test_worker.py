"""The worker lives whatever nodes do, and the next prompt runs."""

import asyncio
import gc
import threading

import pytest
from engine_kit import n, node, wait_for

import execution
from comfy.interrupt import InterruptProcessingException
from workers.local import PromptWorker


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Nameless(type):
    def __getattribute__(cls, name):
        if name in ("__module__", "__qualname__", "__name__"):
            raise RuntimeError("no name")
        return super().__getattribute__(name)


class Anonymous(Exception, metaclass=Nameless):
    pass


def recurse():
    recurse()


EXCEPTIONS = {
    "value": (ValueError("bad"), "ValueError"),
    "exit": (SystemExit(3), "SystemExit"),
    "keyboard": (KeyboardInterrupt(), "KeyboardInterrupt"),
    "generator": (GeneratorExit(), "GeneratorExit"),
    "memory": (MemoryError("no more"), "MemoryError"),
    "cancelled": (asyncio.CancelledError(), "asyncio.exceptions.CancelledError"),
    "stop": (StopIteration(), "StopIteration"),
    "unprintable": (Unprintable(), None),
    "anonymous": (Anonymous(), "(an exception whose class has no name)"),
    "base": (BaseException("of no kind"), "BaseException"),
}


@pytest.fixture
def nodes_that_fail(classes):
    @node({"kind": ("STRING", {})}, ["*"])
    class Raise:
        def run(self, kind):
            if kind == "recursion":
                recurse()
            raise EXCEPTIONS[kind][0]

    @node({"kind": ("STRING", {}), "wait": ("BOOLEAN", {})}, ["*"])
    class RaiseLater:
        async def run(self, kind, wait):
            if wait:
                await asyncio.sleep(0.01)
            raise EXCEPTIONS[kind][0]

    @node({"kind": ("STRING", {})}, OUTPUT_NODE=True)
    class Unsendable:
        def run(self, kind):
            import torch

            value = {
                "object": object(),
                "bytes": b"x",
                "set": {1},
                "tensor": torch.zeros(1),
            }[kind]
            return {"ui": {"value": [value]}}

    classes.update(Raise=Raise, RaiseLater=RaiseLater, Unsendable=Unsendable)


@pytest.fixture
def work(nodes_that_fail, server):
    """Submit a prompt to a running worker; returns its history entry."""
    queue = execution.PromptQueue(server)
    worker = PromptWorker(server, queue, execution.PromptExecutor)
    thresholds = gc.get_threshold()
    worker.start()
    numbers = iter(range(1000))

    def run(prompt, outputs, client_id="c"):
        prompt_id = f"p{next(numbers)}"
        extra_data = {"client_id": client_id} if client_id else {}
        queue.put((0, prompt_id, prompt, extra_data, outputs, {}))
        wait_for(lambda: prompt_id in queue.history)
        return queue.history[prompt_id]

    run.worker, run.queue = worker, queue
    yield run
    worker.stop()
    worker.join(20)
    gc.set_threshold(*thresholds)


def still_works(work):
    entry = work({"1": n("Show", value=1)}, ["1"])
    assert entry["status"]["status_str"] == "success"
    assert entry["outputs"] == {"1": {"value": ["1"]}}


def failed(entry):
    assert entry["status"]["status_str"] == "error" and entry["status"]["completed"] is False
    name, data = entry["status"]["messages"][-1]
    assert name == "execution_error"
    return data


@pytest.mark.parametrize("kind", [*EXCEPTIONS, "recursion"])
def test_exceptions_of_plain_nodes(work, kind):
    error = failed(work({"r": n("Raise", kind=kind), "s": n("Show", value=("r", 0))}, ["s"]))
    assert error["node_id"] == "r" and error["node_type"] == "Raise"
    assert error["current_inputs"] == {"kind": [kind]}
    expected = "RecursionError" if kind == "recursion" else EXCEPTIONS[kind][1]
    if expected is not None:
        assert error["exception_type"] == expected
    assert isinstance(error["exception_message"], str) and error["exception_message"].endswith("\n")
    assert all(isinstance(line, str) for line in error["traceback"])
    still_works(work)


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("kind", [kind for kind in EXCEPTIONS if kind != "stop"])
def test_exceptions_of_coroutine_nodes(work, kind, wait):
    error = failed(work({"r": n("RaiseLater", kind=kind, wait=wait), "s": n("Show", value=("r", 0))}, ["s"]))
    assert error["node_id"] == "r"
    if EXCEPTIONS[kind][1] is not None:
        assert error["exception_type"] == EXCEPTIONS[kind][1]
    still_works(work)


@pytest.mark.parametrize("client_id", ["c", None])
@pytest.mark.parametrize("kind", ["object", "bytes", "set", "tensor"])
def test_ui_data_that_is_not_json(work, server, kind, client_id):
    error = failed(work({"u": n("Unsendable", kind=kind)}, ["u"], client_id))
    assert error["node_id"] == "u" and "JSON" in error["exception_message"]
    assert server.of("executed") == []
    work.queue.history_json()
    still_works(work)


def test_nan_in_ui_data_becomes_null(work, classes):
    @node({}, OUTPUT_NODE=True)
    class NanUI:
        def run(self):
            return {"ui": {"value": [float("nan"), (1, 2)]}}

    classes["NanUI"] = NanUI
    entry = work({"u": n("NanUI")}, ["u"])
    assert entry["outputs"] == {"u": {"value": [None, [1, 2]]}}


def test_link_to_a_missing_node(work):
    error = failed(work({"s": n("Show", value=1, more=("missing", 0))}, ["s"]))
    assert error["node_id"] == "s" and "missing" in error["exception_message"]
    still_works(work)


def test_node_class_that_cannot_be_described(work, classes):
    class Broken(classes["Int"]):
        @classmethod
        def INPUT_TYPES(cls):
            raise SystemExit("no inputs")

    classes["Broken"] = Broken
    failed(work({"b": n("Broken"), "s": n("Show", value=("b", 0))}, ["s"]))
    still_works(work)


def test_interrupt_raised_by_a_node(work, server, classes):
    @node({}, ["*"])
    class Interrupt:
        def run(self):
            raise InterruptProcessingException

    classes["Interrupt"] = Interrupt
    entry = work({"i": n("Interrupt"), "s": n("Show", value=("i", 0))}, ["s"], client_id=None)
    assert [name for name, _ in entry["status"]["messages"]][-1] == "execution_interrupted"
    assert server.of("execution_interrupted")[0]["node_id"] == "i"  # told to all: the prompt has no client
    still_works(work)


def test_history_is_there_before_success_is_announced(work, server):
    seen = []
    send = server.send_sync

    def look(event, data, sid=None):
        if event in ("execution_success", "execution_error"):
            seen.append((event, data["prompt_id"] in work.queue.history, work.queue.running_ids()))
        send(event, data, sid)

    server.send_sync = look
    work({"s": n("Show", value=1)}, ["s"])
    work({"r": n("Raise", kind="value"), "s": n("Show", value=("r", 0))}, ["s"])
    wait_for(lambda: len(seen) == 2)
    assert seen == [("execution_success", True, []), ("execution_error", True, [])]


def test_order_of_the_end(work, server):
    work({"s": n("Show", value=1)}, ["s"])
    wait_for(lambda: any(e == "executing" and d["node"] is None for e, d, _ in server.events))
    assert [event for event, _, _ in server.events][-3:] == ["execution_success", "status", "executing"]


def test_a_dead_thread_is_replaced(work):
    first = work.worker._thread
    get = work.queue.get

    def die(timeout=None):
        work.queue.get = get
        raise SystemError("the thread is gone")

    work.queue.get = die
    work.queue.set_flag("nudge", True)
    wait_for(lambda: work.worker._thread is not first and work.worker.is_alive())
    still_works(work)


def test_a_prompt_whose_executor_breaks_is_recorded(work, monkeypatch):
    monkeypatch.setattr(execution.PromptExecutor, "execute", lambda *a, **k: 1 / 0)
    error = failed(work({"s": n("Show", value=1)}, ["s"]))
    assert error["exception_type"] == "ZeroDivisionError"
    monkeypatch.undo()
    assert work.queue.running_ids() == []


def test_free_memory_is_acted_on_when_idle(work, classes):
    prompt = {"i": n("Int", value=1), "s": n("Show", value=("i", 0))}
    work(prompt, ["s"])
    work.queue.set_flag("free_memory", True)
    wait_for(lambda: not work.queue.flags)
    wait_for(lambda: work.queue.get_tasks_remaining() == 0)
    work(prompt, ["s"])
    assert classes["Int"].calls == [1, 1]


def test_stop(work):
    work.worker.stop()
    work.worker.join(20)
    assert not work.worker.is_alive()


def test_waits_for_the_nodes(classes, server):
    server.nodes_ready = threading.Event()
    queue = execution.PromptQueue(server)
    made = []
    worker = PromptWorker(server, queue, lambda s: made.append(s) or execution.PromptExecutor(s))
    worker.start()
    assert made == []
    worker.stop()
    server.nodes_ready.set()
    worker.join(20)


def test_others_are_told_of_each_end_and_cannot_harm_the_worker(work):
    told = []

    def harmful(prompt_id, outputs):
        raise RuntimeError("no")

    work.worker.on_end += [harmful, lambda *end: told.append(end)]
    work({"s": n("Show", value=1)}, ["s"])
    work({"s": n("Show", value=2)}, ["s"])
    wait_for(lambda: len(told) == 2)
    assert [outputs for _, outputs in told] == [{"s": {"value": ["1"]}}, {"s": {"value": ["2"]}}]


def test_a_run_begins_when_its_submitter_has_been_answered(work, server):
    import threading

    entry = execution.QueueEntry((0, "held", {"s": n("Show", value=1)}, {"client_id": "c"}, ["s"]))
    entry.answered = threading.Event()
    server.events.clear()
    work.queue.put(entry)
    wait_for(lambda: work.queue.running_ids() == ["held"])
    work.worker._thread.join(0.2)
    assert server.of("execution_start") == [] and "held" not in work.queue.history
    entry.answered.set()
    wait_for(lambda: "held" in work.queue.history)
    assert len(server.of("execution_start")) == 1
