"""Twelve prompts through the real server: HTTP in, PNG out, and the judge must see what was asked for."""

import io
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from PIL import Image

from tools.tiny_model.classify import classify

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NAME = "darkroom-tiny.safetensors"

# prompt, seed, colour, shape
PAIRS = [
    ("a small red circle on a blue background", 1, "red", "circle"),
    ("two green squares", 2, "green", "square"),
    ("a large yellow star on a black background", 3, "yellow", "star"),
    ("a medium purple heart in the center on a white background", 4, "purple", "heart"),
    ("three small white triangles on a red background", 5, "white", "triangle"),
    ("a big orange cross on a black background", 6, "orange", "cross"),
    ("a blue square on the left on a yellow background", 7, "blue", "square"),
    ("a pink circle at the top on a black background", 8, "pink", "circle"),
    ("a drawing of a large black triangle on an orange background", 9, "black", "triangle"),
    ("a large cyan heart on a purple background", 10, "cyan", "heart"),
    ("two red stars on a white background", 11, "red", "star"),
    ("a green cross on the right on a white background", 12, "green", "cross"),
]


def graph(prompt: str, seed: int) -> dict:
    """The standard text-to-image graph."""
    return {
        "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": NAME}},
        "5": {"class_type": "EmptyLatentImage", "inputs": {"width": 128, "height": 128, "batch_size": 1}},
        "6": {"class_type": "CLIPTextEncode", "inputs": {"text": prompt, "clip": ["4", 1]}},
        "7": {"class_type": "CLIPTextEncode", "inputs": {"text": "", "clip": ["4", 1]}},
        "3": {
            "class_type": "KSampler",
            "inputs": {
                "model": ["4", 0],
                "positive": ["6", 0],
                "negative": ["7", 0],
                "latent_image": ["5", 0],
                "seed": seed,
                "steps": 20,
                "cfg": 4.0,
                "sampler_name": "euler",
                "scheduler": "normal",
                "denoise": 1.0,
            },
        },
        "8": {"class_type": "VAEDecode", "inputs": {"samples": ["3", 0], "vae": ["4", 2]}},
        "9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "pair"}},
    }


class Client:
    def __init__(self, port: int):
        self.base = f"http://127.0.0.1:{port}"

    def get(self, path: str, **query: str) -> bytes:
        query_text = "?" + urllib.parse.urlencode(query) if query else ""
        with urllib.request.urlopen(self.base + path + query_text, timeout=60) as answer:
            return answer.read()

    def prompt(self, body: dict) -> str:
        data = json.dumps({"prompt": body}).encode()
        request = urllib.request.Request(self.base + "/prompt", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["prompt_id"]

    def picture(self, prompt_id: str) -> Image.Image:
        """Wait for the prompt and fetch its only picture."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            entry = json.loads(self.get(f"/history/{prompt_id}")).get(prompt_id)
            if entry is not None:
                assert entry["status"]["status_str"] == "success", entry["status"]
                (image,) = entry["outputs"]["9"]["images"]
                return Image.open(io.BytesIO(self.get("/view", **image)))
            time.sleep(0.1)
        raise AssertionError(f"prompt {prompt_id} was not finished in time")


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    base = tmp_path_factory.mktemp("base")
    checkpoints = base / "models" / "checkpoints"
    checkpoints.mkdir(parents=True)
    shutil.copy(ROOT / "models" / "checkpoints" / NAME, checkpoints / NAME)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = open(base / "server.log", "wb")  # noqa: SIM115 - closed below
    command = [sys.executable, "main.py", "--cpu", "--port", str(port), "--base-directory", str(base)]
    server = subprocess.Popen([*command, "--disable-api-nodes"], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    client = Client(port)
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                client.get("/prompt")
                break
            except (urllib.error.URLError, ConnectionError):
                assert server.poll() is None, (base / "server.log").read_text()
                assert time.monotonic() < deadline, "the server does not answer"
                time.sleep(0.2)
        yield client
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        log.close()


@pytest.mark.parametrize(("prompt", "seed", "colour", "shape"), PAIRS, ids=[pair[0] for pair in PAIRS])
def test_the_picture_shows_what_the_prompt_says(client, prompt, seed, colour, shape):
    picture = client.picture(client.prompt(graph(prompt, seed)))
    assert picture.size == (128, 128)
    reading = classify(picture.convert("RGB"))
    assert (reading.colour, reading.shape) == (colour, shape), reading


def test_the_same_seed_paints_the_same_picture(client):
    prompt, seed = PAIRS[0][:2]
    first = client.picture(client.prompt(graph(prompt, seed)))
    body = graph(prompt, seed)
    body["9"]["inputs"]["filename_prefix"] = "again"
    second = client.picture(client.prompt(body))
    assert first.tobytes() == second.tobytes()
