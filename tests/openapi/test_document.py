"""The OpenAPI document: valid, complete, and nothing beyond what the router knows."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from openapi_spec_validator import OpenAPIV31SpecValidator

import routes
from comfy_execution.prompt_queue import PromptQueue
from gateway.openapi import REFUSED, Parameter, document
from jobs.ledger import Ledger
from server import PromptServer

METHODS = {"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"}
PAGE = Path(routes.__file__).parents[1] / "web" / "api-docs"


@pytest.fixture
async def server(base):
    """A listening server without nodes or worker."""
    before = getattr(PromptServer, "instance", None)
    server = PromptServer(asyncio.get_running_loop())
    server.jobs = Ledger()
    server.jobs.attach(PromptQueue(server))
    ports: list[int] = []
    await server.start_multi_address([("127.0.0.1", 0)], lambda scheme, address, port: ports.append(port))
    server.url = f"http://127.0.0.1:{ports[0]}"
    yield server
    await server.close()
    PromptServer.instance = before


@pytest.fixture
async def get(server):
    """A function that gives (status, body, content type) of a path."""
    async with aiohttp.ClientSession() as session:

        async def get(path: str):
            async with session.get(server.url + path) as answer:
                body = await (answer.json() if answer.content_type == "application/json" else answer.text())
                return answer.status, body, answer.content_type

        yield get


@pytest.fixture
async def described(get):
    """The document as a client gets it."""
    status, body, _ = await get("/openapi.json")
    assert status == 200
    return body


def router_operations(app: web.Application) -> set[tuple[str, str]]:
    """(method, path) of all routes; the HEAD that comes with a GET is left out."""
    found = {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource is not None}
    return {(method, path) for method, path in found if method != "HEAD" or ("GET", path) not in found}


def document_operations(described: dict) -> set[tuple[str, str]]:
    """(method, path) of all described operations."""
    return {
        (method.upper(), path)
        for path, item in described["paths"].items()
        for method in item
        if method.upper() in METHODS
    }


async def test_every_route_is_described_and_nothing_else(server, described):
    wanted, found = router_operations(server._core), document_operations(described)
    assert wanted - found == set(), "declare these with a summary and their answers, beside the route"
    assert found - wanted == set()
    assert len(found) > 100


async def test_a_route_without_a_description_is_missed():
    table = routes.Table()
    table.resources["things"] = "Things (some-spec.md section 1)."
    table.get("/described", "A thing.")(lambda request: None)
    table.get("/undescribed")(lambda request: None)
    app = web.Application()
    app.add_routes(table.routes)
    found = document(table.operations, table.resources, {"title": "t", "version": "1"})
    missed = router_operations(app) - document_operations(found)
    assert missed == {("GET", "/undescribed"), ("GET", "/api/undescribed")}
    assert found["tags"] == [{"name": "things", "description": "Things."}]


async def test_it_is_valid_openapi(described):
    assert described["openapi"].startswith("3.1.")
    assert [error.message for error in OpenAPIV31SpecValidator(described).iter_errors()] == []


async def test_an_invalid_document_would_be_noticed(described):
    described["paths"]["/queue"]["get"]["responses"]["200"]["content"]["application/json"]["schema"] = {"type": "no"}
    assert list(OpenAPIV31SpecValidator(described).iter_errors())


async def test_every_operation_says_what_it_answers(described):
    for path, item in described["paths"].items():
        for operation in item.values():
            assert operation["summary"] and operation["tags"], path
            assert any(status[0] in "123" for status in operation["responses"]), path
            names = [p["name"] for p in operation.get("parameters", []) if p["in"] == "path"]
            assert names == re.findall(r"\{(\w+)\}", path)


async def test_no_schema_is_left_over(described):
    used = set(re.findall(r"#/components/schemas/(\w+)", str(described)))
    assert used == set(described["components"]["schemas"])


async def test_the_api_form_of_a_route_names_the_plain_one(described):
    paths = described["paths"]
    assert paths["/api/queue"]["get"]["x-alias-of"] == "/queue"
    assert "x-alias-of" not in paths["/queue"]["get"]
    assert "x-alias-of" not in paths["/api/jobs"]["get"]
    assert "/jobs" not in paths and "/api/internal/logs" not in paths


def test_an_unknown_schema_name_is_an_error():
    table = routes.Table()
    table.resources["things"] = "Things."
    table.get("/things", "Things.", answers={200: "NoSuchShape", **REFUSED}, params=(Parameter("x"),))(lambda r: None)
    with pytest.raises(KeyError, match="NoSuchShape"):
        document(table.operations, table.resources, {})


async def test_the_page_needs_no_other_host(get):
    status, body, kind = await get("/api-docs")
    assert (status, kind) == (200, "text/html")
    files = [path for path in re.findall(r'(?:src|href)="([^"]+)"', body) if not path.startswith("data:")]
    assert {f"api-docs/{path.name}" for path in PAGE.iterdir() if path.name != "index.html"} < set(files)
    for path in files:
        status, text, _ = await get(f"/{path}")
        assert status == 200
        if not path.endswith(".json"):
            assert not re.search(r"https?://|//\w", re.sub(r"^//.*|\s//\s.*|/\*.*", "", text, flags=re.MULTILINE)), path


async def test_the_page_is_no_extension_of_the_front_end():
    # The front end loads every .js file below web/.
    assert [path.name for path in PAGE.rglob("*.js")] == []


async def test_nothing_but_the_page_is_served_below_it(get):
    for path in ("..%2fstarter.js", "%2e%2e%2f%2e%2e%2fmain.py", "nothing.css"):
        status, body, _ = await get(f"/api-docs/{path}")
        assert (status, body) == (404, "")
