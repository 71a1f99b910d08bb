"""Loading of custom node packs (node-api.md, section 1)."""

from __future__ import annotations

import asyncio
import os
import sys
import threading

import pytest

import custom_packs
import folder_paths
import nodes
from comfy.cli_args import args
from nodes import loader, registry

NODE = """
class {name}:
    CATEGORY = "t"
    RETURN_TYPES = ("INT",)
    FUNCTION = "run"
    DESCRIPTION = "{description}"

    @classmethod
    def INPUT_TYPES(cls):
        return {{"required": {{}}}}

    def run(self):
        return (1,)
"""


def node(name: str, description: str = "") -> str:
    return NODE.format(name=name, description=description)


@pytest.fixture
def packs(tmp_path, monkeypatch):
    """An empty custom node folder; what a test registers is taken back."""
    root = tmp_path / "custom_nodes"
    root.mkdir()
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "custom_nodes", ([str(root)], set()))
    tables = (
        registry.NODE_CLASS_MAPPINGS,
        registry.NODE_DISPLAY_NAME_MAPPINGS,
        loader.PACKS,
        loader.EXTENSION_WEB_DIRS,
        loader.LOADED_MODULE_DIRS,
        custom_packs.prestartup_seconds,
        sys.modules,
    )
    saved = [dict(table) for table in tables]
    yield root
    for table, content in zip(tables, saved):
        for name in set(table) - set(content):
            del table[name]
        table.update(content)


def write(root, name: str, text: str):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def load():
    asyncio.run(nodes.load_custom_packs())


def record(name: str) -> loader.PackRecord:
    return next(r for r in loader.PACKS.values() if r.name == name)


def test_a_folder_pack(packs):
    write(packs, "my.pack/helper.py", "VALUE = 'from helper'")
    init = (
        node("LoaderFolderNode")
        + """
from .helper import VALUE
LoaderFolderNode.DESCRIPTION = VALUE + " in " + __name__
NODE_CLASS_MAPPINGS = {"LoaderFolderNode": LoaderFolderNode}
NODE_DISPLAY_NAME_MAPPINGS = {"LoaderFolderNode": "Folder Node"}
"""
    )
    write(packs, "my.pack/__init__.py", init)
    load()
    info = nodes.node_info("LoaderFolderNode")
    assert info["python_module"] == "custom_nodes.my.pack"
    assert info["display_name"] == "Folder Node"
    module = str(packs / "my.pack").replace(".", "_x_")
    assert info["description"] == f"from helper in {module}"
    assert module in sys.modules
    assert loader.LOADED_MODULE_DIRS["my.pack"] == str(packs / "my.pack")
    assert record("my.pack").error is None and record("my.pack").nodes == ["LoaderFolderNode"]


def test_a_single_file_pack_serves_its_own_folder(packs):
    source = node("LoaderFileNode") + "NODE_CLASS_MAPPINGS = {'LoaderFileNode': LoaderFileNode}\nWEB_DIRECTORY = 'js'"
    write(packs, "single.py", source)
    (packs / "js").mkdir()
    load()
    assert nodes.node_info("LoaderFileNode")["python_module"] == "custom_nodes.single"
    assert loader.EXTENSION_WEB_DIRS["single"] == str(packs / "js")
    assert str(packs / "single") in sys.modules


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("raise ImportError('no such library')", "ImportError: no such library"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("exit()", "SystemExit: None"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt: "),
        ("raise GeneratorExit", "GeneratorExit: "),
        ("import asyncio; raise asyncio.CancelledError", "CancelledError: "),
        ("class E(Exception):\n    __str__ = None\nraise E", "E: (an exception that cannot be shown)"),
        ("def comfy_entrypoint(): raise SystemExit(1)", "SystemExit: 1"),
        ("async def comfy_entrypoint(): raise KeyboardInterrupt", "KeyboardInterrupt: "),
        ("def broken(:", "SyntaxError: "),
        ("NODE_CLASS_MAPPINGS = 7", "TypeError: "),
        ("VALUE = 1", "PackHasNoNodes: "),
        ("comfy_entrypoint = 5", "PackHasNoNodes: "),
        ("def comfy_entrypoint(): return 5", "PackHasNoNodes: "),
    ],
)
def test_a_pack_that_fails_is_recorded_and_skipped(packs, source, error):
    write(packs, "bad/__init__.py", source)
    write(packs, "good.py", node("LoaderGood") + "NODE_CLASS_MAPPINGS = {'LoaderGood': LoaderGood}")
    load()
    assert "LoaderGood" in nodes.NODE_CLASS_MAPPINGS
    assert record("bad").error.startswith(error)
    assert record("bad").as_dict()["loaded"] is False and record("bad").details
    assert record("good").as_dict() | {"seconds": 0} == {
        "name": "good", "version": None, "state": "loaded", "loaded": True, "seconds": 0, "node_count": 1,
        "nodes": ["LoaderGood"], "web": False, "error": None,
    }  # fmt: skip


def test_versions(packs):
    write(packs, "toml/pyproject.toml", "[project]\nname = 'toml'\nversion = '1.2'")
    write(packs, "toml/__init__.py", "NODE_CLASS_MAPPINGS = {}\n__version__ = '9'")
    write(packs, "attribute.py", "NODE_CLASS_MAPPINGS = {}\n__version__ = '2.0b1'")
    write(packs, "odd/pyproject.toml", "project = 5")
    write(packs, "odd/__init__.py", "NODE_CLASS_MAPPINGS = {}\n__version__ = (1, 2)")
    write(packs, "broken/pyproject.toml", "[project]\nversion = '3'")
    write(packs, "broken/__init__.py", "raise ValueError")
    load()
    assert {r.name: r.version for r in loader.PACKS.values()} == {
        "toml": "1.2", "attribute": "2.0b1", "odd": None, "broken": "3",
    }  # fmt: skip


def test_a_pack_that_never_ends_is_left_behind(packs, monkeypatch):
    monkeypatch.setattr(args, "custom_node_timeout", 0.2)
    release = threading.Event()
    monkeypatch.setattr(custom_packs, "release", release, raising=False)
    wait = "import custom_packs\ndef wait_for_ever():\n    custom_packs.release.wait(60)\nwait_for_ever()\n"
    write(packs, "a_hanging.py", wait + node("Late") + "NODE_CLASS_MAPPINGS = {'LoaderLate': Late}")
    write(packs, "b_script/prestartup_script.py", wait)
    write(packs, "b_script/__init__.py", "raise RuntimeError('must not be imported')")
    write(packs, "c_good.py", node("N") + "NODE_CLASS_MAPPINGS = {'LoaderInTime': N}")
    try:
        custom_packs.run_prestartup_scripts()
        load()
        assert "LoaderInTime" in nodes.NODE_CLASS_MAPPINGS and "LoaderLate" not in nodes.NODE_CLASS_MAPPINGS
        states = {r.name: (r.state, r.error) for r in loader.PACKS.values()}
        assert states == {
            "a_hanging": ("hanging", "its import has not ended after 0.2 s"),
            "b_script": ("hanging", "prestartup_script.py has not ended after 0.2 s"),
            "c_good": ("loaded", None),
        }
        assert "wait_for_ever" in record("a_hanging").details
        assert record("a_hanging").as_dict()["loaded"] is False
    finally:
        release.set()
    for thread in threading.enumerate():
        if thread.name in ("load a_hanging", "load b_script"):
            thread.join(20)
    assert record("a_hanging").state == "loaded" and record("a_hanging").nodes == ["LoaderLate"]
    assert "LoaderLate" in nodes.NODE_CLASS_MAPPINGS
    assert record("b_script").state == "hanging"


def test_packs_are_listed_before_they_are_loaded(packs, monkeypatch):
    seen = "import custom_packs\nSEEN = {r.name: r.state for r in custom_packs.PACKS.values()}\n"
    monkeypatch.setattr(custom_packs.os, "listdir", lambda _: ["one.py", "two.py"])
    write(packs, "one.py", seen + "NODE_CLASS_MAPPINGS = {}")
    write(packs, "two.py", "NODE_CLASS_MAPPINGS = {}")
    load()
    assert sys.modules[str(packs / "one")].SEEN == {"one": "loading", "two": "waiting"}


def test_without_a_limit(packs, monkeypatch):
    monkeypatch.setattr(args, "custom_node_timeout", 0)
    write(packs, "slow.py", "import time; time.sleep(0.05)\nNODE_CLASS_MAPPINGS = {}")
    load()
    assert record("slow").state == "loaded" and record("slow").seconds >= 0.05


def test_what_a_failed_pack_registered_before_it_failed_is_not_kept_as_a_module(packs):
    write(packs, "half/__init__.py", "A = 1\nraise RuntimeError('half way')")
    load()
    assert not [name for name in sys.modules if name.startswith(str(packs))]


def test_built_in_classes_cannot_be_replaced(packs):
    source = (
        node("Fake", "replaced")
        + """
NODE_CLASS_MAPPINGS = {"EmptyImage": Fake, "LoaderOther": Fake}
NODE_DISPLAY_NAME_MAPPINGS = {"EmptyImage": "Mine", "LoaderOther": "Other"}
"""
    )
    write(packs, "greedy.py", source)
    load()
    info = nodes.node_info("EmptyImage")
    assert info["python_module"] == "nodes" and info["description"] != "replaced"
    assert info["display_name"] == "Empty Image"
    assert record("greedy").nodes == ["LoaderOther"]


def test_the_later_pack_wins_over_an_earlier_one(packs, monkeypatch):
    for name in ("one", "two"):
        write(packs, f"{name}.py", node("Same", name) + "NODE_CLASS_MAPPINGS = {'LoaderSame': Same}")
    monkeypatch.setattr(custom_packs.os, "listdir", lambda _: ["one.py", "two.py"])
    load()
    assert nodes.node_info("LoaderSame")["description"] == "two"


def test_names_that_are_skipped(packs):
    source = "raise RuntimeError('must not be loaded')"
    for name in ("off.disabled/__init__.py", "off.py.disabled", "__pycache__/__init__.py", "notes.txt"):
        write(packs, name, source)
    load()
    assert not loader.PACKS


def test_disabled_and_whitelisted_packs(packs, monkeypatch):
    for name in ("wanted", "unwanted"):
        write(packs, f"{name}/__init__.py", node("N") + f"NODE_CLASS_MAPPINGS = {{'Loader_{name}': N}}")
        write(packs, f"{name}/prestartup_script.py", f"import os; os.environ['PRE_{name.upper()}'] = 'ran'")
    monkeypatch.setattr(args, "disable_all_custom_nodes", True)
    monkeypatch.setattr(args, "whitelist_custom_nodes", ["wanted"])
    monkeypatch.delenv("PRE_WANTED", raising=False)
    try:
        custom_packs.run_prestartup_scripts()
        load()
        assert [r.name for r in loader.PACKS.values()] == ["wanted"]
        assert os.environ.get("PRE_WANTED") == "ran" and "PRE_UNWANTED" not in os.environ
    finally:
        os.environ.pop("PRE_WANTED", None)


def test_all_packs_are_listed_before_the_first_script_runs(packs, monkeypatch):
    monkeypatch.setenv("LISTED", "")
    for name in "pqr":
        look = "import os, custom_packs; os.environ['LISTED'] += str(len(custom_packs.PACKS))"
        write(packs, f"{name}/prestartup_script.py", look)
    before = len(custom_packs.PACKS)
    custom_packs.run_prestartup_scripts()
    assert os.environ["LISTED"] == str(before + 3) * 3


@pytest.mark.parametrize("last_line", ["raise ValueError('x')", "import sys; sys.exit(1)"])
def test_a_failing_prestartup_script_changes_nothing_else(packs, last_line, monkeypatch):
    write(packs, "p/prestartup_script.py", last_line)
    write(packs, "q/prestartup_script.py", "import os; os.environ['PRE_Q'] = 'ran'")
    write(packs, "p/__init__.py", node("N") + "NODE_CLASS_MAPPINGS = {'LoaderAfter': N}")
    try:
        custom_packs.run_prestartup_scripts()
        assert os.environ["PRE_Q"] == "ran"
    finally:
        os.environ.pop("PRE_Q", None)
    assert set(custom_packs.prestartup_seconds) >= {str(packs / "p"), str(packs / "q")}
    load()
    assert "LoaderAfter" in nodes.NODE_CLASS_MAPPINGS


def test_single_files_have_no_prestartup_script(packs):
    write(packs, "prestartup_script.py", "raise RuntimeError('a pack, not a script')")
    assert [p.name for p in custom_packs.find_packs()] == ["prestartup_script"]
    custom_packs.run_prestartup_scripts()
    assert not custom_packs.prestartup_seconds.keys() & {str(packs)}


def test_web_directories(packs):
    write(packs, "web_pack/__init__.py", "NODE_CLASS_MAPPINGS = {}\nWEB_DIRECTORY = './js'")
    (packs / "web_pack/js").mkdir()
    write(packs, "toml_pack/__init__.py", "NODE_CLASS_MAPPINGS = {}")
    write(packs, "toml_pack/pyproject.toml", "[project]\nname = 'project-name'\n[tool.comfy]\nweb = 'w'\n")
    (packs / "toml_pack/w").mkdir()
    write(packs, "gone/__init__.py", "NODE_CLASS_MAPPINGS = {}\nWEB_DIRECTORY = './missing'")
    write(packs, "odd/__init__.py", "NODE_CLASS_MAPPINGS = {}")
    write(packs, "odd/pyproject.toml", "this is = = not toml")
    load()
    served = {k: v for k, v in loader.EXTENSION_WEB_DIRS.items() if v.startswith(str(packs))}
    assert served == {"web_pack": str(packs / "web_pack/js"), "project-name": str(packs / "toml_pack/w")}
    assert all(r.error is None for r in loader.PACKS.values())


ENTRY = """
from comfy_api.latest import ComfyExtension, io

class Node(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="LoaderEntry", display_name="Entry", outputs=[io.Int.Output()])

    @classmethod
    def execute(cls):
        return io.NodeOutput(1)

class Extension(ComfyExtension):
    async def on_load(self):
        Node.loaded = True

    async def get_node_list(self):
        return [Node]

{keyword}def comfy_entrypoint():
    return Extension()
"""


@pytest.mark.parametrize("keyword", ["", "async "])
def test_an_entry_point(packs, keyword):
    write(packs, "entry/__init__.py", ENTRY.format(keyword=keyword))
    load()
    info = nodes.node_info("LoaderEntry")
    assert info["python_module"] == "custom_nodes.entry" and info["display_name"] == "Entry"
    assert nodes.NODE_CLASS_MAPPINGS["LoaderEntry"].loaded


def test_an_entry_point_is_ignored_next_to_class_mappings(packs):
    source = ENTRY.format(keyword="") + node("Old") + "NODE_CLASS_MAPPINGS = {'LoaderOld': Old}"
    write(packs, "both/__init__.py", source)
    load()
    assert "LoaderOld" in nodes.NODE_CLASS_MAPPINGS and "LoaderEntry" not in nodes.NODE_CLASS_MAPPINGS


def test_switching_custom_nodes_off(packs):
    write(packs, "p.py", node("N") + "NODE_CLASS_MAPPINGS = {'LoaderOff': N}")
    asyncio.run(nodes.init_extra_nodes(init_custom_nodes=False))
    assert "LoaderOff" not in nodes.NODE_CLASS_MAPPINGS
    asyncio.run(nodes.init_extra_nodes())
    assert "LoaderOff" in nodes.NODE_CLASS_MAPPINGS


def test_finding_packs_needs_no_torch():
    import subprocess

    code = "import sys, custom_packs; custom_packs.run_prestartup_scripts(); print('torch' in sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=folder_paths.program_path, capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "False"
