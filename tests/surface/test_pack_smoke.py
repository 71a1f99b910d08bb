"""`tools/pack_smoke.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import pack_smoke

GOOD = """
class SmokeNode:
    RETURN_TYPES = ()
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

NODE_CLASS_MAPPINGS = {"SmokeNode": SmokeNode}
"""


def folder_pack(root: Path, name: str, source: str) -> Path:
    (root / name).mkdir(parents=True)
    (root / name / "__init__.py").write_text(source)
    return root / name


def run(*packs: Path, timeout: float = 60):
    command = [sys.executable, "tools/pack_smoke.py", "--timeout", str(timeout), *map(str, packs)]
    return subprocess.run(command, cwd=pack_smoke.REPO, capture_output=True, text=True, timeout=400)


@pytest.mark.slow
def test_packs_that_load(tmp_path):
    pack = folder_pack(tmp_path, "fine", GOOD)
    (pack / "pyproject.toml").write_text("[project]\nversion = '0.3'\n")
    single = tmp_path / "single.py"
    single.write_text("NODE_CLASS_MAPPINGS = {}")
    done = run(pack, single)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[0].startswith("fine 0.3: 1 nodes (") and lines[1].startswith("single: 0 nodes (")


@pytest.mark.slow
def test_packs_that_do_not(tmp_path):
    bad = folder_pack(tmp_path, "bad", "import no_such_library")
    hangs = folder_pack(tmp_path, "hangs", "import time\nwhile True: time.sleep(0.05)")
    fine = folder_pack(tmp_path, "fine", GOOD)
    done = run(bad, hangs, fine, timeout=5)
    lines = done.stdout.splitlines()
    assert done.returncode == 1, done.stderr
    assert lines[0].startswith("bad: FAILED: ModuleNotFoundError: No module named 'no_such_library' (")
    assert lines[1].startswith("hangs: HANGING: its import has not ended after 5 s")
    assert lines[2].startswith("fine: 1 nodes (")


@pytest.mark.slow
def test_a_pack_that_ends_the_process(tmp_path):
    done = run(folder_pack(tmp_path, "gone", "import os\nos._exit(7)"))
    assert done.returncode == 2 and "the server ended with status 7" in done.stderr


def test_what_is_no_pack(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("")
    for path in (tmp_path / "missing", tmp_path / "notes.txt"):
        with pytest.raises(SystemExit) as stop:
            pack_smoke.main([str(path)])
        assert stop.value.code == 2 and "neither a folder nor a Python file" in capsys.readouterr().err


def test_two_packs_of_one_name(tmp_path, capsys):
    one, two = folder_pack(tmp_path / "a", "same", GOOD), folder_pack(tmp_path / "b", "same", GOOD)
    with pytest.raises(SystemExit):
        pack_smoke.main([str(one), str(two)])
    assert "two packs are called same" in capsys.readouterr().err
