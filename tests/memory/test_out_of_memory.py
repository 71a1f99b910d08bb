"""A node that runs out of memory: what is freed, what is tried again, what the client is told; and lost devices."""

import sys
import threading
import types
from pathlib import Path

import pytest
import torch
from torch import nn

import comfy.model_management
import comfy.ops
import execution
from comfy import recovery
from comfy.device_memory import MB, SimulatedMemory, simulated
from comfy.ledger import ledger_of
from comfy.model_patcher import ModelPatcher
from comfy_execution import faults
from tests.engine.engine_kit import BASIC, FakeServer, Runner, n, node, wait_for
from tests.memory.conftest import HOST, PAPER
from workers.local import EXIT_DEVICE_LOST, PromptWorker
from workers.watchdog import EXIT_STUCK

SIZE = 100 * MB


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr("comfy.loaded_models.minimum_inference_memory", lambda: 0)
    monkeypatch.setattr("comfy.devices.extra_reserved_memory", lambda: 0)
    with simulated(SimulatedMemory(SIZE, PAPER)) as memory:
        yield memory


@pytest.fixture
def classes(monkeypatch, device):
    """Nodes that load a model of 40 MB, keep memory in their result, and take memory while they run."""
    model = nn.Sequential(*(comfy.ops.manual_cast.Linear(1024, 1024, bias=False) for _ in range(10)))
    patcher = ModelPatcher(model, PAPER, HOST)

    @node({}, ["*"])
    class Load:
        def run(self):
            comfy.model_management.load_models_gpu([patcher])
            return (patcher,)

    @node({"size": ("INT", {}), "after": ("*", {})}, ["*"])
    class Keep:
        def run(self, size, after):
            return (device.allocate(size * MB),)

    @node({"size": ("INT", {}), "after": ("*", {})}, ["*"])
    class Take:
        calls = []

        def run(self, size, after):
            Take.calls.append(size)
            first = device.allocate(size * MB // 2)
            held = [first, device.allocate(size * MB // 2)]
            return (len(held),)

    @node({"size": ("INT", {}), "after": ("*", {})}, ["*"])
    class TakeLater(Take):
        async def run(self, size, after):
            return Take.run(self, size, after)

    @node({"text": ("STRING", {})}, ["*"])
    class Fail:
        calls = []

        def run(self, text):
            Fail.calls.append(text)
            raise RuntimeError(text)

    module = types.ModuleType("nodes")
    found = {cls.__name__: cls for cls in (Load, Keep, Take, TakeLater, Fail)}
    module.NODE_CLASS_MAPPINGS = {**BASIC, **found}
    monkeypatch.setitem(sys.modules, "nodes", module)
    return types.SimpleNamespace(patcher=patcher, **found)


@pytest.fixture
def runner(classes):
    return Runner(FakeServer(), execution.CacheType.CLASSIC)


def prompt(take: int, keep: int = 10, kind: str = "Take") -> dict:
    return {
        "load": n("Load"),
        "keep": n("Keep", size=keep, after=("load", 0)),
        "take": n(kind, size=take, after=("keep", 0)),
        "show": n("Show", value=("take", 0)),
    }


@pytest.mark.parametrize("kind", ["Take", "TakeLater"])
def test_the_node_runs_again_without_the_models(runner, classes, device, kind):
    outputs = runner.good(prompt(80, kind=kind))
    assert outputs["show"] == {"value": ["2"]}
    assert classes.Take.calls == [80, 80]
    assert classes.patcher.loaded_size() == 0
    assert ledger_of(PAPER).record(classes.patcher.model).evicted_by == recovery.BY_OUT_OF_MEMORY


def test_what_never_fits_fails_once_told_and_leaves_nothing(runner, classes, device):
    runner.good({"load": n("Load"), "show": n("Show", value=("load", 0))})
    before = device.used
    error = runner.bad(prompt(120))
    assert classes.Take.calls == [120, 120]
    assert error["node_id"] == "take" and error["exception_type"] == "torch.OutOfMemoryError"
    message = error["exception_message"]
    assert f"{60 * MB} bytes were requested" in message
    peak = (10 + 60) * MB  # of the second try: what "keep" holds and the first half
    assert f"the peak was {peak} bytes of {SIZE} on cpu:0" in message
    assert any("in run" in frame for frame in error["traceback"])
    assert device.used == 0  # neither the model, nor the node's memory, nor what "keep" had put out

    outputs = runner.good({"load": n("Load"), "show": n("Show", value=("load", 0))})
    assert outputs["show"] and device.used in (0, before)
    comfy.model_management.load_models_gpu([classes.patcher])
    assert device.used == before


def test_results_on_the_host_are_kept(runner, classes, device):
    graph = {**prompt(120), "number": n("Int", value=3), "other": n("Show", value=("number", 0))}
    runner.bad(graph)
    runner.run(graph)
    assert "number" in runner.cached and "keep" not in runner.cached


def test_other_errors_are_not_tried_again(runner, classes):
    error = runner.bad({"f": n("Fail", text="no luck"), "s": n("Show", value=("f", 0))})
    assert classes.Fail.calls == ["no luck"] and error["exception_type"] == "RuntimeError"


@pytest.mark.parametrize(
    ("text", "requested"),
    [
        ("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total", int(2.5 * 1024**3)),
        ("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes.", 4096),
        ("something else", None),
    ],
)
def test_requested_bytes(text, requested):
    assert recovery.requested_bytes(RuntimeError(text)) == requested


def test_a_full_host_is_told_in_the_same_way(runner, classes):
    text = "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes."
    error = runner.bad({"f": n("Fail", text=text), "s": n("Show", value=("f", 0))})
    assert classes.Fail.calls == [text, text]
    assert (
        error["exception_type"] == "torch.OutOfMemoryError" and "99 bytes were requested" in error["exception_message"]
    )


LOST = [
    "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported",
    "CUDA error: an illegal memory access was encountered",
    "CUDA error: unspecified launch failure",
    "cudaErrorLaunchFailure: CUDA error",
    "CUDA error: misaligned address",
    "CUDA error: uncorrectable ECC error encountered",
]


@pytest.mark.parametrize("text", LOST)
def test_lost_devices_are_recognised(text):
    assert faults.is_device_lost(RuntimeError(text)) and faults.is_device_lost(torch.AcceleratorError(text))


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: no kernel image is available for execution on the device"),
        RuntimeError("the report of an illegal memory access"),
        ValueError(LOST[0]),
    ],
)
def test_others_are_not(error):
    assert not faults.is_device_lost(error)


def test_a_lost_device_ends_the_worker_and_keeps_the_queue(classes):
    server = FakeServer()
    queue = execution.PromptQueue(server)
    lost = threading.Event()
    worker = PromptWorker(server, queue, execution.PromptExecutor, on_device_lost=lost.set)
    queue.put((0, "first", {"f": n("Fail", text=LOST[0]), "s": n("Show", value=("f", 0))}, {}, ["s"], {}))
    queue.put((1, "second", {"s": n("Show", value=1)}, {}, ["s"], {}))
    worker.start()
    assert lost.wait(20)
    worker.join(20)
    assert not worker.is_alive() and classes.Fail.calls == [LOST[0]]
    status = queue.history["first"]["status"]
    assert status["status_str"] == "error" and "new process" in status["messages"][-1][1]["exception_message"]
    assert [entry.prompt_id for entry in queue.queue] == ["second"] and queue.running_ids() == []
    worker.revive()
    assert not worker.is_alive()


def test_the_exit_statuses_are_documented():
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    for status in (EXIT_DEVICE_LOST, EXIT_STUCK):
        assert f"\n| {status} |" in text


def test_models_leave_when_nobody_comes(classes, device):
    server = FakeServer()
    queue = execution.PromptQueue(server)
    worker = PromptWorker(server, queue, execution.PromptExecutor, idle_unload=0.2)
    worker.start()
    queue.put((0, "p", {"l": n("Load"), "s": n("Show", value=("l", 0))}, {}, ["s"], {}))
    wait_for(lambda: "p" in queue.history)
    record = ledger_of(PAPER).record(classes.patcher.model)
    wait_for(lambda: device.used == 0 and record.evictions)  # booked a moment after it has gone
    assert record.evicted_by == "0.2 seconds without a prompt" and record.evictions == 1
    worker.stop()
    worker.join(20)


def test_free_acts_at_once_when_idle(classes, device):
    server = FakeServer()
    queue = execution.PromptQueue(server)
    worker = PromptWorker(server, queue, execution.PromptExecutor)
    worker.start()
    queue.put((0, "p", {"l": n("Load"), "s": n("Show", value=("l", 0))}, {}, ["s"], {}))
    wait_for(lambda: "p" in queue.history)
    assert device.used > 0
    queue.set_flag("unload_models", True)
    record = ledger_of(PAPER).record(classes.patcher.model)
    wait_for(lambda: device.used == 0 and record.evictions, seconds=5)
    assert record.evicted_by == "POST /free"
    worker.stop()
    worker.join(20)


def test_the_level_stays_flat_over_many_prompts(runner, classes, device):
    """Case M-05, small: new values each time, failures in between; neither memory nor objects grow."""
    import gc

    def round(number: int) -> None:
        runner.good({"i": n("Int", value=number), "a": n("Add", a=("i", 0), b=1), "s": n("Show", value=("a", 0))})
        runner.good(prompt(20, keep=number % 7 + 1))
        if number % 5 == 0:
            runner.bad(prompt(200 + number))

    def count() -> int:
        """Objects of the engine, of models, and tensors; log records, which pytest keeps, are none of these."""
        gc.collect()
        rooms = ("comfy", "comfy_execution", "execution", "torch", "tests")
        return sum(type(item).__module__.split(".")[0] in rooms for item in gc.get_objects())

    for number in range(10):
        round(number)
    objects, used = count(), device.used
    for number in range(10, 70):
        round(number)
    round(9)
    assert device.used == used
    assert count() <= objects + 10
