"""Names of `execution` that packs wrap or call."""

import asyncio

import pytest
from engine_kit import n, node

import execution
from comfy.interrupt import InterruptProcessingException, interrupt_current_processing
from comfy_execution.graph import ExecutionBlocker


def test_error_handling_can_be_wrapped(runner, classes, monkeypatch):
    @node({}, ["*"])
    class Fail:
        def run(self):
            raise ValueError("deliberate")

    classes["Fail"] = Fail
    seen = []
    original = execution.PromptExecutor.handle_execution_error

    def wrapped(self, prompt_id, prompt, current_outputs, executed, error, ex):
        seen.append((prompt_id, sorted(prompt), executed, error["node_id"], type(ex)))
        return original(self, prompt_id, prompt, current_outputs, executed, error, ex)

    monkeypatch.setattr(execution.PromptExecutor, "handle_execution_error", wrapped)
    error = runner.bad({"f": n("Fail"), "o": n("Show", value=("f", 0))})
    assert seen == [("p1", ["f", "o"], [], "f", ValueError)]
    assert error["exception_message"] == "deliberate\n"


def test_calling_a_method_per_item():
    class Adder:
        def add(self, a, b):
            return (a + b,)

        async def later(self, a, b):
            await asyncio.sleep(0)
            return (a - b,)

    def call(data, func, **kwargs):
        return asyncio.run(execution._async_map_node_over_list("p", "1", Adder(), data, func, **kwargs))

    numbers = []
    assert call({"a": [1, 2], "b": [10]}, "add", pre_execute_cb=numbers.append) == [(11,), (12,)]
    assert numbers == [0, 1]
    assert call({"a": [1, 2], "b": [10]}, "later") == [(-9,), (-8,)]
    blocker = ExecutionBlocker("stop")
    assert call({"a": [blocker], "b": [1]}, "add") == [blocker]
    assert call({"a": [blocker], "b": [1]}, "add", execution_block_cb=lambda b: b.message) == ["stop"]
    interrupt_current_processing()
    assert call({"a": [1], "b": [1]}, "add") == [(2,)]
    with pytest.raises(InterruptProcessingException):
        call({"a": [1], "b": [1]}, "add", allow_interrupt=True)


def test_names():
    assert set(execution.SENSITIVE_EXTRA_DATA_KEYS) == {"auth_token_comfy_org", "api_key_comfy_org"}
    assert execution.PromptQueue.ExecutionStatus("success", True, [])._asdict() == {
        "status_str": "success",
        "completed": True,
        "messages": [],
    }


def test_what_nodes_are_given_and_return_can_be_watched(make_runner, classes, monkeypatch):
    """As Lora Manager does it: functions around `execute` and `_async_map_node_over_list`."""

    @node({"value": ("*", {}), "seconds": ("FLOAT", {})}, ["*"])
    class Later:
        log: list = []

        async def run(self, value, seconds):
            Later.log.append(("start", value))
            await asyncio.sleep(seconds)
            Later.log.append(("end", value))
            return (value,)

    classes["Later"] = Later
    steps, calls = [], []
    step, mapping = execution.execute, execution._async_map_node_over_list

    async def watched_step(*args):
        steps.append((args[3], args[6], args[1].get_node(args[3])["class_type"]))
        return await step(*args)

    async def watched(prompt_id, unique_id, obj, input_data_all, func, *args, **kwargs):
        assert func == obj.FUNCTION
        results = await mapping(prompt_id, unique_id, obj, input_data_all, func, *args, **kwargs)
        calls.append((prompt_id, unique_id, type(obj).__name__, input_data_all, len(results)))
        return results

    monkeypatch.setattr(execution, "execute", watched_step)
    monkeypatch.setattr(execution, "_async_map_node_over_list", watched)
    runner = make_runner(execution.CacheType.CLASSIC)
    prompt = {
        "a": n("Later", value=1, seconds=0.2),
        "b": n("Later", value=2, seconds=0.1),
        "s": n("Add", a=("a", 0), b=("b", 0)),
        "o": n("Show", value=("s", 0)),
    }
    assert runner.good(prompt)["o"]["value"] == ["3"]
    assert [what for what, _ in Later.log] == ["start", "start", "end", "end"]  # they still overlap
    assert ("o", "p1", "Show") in steps and {node_id for node_id, _, _ in steps} == set(prompt)
    assert ("p1", "s", "Add", {"a": [1], "b": [2]}, 1) in calls and len(calls) == 4

    async def broken(*args, **kwargs):
        raise ValueError("of the pack")

    for name in ("_async_map_node_over_list", "execute"):
        with monkeypatch.context() as patch:
            patch.setattr(execution, name, broken)
            error = runner.bad({"i": n("Int", value=9), "o": n("Show", value=("i", 0))})
            assert error["exception_type"] == "ValueError"
    assert runner.good({"i": n("Int", value=11), "o": n("Show", value=("i", 0))})["o"]["value"] == ["11"]


def test_what_packs_put_there_for_another_version_is_left_out(make_runner, monkeypatch, caplog):
    """The prompt runs as if it were not there; the log says once whose function it is."""

    async def old_step(server, prompt, caches):
        raise AssertionError("never called")

    for stand_in in (lambda server, prompt, caches: None, lambda *args: None, old_step):
        monkeypatch.setattr(execution, "execute", stand_in)
        runner = make_runner(execution.CacheType.CLASSIC)
        for value in (9, 10):
            assert runner.good({"i": n("Int", value=value), "o": n("Show", value=("i", 0))})["o"]["value"] == [
                str(value)
            ]
    assert caplog.text.count("is left out") == 3

    async def old_mapping(obj, inputs):
        raise AssertionError("never called")

    monkeypatch.setattr(execution, "_async_map_node_over_list", old_mapping)
    assert runner.good({"i": n("Int", value=11), "o": n("Show", value=("i", 0))})["o"]["value"] == ["11"]
    assert "old_mapping" in caplog.text
