"""GET /system_stats tells what is kept of results, and how often that helped."""

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
