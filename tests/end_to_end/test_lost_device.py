"""A device that only a new process can use again, and GET /memory and POST /free, on real servers."""

import time

import pytest

from tests.end_to_end.conftest import Server
from workers.local import EXIT_DEVICE_LOST

pytestmark = pytest.mark.slow

PACK = """
import time


class Node:
    OUTPUT_NODE = True
    RETURN_TYPES = ()
    FUNCTION = "run"


class LoseDevice(Node):
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"seconds": ("FLOAT", {})}}

    def run(self, seconds):
        time.sleep(seconds)
        raise RuntimeError("CUDA error: device-side assert triggered")


class Say(Node):
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"text": ("STRING", {})}}

    def run(self, text):
        return {"ui": {"text": [text]}}


NODE_CLASS_MAPPINGS = {"LoseDevice": LoseDevice, "Say": Say}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "custom_nodes").mkdir()
    (tmp_path / "custom_nodes" / "lose_device.py").write_text(PACK)
    return tmp_path


def test_the_process_ends_with_its_status_and_the_next_goes_on(folder):
    with Server(folder) as first:
        lose = {"1": {"class_type": "LoseDevice", "inputs": {"seconds": 1.0}}}
        say = {"1": {"class_type": "Say", "inputs": {"text": "still here"}}}
        lost = first.post("/prompt", {"prompt": lose})[1]["prompt_id"]
        waiting = first.post("/prompt", {"prompt": say})[1]["prompt_id"]
        assert first.process.wait(60) == EXIT_DEVICE_LOST
        assert "new process" in first.log
    with Server(folder) as second:
        deadline = time.monotonic() + 60
        while waiting not in second.get("/history"):
            assert time.monotonic() < deadline, second.log[-3000:]
            time.sleep(0.05)
        history = second.get("/history")
        assert history[waiting]["outputs"] == {"1": {"text": ["still here"]}}
        failed = history[lost]["status"]
        assert failed["status_str"] == "error"
        assert "device-side assert" in failed["messages"][-1][1]["exception_message"]


def picture(seed: int) -> dict:
    """A prompt that draws with the built-in model."""
    return {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "darkroom-tiny.safetensors"}},
        "2": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["1", 1], "text": "a red square"}},
        "3": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}},
        "4": {
            "class_type": "KSampler",
            "inputs": {
                **{"model": ["1", 0], "positive": ["2", 0], "negative": ["2", 0], "latent_image": ["3", 0]},
                **{"seed": seed, "steps": 1, "cfg": 1.0, "sampler_name": "euler", "scheduler": "normal"},
                "denoise": 1.0,
            },
        },
        "5": {"class_type": "VAEDecode", "inputs": {"samples": ["4", 0], "vae": ["1", 2]}},
        "6": {"class_type": "PreviewImage", "inputs": {"images": ["5", 0]}},
    }


def test_memory_and_free(server):
    assert server.run(picture(1))["status"]["status_str"] == "success"
    first = server.get("/memory")
    assert server.run(picture(2))["status"]["status_str"] == "success"
    second = server.get("/memory")
    assert second["files"] == first["files"]  # nothing was read, moved or patched
    assert [d["counters"] for d in second["devices"]] == [d["counters"] for d in first["devices"]]

    def models() -> list[dict]:
        found = [m for device in server.get("/memory")["devices"] for m in device["models"]]
        return [m for m in found if m["file"] == "darkroom-tiny.safetensors"]

    assert len(models()) == 3 and all(m["loaded_bytes"] == m["bytes"] > 0 for m in models())
    assert server.post("/free", {"unload_models": True})[0] == 200
    deadline = time.monotonic() + 10
    while any(m["loaded_bytes"] for m in models()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert all(m["evicted_by"] == "POST /free" for m in models())
