"""Every kind of bad input: a typed 400, or an execution_error, that names the thing and the value."""

from __future__ import annotations

import copy
import json

import pytest

from tests.end_to_end.broken_files import CAUSES, proof_file
from tests.examples.server_process import REPO

pytestmark = pytest.mark.slow

DRAW = json.loads((REPO / "examples" / "text_to_image.json").read_text())["prompt"]


def changed(**inputs: dict) -> dict:
    """The example prompt with other inputs: changed(n3={"steps": 0})."""
    prompt = copy.deepcopy(DRAW)
    for node, values in inputs.items():
        prompt[node[1:]]["inputs"].update(values)
    return prompt


def without(node: str, name: str) -> dict:
    prompt = copy.deepcopy(DRAW)
    del prompt[node]["inputs"][name]
    return prompt


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff\xfe", b"null", b"5", b'"text"', b'{"prompt": }', b'{"prompt": {}} trailing'],
)
def test_not_json(server, body):
    status, answer = server.post("/prompt", body)
    assert status == 400
    assert answer["error"]["type"] and answer["error"]["message"]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({}, "no_prompt"),
        ({"prompt": {}}, "prompt_no_outputs"),
        ({"prompt": {"1": {"inputs": {}}}}, "missing_node_type"),
        ({"prompt": {"1": {"class_type": "NoSuchNode", "inputs": {}}}}, "missing_node_type"),
        ({"prompt": DRAW, "prompt_id": "not-a-uuid"}, "invalid_prompt_id"),
    ],
)
def test_typed_refusals(server, body, kind):
    status, answer = server.post("/prompt", body)
    assert (status, answer["error"]["type"]) == (400, kind)


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": None},
        {"prompt": []},
        {"prompt": "x"},
        {"prompt": {"1": 5}},
        {"prompt": {"1": {"class_type": ["KSampler"], "inputs": {}}}},
        {"prompt": DRAW, "number": "first"},
        {"prompt": DRAW, "number": [1]},
        {"prompt": DRAW, "extra_data": None},
        {"prompt": DRAW, "extra_data": 5},
        {"prompt": DRAW, "client_id": ["a"]},
        {"prompt": DRAW, "client_id": {}},
        {"prompt": DRAW, "partial_execution_targets": "9"},
    ],
)
def test_mistyped_fields(server, body):
    status, answer = server.post("/prompt", body)
    assert status == 400
    assert set(answer["error"]) >= {"type", "message", "details", "extra_info"}


@pytest.mark.parametrize(
    ("prompt", "node", "kind", "name"),
    [
        (without("3", "seed"), "3", "required_input_missing", "seed"),
        (changed(n3={"steps": "many"}), "3", "invalid_input_type", "steps"),
        (changed(n3={"cfg": {}}), "3", "invalid_input_type", "cfg"),
        (changed(n3={"steps": 0}), "3", "value_smaller_than_min", "steps"),
        (changed(n3={"steps": 10001}), "3", "value_bigger_than_max", "steps"),
        (changed(n3={"sampler_name": "no_such_sampler"}), "3", "value_not_in_list", "sampler_name"),
        (changed(n4={"ckpt_name": "no_such_file.safetensors"}), "4", "value_not_in_list", "ckpt_name"),
        (changed(n4={"ckpt_name": "../../secret.safetensors"}), "4", "value_not_in_list", "ckpt_name"),
        (changed(n3={"model": ["4", 1]}), "3", "return_type_mismatch", "model"),
        (changed(n3={"model": ["4"]}), "3", "bad_linked_input", "model"),
        (changed(n8={"samples": ["8", 0]}), "8", None, "samples"),
    ],
)
def test_inputs(server, prompt, node, kind, name):
    status, answer = server.post("/prompt", {"prompt": prompt})
    assert status == 400 and answer["error"]["type"] == "prompt_outputs_failed_validation"
    errors = answer["node_errors"][node]["errors"]
    assert kind is None or kind in [e["type"] for e in errors]
    assert name in json.dumps(errors)
    assert "9" in answer["node_errors"][node]["dependent_outputs"]


@pytest.mark.parametrize("link", [["nowhere", 0], ["4", 17]])
def test_dead_links_name_the_input(server, link):
    status, answer = server.post("/prompt", {"prompt": changed(n3={"model": link})})
    assert status == 400
    assert "model" in json.dumps(answer["node_errors"]["3"]["errors"])


def test_cycle(server):
    prompt = {
        "1": {"class_type": "ImageInvert", "inputs": {"image": ["2", 0]}},
        "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
        "3": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
    }
    status, answer = server.post("/prompt", {"prompt": prompt})
    assert status == 400
    assert answer["node_errors"]["1"]["errors"][0]["type"] == "dependency_cycle"


@pytest.mark.parametrize("name", CAUSES)
def test_broken_checkpoints(server, name):
    error = server.error_of(changed(n4={"ckpt_name": name}))
    message = error["exception_message"]
    size = (server.folder / "models" / "checkpoints" / name).stat().st_size
    assert error["node_id"] == "4"
    assert name in message and CAUSES[name].lower() in message.lower(), message
    assert str(size) in message.replace(",", "").replace(" ", ""), message
    assert str(server.folder) not in message, "where the files are is nobody's business"
    assert not proof_file(server.folder / "models" / "checkpoints").exists()


@pytest.mark.parametrize("name", ["../../main.py", "/etc/passwd", "..\\x.png", "none.png"])
def test_images_outside_or_missing(server, name):
    prompt = {
        "1": {"class_type": "LoadImage", "inputs": {"image": name}},
        "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
    }
    status, answer = server.post("/prompt", {"prompt": prompt})
    assert status == 400
    assert name.replace("\\", "\\\\") in json.dumps(answer["node_errors"]["1"]["errors"])


@pytest.mark.parametrize("prefix", ["../escaped", "/tmp/escaped", "a/../../escaped"])
def test_saving_outside(server, prefix):
    prompt = {
        "1": {"class_type": "EmptyImage", "inputs": {"width": 16, "height": 16, "batch_size": 1, "color": 0}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": prefix}},
    }
    error = server.error_of(prompt)
    assert error["node_id"] == "2" and "escaped" in error["exception_message"]
    assert not list(server.folder.glob("escaped*"))


def test_a_text_file_as_image(server):
    (server.folder / "input" / "fake.png").write_text("this is no picture")
    prompt = {
        "1": {"class_type": "LoadImage", "inputs": {"image": "fake.png"}},
        "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
    }
    assert "fake.png" in server.error_of(prompt)["exception_message"]


def test_a_good_prompt_still_draws(server):
    entry = server.run(DRAW)
    assert entry["status"]["status_str"] == "success"
    assert entry["outputs"]["9"]["images"][0]["type"] == "output"
