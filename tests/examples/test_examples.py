"""The example clients, run as a user runs them, against a real server with the built-in model."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from examples import submit_and_wait
from tests.examples.server_process import REPO, free_port

pytestmark = pytest.mark.slow

SCRIPT = REPO / "examples" / "submit_and_wait.py"
TIMEOUT = 180


def run(*command: str, cwd) -> subprocess.CompletedProcess:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT)


def submit(server, *flags: str, cwd) -> subprocess.CompletedProcess:
    return run(sys.executable, str(SCRIPT), "--server", server.url, *flags, cwd=cwd)


def pixels(content: bytes) -> np.ndarray:
    """(height, width, 3) float values 0…255."""
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"), dtype=float)


def test_submit_and_wait_saves_the_picture_that_was_asked_for(server, tmp_path):
    text = "a large yellow star on a purple background"
    result = submit(server, "--text", text, "--seed", "7", "--out", "star.png", cwd=tmp_path)
    assert result.returncode == 0, result.stderr + server.log[-2000:]
    assert result.stdout.split() == ["star.png"]
    picture = Image.open(tmp_path / "star.png")
    assert picture.size == (128, 128)
    assert pixels((tmp_path / "star.png").read_bytes()).std() > 10
    prompt = json.loads(picture.text["prompt"])
    assert prompt["6"]["inputs"]["text"] == text
    assert prompt["7"]["inputs"]["text"] == ""
    assert prompt["3"]["inputs"]["seed"] == 7


def test_same_seed_gives_the_same_picture_and_another_seed_another(server, tmp_path):
    for name, seed in (("a", "1"), ("b", "2"), ("c", "1")):
        result = submit(server, "--seed", seed, "--out", f"{name}.png", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
    a, b, c = (pixels((tmp_path / f"{name}.png").read_bytes()) for name in "abc")
    assert (a == c).all()
    assert (a != b).any()


def test_the_server_s_file_name_is_used_without_out(server, tmp_path):
    result = submit(server, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    name = result.stdout.strip()
    assert name.startswith("darkroom_") and (tmp_path / name).is_file()


def test_refused_prompt_names_node_and_input(server, tmp_path):
    graph = submit_and_wait.read_graph(REPO / "examples" / "text_to_image.json")
    graph["4"]["inputs"]["ckpt_name"] = "not_there.safetensors"
    (tmp_path / "bad.json").write_text(json.dumps(graph))
    result = submit(server, "--prompt-file", "bad.json", cwd=tmp_path)
    assert result.returncode == 1
    assert "node 4 (CheckpointLoaderSimple)" in result.stderr
    assert "ckpt_name" in result.stderr


def test_failing_node_is_reported(server, tmp_path):
    (server.folder / "input").mkdir(exist_ok=True)
    (server.folder / "input" / "broken.png").write_bytes(b"no image")
    graph = {
        "1": {"class_type": "LoadImage", "inputs": {"image": "broken.png"}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
    }
    (tmp_path / "fails.json").write_text(json.dumps({"prompt": graph}))
    result = submit(server, "--prompt-file", "fails.json", cwd=tmp_path)
    assert result.returncode == 1
    assert "LoadImage (node 1)" in result.stderr


def test_no_server(tmp_path):
    url = f"http://127.0.0.1:{free_port()}"
    result = run(sys.executable, str(SCRIPT), "--server", url, cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")


def test_ui_workflow_is_not_taken_for_a_prompt(tmp_path):
    workflow = REPO / "web" / "text_to_image.workflow.json"
    result = run(sys.executable, str(SCRIPT), "--prompt-file", str(workflow), cwd=tmp_path)
    assert result.returncode == 1
    assert "API format" in result.stderr


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_script(server, tmp_path):
    result = run("sh", str(REPO / "examples" / "curl.sh"), server.url, "out.png", cwd=tmp_path)
    assert result.returncode == 0, result.stderr + server.log[-2000:]
    assert result.stdout.split() == ["out.png"]
    content = (tmp_path / "out.png").read_bytes()
    assert pixels(content).shape == (128, 128, 3)
    assert pixels(content).std() > 10


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_script_without_a_server(tmp_path):
    result = run("sh", str(REPO / "examples" / "curl.sh"), f"http://127.0.0.1:{free_port()}", cwd=tmp_path)
    assert result.returncode != 0
    assert not (tmp_path / "picture.png").exists()
