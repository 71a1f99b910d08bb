"""Loads custom node packs (spec: node-api.md, section 1) and keeps account of how that went."""

from __future__ import annotations

import importlib.util
import inspect
import logging
import os
import sys
import time
import traceback
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import custom_packs

from .registry import BUILT_IN_NAMES, NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS

log = logging.getLogger(__name__)

# Pack (or pyproject project) name -> absolute folder served below /extensions/<name>/.
EXTENSION_WEB_DIRS: dict[str, str] = {}
# Pack name -> absolute folder it was loaded from.
LOADED_MODULE_DIRS: dict[str, str] = {}


@dataclass
class PackRecord:
    """How loading one pack went.

    seconds: time spent importing, prestartup script included.
    nodes: names of the classes that were registered.
    error: "Type: message" when the pack could not be loaded, with its traceback in `details`.
    """

    name: str
    path: str
    seconds: float = 0.0
    nodes: list[str] = field(default_factory=list)
    web_directory: str | None = None
    error: str | None = None
    details: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON form, without the traceback and with the file name only (paths are the administrator's business)."""
        return {
            "name": self.name,
            "loaded": self.error is None,
            "seconds": round(self.seconds, 3),
            "node_count": len(self.nodes),
            "nodes": self.nodes,
            "web": self.web_directory is not None,
            "error": self.error,
        }


# Pack path -> record, in the order of loading.
PACKS: dict[str, PackRecord] = {}


class PackHasNoNodes(Exception):
    """The pack has neither NODE_CLASS_MAPPINGS nor a usable comfy_entrypoint."""


async def load_custom_packs() -> None:
    """Load every allowed pack and log a table of import times, slowest last."""
    built_in = frozenset(BUILT_IN_NAMES)
    for pack in list(custom_packs.find_packs()):
        await load_custom_node(pack.path, built_in, module_parent="custom_nodes")
        PACKS[pack.path].seconds += custom_packs.prestartup_seconds.get(pack.path, 0.0)
    if PACKS:
        lines = [
            f"{record.seconds:8.2f} s{' (IMPORT FAILED)' if record.error else ''}: {record.path}"
            for record in sorted(PACKS.values(), key=lambda r: r.seconds)
        ]
        log.info("Import times of custom nodes:\n%s", "\n".join(lines))


async def load_custom_node(
    module_path: str, ignore: set[str] | frozenset[str] = frozenset(), module_parent: str = "custom_nodes"
) -> bool:
    """Import one pack and register its nodes; True when it worked.

    module_path: folder with `__init__.py`, or a Python file.
    ignore: class names the pack must not register (the built-in ones).
    module_parent: first part of `python_module`.

    Whatever the pack raises, SystemExit included, is logged and recorded in PACKS; nothing is raised from here.
    """
    pack = custom_packs.PackPath(module_path, os.path.isdir(module_path))
    record = PACKS[module_path] = PackRecord(pack.name, module_path)
    start = time.perf_counter()
    try:
        module = _import(pack)
        LOADED_MODULE_DIRS[pack.name] = _folder(pack)
        _register_web_directories(pack, module, record)
        classes, titles = await _declared_nodes(module)
        python_module = f"{module_parent}.{pack.name}"
        for name, cls in classes.items():
            if name not in ignore:
                cls.RELATIVE_PYTHON_MODULE = python_module
                NODE_CLASS_MAPPINGS[name] = cls
                record.nodes.append(name)
        NODE_DISPLAY_NAME_MAPPINGS.update({k: v for k, v in titles.items() if k not in ignore})
    except (Exception, SystemExit) as error:
        record.error = f"{type(error).__name__}: {error}"
        record.details = traceback.format_exc()
        if isinstance(error, PackHasNoNodes):
            log.warning("Skipping %s: %s", module_path, error)
        else:
            log.warning("Cannot import custom nodes from %s: %s\n%s", module_path, record.error, record.details)
    finally:
        record.seconds = time.perf_counter() - start
    return record.error is None


def _module_key(pack: custom_packs.PackPath) -> str:
    """Name in sys.modules: the path. A dot would be taken for a package separator by the pack's relative imports."""
    return pack.path.replace(".", "_x_") if pack.folder else os.path.splitext(pack.path)[0]


def _folder(pack: custom_packs.PackPath) -> str:
    return os.path.abspath(pack.path if pack.folder else os.path.dirname(pack.path))


def _import(pack: custom_packs.PackPath) -> ModuleType:
    file = os.path.join(pack.path, "__init__.py") if pack.folder else pack.path
    key = _module_key(pack)
    spec = importlib.util.spec_from_file_location(key, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        # A half-initialised module must not be found by a second attempt.
        sys.modules.pop(key, None)
        raise
    return module


def _register_web_directories(pack: custom_packs.PackPath, module: ModuleType, record: PackRecord) -> None:
    folder = _folder(pack)
    project, web = _pyproject_web(folder) if pack.folder else (None, None)
    if project and web:
        path = os.path.abspath(os.path.join(folder, web))
        if os.path.isdir(path):
            EXTENSION_WEB_DIRS[project] = record.web_directory = path
    web = getattr(module, "WEB_DIRECTORY", None)
    if web is not None:
        path = os.path.abspath(os.path.join(folder, web))
        if os.path.isdir(path):
            EXTENSION_WEB_DIRS[pack.name] = record.web_directory = path


def _pyproject_web(folder: str) -> tuple[str | None, str | None]:
    """(project name, `[tool.comfy] web`) of a pack's pyproject.toml; Nones without them. A broken file is logged."""
    file = os.path.join(folder, "pyproject.toml")
    if not os.path.isfile(file):
        return None, None
    try:
        import tomllib  # Python 3.11 and later
    except ModuleNotFoundError:
        log.warning("Ignoring %s: this Python cannot read TOML", file)
        return None, None
    try:
        with open(file, "rb") as f:
            data = tomllib.load(f)
        return data.get("project", {}).get("name"), data.get("tool", {}).get("comfy", {}).get("web")
    except (OSError, ValueError, AttributeError) as error:
        log.warning("Ignoring %s: %s", file, error)
        return None, None


async def _declared_nodes(module: ModuleType) -> tuple[dict[str, type], dict[str, str]]:
    """(name -> class, name -> title) a pack offers. NODE_CLASS_MAPPINGS wins over comfy_entrypoint."""
    classes = getattr(module, "NODE_CLASS_MAPPINGS", None)
    if classes is not None:
        return dict(classes), dict(getattr(module, "NODE_DISPLAY_NAME_MAPPINGS", None) or {})
    entrypoint = getattr(module, "comfy_entrypoint", None)
    if entrypoint is None:
        raise PackHasNoNodes("it has neither NODE_CLASS_MAPPINGS nor comfy_entrypoint")
    if not callable(entrypoint):
        raise PackHasNoNodes("its comfy_entrypoint is not a function")
    extension = entrypoint()
    if inspect.isawaitable(extension):
        extension = await extension

    from comfy_api.latest import ComfyExtension

    if not isinstance(extension, ComfyExtension):
        raise PackHasNoNodes(f"its comfy_entrypoint gave {type(extension).__name__}, expected a ComfyExtension")
    await extension.on_load()
    nodes = await extension.get_node_list()
    if not isinstance(nodes, list):
        raise PackHasNoNodes(f"its get_node_list gave {type(nodes).__name__}, expected a list of classes")
    schemas = [(cls, cls.GET_SCHEMA()) for cls in nodes]
    titles = {schema.node_id: schema.display_name for _, schema in schemas if schema.display_name is not None}
    return {schema.node_id: cls for cls, schema in schemas}, titles
