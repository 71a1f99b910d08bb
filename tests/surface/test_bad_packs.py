"""A real server with the worst packs there are: it answers while they load, and works afterwards."""

from __future__ import annotations

import time

import pytest

from tests.end_to_end.conftest import Server

pytestmark = pytest.mark.slow

NODE = """
class {name}:
    RETURN_TYPES = ()
    FUNCTION = "run"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls):
        return {{"required": {{}}}}

    def run(self):
        return {{"ui": {{"text": ["{name} ran"]}}}}

NODE_CLASS_MAPPINGS = {{"{name}": {name}}}
"""
# Old signatures of things that packs replace, and a few that never were any.
PATCHES = """
import comfy.samplers, comfy.sample, comfy.utils, execution, folder_paths, latent_preview, nodes, server

comfy.samplers.sampling_function = lambda model, x, timestep, uncond, cond, cond_scale: x
comfy.samplers.calculate_sigmas = lambda model, scheduler: None
comfy.sample.prepare_noise = lambda latent: None
comfy.utils.load_torch_file = lambda path: {}
comfy.samplers.KSampler.SCHEDULERS = comfy.samplers.KSampler.SCHEDULERS + ["mine"]
latent_preview.prepare_callback = lambda model: None
execution.execute = lambda server, prompt, caches: None
nodes.common_ksampler = lambda model: None
server.PromptServer.start = lambda self: None
server.PromptServer.add_routes = lambda: None
server.PromptServer.instance.add_on_prompt_handler(lambda: None)

old = execution.PromptExecutor.handle_execution_error
execution.PromptExecutor.handle_execution_error = lambda self, prompt_id, error: old(self, prompt_id, error)
"""
PACKS = {
    "a_hangs": "import time\nwhile True:\n    time.sleep(0.05)\n",
    "b_raises": "raise RuntimeError('not today')\n",
    "c_exits": "import sys\nsys.exit(5)\n",
    "d_interrupts": "raise KeyboardInterrupt\n",
    "e_syntax": "def broken(:\n",
    "f_patches": PATCHES + NODE.format(name="BadPatching"),
    "g_routes": """
from aiohttp import web
from server import PromptServer

@PromptServer.instance.routes.get("/bad/pack")
async def route(request):
    return web.json_response({"here": True})

@PromptServer.instance.routes.get("/bad/pack")
async def same_route_again(request):
    return web.json_response({"here": False})

async def cannot_start(app):
    raise RuntimeError("start-up callback")

PromptServer.instance.app.on_startup.append(cannot_start)
"""
    + NODE.format(name="BadRoutes"),
    "i_odd_entries": NODE.format(name="BadBeside").replace("NODE_CLASS_MAPPINGS = ", "MAPPINGS = ")
    + """
from pathlib import Path
import sys

class BadExits(BadBeside):
    @classmethod
    def INPUT_TYPES(cls):
        sys.exit(1)

NODE_CLASS_MAPPINGS = {"BadNumber": 5, "BadNone": None, "BadLambda": lambda: 5, "BadModule": sys, 7: BadBeside,
                       "BadExits": BadExits, **MAPPINGS}
NODE_DISPLAY_NAME_MAPPINGS = {"BadBeside": 5, "BadExits": None, 7: "seven"}
WEB_DIRECTORY = Path("nowhere")
""",
    "h_fine": NODE.format(name="BadFine"),
}
LIMIT = 4
GOOD = {
    "1": {"class_type": "EmptyImage", "inputs": {"width": 16, "height": 16, "batch_size": 1, "color": 255}},
    "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad_packs")
    for name, source in PACKS.items():
        (folder / "custom_nodes" / name).mkdir(parents=True)
        (folder / "custom_nodes" / name / "__init__.py").write_text(source)
    (folder / "custom_nodes" / "h_fine" / "pyproject.toml").write_text("[project]\nversion = '1.2.3'\n")
    process = Server(folder, "--custom-node-timeout", str(LIMIT))
    try:
        process.wait_until_answers("/queue")
        yield process
        assert process.process.poll() is None, process.log[-3000:]
    finally:
        process.__exit__()


def test_the_list_can_be_read_while_packs_load(server):
    while not (listed := server.get("/api/custom_nodes"))["packs"]:
        time.sleep(0.05)  # torch and the built-in nodes come first
    assert {p["name"] for p in listed["packs"]} == set(PACKS)
    assert {p["state"] for p in listed["packs"]} <= {"waiting", "loading", "loaded", "failed", "hanging"}
    server.get("/queue")


def test_the_others_are_there(server):
    known = server.get("/object_info")
    assert {"BadPatching", "BadRoutes", "BadFine", "BadBeside", "EmptyImage"} <= known.keys()
    assert not {"BadNumber", "BadNone", "BadLambda", "BadModule", "7", "BadExits"} & known.keys()
    assert known["BadBeside"]["display_name"] == "BadBeside"
    listed = server.get("/api/custom_nodes")
    assert listed["ready"] is True
    packs = {pack["name"]: pack for pack in listed["packs"]}
    assert packs["a_hangs"]["state"] == "hanging" and packs["a_hangs"]["error"]
    assert packs["b_raises"]["error"] == "RuntimeError: not today" and packs["b_raises"]["state"] == "failed"
    assert packs["c_exits"]["error"] == "SystemExit: 5"
    assert packs["d_interrupts"]["error"].startswith("KeyboardInterrupt")
    assert packs["e_syntax"]["error"].startswith("SyntaxError")
    assert packs["i_odd_entries"]["state"] == "loaded" and packs["i_odd_entries"]["nodes"] == ["BadExits", "BadBeside"]
    assert packs["h_fine"] | {"seconds": 0} == {
        "name": "h_fine", "version": "1.2.3", "state": "loaded", "loaded": True, "seconds": 0, "node_count": 1,
        "nodes": ["BadFine"], "web": False, "error": None,
    }  # fmt: skip
    assert packs["a_hangs"]["seconds"] >= LIMIT


def test_routes_of_a_pack_with_a_broken_one(server):
    assert server.get("/bad/pack") == {"here": True} == server.get("/api/bad/pack")


@pytest.mark.parametrize("name", ["BadPatching", "BadRoutes", "BadFine"])
def test_nodes_of_the_others_run(server, name):
    entry = server.run({"1": {"class_type": name, "inputs": {}}})
    assert entry["outputs"]["1"]["text"] == [f"{name} ran"]


def test_the_built_in_ones_run_beside_them(server):
    assert server.run(GOOD)["status"]["status_str"] == "success"


def test_a_patch_that_does_not_fit_fails_the_prompt_and_nothing_else(server):
    """The replaced error handler is called in vain: the prompt still ends, as failed, and the next one runs."""
    broken = {"1": {"class_type": "LoadImage", "inputs": {"image": "x.png"}}}
    status, _ = server.post("/prompt", {"prompt": broken})
    assert status == 400
    sampled = {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "darkroom-tiny.safetensors"}},
        "2": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["1", 1], "text": "a"}},
        "3": {"class_type": "PreviewAny", "inputs": {"source": ["2", 0]}},
    }
    entry = server.run(sampled)
    assert entry["status"]["status_str"] == "error"  # load_torch_file is not what it was
    assert server.run(GOOD)["status"]["status_str"] == "success"
