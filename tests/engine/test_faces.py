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
