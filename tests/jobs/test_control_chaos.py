"""Everything at once, at random: whatever clients do to a queue, each job ends once and as its client was told."""

import random
from collections import Counter
from itertools import pairwise

import pytest

from tests.jobs import control_kit
from tests.jobs.control_kit import one

JOBS = 40


@pytest.mark.parametrize("seed", [1, 2])
async def test_whatever_happens_each_job_ends_as_told(serving, seed):
    rng = random.Random(seed)
    server = await serving(max_attempts=2)
    kinds = {"Note": {}, "Deaf": {}, "Polite": {}, "Fails": {"kind": "boom"}}
    ids, told, kind_of = [], {}, {}

    async def submit():
        kind = rng.choice(list(kinds))
        extra = {"timeout": rng.choice([0.02, 30])} if kind == "Polite" else {}
        body = {"extra_data": extra, "number": rng.choice([-1, 0, 3])} if rng.random() < 0.5 else {"extra_data": extra}
        ident = await server.submit(one(kind, f"{len(ids)}", **kinds[kind]), **body)
        ids.append(ident)
        kind_of[ident] = kind

    async def cancel():
        ident = rng.choice(ids)
        state = (await server.post(f"/api/jobs/{ident}/cancel?full=true"))[1]["state"]
        if state in ("cancelled", "stopping"):
            told[ident] = state

    async def interrupt():
        for ident in (await server.get("/queue"))[1]["queue_running"][:1]:
            await server.post("/interrupt", json={"prompt_id": ident[1]})

    async def move():
        some = rng.sample(ids, min(len(ids), 3))
        status, answer, _ = await server.post(
            "/api/queue/move", json={"ids": some, "to": rng.choice(["front", "back"])}
        )
        assert status in (200, 409), answer

    async def pause():
        await server.post(f"/api/queue/{rng.choice(['pause', 'resume', 'resume'])}")

    async def gate():
        control_kit.gate.open.set() if rng.random() < 0.7 else control_kit.gate.open.clear()

    await submit()
    while len(ids) < JOBS:
        await rng.choice([submit, submit, cancel, interrupt, move, pause, gate])()
        running, _ = server.queue.get_current_queue()
        assert len(running) <= 1
    server.queue.resume()
    control_kit.gate.open.set()
    jobs = [await server.over(ident) for ident in ids]
    assert server.queue.get_tasks_remaining() == 0
    began = Counter(control_kit.gate.runs)
    for tag, job in enumerate(jobs):
        runs = [attempt for attempt in job.attempts if attempt.result is not None]
        assert len(runs) == len(job.attempts)
        assert began[str(tag)] <= len(runs), (job, began[str(tag)])  # a run may be stopped before its node begins
        assert all(a.ended <= b.started for a, b in pairwise(runs))
        assert all((a.result, a.reason) == ("put_back", "timeout") for a in runs[:-1])
        if job.id in told:
            assert (job.state, job.reason) == ("cancelled", "interrupted"), (told[job.id], job)
        if told.get(job.id) == "cancelled":
            assert began[str(tag)] <= len(job.attempts) and (not job.attempts or job.attempts[-1].result == "put_back")
        expected = {"Note": "completed", "Deaf": "completed", "Fails": "failed"}.get(kind_of[job.id])
        assert job.state == "cancelled" or expected in (None, job.state), job
    spans = sorted((a.started, a.ended) for job in jobs for a in job.attempts)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
