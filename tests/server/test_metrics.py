"""GET /metrics: what Prometheus is told, after things have happened."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from comfy_execution.outcomes import Actor
from jobs.tallies import BOUNDS, Distribution
from tests.server.test_job_store import body, end_next

IDS = [f"00000000-0000-4000-8000-00000000000{digit}" for digit in range(6)]


async def figures(running):
    """{(name, labels): value} of all samples."""
    async with running.session.get(f"{running.url}/metrics") as answer:
        assert answer.status == 200 and answer.headers["Content-Type"].startswith("text/plain")
        text = await answer.text()
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_the_queue_and_what_became_of_jobs(running):
    for ident in IDS:
        await running.post("/prompt", data=body(ident))
    end_next(running)
    end_next(running, "error")
    running.server.prompt_queue.delete_queue_items(IDS[2:3], Actor("10.0.0.7", "POST /queue"))
    running.server.prompt_queue.get(0)
    running.server.prompt_queue.pause()
    found = await figures(running)
    assert found["darkroom_queue_pending",] == 2
    assert found["darkroom_queue_running",] == 1
    assert found["darkroom_queue_paused",] == 1
    assert found["darkroom_jobs_ended_total", ("reason", ""), ("state", "completed")] == 1
    assert found["darkroom_jobs_ended_total", ("reason", "node_error"), ("state", "failed")] == 1
    assert found["darkroom_jobs_ended_total", ("reason", "interrupted"), ("state", "cancelled")] == 1
    assert found["darkroom_jobs", ("state", "pending")] == 2
    assert found["darkroom_job_attempts_total", ("result", "completed")] == 1
    assert found["darkroom_job_run_seconds_count", ("state", "completed")] == 1
    assert found["darkroom_job_wait_seconds_count",] == 2  # the cancelled one never began
    assert found["darkroom_job_wait_seconds_bucket", ("le", "+Inf")] == 2


async def test_the_instance_and_a_store_that_is_gone(running):
    found = await figures(running)
    assert found["darkroom_degraded",] == (running.server.worker_state()["state"] == "dead")
    assert found["darkroom_store_degraded",] == 0
    assert found["darkroom_instance_info", ("id", running.server.jobs.instance_id)] == 1
    running.server.jobs.give_up("no disk")
    found = await figures(running)
    assert found["darkroom_store_degraded",] == 1 and found["darkroom_degraded",] == 1


async def test_asking_twice_counts_nothing_twice(running):
    await running.post("/prompt", data=body(IDS[0]))
    end_next(running)
    first, second = await figures(running), await figures(running)
    ours = {key for key in first if key[0].startswith("darkroom_job")}
    assert ours and all(first[key] == second[key] for key in ours)


@pytest.mark.parametrize(
    "seconds, at_most", [(-3, BOUNDS[0]), (0, BOUNDS[0]), (0.3, 0.5), (5.0, 5.0), (1e9, float("inf"))]
)
def test_durations_are_counted_where_they_belong(seconds, at_most):
    distribution = Distribution()
    distribution.add(seconds)
    assert next(bound for bound, count in distribution.buckets() if count) == at_most
    assert distribution.sum == max(0, seconds)
