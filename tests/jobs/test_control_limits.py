"""Time limits, retries by cause, a dead worker, and what the watchdog says."""

import pytest

from comfy_execution.attempts import Attempt
from comfy_execution.outcomes import NODE_ERROR, OUT_OF_MEMORY, SHUTDOWN, TIMEOUT, WORKER_DIED, Outcome
from jobs.limits import seconds_of, time_limit
from jobs.retry import RetryPolicy, RetryRule, rule_of
from tests.jobs import control_kit
from tests.jobs.control_kit import one


def results(job):
    return [(attempt.result, attempt.reason) for attempt in job.attempts]


@pytest.mark.parametrize("class_type", ["Polite", "Patient"])
async def test_a_job_beyond_its_limit_fails_with_reason_timeout(serving, class_type):
    server = await serving(max_attempts=1)
    async with server.ws("c") as ws:
        ident = await server.submit(one(class_type, "x"), client_id="c", extra_data={"timeout": 0.05})
        job = await server.over(ident)
        assert (job.state, job.reason) == ("failed", "timeout") and "0.05 s" in job.detail
        event = {}
        while event.get("type") != "execution_error":
            event = await ws.receive_json(timeout=30)
    assert event["data"]["exception_type"] == "JobTimeout" and event["data"]["node_id"] == "1"
    assert (await server.history(ident))["status"]["messages"][-1][0] == "execution_error"
    assert (await server.over(await server.submit(one("Note", "y")))).state == "completed"


async def test_a_coroutine_outlives_an_interrupt_only_for_a_while(serving, monkeypatch):
    server = await serving()
    ident = await server.submit(one("Patient", "x"))
    await server.entered()
    monkeypatch.setattr("comfy_execution.attempts.COROUTINE_SECONDS", 0.1)
    await server.post("/interrupt")
    assert (await server.over(ident)).state == "cancelled"


async def test_a_timeout_is_tried_again_behind_one_that_waits(serving):
    server = await serving(job_timeout=0.3)
    async with server.ws("c") as ws:
        ident = await server.submit(one("Polite", "slow"), client_id="c")
        await server.entered()
        server.queue.pause()
        others = [await server.submit(one("Note", tag)) for tag in "ab"]
        await server.until(lambda: server.job(ident).state == "pending")
        server.queue.resume()
        job = await server.over(ident)
        names = []
        while "execution_error" not in names:
            names.append((await ws.receive_json(timeout=30))["type"])
    assert results(job) == [("put_back", "timeout"), ("failed", "timeout")]
    assert control_kit.gate.runs == ["slow", "a", "slow"] or control_kit.gate.runs == ["slow", "a", "slow", "b"]
    assert names.count("execution_start") == 2 and names.count("job_put_back") == 1
    for other in others:
        await server.over(other)


async def test_the_result_of_a_deaf_node_beyond_its_limit_is_dropped(serving):
    server = await serving(max_attempts=1)
    ident = await server.submit(one("Deaf", "x"), extra_data={"timeout": 0.05})
    await server.until(lambda: server.server.worker_state()["state"] == "stopping")
    assert server.server.worker_state()["stop_reason"] == "timeout"
    control_kit.gate.open.set()
    job = await server.over(ident)
    assert (job.state, job.reason) == ("failed", "timeout")
    assert (await server.history(ident))["outputs"] == {}


@pytest.mark.parametrize(
    "kind, reason", [("boom", "node_error"), ("memory", "out_of_memory"), ("model", "missing_model")]
)
async def test_failures_have_a_reason_and_are_final(serving, kind, reason):
    server = await serving(max_attempts=5)
    job = await server.over(await server.submit(one("Fails", "x", kind=kind)))
    assert (job.state, job.reason) == ("failed", reason) and len(job.attempts) == 1


async def test_out_of_memory_is_tried_once_more_if_asked_for(serving):
    server = await serving(max_attempts=1, retry_oom=True)
    job = await server.over(await server.submit(one("Fails", "x", kind="memory")))
    assert results(job) == [("put_back", "out_of_memory"), ("failed", "out_of_memory")]
    asked = await server.submit(one("Fails", "y", kind="memory"), extra_data={"retry": False})
    assert results(await server.over(asked)) == [("failed", "out_of_memory")]


async def test_a_dead_worker_is_replaced_and_its_job_tried_again(serving, monkeypatch):
    server = await serving()
    end = server.worker._end
    died = []

    def die(executor, attempt):
        if len(died) < 1:
            died.append(attempt.prompt_id)
            monkeypatch.setattr(server.worker, "_abandon_task", lambda error=None: (_ for _ in ()).throw(SystemError()))
            raise SystemError("the thread dies")
        return end(executor, attempt)

    abandon = server.worker._abandon_task
    monkeypatch.setattr(server.worker, "_end", die)
    monkeypatch.setattr(server.worker, "_replace", _replace_with(server.worker, abandon))
    ident = await server.submit(one("Note", "x"))
    job = await server.over(ident)
    assert results(job) == [("put_back", "worker_died"), ("completed", None)]
    assert server.worker.deaths == 1 and server.server.worker_state()["restarted"] == 1


def _replace_with(worker, abandon):
    replace = type(worker)._replace

    def undo_and_replace():
        worker._abandon_task = abandon
        replace(worker)

    return undo_and_replace


async def test_an_attempt_that_does_not_stop_is_given_up(serving):
    stuck = []
    server = await serving(max_attempts=1, stuck_seconds=0.1, on_stuck=lambda: stuck.append(1))
    ident = await server.submit(one("Deaf", "x"), extra_data={"timeout": 0.05})
    job = await server.over(ident)  # although its node still has the thread
    assert (job.state, job.reason) == ("failed", "timeout")
    await server.until(lambda: stuck == [1])
    before = await server.history(ident)
    control_kit.gate.open.set()
    assert (await server.over(await server.submit(one("Note", "y")))).state == "completed"
    assert await server.history(ident) == before


async def test_what_the_watchdog_says(serving, monkeypatch):
    server = await serving()
    state = server.server.worker_state
    assert state() == {"state": "idle", "message": "nothing to do", "restarted": 0, "paused": False}
    ident = await server.submit(one("Polite", "x"))
    await server.entered()
    shown = state()
    assert (shown["state"], shown["prompt_id"], shown["attempt"]) == ("busy", ident, 1)
    assert shown["message"].startswith("busy on node 1 (Polite) for ") and shown["node_seconds"] >= 0
    monkeypatch.setattr("workers.watchdog.SILENT_SECONDS", 0.0)
    assert state()["state"] == "no_progress" and "no progress for" in state()["message"]
    told = (await server.get("/health"))[1]
    assert told["status"] == "degraded" and told["worker"]["state"] == "no_progress"
    server.queue.pause()
    assert state()["paused"]
    control_kit.gate.open.set()
    await server.over(ident)
    server.worker.stop()
    await server.until(lambda: state()["state"] == "dead")


@pytest.mark.parametrize("value", [0, -1, "5", True, [], {}, 1e400])
async def test_limits_that_are_none(serving, value):
    server = await serving()
    body = {"prompt": one("Note"), "extra_data": {"timeout": value if value != 1e400 else -0.5}}
    status, answer, _ = await server.post("/prompt", json=body)
    assert (status, answer["error"]["type"]) == (400, "invalid_timeout")
    with pytest.raises(ValueError, match="positive number of seconds"):
        seconds_of(value)


@pytest.mark.parametrize("value", [0, 101, True, "2", [], {"on": ["node_error"]}, {"on": 5}, {"tries": 1}])
async def test_retry_rules_that_are_none(serving, value):
    server = await serving()
    status, answer, _ = await server.post("/prompt", json={"prompt": one("Note"), "extra_data": {"retry": value}})
    assert (status, answer["error"]["type"]) == (400, "invalid_retry")
    told = value["on"] if isinstance(value, dict) and "on" in value else value
    assert "extra_data.retry" in answer["error"]["message"] and repr(told) in answer["error"]["message"]


def test_the_server_s_limit_cannot_be_exceeded():
    assert time_limit({"timeout": 5}, 0) == 5 and time_limit({"timeout": 5}, 2) == 2
    assert time_limit({}, 0) is None and time_limit({}, 7) == 7 and time_limit(None, 7) == 7


@pytest.mark.parametrize(
    "extra, causes, reason, expected",
    [
        ({}, (), TIMEOUT, 1),
        ({}, (), WORKER_DIED, 1),
        ({}, (TIMEOUT,), TIMEOUT, None),
        ({}, (SHUTDOWN, SHUTDOWN), TIMEOUT, 1),  # an attempt that the server gave up does not count
        ({"retry": 4}, (TIMEOUT, WORKER_DIED), TIMEOUT, 3),
        ({"retry": {"max_attempts": 3}}, (TIMEOUT, TIMEOUT), TIMEOUT, None),
        ({"retry": {"on": [OUT_OF_MEMORY]}}, (), TIMEOUT, None),
        ({"retry": {"on": [OUT_OF_MEMORY]}}, (), OUT_OF_MEMORY, 1),
        ({"retry": False}, (), TIMEOUT, None),
        ({}, (), OUT_OF_MEMORY, None),
        ({}, (), NODE_ERROR, None),
        ({"retry": "rubbish"}, (), TIMEOUT, 1),
    ],
)
def test_what_is_worth_another_attempt(extra, causes, reason, expected):
    attempt = Attempt(_Entry(extra), 0, None, causes)
    assert RetryPolicy(2).behind(attempt, Outcome("failed", reason)) == expected


def test_out_of_memory_twice_is_final():
    rule = rule_of({"on": [OUT_OF_MEMORY], "max_attempts": 9}, RetryRule())
    assert rule.behind(Attempt(_Entry({}), 0, None, (OUT_OF_MEMORY,)), Outcome("failed", OUT_OF_MEMORY)) is None


class _Entry(tuple):
    def __new__(cls, extra_data):
        entry = super().__new__(cls, (0, "p", {}, extra_data, []))
        entry.extra_data = extra_data
        return entry
