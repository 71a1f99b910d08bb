"""The files of the next prompt are read while one runs."""

import os

import pytest

import execution
import folder_paths
from comfy import page_cache
from comfy.cli_args import args
from tests.engine.engine_kit import FakeServer
from workers import lookahead
from workers.lookahead import Lookahead, files_of


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Three model files; their paths by name."""
    found = {}
    for folder, name in (
        ("checkpoints", "a.safetensors"),
        ("checkpoints", "b.safetensors"),
        ("loras", "l.safetensors"),
    ):
        path = tmp_path / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(os.urandom(100_000))
        monkeypatch.setitem(folder_paths.folder_names_and_paths, folder, ([str(path.parent)], {".safetensors"}))
        found[name[0]] = str(path)
    return found


def prompt(checkpoint: str) -> dict:
    return {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": checkpoint}},
        "2": {"class_type": "LoraLoader", "inputs": {"lora_name": "l.safetensors", "model": ["1", 0]}},
        "3": {"class_type": "LoraStack", "inputs": {"lora_name_2": "l.safetensors", "text": "a.safetensors"}},
        "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "missing.safetensors"}},
    }


@pytest.fixture
def queue(files):
    """One prompt runs, two wait."""
    queue = execution.PromptQueue(FakeServer())
    for number, name in enumerate(("a", "b", "a")):
        queue.put((number, f"p{number}", prompt(f"{name}.safetensors"), {}, ["1"], {}))
    queue.get()
    return queue


def test_files_of_a_prompt(files):
    assert list(files_of(prompt("b.safetensors"))) == [files["b"], files["l"]]
    odd = {"1": {"inputs": {"ckpt_name": ["2", 0], "lora_name": "../../x", "vae_name": 3}}, "2": None, "3": {}}
    assert list(files_of(odd)) == []


def test_the_next_prompt_is_read_once(queue, files):
    read = []
    ahead = Lookahead(queue, lambda: True, lambda path, stopped: read.append(path) or 5)
    ahead.look()
    ahead.look()
    assert read == [files["b"], files["l"]] and ahead.bytes_read == 10
    queue.task_done(0, {"outputs": {}, "meta": {}}, None)
    queue.get()
    ahead.look()
    assert read[2:] == [files["a"], files["l"]]


def test_nothing_is_read_when_nothing_runs_or_waits(queue, files):
    read = []
    ahead = Lookahead(queue, lambda: True, lambda path, stopped: read.append(path) or 0)
    queue.wipe_queue()
    ahead.look()
    queue.task_done(0, {"outputs": {}, "meta": {}}, None)
    queue.put((5, "late", prompt("b.safetensors"), {}, ["1"], {}))
    ahead.look()
    assert read == []


def test_models_in_memory_are_not_read_again(queue, files, monkeypatch):
    monkeypatch.setattr(lookahead, "_in_memory", lambda path: path == files["b"])
    read = []
    Lookahead(queue, lambda: True, lambda path, stopped: read.append(path) or 0).look()
    assert read == [files["l"]]


def test_a_prompt_that_starts_meanwhile_is_left_alone(queue, files):
    stops = []

    def read(path, stopped):
        stops.append(stopped())
        queue.task_done(0, {"outputs": {}, "meta": {}}, None)
        queue.get()
        stops.append(stopped())
        return 0

    Lookahead(queue, lambda: True, read).look()
    assert stops == [False, True]


@pytest.mark.parametrize(("given", "expected"), [(True, True), (False, False), (None, False)])
def test_the_flag(monkeypatch, given, expected):
    """Without the flag a machine that computes on its CPU does nothing."""
    monkeypatch.setattr(args, "prefetch", given)
    assert lookahead.wanted_by_default() == expected


def test_a_gpu_makes_it_the_default(monkeypatch):
    import torch

    import comfy.model_management

    monkeypatch.setattr(args, "prefetch", None)
    for kind, expected in (("cuda", True), ("mps", False)):
        monkeypatch.setattr(comfy.model_management, "get_torch_device", lambda kind=kind: torch.device(kind, 0))
        assert lookahead.wanted_by_default() == expected


def test_reading_ahead(files):
    size = os.path.getsize(files["a"])
    assert page_cache.read_ahead(files["a"]) == size
    assert page_cache.read_ahead(files["a"], room=lambda: size - 1) == 0
    assert page_cache.read_ahead(files["a"], stopped=lambda: True) == 0
    with pytest.raises(OSError):
        page_cache.read_ahead(files["a"] + "x")


def test_reading_stops_when_memory_gets_short(tmp_path, monkeypatch):
    monkeypatch.setattr(page_cache, "CHUNK", 1000)
    path = tmp_path / "f"
    path.write_bytes(b"x" * 10_000)
    rooms = iter([20_000, 9000, 5000, 0])
    assert page_cache.read_ahead(str(path), room=lambda: next(rooms)) == 2000
    assert page_cache.room_for_pages() >= 0
