"""Moving, pausing, estimates and running again, over HTTP."""

import json
import time

import pytest

import execution
from comfy_execution.prompt_queue import QueueEntry
from jobs.estimates import RunTimes
from jobs.store import Query, Row
from tests.jobs import control_kit
from tests.jobs.control_kit import one, unknown_id


async def pending(server):
    return [item[1] for item in (await server.get("/queue"))[1]["queue_pending"]]


# --- moving --------------------------------------------------------------------------------------------------


async def test_moving(serving):
    server = await serving()
    server.queue.pause()
    a, b, c, d = [await server.submit(one("Note", tag)) for tag in "abcd"]
    for body, expected in (
        ({"ids": [c], "to": "front"}, [c, a, b, d]),
        ({"ids": [d, b], "number": "front"}, [d, b, c, a]),
        ({"ids": [d], "to": "back"}, [b, c, a, d]),
        ({"ids": [a, c], "before": b}, [a, c, b, d]),
        ({"ids": [a], "after": d}, [c, b, d, a]),
        ({"ids": [b], "number": -7.5}, [b, c, d, a]),
        ({"ids": [b], "number": 1e9}, [c, d, a, b]),
    ):
        status, answer, _ = await server.post("/api/queue/move", json=body)
        assert status == 200 and [moved["id"] for moved in answer["moved"]] == body["ids"]
        assert await pending(server) == expected
        shown = {item[1]: item[0] for item in (await server.get("/queue"))[1]["queue_pending"]}
        assert {moved["id"]: moved["number"] for moved in answer["moved"]}.items() <= shown.items()
    server.queue.resume()
    for ident in (a, b, c, d):
        await server.over(ident)
    assert control_kit.gate.runs == ["c", "d", "a", "b"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"ids": []},
        {"ids": "x", "to": "front"},
        {"ids": ["a", "a"], "to": "front"},
        {"ids": ["a"]},
        {"ids": ["a"], "to": "front", "number": 3},
        {"ids": ["a"], "to": "middle"},
        {"ids": ["a"], "to": 3},
        {"ids": ["a"], "number": "3"},
        {"ids": ["a"], "number": True},
        {"ids": ["a"], "number": [1]},
        {"ids": ["a"], "number": 10**400},
        {"ids": ["a"], "before": 5},
        {"ids": ["a"], "before": "a"},
        [],
    ],
)
async def test_moves_that_make_no_sense(serving, body):
    server = await serving()
    server.queue.pause()
    server.queue.put((1, "a", {}, {}, []))
    status, answer, _ = await server.post("/api/queue/move", json=body)
    assert status == 400 and list(answer) == ["error"], answer


async def test_a_move_of_what_does_not_wait_moves_nothing(serving):
    server = await serving()
    running = await server.submit(one("Deaf", "r"))
    await server.entered()
    a, b = [await server.submit(one("Note", tag)) for tag in "ab"]
    nobody = unknown_id()
    status, answer, _ = await server.post("/api/queue/move", json={"ids": [b, running, nobody], "to": "front"})
    assert status == 409 and answer["not_pending"] == {running: "running", nobody: "unknown"}
    assert await pending(server) == [a, b]


# --- pausing -------------------------------------------------------------------------------------------------


async def test_pausing_and_what_clients_see_of_it(serving):
    server = await serving()
    async with server.ws("c") as ws:
        assert (await ws.receive_json())["data"]["status"] == {"exec_info": {"queue_remaining": 0}}
        assert (await server.get("/prompt"))[1] == {"exec_info": {"queue_remaining": 0}}
        assert (await server.post("/api/queue/pause"))[1] == {"paused": True}
        assert (await ws.receive_json())["data"]["status"] == {"exec_info": {"queue_remaining": 0, "paused": True}}
        ident = await server.submit(one("Note", "x"))
        assert (await server.get("/api/queue/estimates"))[1]["paused"] is True
        assert await pending(server) == [ident] and control_kit.gate.runs == []
        assert (await server.post("/api/queue/resume"))[1] == {"paused": False}
        await server.over(ident)
        assert (await server.get("/prompt"))[1] == {"exec_info": {"queue_remaining": 0, "paused": False}}


async def test_what_runs_goes_on_in_a_pause(serving):
    server = await serving()
    first = await server.submit(one("Polite", "a"))
    await server.entered()
    second = await server.submit(one("Note", "b"))
    await server.post("/api/queue/pause")
    control_kit.gate.open.set()
    assert (await server.over(first)).state == "completed"
    assert await pending(server) == [second]


# --- estimates -------------------------------------------------------------------------------------------------


async def test_estimates_follow_recent_runs_of_the_same_workflow(serving):
    server = await serving()
    server.queue.pause()
    by_id = {"extra_pnginfo": {"workflow": {"id": "w"}}}
    quick, slow, stranger, last = [
        await server.submit(one("Note", "1")),
        await server.submit(one("Deaf", "2"), extra_data=by_id),
        await server.submit(one("Polite", "3")),
        await server.submit(one("Note", "other text, same shape")),
    ]
    assert [job["estimated_seconds"] for job in server.server.estimates()["jobs"]] == [None] * 4
    entries = {entry.prompt_id: entry for entry in server.queue.queue}
    for seconds in (1, 2, 100):
        server.server.run_times.note(entries[quick], seconds)
    server.server.run_times.note(entries[slow], 60)
    server.queue.paused = False  # without waking the worker
    found = server.server.estimates()
    server.queue.paused = True
    assert found["paused"] is False
    assert [job["id"] for job in found["jobs"]] == [quick, slow, stranger, last]
    assert [job["position"] for job in found["jobs"]] == [1, 2, 3, 4]
    assert [job["estimated_seconds"] for job in found["jobs"]] == [2, 60, 31, 2]  # 31: the median of all
    starts = [job["estimated_start_time"] for job in found["jobs"]]
    assert [round(start - starts[0], -1) for start in starts] == [0, 2000, 62000, 93000]
    listed = (await server.get("/api/jobs?full=true&sort_order=asc"))[1]["jobs"]
    assert [(job["position"], job["estimated_seconds"]) for job in listed] == [(1, 2), (2, 60), (3, 31), (4, 2)]
    shown = (await server.get(f"/api/jobs/{slow}?full=true"))[1]
    assert (shown["position"], shown["estimated_start_time"]) == (2, None)
    assert "position" not in (await server.get(f"/api/jobs/{slow}"))[1]
    answer = (await server.get("/api/queue/estimates"))[1]
    assert [job["estimated_start_time"] for job in answer["jobs"]] == [None] * 4  # paused: nobody knows


async def test_estimates_start_from_what_earlier_processes_ran(serving):
    server = await serving()
    by_id = {"extra_pnginfo": {"workflow": {"id": "w"}}}
    for _ in range(2):
        await server.over(await server.submit(one("Note", "x"), extra_data=by_id))
    known = RunTimes()
    known.seed(server.server.jobs.page(Query(("completed",), limit=10)))
    server.queue.pause()
    await server.submit(one("Note", "y"), extra_data=by_id)
    await server.submit(one("Polite", "z"))
    assert all(0 <= known.expected(entry) < 60 for entry in server.queue.queue)
    assert RunTimes().expected(server.queue.queue[0]) is None


@pytest.mark.parametrize("attempts", ["[{", "[]", "[5]", '[{"start_time": "x", "end_time": 5}]', '{"a": 1}'])
def test_times_that_cannot_be_read_are_left_out(attempts):
    known = RunTimes()
    row = Row(1, 1, "a", "completed", 1, 1, None, attempts, None, None, None, None)
    known.seed([row, row._replace(attempts='[{"start_time": 1000, "end_time": 4000}]')])
    assert known.expected(QueueEntry((1, "a", {}, {}, []))) == 3.0


async def test_runs_are_noted(serving):
    server = await serving()
    await server.over(await server.submit(one("Note", "x")))
    server.queue.pause()
    await server.submit(one("Note", "y"))
    (job,) = server.server.estimates()["jobs"]
    assert job["estimated_seconds"] is not None and job["estimated_seconds"] < 60


# --- running again -----------------------------------------------------------------------------------------------


async def test_running_a_cancelled_job_again(serving):
    server = await serving()
    server.queue.pause()
    ident = await server.submit(one("Note", "x"), client_id="c")
    await server.post(f"/api/jobs/{ident}/cancel")
    assert server.job(ident).state == "cancelled"
    server.queue.resume()
    status, answer, _ = await server.post(f"/api/jobs/{ident}/retry")
    assert status == 200 and answer["prompt_id"] == ident
    job = await server.over(ident)
    assert (job.state, job.reason, job.client_id) == ("completed", None, "c")
    assert control_kit.gate.runs == ["x"] and (await server.history(ident))["outputs"] == {"1": {"text": ["x"]}}


async def test_running_a_failed_job_again_is_another_attempt(serving):
    server = await serving()
    ident = await server.submit(one("Fails", "x", kind="boom"))
    await server.over(ident)
    server.queue.pause()
    await server.submit(one("Note", "other"))
    await server.post(f"/api/jobs/{ident}/retry", json={"front": True})
    assert (await pending(server))[0] == ident
    assert await server.history(ident) is None  # the end that clients wait for is the new one
    assert (await server.post(f"/api/jobs/{ident}/retry"))[0] == 409
    server.queue.resume()
    job = await server.over(ident)
    assert [(attempt.number, attempt.result) for attempt in job.attempts] == [(1, "failed"), (2, "failed")]


async def test_changed_inputs_make_a_new_job(serving):
    server = await serving()
    ident = await server.submit(one("Note", "x"), client_id="c", extra_data={"api_key_comfy_org": "s"})
    await server.over(ident)
    assert (await server.post(f"/api/jobs/{ident}/retry"))[0] == 409  # it has completed
    status, answer, _ = await server.post(f"/api/jobs/{ident}/retry", json={"inputs": {"1": {"tag": "y"}}})
    assert status == 200 and answer["retry_of"] == ident and answer["prompt_id"] != ident
    await server.over(answer["prompt_id"])
    entry = await server.history(answer["prompt_id"])
    assert entry["prompt"][3]["retry_of"] == ident and entry["prompt"][3]["client_id"] == "c"
    assert entry["outputs"] == {"1": {"text": ["y"]}}
    assert (await server.history(ident))["prompt"][2]["1"]["inputs"] == {"tag": "x"}


async def test_secrets_are_sent_again(serving, monkeypatch):
    server = await serving()
    seen = []
    hidden = {"hidden": {"key": "API_KEY_COMFY_ORG"}, "required": {"tag": ("*", {})}}
    monkeypatch.setattr(control_kit.Note, "INPUT_TYPES", classmethod(lambda cls: hidden))
    monkeypatch.setattr(control_kit.Note, "run", lambda self, tag, key=None: seen.append(key) or 1 / 0)
    ident = await server.submit(one("Note", "x"), extra_data={"api_key_comfy_org": "first"})
    await server.over(ident)
    extra = {"extra_data": {"api_key_comfy_org": "second", "client_id": "ignored"}}
    for body in (extra, {}):
        assert (await server.post(f"/api/jobs/{ident}/retry", json=body))[0] == 200
        await server.over(ident)
    assert seen == ["first", "second", None]
    assert "second" not in str((await server.get(f"/api/jobs/{ident}?full=true"))[1])


@pytest.mark.parametrize("extra", [{"api_key_comfy_org": "s3cret-key"}, {"auth_token_comfy_org": ["s3cret-key"]}])
async def test_secrets_are_in_no_report_of_an_error(serving, monkeypatch, caplog, extra):
    server = await serving()
    hidden = {"key": "API_KEY_COMFY_ORG", "token": "AUTH_TOKEN_COMFY_ORG"}
    spec = {"hidden": hidden, "required": {"tag": ("*", {})}}

    def run(self, tag, key=None, token=None):
        raise ValueError(f"the service does not know {key or token}")

    monkeypatch.setattr(control_kit.Note, "INPUT_TYPES", classmethod(lambda cls: spec))
    monkeypatch.setattr(control_kit.Note, "run", run)
    async with server.ws("c") as ws:
        ident = await server.submit(one("Note", "x"), client_id="c", extra_data=extra)
        job = await server.over(ident)
        while (message := await ws.receive_json())["type"] != "execution_error":
            pass
    stored = server.server.jobs.store.payloads([ident])[ident]
    for told in (message, job.detail, stored, await server.history(ident), (await server.get("/api/jobs?full=1"))[1]):
        assert "s3cret" not in str(told)
    assert "s3cret" not in caplog.text and "(hidden)" in caplog.text
    assert message["data"]["current_inputs"]["tag"] == ["x"]
    assert "(hidden)" in str(message["data"]["current_inputs"])


@pytest.mark.parametrize(
    "body, status",
    [
        ([], 400),
        ({"extra_data": 5}, 400),
        ({"inputs": 5}, 400),
        ({"inputs": []}, 400),
        ({"inputs": ""}, 400),
        ({"inputs": False}, 400),
        ({"inputs": {"9": {}}}, 400),
        ({"inputs": {"1": []}}, 400),
        ({"inputs": {"1": {"tag": ["7", 0]}}}, 400),
        ({"number": "x"}, 400),
    ],
)
async def test_retries_that_make_no_sense(serving, body, status):
    server = await serving()
    ident = await server.submit(one("Fails", "x", kind="boom"))
    await server.over(ident)
    assert (await server.post(f"/api/jobs/{ident}/retry", json=body))[0] == status
    assert server.job(ident).state == "failed" and control_kit.gate.runs == ["x"]


async def test_what_cannot_run_again(serving):
    server = await serving()
    assert (await server.post(f"/api/jobs/{unknown_id()}/retry"))[0] == 404
    ident = await server.submit(one("Polite", "x"))
    await server.entered()
    status, answer, _ = await server.post(f"/api/jobs/{ident}/retry")
    assert status == 409 and answer["state"] == "in_progress"
    server.server.retry_after = 7
    status, answer, headers = await server.post(f"/api/jobs/{ident}/retry")
    assert (status, answer["error"]["type"], headers["Retry-After"]) == (503, "server_stopping", "7")


# --- what is answered is on disk -----------------------------------------------------------------------------------

WRITES = {
    "cancel": ("/api/jobs/{}/cancel", None, lambda job: job.state == "cancelled"),
    "cancel many": ("/api/jobs/cancel", {"job_ids": ["{}"]}, lambda job: job.state == "cancelled"),
    "delete": ("/queue", {"delete": ["{}"]}, lambda job: job.state == "cancelled"),
    "clear": ("/queue", {"clear": True}, lambda job: job.state == "cancelled"),
    "move": ("/api/queue/move", {"ids": ["{}"], "number": -5}, lambda job: job.number == -5),
    "interrupt": ("/interrupt", {}, lambda job: job.attempts[-1].reason == "interrupted"),
    "stop": ("/api/jobs/{}/cancel", None, lambda job: job.attempts[-1].reason == "interrupted"),
    "forget": ("/history", {"delete": ["{}"]}, lambda job: job is None),
    "forget all": ("/history", {"clear": True}, lambda job: job is None),
}


@pytest.mark.parametrize("what", WRITES)
async def test_what_is_answered_survives_the_process(serving, what):
    server = await serving()
    path, body, is_stored = WRITES[what]
    ended, runs = what.startswith("forget"), what in ("interrupt", "stop")
    if not (ended or runs):
        server.queue.pause()
    ident = await server.submit(one("Deaf" if runs else "Note", "x"))
    if runs:
        await server.entered()
    if ended:
        await server.over(ident)
    ledger = server.server.jobs
    write = ledger._writer._apply
    ledger._writer._apply = lambda changes: (time.sleep(0.05), write(changes))  # a slow disk
    filled = json.loads(json.dumps(body).replace("{}", ident)) if body != {} else {}
    status, _, _ = await server.post(path.replace("{}", ident), json=filled)
    assert status == 200 and is_stored(ledger.store.job(ident))


@pytest.mark.parametrize("paused", [True, False])
async def test_a_pause_that_is_answered_survives_the_process(serving, paused):
    server = await serving()
    ledger = server.server.jobs
    write = ledger._writer._apply
    ledger._writer._apply = lambda changes: (time.sleep(0.05), write(changes))
    await server.post("/api/queue/pause")
    if not paused:
        await server.post("/api/queue/resume")
    assert ledger.store.recall("paused") == paused


async def test_a_retry_that_somebody_else_asked_for_and_that_is_done(serving, monkeypatch):
    """It failed when the request came; while the request is looked at, another one runs it to its end."""
    server = await serving()
    server.queue.pause()
    ident = await server.submit(one("Note", "x"))
    await server.post(f"/api/jobs/{ident}/cancel")
    server.queue.resume()
    real = execution.validate_prompt

    async def slow(*arguments):
        monkeypatch.setattr(execution, "validate_prompt", real)
        assert (await server.post(f"/api/jobs/{ident}/retry"))[0] == 200
        await server.over(ident)
        return await real(*arguments)

    monkeypatch.setattr(execution, "validate_prompt", slow)
    status, answer, _ = await server.post(f"/api/jobs/{ident}/retry")
    assert (status, answer["state"]) == (409, "completed") and control_kit.gate.runs == ["x"]


async def test_counts_of_retries_go_on_after_a_restart(serving):
    server = await serving()
    server.queue.pause()
    first = await server.submit(one("Note", "x"))
    await server.post(f"/api/jobs/{first}/cancel")
    number = (await server.post(f"/api/jobs/{first}/retry"))[1]["number"]
    assert server.server.jobs.next_number() == number + 1
    await server.post(f"/api/jobs/{first}/cancel")
    changed = (await server.post(f"/api/jobs/{first}/retry", json={"inputs": {"1": {"tag": "y"}}}))[1]
    assert server.server.jobs.next_number() == changed["number"] + 1
