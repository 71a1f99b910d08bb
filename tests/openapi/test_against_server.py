"""The OpenAPI document against a real server: its answers have the declared shapes, and no request breaks it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from openapi_schema_validator import OAS31Validator

from tests.examples.server_process import ServerProcess

pytestmark = pytest.mark.slow

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# The routes below /api that are only another name of a plain one would be tested twice.
ALIASES = "^/api/(?!jobs|assets|tags|workflow_templates/)"
LONGEST_RUN = 180  # seconds for what takes ten on an idle machine
LONGEST_ANSWER = 20  # seconds


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with assets switched on: all its routes answer."""
    folder = tmp_path_factory.mktemp("server")
    database = f"sqlite:///{folder}/assets.db"  # the usual one is in the checkout, whatever the base directory
    with ServerProcess(folder, "--enable-assets", "--database-url", database) as process:
        yield process


@pytest.fixture(scope="module")
def described(server):
    return server.get("/openapi.json")


def post(server: ServerProcess, path: str, value: object) -> object:
    request = urllib.request.Request(server.url + path, json.dumps(value).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        body = answer.read()
    return json.loads(body) if body else None


def run_prompt(server: ServerProcess, color: int, broken: bool = False) -> str:
    """Run a prompt of three nodes to its end; returns its id."""
    inputs = {"width": 32, "height": 32, "batch_size": 1, "color": color}
    nodes = {
        "1": {"class_type": "EmptyImage", "inputs": inputs},
        "2": {"class_type": "ImageCrop", "inputs": {"image": ["1", 0], "width": 16, "height": 16, "x": 0, "y": 0}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "described"}},
    }
    if broken:
        nodes["3"]["inputs"]["filename_prefix"] = "../outside"
    prompt_id = post(server, "/prompt", {"prompt": nodes, "client_id": "test"})["prompt_id"]
    deadline = time.monotonic() + 60
    while prompt_id not in server.get(f"/history/{prompt_id}"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return prompt_id


def problems(described: dict, path: str, value: object, method: str = "get", status: str = "200") -> list[str]:
    """What is wrong with an answer, by the document."""
    content = described["paths"][path][method]["responses"][status]["content"]
    schema = {**content["application/json"]["schema"], "components": described["components"]}
    return [f"{path} {error.json_path}: {error.message[:200]}" for error in OAS31Validator(schema).iter_errors(value)]


def test_answers_have_the_declared_shapes(server, described):
    finished, failed = run_prompt(server, 1), run_prompt(server, 2, broken=True)
    post(server, "/userdata/workflows%2Fa.json", {"nodes": []})
    post(server, "/settings", {"a": [1]})
    paths = {
        "/history": "/history",
        "/history/{prompt_id}": f"/history/{failed}",
        "/queue": "/queue",
        "/prompt": "/prompt",
        "/api/jobs": "/api/jobs?limit=1",
        "/api/jobs/{id}": f"/api/jobs/{finished}",
        "/object_info": "/object_info",
        "/object_info/{class_name}": "/object_info/SaveImage",
        "/node_replacements": "/node_replacements",
        "/system_stats": "/system_stats",
        "/features": "/features",
        "/extensions": "/extensions",
        "/users": "/users",
        "/settings": "/settings",
        "/settings/{id}": "/settings/a",
        "/userdata": "/userdata?dir=workflows&full_info=true",
        "/v2/userdata": "/v2/userdata",
        "/models": "/models",
        "/models/{folder}": "/models/checkpoints",
        "/experiment/models": "/experiment/models",
        "/experiment/models/{folder}": "/experiment/models/checkpoints",
        "/embeddings": "/embeddings",
        "/workflow_templates": "/workflow_templates",
        "/i18n": "/i18n",
        "/global_subgraphs": "/global_subgraphs",
        "/internal/logs": "/internal/logs",
        "/internal/logs/raw": "/internal/logs/raw",
        "/internal/folder_paths": "/internal/folder_paths",
        "/internal/files/{directory}": "/internal/files/output",
        "/api/assets": "/api/assets",
        "/api/tags": "/api/tags",
        "/api/assets/seed/status": "/api/assets/seed/status",
    }
    answers = {template: server.get(path) for template, path in paths.items()}
    found = [problem for template, answer in answers.items() for problem in problems(described, template, answer)]
    assert found == []
    assert set(answers["/history"]) >= {finished, failed} and answers["/api/jobs/{id}"]["status"] == "completed"
    assert answers["/userdata"] and answers["/models/{folder}"] and answers["/v2/userdata"]


def test_refusals_have_the_declared_shapes(server, described):
    refused = [
        ("/prompt", "post", 400, {"prompt": {"1": {"class_type": "SaveImage", "inputs": {}}}}),
        ("/prompt", "post", 400, {"prompt": {"1": {"class_type": "No such class", "inputs": {}}}}),
        ("/queue", "post", 400, []),
        ("/api/jobs/cancel", "post", 400, {"job_ids": ["x"]}),
        ("/api/assets/from-hash", "post", 400, {"hash": "x"}),
        ("/api/jobs/{id}", "get", 404, None),
    ]
    for path, method, status, body in refused:
        data = None if body is None else json.dumps(body).encode()
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(urllib.request.Request(server.url + path.replace("{id}", "x"), data), timeout=60)
        answer = json.load(caught.value)
        assert caught.value.code == status
        assert problems(described, path, answer, method, str(status)) == []


def test_a_wrong_answer_would_be_noticed(described):
    assert problems(described, "/queue", {"queue_running": [[1, "id"]], "queue_pending": []})
    assert problems(described, "/prompt", {})


@pytest.mark.parametrize(
    "mode, checks, flags",
    [
        ("all", "not_a_server_error", ["--phases", "coverage,fuzzing", "--max-examples", "2"]),
        (
            "positive",
            "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
            ["--phases", "fuzzing", "--max-examples", "4"],
        ),
    ],
)
def test_no_request_breaks_the_server(server, tmp_path, mode, checks, flags):
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"),
        *("--mode", mode, "--checks", checks, *flags),
        *("--exclude-path-regex", ALIASES, "--request-timeout", str(LONGEST_ANSWER)),
        *("--generation-deterministic", "--no-color", "--continue-on-failure"),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LONGEST_RUN)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert server.get("/prompt")["exec_info"]["queue_remaining"] >= 0
    assert server.process.poll() is None


def test_the_page_shows_every_operation(server, described):
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium; `make browser`)")
    from playwright.sync_api import sync_playwright

    operations = {o["operationId"] for item in described["paths"].values() for o in item.values()}
    aliases = {o["operationId"] for item in described["paths"].values() for o in item.values() if "x-alias-of" in o}
    asked, errors = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.set_default_timeout(60_000)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{server.url}/api-docs#schema-Job")
        page.wait_for_selector("main section")
        shown = set(page.eval_on_selector_all("section[id^=resource] details", "all => all.map(d => d.id)"))
        assert page.eval_on_selector("#schema-Job", "job => job.open")
        page.fill("#find", "post /prompt")
        visible = page.eval_on_selector_all("main details:not([hidden])", "all => all.map(d => d.id)")
        page.click("#post_prompt summary")
        text = page.inner_text("#post_prompt")
        browser.close()
    assert errors == []
    assert shown == operations - aliases
    assert visible == ["post_prompt"]
    assert "PromptRequest" in text and "409" in text and "/api/prompt" in text
    assert [url for url in asked if not url.startswith((server.url, "data:"))] == []
