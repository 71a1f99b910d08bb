"""A stored prompt whose node class is gone after a restart fails alone, with a reason."""

import sys
import types

import pytest

import execution
from tests.jobs.conftest import Life
from workers.local import PromptWorker


class Text:
    RETURN_TYPES = ()
    FUNCTION = "run"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"text": ("STRING", {})}}

    def run(self, text):
        return {"ui": {"text": [text]}}


@pytest.fixture
def classes(monkeypatch):
    module = types.ModuleType("nodes")
    module.NODE_CLASS_MAPPINGS = {}
    monkeypatch.setitem(sys.modules, "nodes", module)
    return module.NODE_CLASS_MAPPINGS


def test_only_that_job_fails(path, classes):
    first = Life(path)
    first.put("gone")
    first.queue.put((2, "good", {"1": {"class_type": "Known", "inputs": {"text": "x"}}}, {"create_time": 1}, ["1"]))
    first.stop()
    classes["Known"] = Text
    again = Life(path)
    server = again.queue.server
    server.client_id = server.last_node_id = server.last_prompt_id = None
    server.sockets_metadata, server.nodes_ready = {}, types.SimpleNamespace(wait=lambda: None)
    executor = execution.PromptExecutor(server)
    worker = PromptWorker(server, again.queue, lambda server: executor)
    for _ in range(2):
        worker._run(executor, *again.queue.get(0))
    job = again.ledger.find("gone")
    assert (job.state, job.reason) == ("failed", "validation_error") and "'Text'" in job.detail
    assert again.state("good") == "completed"
    again.stop()
