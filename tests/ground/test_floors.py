"""Who may import whom (docs/architecture.md): downwards only, and nothing heavy between start and socket."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# A room, and the rooms above it, which it must not import.
ABOVE = {
    "comfy": {
        "nodes",
        "execution",
        "server",
        "routes",
        "workers",
        "comfy_execution",
        "gateway",
        "jobs",
        "main",
        "latent_preview",
    },
    "jobs": {"server", "routes", "workers", "gateway", "main", "nodes", "torch", "numpy", "PIL"},
    "comfy_execution": {"jobs", "execution", "server", "routes", "workers", "gateway", "main", "torch", "numpy", "PIL"},
    "nodes": {"jobs", "routes", "workers", "gateway", "main"},
    "execution.py": {"jobs", "server", "routes", "workers", "gateway", "main"},
    "workers": {"server", "routes", "gateway", "main"},
    "routes": {"server", "main", "workers"},
    "gateway": {"server", "routes", "main", "workers"},
    "folder_paths.py": {"nodes", "execution", "server", "routes", "workers", "gateway", "torch"},
    "logs.py": {"nodes", "execution", "server", "routes", "workers", "gateway", "torch"},
}
LIGHT = ["main", "server", "execution", "workers.local", "demo", "custom_packs"]
HEAVY = {"torch", "numpy", "PIL", "scipy", "transformers", "safetensors", "nodes", "psutil", "av"}
NEVER = {"torchvision", "torchaudio"}


def sources(room: str) -> list[Path]:
    path = ROOT / room
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, int, bool]]:
    """(top-level package, line, whether at module level) of every absolute import."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):  # what only a type checker imports binds nobody
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.split(".")[0], node.lineno, id(node) in top
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0], node.lineno, id(node) in top


@pytest.mark.parametrize("room", ABOVE)
def test_imports_go_downwards(room):
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources(room)
        for name, line, _ in imports(path)
        if name in ABOVE[room] and not (room == "comfy_execution" and name == "nodes")
    ]
    assert not found, found


def test_never_torchvision():
    rooms = [
        p for p in ROOT.iterdir() if p.name not in (".venv", "custom_nodes", "tests") and not p.name.startswith(".")
    ]
    files = [f for p in rooms for f in ([p] if p.suffix == ".py" else p.rglob("*.py") if p.is_dir() else [])]
    found = [f"{f.relative_to(ROOT)}:{line}" for f in files for name, line, _ in imports(f) if name in NEVER]
    assert not found, found


@pytest.mark.parametrize("module", LIGHT)
def test_nothing_heavy_before_the_socket(module):
    code = f"import sys, {module}; print(*sorted(m for m in {HEAVY!r} if m in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == ""


def test_the_whole_application_is_light():
    code = (
        "import asyncio, sys, server, execution\n"
        "async def f():\n"
        "    s = server.PromptServer(asyncio.get_running_loop()); execution.PromptQueue(s)\n"
        f"asyncio.run(f()); print(*sorted(m for m in {HEAVY!r} if m in sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stdout.strip()) == (0, ""), run.stderr
