"""Cancelling: what the caller is told is what happens (field cases I-01, I-03, I-05, I-06, I-07)."""

import logging

import pytest

from tests.jobs import control_kit
from tests.jobs.control_kit import one, unknown_id


async def detail(server, ident):
    return (await server.post(f"/api/jobs/{ident}/cancel?full=true"))[1]


async def test_the_answer_names_what_became_of_each_id(serving):
    server = await serving()
    done = await server.submit(one("Note", "done"))
    await server.over(done)
    running, waiting, other = [await server.submit(one("Deaf", f"{i}")) for i in range(3)]
    await server.entered()
    await server.entered()
    assert await detail(server, done) == {"cancelled": False, "id": done, "state": "already_finished"}
    assert await detail(server, waiting) == {"cancelled": True, "id": waiting, "state": "cancelled"}
    assert await detail(server, waiting) == {"cancelled": False, "id": waiting, "state": "already_finished"}
    nobody = unknown_id()
    status, answer, _ = await server.post(
        "/api/jobs/cancel?full=true", json={"job_ids": [running, other, nobody, done]}
    )
    assert status == 200 and answer == {
        "cancelled": True,
        "jobs": {running: "stopping", other: "cancelled", nobody: "unknown", done: "already_finished"},
    }
    control_kit.gate.open.set()
    assert (await server.over(running)).state == "cancelled"
    assert control_kit.gate.runs == ["done", "0"]


async def test_clients_of_the_reference_see_its_answer_and_a_header(serving):
    server = await serving()
    status, answer, headers = await server.post(f"/api/jobs/{unknown_id()}/cancel")
    assert (status, answer, headers["X-Job-State"]) == (200, {"cancelled": False}, "unknown")
    assert (await server.post("/api/jobs/cancel", json={"job_ids": []}))[1] == {"cancelled": False}


@pytest.mark.parametrize("how", ["interrupt", "cancel"])
async def test_what_a_deaf_node_returns_is_dropped(serving, how):
    server = await serving()
    async with server.ws("c") as ws:
        ident = await server.submit(one("Deaf", "x"), client_id="c")
        await server.entered()
        if how == "interrupt":
            await server.post("/interrupt", json={"prompt_id": ident})
        else:
            assert (await detail(server, ident))["state"] == "stopping"
        state = server.server.worker_state()
        assert (state["state"], state["node_id"], state["node_type"]) == ("stopping", "1", "Deaf")
        shown = (await server.get(f"/api/jobs/{ident}?full=true"))[1]
        assert (shown["status"], shown["stopping"]["reason"]) == ("in_progress", "interrupted")
        assert shown["stopping"]["by"]["address"] == "127.0.0.1" and shown["stopping"]["since"] > 0
        control_kit.gate.open.set()
        events = []
        while not events or events[-1]["type"] != "executing" or events[-1]["data"]["node"] is not None:
            events.append(await ws.receive_json(timeout=30))
    names = [event["type"] for event in events]
    assert "executed" not in names and "execution_success" not in names
    (data,) = [event["data"] for event in events if event["type"] == "execution_interrupted"]
    assert set(data) == {"prompt_id", "node_id", "node_type", "executed", "timestamp"}
    assert (data["node_id"], data["node_type"], data["executed"]) == ("1", "Deaf", [])
    entry = await server.history(ident)
    assert entry["status"]["status_str"] == "error" and entry["outputs"] == {}
    assert entry["status"]["messages"][-1][0] == "execution_interrupted"
    again = await server.submit(one("Deaf", "x"))
    assert (await server.over(again)).state == "completed"
    assert control_kit.gate.runs == ["x", "x"]  # it was not cached either


async def test_a_deaf_node_in_the_middle_keeps_its_value_and_is_the_last_to_run(serving):
    server = await serving()
    prompt = {**one("DeafInner", "x"), "2": {"class_type": "Note", "inputs": {"tag": ["1", 0]}}}
    ident = await server.submit(prompt)
    await server.entered()
    await server.post("/interrupt")
    control_kit.gate.open.set()
    assert (await server.over(ident)).state == "cancelled"
    again = await server.submit(prompt)
    assert (await server.over(again)).state == "completed"
    assert control_kit.gate.runs == ["x", "x"]  # first DeafInner, then, from its value, Note


async def test_a_node_that_swallows_the_interrupt_changes_nothing(serving, monkeypatch):
    server = await serving()

    def swallow(self, tag):
        control_kit.gate.enter(tag)
        while True:
            try:
                while not control_kit.gate.open.wait(0.005):
                    control_kit.throw_exception_if_processing_interrupted()
                return {"ui": {"text": [tag]}}
            except BaseException:
                control_kit.gate.open.set()

    monkeypatch.setattr(control_kit.Polite, "run", swallow)
    prompt = {**one("Polite", "a"), "2": {"class_type": "Note", "inputs": {"tag": "b"}}}
    ident = await server.submit(prompt)
    await server.entered()
    await server.post("/interrupt")
    job = await server.over(ident)
    assert (job.state, job.reason) == ("cancelled", "interrupted")
    assert (await server.history(ident))["outputs"].keys() <= {"2"}


async def test_a_node_that_fails_because_it_is_stopped_was_stopped(serving, monkeypatch):
    server = await serving()

    def sulk(self, tag):
        control_kit.gate.enter(tag)
        control_kit.gate.open.wait(60)
        raise RuntimeError("somebody disturbed me")

    monkeypatch.setattr(control_kit.Deaf, "run", sulk)
    ident = await server.submit(one("Deaf", "x"))
    await server.entered()
    await server.post("/interrupt")
    control_kit.gate.open.set()
    job = await server.over(ident)
    assert (job.state, job.reason) == ("cancelled", "interrupted")


async def test_an_interrupt_just_before_the_end_is_obeyed(serving, monkeypatch):
    """All nodes have run, but nobody has been told that the job succeeded."""
    server = await serving()
    send = server.server.send_sync

    def interrupt_on_output(event, data, sid=None):
        send(event, data, sid)
        if event == "executed":
            assert server.queue.interrupt() == [data["prompt_id"]]

    monkeypatch.setattr(server.server, "send_sync", interrupt_on_output)
    ident = await server.submit(one("Note", "x"), client_id="c")
    job = await server.over(ident)
    assert (job.state, job.reason, job.by) == ("cancelled", "interrupted", None)
    name, data = (await server.history(ident))["status"]["messages"][-1]
    assert (name, data["node_id"], data["node_type"]) == ("execution_interrupted", "1", "Note")


async def test_the_ledger_and_the_log_say_who_did_it(serving, caplog):
    server = await serving()
    caplog.set_level(logging.INFO)
    ident = await server.submit(one("Polite", "x"))
    waiting = await server.submit(one("Note", "y"))
    await server.entered()
    await server.post("/queue", json={"delete": [waiting, ident, unknown_id()]})
    assert server.job(waiting).by == {"address": "127.0.0.1", "route": "POST /queue"}
    assert server.job(ident).state == "in_progress"  # as the reference: /queue leaves what runs alone
    await server.post("/api/interrupt", json={"prompt_id": ident})
    job = await server.over(ident)
    assert (job.state, job.reason) == ("cancelled", "interrupted")
    assert job.by == {"address": "127.0.0.1", "route": "POST /api/interrupt"} and job.attempts[-1].by == job.by
    (line,) = [record.getMessage() for record in caplog.records if "interrupts" in record.getMessage()]
    assert "127.0.0.1" in line and "POST /api/interrupt" in line and ident in line


async def test_interrupting_one_that_waits_or_nothing_is_no_interrupt(serving):
    server = await serving()
    await server.post("/interrupt")  # nothing runs
    first = await server.submit(one("Polite", "a"))
    second = await server.submit(one("Polite", "b"))
    await server.entered()
    await server.post("/interrupt", json={"prompt_id": second})
    control_kit.gate.open.set()
    assert (await server.over(first)).state == (await server.over(second)).state == "completed"


async def test_a_cancelled_job_is_not_tried_again(serving):
    server = await serving(max_attempts=5)
    ident = await server.submit(one("Polite", "x"), extra_data={"timeout": 3600, "retry": 5})
    await server.entered()
    await detail(server, ident)
    assert [attempt.result for attempt in (await server.over(ident)).attempts] == ["cancelled"]
