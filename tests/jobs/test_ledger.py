"""The ledger follows what happens in the queue."""

import types

import pytest

from comfy_execution.outcomes import INTERRUPTED, NODE_ERROR, Actor, Outcome
from comfy_execution.prompt_queue import ExecutionStatus, PromptQueue
from jobs.job import IN_QUEUE
from jobs.ledger import Ledger

CLIENT = Actor("127.0.0.1", "POST /queue")


@pytest.fixture
def queue():
    queue = PromptQueue(types.SimpleNamespace(queue_updated=lambda: None))
    queue.observer = Ledger()
    return queue


def put(queue, prompt_id, number=1, **extra):
    return queue.put((number, prompt_id, {}, {"create_time": 5, **extra}, ["1"]))


def test_states_and_attempts_of_a_job(queue):
    put(queue, "a", client_id="c", batch_id="b", extra_pnginfo={"workflow": {"id": "w"}})
    job = queue.observer.find("a")
    assert (job.state, job.created, job.client_id, job.workflow_id, job.batch_id) == ("pending", 5, "c", "w", "b")
    _, task_id = queue.get(0, worker="w1")
    job = queue.observer.find("a")
    assert (job.state, job.running.worker, job.running.number) == ("in_progress", "w1", 1)
    queue.finish(task_id, {}, ExecutionStatus("success", True, []))
    job = queue.observer.find("a")
    assert (job.state, job.running, job.attempts[0].result, job.reason) == ("completed", None, "completed", None)


def test_a_failed_job_tells_its_reason(queue):
    put(queue, "a")
    error = {"exception_type": "ValueError", "exception_message": "bad value\n"}
    queue.finish(queue.get(0)[1], {}, ExecutionStatus("error", False, [["execution_error", error]]))
    job = queue.observer.find("a")
    assert (job.state, job.reason, job.detail) == ("failed", NODE_ERROR, "bad value")


def test_an_outcome_known_better_than_the_status_says(queue):
    put(queue, "a")
    outcome = Outcome("failed", "timeout", "ran longer than 3 s")
    queue.finish(queue.get(0)[1], {}, ExecutionStatus("error", False, []), outcome)
    job = queue.observer.find("a")
    assert (job.state, job.reason, job.attempts[0].detail) == ("failed", "timeout", "ran longer than 3 s")


def test_dropped_jobs_stay_known_as_cancelled(queue):
    for prompt_id in "abc":
        put(queue, prompt_id)
    queue.delete_queue_items(["a"], by=CLIENT)
    queue.wipe_queue()
    assert [queue.observer.find(i).state for i in "abc"] == ["cancelled"] * 3
    job = queue.observer.find("a")
    assert (job.reason, job.by) == (INTERRUPTED, {"address": "127.0.0.1", "route": "POST /queue"})
    assert job.attempts == []


def test_an_ended_job_that_is_queued_again_gets_another_attempt(queue):
    put(queue, "a")
    queue.finish(queue.get(0)[1], {}, ExecutionStatus("error", False, []))
    queue.put(queue.observer.entry("a"))
    assert queue.observer.find("a").state == "pending"
    queue.finish(queue.get(0)[1], {}, ExecutionStatus("success", True, []))
    job = queue.observer.find("a")
    assert (job.state, [attempt.result for attempt in job.attempts]) == ("completed", ["failed", "completed"])


def test_each_cancellation_is_an_attempt_of_its_own(queue):
    """Cancelled while it ran, retried, cancelled while it waited, retried: both are to be seen."""
    entry = put(queue, "a")
    interrupted = [["execution_interrupted", {"prompt_id": "a", "timestamp": 6}]]
    queue.finish(queue.get(0)[1], {"outputs": {}, "meta": {}}, ExecutionStatus("error", False, interrupted))
    for _ in range(2):
        queue.put(entry)
        queue.delete_queue_items(["a"], CLIENT)
    queue.put(entry)
    results = [(attempt.result, attempt.worker == IN_QUEUE) for attempt in queue.observer.find("a").attempts]
    assert results == [("cancelled", False), ("cancelled", True), ("cancelled", True)]
