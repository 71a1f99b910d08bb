"""The job store over HTTP: idempotent submission, lists, deletion, health."""

import asyncio
import json
import uuid

import pytest

from jobs.ledger import Ledger
from jobs.sqlite_store import MEMORY, SqliteStore
from tests.server.conftest import text_prompt


def body(prompt_id, text="x", **more):
    return json.dumps({"prompt": text_prompt(text), "prompt_id": prompt_id, **more})


def end_next(running, state="success"):
    entry, task_id = running.server.prompt_queue.get(0)
    running.server.prompt_queue.task_done(task_id, {"outputs": {}, "meta": {}}, (state, state == "success", []))
    return entry.prompt_id


async def jobs(running, query=""):
    status, answer, _ = await running.get("/api/jobs" + query)
    assert status == 200, answer
    return answer


# --- the same prompt twice --------------------------------------------------------------------------------------


async def test_the_same_body_is_answered_as_before_whatever_became_of_it(running):
    ident = str(uuid.uuid4())
    first = await running.post("/prompt", data=body(ident))
    again = json.dumps(dict(reversed(json.loads(body(ident)).items())), indent=1)
    answers = [await running.post("/prompt", data=again)]
    _, task_id = running.server.prompt_queue.get(0)
    answers.append(await running.post("/prompt", data=body(ident)))
    running.server.prompt_queue.task_done(task_id, {"outputs": {}, "meta": {}}, ("success", True, []))
    answers.append(await running.post("/prompt", data=body(ident)))
    assert [answer[:2] for answer in answers] == [first[:2]] * 3 and first[0] == 200
    assert running.server.prompt_queue.get_tasks_remaining() == 0
    assert (await jobs(running))["pagination"]["total"] == 1


async def test_an_id_may_be_used_again_once_its_job_has_ended(running):
    ident = str(uuid.uuid4())
    await running.post("/prompt", data=body(ident, "one"))
    status, answer, _ = await running.post("/prompt", data=body(ident, "two"))
    assert status == 409 and answer["error"]["type"] == "prompt_id_conflict"
    end_next(running)
    assert (await running.post("/prompt", data=body(ident, "two")))[0] == 200
    assert running.server.prompt_queue.queue[0][2]["1"]["inputs"]["text"] == "two"
    assert (await jobs(running))["pagination"]["total"] == 1


async def test_secrets_and_times_do_not_make_another_body(running):
    ident = str(uuid.uuid4())
    extra = {"api_key_comfy_org": "one", "create_time": 5, "kept": 1}
    assert (await running.post("/prompt", data=body(ident, extra_data=extra)))[0] == 200
    other = {"auth_token_comfy_org": "two", "kept": 1}
    assert (await running.post("/prompt", data=body(ident, extra_data=other)))[0] == 200
    assert (await running.post("/prompt", data=body(ident, extra_data={"kept": 2})))[0] == 409
    assert len(running.server.prompt_queue.queue) == 1


async def test_extra_data_of_nothing_else_is_none(running):
    ident = str(uuid.uuid4())
    for extra in ({"api_key_comfy_org": "one", "create_time": 5}, {}, None):
        given = {} if extra is None else {"extra_data": extra}
        assert (await running.post("/prompt", data=body(ident, **given)))[0] == 200
    assert len(running.server.prompt_queue.queue) == 1


async def test_many_at_once_are_one_job(running):
    ident = str(uuid.uuid4())
    answers = await asyncio.gather(*(running.post("/prompt", data=body(ident)) for _ in range(20)))
    assert {answer[0] for answer in answers} == {200} and len({answer[1]["number"] for answer in answers}) == 1
    assert len(running.server.prompt_queue.queue) == 1


async def test_a_refused_prompt_does_not_take_its_id(running):
    ident = str(uuid.uuid4())
    wrong = json.dumps({"prompt": {"1": {"class_type": "None", "inputs": {}}}, "prompt_id": ident})
    assert (await running.post("/prompt", data=wrong))[0] == 400
    assert (await running.post("/prompt", data=body(ident)))[0] == 200


@pytest.mark.parametrize("odd", [10**40, "\ud800", 1e300])
async def test_odd_values_are_told_apart(running, odd):
    ident = str(uuid.uuid4())
    status, answer, _ = await running.post("/prompt", data=body(ident, extra_data={"odd": odd}))
    assert status in (200, 400), answer
    again, _, _ = await running.post("/prompt", data=body(ident, extra_data={"odd": odd}))
    assert again == status


async def test_deep_bodies_are_no_500(running):
    deep = "[" * 900 + "]" * 900
    data = body(str(uuid.uuid4()), extra_data={"deep": 0}).replace('"deep": 0', f'"deep": {deep}')
    assert (await running.post("/prompt", data=data))[0] in (200, 400)


# --- lists --------------------------------------------------------------------------------------------------------


async def test_every_answer_tells_the_instance(running):
    instance = running.server.jobs.instance_id
    for path in ("/api/jobs", "/api/jobs/unknown", "/api/jobs?limit=x", "/health", "/queue"):
        assert (await running.get(path))[2]["X-Instance-Id"] == instance
    assert (await running.post("/api/jobs/unknown/cancel"))[2]["X-Instance-Id"] == instance
    assert (await running.get("/api/jobs?full=1"))[1]["instance_id"] == instance
    assert (await running.get("/health"))[1]["instance_id"] == instance


async def test_filters(running):
    for client in ("a", "b", "a"):
        extra = {"batch_id": f"batch-{client}", "extra_pnginfo": {"workflow": {"id": f"flow-{client}"}}}
        prompt = {"prompt": text_prompt(client), "client_id": client, "extra_data": extra}
        assert (await running.post("/prompt", data=json.dumps(prompt)))[0] == 200
    ended = end_next(running)
    count = {
        query: len((await jobs(running, "?" + query))["jobs"])
        for query in (
            "client_id=a", "client_id=c", "batch_id=batch-b", "workflow_id=flow-a&status=pending", "status=completed",
            "created_after=1", "created_before=1", "client_id=%ED%A0%80",
        )
    }  # fmt: skip
    assert list(count.values()) == [2, 0, 1, 1, 1, 3, 0, 0], count
    assert (await running.get(f"/api/jobs/{ended}"))[1]["attempts"][0]["result"] == "completed"


async def test_pages_by_cursor(running):
    for number in range(5):
        await running.post("/prompt", data=json.dumps({"prompt": text_prompt(str(number))}))
    wanted = [job["id"] for job in (await jobs(running))["jobs"]]
    found, cursor = [], ""
    while cursor is not None:
        page = await jobs(running, f"?limit=2&cursor={cursor}")
        found += [job["id"] for job in page["jobs"]]
        cursor = page["pagination"]["next_cursor"]
    assert found == wanted and len(found) == 5


@pytest.mark.parametrize(
    "query",
    ["cursor=zzz", "created_after=x", "created_before=1.5", f"created_after={2**70}", f"offset={2**70}", "limit=0"],
)
async def test_bad_queries_are_refused(running, query):
    status, answer, _ = await running.get("/api/jobs?" + query)
    assert status == 400 and list(answer) == ["error"]


async def test_cancelled_while_it_waited_stays_visible(running):
    ident = str(uuid.uuid4())
    await running.post("/prompt", data=body(ident))
    await running.post("/queue", json={"delete": [ident]})
    status, job, _ = await running.get(f"/api/jobs/{ident}")
    assert (status, job["status"], job["reason"], job["attempts"]) == (200, "cancelled", "interrupted", [])
    assert job["by"]["address"] == "127.0.0.1" and "/queue" in job["by"]["route"]
    assert [j["status"] for j in (await jobs(running))["jobs"]] == ["cancelled"]
    assert (await running.get(f"/history/{ident}"))[1] == {}
    await running.post("/history", json={"clear": True})
    assert (await running.get(f"/api/jobs/{ident}"))[0] == 404


# --- deletion -------------------------------------------------------------------------------------------------------


async def test_deleting_a_job(running):
    ident = str(uuid.uuid4())
    assert (await running.request("DELETE", f"/api/jobs/{ident}"))[0] == 404
    await running.post("/prompt", data=body(ident))
    status, answer, _ = await running.request("DELETE", f"/api/jobs/{ident}")
    assert status == 409 and "pending" in answer["error"]
    end_next(running)
    status, answer, _ = await running.request("DELETE", f"/api/jobs/{ident}?outputs=true")
    assert (status, answer) == (200, {"deleted": ident, "files": []})
    assert (await running.get(f"/api/jobs/{ident}"))[0] == 404
    assert (await running.get(f"/history/{ident}"))[1] == {}


# --- health -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/health", "/healthz", "/api/health"])
async def test_health(running, path, monkeypatch):
    monkeypatch.setattr(running.server, "worker_state", lambda: {"state": "idle"})
    await running.post("/prompt", data=body(str(uuid.uuid4())))
    status, answer, _ = await running.get(path)
    assert status == 200 and answer["status"] == "ok" and answer["nodes_ready"] is True
    assert answer["queue"] == {"pending": 1, "running": 0, "paused": False}
    assert answer["store"] == {"state": "ok", "store": "memory", "persistent": False, "jobs": {"pending": 1}}


async def test_health_of_a_server_without_its_store(running):
    ledger = Ledger(SqliteStore(MEMORY), "the disk is full")
    ledger.attach(running.server.prompt_queue)
    running.server.jobs = ledger
    status, answer, _ = await running.get("/health")
    assert status == 200 and answer["status"] == "degraded" and answer["store"]["problem"] == "the disk is full"
    assert (await running.post("/prompt", data=body(str(uuid.uuid4()))))[0] == 200


async def test_a_store_that_breaks_is_503_where_only_it_knows(running):
    running.server.jobs.store.close()
    status, answer, _ = await running.get("/api/jobs")
    assert status == 503 and "job store" in answer["error"]
    assert (await running.get("/queue"))[0] == 200
    assert (await running.post("/prompt", data=body(str(uuid.uuid4()))))[0] == 200
    assert (await running.get("/api/jobs"))[0] == 200  # it has changed over to memory
