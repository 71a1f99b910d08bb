"""Pages of jobs: they must say what sorting everything would say."""

import base64
import json
import random
import sqlite3
from dataclasses import replace

import pytest

from comfy_execution import jobs
from jobs import pages
from jobs.store import Query

STATES = jobs.JobStatus.ALL
ENDED = ("completed", "failed", "cancelled")


def listed(life, query, full=False):
    answer = json.loads(pages.by_offset(life.ledger, query, {} if full else None))
    return [job["id"] for job in answer["jobs"]], answer["pagination"]


def sorted_anew(life, known, query):
    found = []
    for order, (prompt_id, extra) in enumerate(known.items()):
        job = life.ledger.find(prompt_id)
        labels = {
            "client_id": extra.get("client_id"),
            "workflow_id": extra.get("extra_pnginfo", {}).get("workflow", {}).get("id"),
            "batch_id": extra.get("batch_id"),
        }
        fits = all(getattr(query, name) in (None, value) for name, value in labels.items())
        in_time = (query.created_from or 0) <= job.created < (query.created_before or 10**9)
        if fits and in_time and job.state in query.states:
            found.append(((job.duration if query.by_duration else job.created), order, prompt_id))
    found.sort(reverse=query.descending)
    return [prompt_id for _, _, prompt_id in found]


@pytest.fixture
def history(live):
    """A life with 120 jobs in all states, and what each was submitted with."""
    life, dice, known = live(), random.Random(7), {}
    running = []
    for number in range(120):
        extra = {"create_time": dice.randrange(50)}
        if dice.random() < 0.5:
            extra["client_id"] = dice.choice("xy")
        if dice.random() < 0.4:
            extra["extra_pnginfo"] = {"workflow": {"id": dice.choice(["w1", "w2"])}}
        if dice.random() < 0.3:
            extra["batch_id"] = "b"
        prompt_id = f"p{number}"
        known[prompt_id] = extra
        life.put(prompt_id, number, **extra)
        if dice.random() < 0.8:
            running.append(life.take()[1])
        if running and dice.random() < 0.9:
            task_id = running.pop(dice.randrange(len(running)))
            life.end(task_id, dice.choice(ENDED), start=100, end=100 + dice.randrange(5))
        if dice.random() < 0.1:
            life.queue.delete_queue_items([f"p{dice.randrange(number + 1)}"])
    return life, known


QUERIES = [
    Query(STATES),
    Query(STATES, descending=False),
    Query(STATES, by_duration=True),
    Query(STATES, by_duration=True, descending=False),
    Query(("pending", "in_progress")),
    Query(("failed",)),
    Query(ENDED, by_duration=True),
    Query(STATES, client_id="x"),
    Query(("completed", "pending"), client_id="y", by_duration=True),
    Query(STATES, workflow_id="w1", descending=False),
    Query(ENDED, batch_id="b", client_id="x"),
    Query(STATES, created_from=10, created_before=30),
    Query(("completed",), created_before=20, descending=False),
    Query(STATES, client_id="nobody"),
]


@pytest.mark.parametrize("query", QUERIES)
def test_pages_agree_with_sorting_everything(history, query):
    life, known = history
    wanted = sorted_anew(life, known, query)
    assert listed(life, query)[0] == wanted
    for offset, limit in ((0, 1), (3, 7), (50, 500), (200, 5)):
        found, pagination = listed(life, replace(query, offset=offset, limit=limit))
        assert found == wanted[offset : offset + limit]
        assert pagination["total"] == len(wanted)
        assert pagination["has_more"] == (offset + limit < len(wanted) and bool(found))


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_cursors_reach_every_job_once(history, query, limit):
    life, known = history
    found, cursor = [], ""
    while cursor is not None:
        answer = json.loads(pages.by_cursor(life.ledger, replace(query, limit=limit), cursor))
        found += [job["id"] for job in answer["jobs"]]
        assert len(answer["jobs"]) <= limit
        cursor = answer["pagination"]["next_cursor"]
        assert answer["pagination"]["has_more"] == (cursor is not None)
    assert found == sorted_anew(life, known, query)


def test_a_request_without_a_limit_is_not_answered_with_everything(live, monkeypatch):
    monkeypatch.setattr(pages, "LONGEST_PAGE", 3)
    life = live()
    for number in range(5):
        life.put(str(number), create_time=number)
    found, pagination = listed(life, Query(STATES))
    assert found == ["4", "3", "2"] and pagination == {"offset": 0, "limit": None, "total": 5, "has_more": True}


def test_a_limit_beyond_the_most_is_lowered_and_the_answer_says_so(live, monkeypatch):
    monkeypatch.setattr(pages, "LONGEST_PAGE", 3)
    life = live()
    for number in range(5):
        life.put(str(number), create_time=number)
    for limit in (4, 10**6, 10**40):
        found, pagination = listed(life, Query(STATES, limit=limit, offset=1))
        assert found == ["3", "2", "1"] and pagination == {"offset": 1, "limit": 3, "total": 5, "has_more": True}
        first = json.loads(pages.by_cursor(life.ledger, Query(STATES, limit=limit), ""))
        assert [job["id"] for job in first["jobs"]] == ["4", "3", "2"]
        assert first["pagination"]["limit"] == 3 and first["pagination"]["next_cursor"]
    assert listed(life, Query(STATES, limit=3))[1]["limit"] == 3


async def test_a_huge_limit_over_http(start, monkeypatch):
    monkeypatch.setattr(pages, "LONGEST_PAGE", 3)
    running = await start()
    for number in range(5):
        prompt = {"1": {"class_type": "Text", "inputs": {"text": str(number)}}}
        assert (await running.post("/prompt", json={"prompt": prompt}))[0] == 200
    for limit in ("4", "1000000", "9" * 60):
        for query, rest in (("", {"offset": 0, "total": 5}), ("&cursor=", {})):
            status, answer, _ = await running.get(f"/api/jobs?limit={limit}{query}")
            assert status == 200 and len(answer["jobs"]) == 3
            assert answer["pagination"].items() >= {"limit": 3, "has_more": True, **rest}.items()
    assert (await running.get("/api/jobs"))[1]["pagination"]["limit"] is None
    for limit in ("9" * 5000, "x" * 5000):  # beyond what is taken for a number; told in a few words
        status, answer, _ = await running.get(f"/api/jobs?limit={limit}")
        assert status == 400 and len(answer["error"]) < 200


def test_a_cursor_is_not_disturbed_by_what_comes_and_goes(live):
    life = live()
    for number in range(10):
        life.put(f"p{number}", create_time=number)
    query = Query(STATES, limit=4)
    first = json.loads(pages.by_cursor(life.ledger, query, ""))
    life.put("new", create_time=99)
    life.queue.delete_queue_items(["p7"])
    life.ledger.forget(["p6"])
    second = json.loads(pages.by_cursor(life.ledger, query, first["pagination"]["next_cursor"]))
    assert [job["id"] for job in second["jobs"]] == ["p5", "p4", "p3", "p2"]


# Numbers that no store can hold.
BEYOND = [
    base64.urlsafe_b64encode(json.dumps(["created-", key, seq]).encode()).decode()
    for key, seq in ((2**63, 1), (1, 2**63), (-(2**63), 1), (1, 2**64 - 1), (2**64 - 1, 1), (1e300, 1), (1, 2**70))
]


@pytest.mark.parametrize("cursor", ["x", "bm90IGpzb24", "W10", "WyJjcmVhdGVkLSIsICJhIiwgMV0", "é", "A" * 500, *BEYOND])
def test_what_is_no_cursor_is_refused(live, cursor):
    with pytest.raises(pages.BadCursor):
        pages.by_cursor(live().ledger, Query(STATES, limit=2), cursor)


def test_a_cursor_of_another_order_is_refused(live):
    life = live()
    for number in range(3):
        life.put(str(number))
    cursor = json.loads(pages.by_cursor(life.ledger, Query(STATES, limit=1), ""))["pagination"]["next_cursor"]
    with pytest.raises(pages.BadCursor, match="order"):
        pages.by_cursor(life.ledger, Query(STATES, limit=1, by_duration=True), cursor)


def test_counts_survive_a_restart(history, live):
    life, _ = history
    life.ledger.settle()
    counts = life.ledger.store.counts()
    assert sum(counts.values()) == 120
    life.crash()
    again = live()
    counts["pending"] += counts.pop("in_progress", 0)
    again.ledger.settle()
    assert again.ledger.store.counts() == counts


@pytest.mark.parametrize("value", ["NULL", "'{'", "'[]'", "x'ff'", "'{\"completed\": null}'"])
def test_counts_that_are_damaged_or_missing_are_made_anew(live, path, value):
    life = live()
    for prompt_id in "ab":
        life.run(prompt_id)
    life.put("c")
    life.stop()
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE meta SET value = {value} WHERE key = 'counts'")
    assert live().ledger.store.counts() == {"completed": 2, "pending": 1}


def test_listed_jobs_tell_their_attempts_where_there_is_something_to_tell(live):
    life = live()
    life.put("a", client_id="c")
    life.put("b")
    _, task_id = life.take()

    def one(prompt_id, full=False):
        answer = json.loads(pages.by_offset(life.ledger, Query(STATES), {} if full else None))
        return next(job for job in answer["jobs"] if job["id"] == prompt_id)

    plain = {"id", "status", "priority", "create_time", "outputs_count", "previewable_outputs_count"}
    assert set(one("a")) == set(one("b")) == plain
    assert one("a", full=True)["attempts"][0]["worker"] == "local" and one("b", full=True)["attempts"] == []
    life.queue.put_back(task_id, "timeout", "took too long")
    assert one("a")["attempts"][0]["reason"] == "timeout"
    life.end(life.take()[1], "failed")
    job = one("a")
    assert (job["reason"], job["detail"], len(job["attempts"])) == ("node_error", "bad", 2)
    assert life.ledger.shown("a").items() >= job.items()
