"""GET /memory."""

import jsonschema
import pytest

from gateway.openapi_schemas import SCHEMAS

pytestmark = pytest.mark.slow  # imports torch


@pytest.mark.parametrize("path", ["/memory", "/api/memory"])
async def test_the_ledger_is_shown(running, path):
    status, body, _ = await running.get(path)
    assert status == 200
    jsonschema.validate(body, SCHEMAS["Memory"])
    assert body["ram"]["total"] >= body["ram"]["available"] > 0
    assert any(device["device"] == "cpu" for device in body["devices"])
