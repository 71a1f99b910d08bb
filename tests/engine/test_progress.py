"""Who is told what about progress, and how often."""

import asyncio
import threading

import pytest
from engine_kit import FakeServer, n, node, wait_for

from comfy.interrupt import InterruptProcessingException, interrupt_current_processing
from comfy_execution import progress
from comfy_execution.graph import DynamicPrompt
from comfy_execution.progress import ProgressBarHook, ProgressHandler, ProgressRegistry, WebUIProgressHandler
from comfy_execution.utils import CurrentNodeContext, get_executing_context


@pytest.fixture
def registry(server):
    server.client_id = "c"
    prompt = DynamicPrompt({str(i): {"class_type": "X", "inputs": {}} for i in range(200)})
    found = progress.reset_progress_state("p", prompt)
    progress.add_progress_handler(WebUIProgressHandler(server))
    return found


def states(server):
    return [data["nodes"] for data in server.of("progress_state")]


def test_start_update_finish(server, registry):
    registry.start_progress("1")
    registry.update_progress("1", 2, 5)
    registry.finish_progress("1")
    registry.finish_progress("2")
    base = {"node_id": "1", "prompt_id": "p", "display_node_id": "1", "parent_node_id": None, "real_node_id": "1"}
    first, second, third, fourth = states(server)
    assert first == {"1": {"value": 0.0, "max": 1.0, "state": "running", **base}}
    assert second == {"1": {"value": 2, "max": 5, "state": "running", **base}}
    assert third == {"1": {"value": 5, "max": 5, "state": "finished", **base}}
    assert set(fourth) == {"1", "2"} and fourth["2"]["value"] == fourth["2"]["max"] == 1.0
    assert all(sid == "c" for _, _, sid in server.events)


def test_events_do_not_change_afterwards(server, registry):
    registry.start_progress("1")
    first = states(server)[0]
    registry.finish_progress("1")
    assert first["1"]["state"] == "running"


def test_nobody_is_told_without_a_client(server, registry):
    server.client_id = None
    registry.start_progress("1")
    ProgressBarHook(server)(1, 2, None, node_id="1", prompt_id="p")
    registry.finish_progress("1")
    assert server.events == []


def test_many_reports_are_thinned_and_the_last_is_sent(server, registry):
    registry.start_progress("1")
    for value in range(1, 10_001):
        registry.update_progress("1", value, 10_000)
    assert len(server.events) < 1000
    assert states(server)[1]["1"]["value"] == 1
    assert states(server)[-1]["1"]["value"] == 10_000


def test_a_report_that_was_held_back_goes_out_later(server, registry):
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        server.loop = loop
        registry.start_progress("1")
        for value in (1, 2, 3):
            registry.update_progress("1", value, 10)
        wait_for(lambda: states(server)[-1]["1"]["value"] == 3)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()


def test_large_graphs_send_what_changed(server, registry):
    for index in range(150):
        registry.start_progress(str(index))
        registry.finish_progress(str(index))
    sizes = [len(nodes) for nodes in states(server)]
    assert sizes[:4] == [1, 1, 2, 2] and sizes[:200] == [i // 2 + 1 for i in range(200)]
    assert sum(sizes[200:]) < 300  # a node or two each time, not all of them
    registry.finish_run()
    assert len(states(server)[-1]) == 150
    assert all(node["state"] == "finished" for node in states(server)[-1].values())


def test_large_graphs_send_quick_changes_together(server, registry):
    for index in range(150):
        registry.finish_progress(str(index))
    before = len(server.events)
    handler = registry.handlers["webui"]
    handler._last_sent = float("inf")  # as if something had been sent this instant
    registry.start_progress("1")
    registry.start_progress("2")
    assert len(server.events) == before
    handler._last_sent, handler._last_full = 0.0, float("inf")
    registry.start_progress("3")
    assert {"1", "2", "3"} <= set(states(server)[-1]) and len(states(server)[-1]) < 150


def test_small_graphs_send_everything(server, registry):
    for index in range(50):
        registry.start_progress(str(index))
    registry.finish_run()
    assert [len(nodes) for nodes in states(server)] == list(range(1, 51))


IMAGE = ("JPEG", "an image", 512)


def test_bar_events_and_preview(server, registry):
    hook = ProgressBarHook(server)
    registry.start_progress("1")
    server.events.clear()
    with CurrentNodeContext("p", "1"):
        hook(1, 4, IMAGE)
    assert [event for event, _, _ in server.events] == ["progress_state", "progress", 2]
    assert server.of("progress") == [{"value": 1, "max": 4, "prompt_id": "p", "node": "1"}]
    assert server.of(2) == [IMAGE]


def test_preview_with_metadata(server, registry):
    server.sockets_metadata["c"] = {"feature_flags": {"supports_preview_metadata": True}}
    registry.start_progress("1")
    server.events.clear()
    with CurrentNodeContext("p", "1"):
        ProgressBarHook(server)(1, 4, IMAGE)
    assert [event for event, _, _ in server.events] == ["progress_state", 4, "progress"]
    image, metadata = server.of(4)[0]
    assert image == IMAGE
    assert metadata == {"node_id": "1", "prompt_id": "p", "display_node_id": "1", "parent_node_id": None,
                        "real_node_id": "1"}  # fmt: skip


def test_every_bar_event_follows_a_state_with_the_same_numbers(server, registry):
    hook = ProgressBarHook(server)
    registry.start_progress("1")
    for value in range(1, 6):
        hook(value, 9, None, prompt_id="p", node_id="1")
    names = [event for event, _, _ in server.events][1:]
    assert names == ["progress_state", "progress"] * 5


def test_bar_notices_interrupts(server, registry):
    interrupt_current_processing()
    with pytest.raises(InterruptProcessingException):
        ProgressBarHook(server)(1, 2, None, prompt_id="p", node_id="1")


def test_bar_of_another_run_does_not_touch_this_one(server, registry):
    ProgressBarHook(server)(1, 2, None, prompt_id="old", node_id="1")
    assert registry.nodes == {}


def test_handlers(server):
    class Recorder(ProgressHandler):
        def __init__(self, name):
            super().__init__(name)
            self.seen = []

        def start_handler(self, node_id, state, prompt_id):
            self.seen.append(("start", node_id))
            raise RuntimeError("a bad handler")

        def update_handler(self, node_id, value, max_value, state, prompt_id, image=None):
            self.seen.append(("update", node_id, value))

        def finish_handler(self, node_id, state, prompt_id):
            self.seen.append(("finish", node_id))

    registry = ProgressRegistry("p", DynamicPrompt({}))
    one, two = Recorder("one"), Recorder("two")
    registry.register_handler(one)
    registry.register_handler(two)
    registry.disable_handler("two")
    registry.start_progress("1")
    registry.enable_handler("two")
    registry.update_progress("1", 1, 2)
    registry.unregister_handler("two")
    registry.finish_progress("1")
    assert one.seen == [("start", "1"), ("update", "1", 1), ("finish", "1")]
    assert two.seen == [("update", "1", 1)]


def test_executing_context():
    assert get_executing_context() is None
    with CurrentNodeContext("p", "1", 2):
        assert tuple(get_executing_context()) == ("p", "1", 2)
        with CurrentNodeContext("p", "2"):
            assert get_executing_context().node_id == "2"
        assert get_executing_context().node_id == "1"
    assert get_executing_context() is None


def test_order_of_a_run(runner):
    runner.good({"i": n("Int", value=1), "s": n("Show", value=("i", 0))})
    assert [event for event, _, _ in runner.server.events] == [
        "execution_start", "execution_cached",
        "progress_state", "executing", "progress_state",
        "progress_state", "executing", "executed", "progress_state",
        "execution_success",
    ]  # fmt: skip


def test_set_progress(runner, classes):
    from comfy_api.latest import ComfyAPI, ComfyAPISync

    @node({}, ["*"])
    class Plain:
        def run(self):
            ComfyAPISync().execution.set_progress(1, 4)
            return (1,)

    @node({}, ["*"])
    class Coroutine:
        async def run(self):
            await ComfyAPI().execution.set_progress(3, 4)
            return (1,)

    classes.update(Plain=Plain, Coroutine=Coroutine)
    runner.good({"a": n("Plain"), "b": n("Coroutine"), "s": n("Show", value=("a", 0)), "t": n("Show", value=("b", 0))})
    values = [(k, s["value"]) for nodes in states(runner.server) for k, s in nodes.items() if s["max"] == 4]
    assert ("a", 1) in values and ("b", 3) in values
    assert runner.server.of("progress") == []
    with pytest.raises(ValueError, match="node_id"):
        asyncio.run(ComfyAPI().execution.set_progress(1, 2))


def test_handler_needs_no_loop():
    server = FakeServer()
    server.client_id = "c"
    registry = ProgressRegistry("p", DynamicPrompt({}))
    registry.register_handler(WebUIProgressHandler(server))
    for value in range(100):
        registry.update_progress("1", value, 1000)
    assert 1 <= len(server.events) < 100
