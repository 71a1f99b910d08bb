"""GET /system_stats and GET /metrics tell what is kept of results, and how often that helped."""

import jsonschema
import pytest

from gateway.openapi_schemas import SCHEMAS

pytestmark = pytest.mark.slow  # imports torch


class Executor:
    """Stands for the worker's; the report itself is tested with the engine."""

    @staticmethod
    def cache_report():
        return {"mode": "lru", "entries": 1, "bytes": 2, "hits": 3, "misses": 4, "evictions": 5}


@pytest.mark.parametrize("executor", [None, Executor()])
async def test_the_report_is_there_once_there_is_a_worker(running, executor):
    running.server.executor = executor
    status, body, _ = await running.get("/system_stats")
    assert status == 200
    jsonschema.validate(body, SCHEMAS["SystemStats"])
    assert body["result_cache"] == (executor.cache_report() if executor else None)


@pytest.mark.parametrize("executor", [None, Executor()])
async def test_the_numbers_are_among_the_metrics(running, executor):
    running.server.executor = executor
    status, body, _ = await running.get("/metrics")
    assert status == 200
    numbers = {"entries": 1, "bytes": 2, "hits_total": 3, "misses_total": 4, "evictions_total": 5}
    for name, number in numbers.items():
        assert (f"\ndarkroom_cache_{name} {number}.0\n" in body.decode()) == (executor is not None)
