"""Loads custom node packs (spec: node-api.md, section 1) and keeps account of how that went."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import inspect
import logging
import os
import sys
import time
from collections.abc import Mapping
from types import ModuleType

import custom_packs
from custom_packs import PACKS, PackRecord

from .registry import BUILT_IN_NAMES, NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS

__all__ = ["EXTENSION_WEB_DIRS", "LOADED_MODULE_DIRS", "PACKS", "PackRecord", "load_custom_node", "load_custom_packs"]

log = logging.getLogger(__name__)

# Pack (or pyproject project) name -> absolute folder served below /extensions/<name>/.
EXTENSION_WEB_DIRS: dict[str, str] = {}
# Pack name -> absolute folder it was loaded from.
LOADED_MODULE_DIRS: dict[str, str] = {}


class PackHasNoNodes(Exception):
    """The pack has neither NODE_CLASS_MAPPINGS nor a usable comfy_entrypoint."""


async def load_custom_packs() -> None:
    """Load every allowed pack, each within its time limit, and log a table of import times, slowest last."""
    built_in = frozenset(BUILT_IN_NAMES)
    packs = list(custom_packs.find_packs())
    records = custom_packs.records_of(packs)  # all are listed before the first is loaded
    for pack, record in zip(packs, records):
        if record.state == custom_packs.HANGING:  # in its prestartup script
            continue
        record.begin()
        load = functools.partial(_load_on_own_loop, pack.path, built_in)
        await asyncio.to_thread(custom_packs.run_limited, record, "its import", load)
        record.seconds += custom_packs.prestartup_seconds.get(pack.path, 0.0)
    if records:
        lines = [
            f"{record.seconds:8.2f} s{_REMARKS.get(record.state, '')}: {record.path}"
            for record in sorted(records, key=lambda r: r.seconds)
        ]
        log.info("Import times of custom nodes:\n%s", "\n".join(lines))


_REMARKS = {custom_packs.FAILED: " (IMPORT FAILED)", custom_packs.HANGING: " (STILL LOADING)"}


def _load_on_own_loop(path: str, built_in: frozenset[str]) -> None:
    asyncio.run(load_custom_node(path, built_in, module_parent="custom_nodes"))


async def load_custom_node(
    module_path: str, ignore: set[str] | frozenset[str] = frozenset(), module_parent: str = "custom_nodes"
) -> bool:
    """Import one pack and register its nodes; True when it worked.

    module_path: folder with `__init__.py`, or a Python file.
    ignore: class names the pack must not register (the built-in ones).
    module_parent: first part of `python_module`.

    Whatever the pack raises is logged and recorded in PACKS; nothing is raised from here.
    """
    pack = custom_packs.PackPath(module_path, os.path.isdir(module_path))
    record = custom_packs.record_of(pack)
    if record.state != custom_packs.HANGING:
        record.begin()
    start = time.perf_counter()
    try:
        module = _import(pack)
        LOADED_MODULE_DIRS[pack.name] = _folder(pack)
        record.version = record.version or _module_version(module)
        _register_web_directories(pack, module, record)
        classes, titles = await _declared_nodes(module)
        python_module = f"{module_parent}.{pack.name}"
        for name, cls in classes.items():
            if name not in ignore and _mark(name, cls, python_module):
                NODE_CLASS_MAPPINGS[name] = cls
                record.nodes.append(name)
        NODE_DISPLAY_NAME_MAPPINGS.update({k: v for k, v in titles.items() if k not in ignore})
        record.loaded()
    except BaseException as error:  # SystemExit, KeyboardInterrupt: a pack's, since signals go to the main thread
        record.failed(error)
        if isinstance(error, PackHasNoNodes):
            log.warning("Skipping %s: %s", module_path, error)
        else:
            log.warning("Cannot import custom nodes from %s: %s\n%s", module_path, record.error, record.details)
    finally:
        record.seconds = time.perf_counter() - start
    return record.state == custom_packs.LOADED


def _mark(name: object, cls: object, python_module: str) -> bool:
    """Note on a class where it comes from. False, with a line in the log, for what cannot be a node."""
    try:
        if not isinstance(name, str):
            raise TypeError("its name is no text")
        if not hasattr(cls, "INPUT_TYPES"):
            raise TypeError("it has no INPUT_TYPES")
        cls.RELATIVE_PYTHON_MODULE = python_module
        return True
    except Exception as error:
        log.warning("%s: %r is left out, as %s is no node class: %s", python_module, name, type(cls).__name__, error)
        return False


def _texts(titles: object, module: ModuleType) -> dict[str, str]:
    """Those titles that are texts; a page could not show others."""
    if not isinstance(titles, Mapping):
        if titles is not None:
            log.warning("%s: NODE_DISPLAY_NAME_MAPPINGS is no dict but %s", module.__name__, type(titles).__name__)
        return {}
    return {name: str.__str__(title) for name, title in titles.items() if isinstance(title, str)}


def _module_version(module: ModuleType) -> str | None:
    version = getattr(module, "__version__", None)
    return version if isinstance(version, str) else None


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
    data = custom_packs.project_data(pack)
    project, web = custom_packs.table(data, "project", "name"), custom_packs.table(data, "tool", "comfy", "web")
    if isinstance(project, str) and isinstance(web, str):
        path = os.path.abspath(os.path.join(folder, web))
        if os.path.isdir(path):
            EXTENSION_WEB_DIRS[project] = record.web_directory = path
    web = getattr(module, "WEB_DIRECTORY", None)
    if isinstance(web, str | os.PathLike):
        path = os.path.abspath(os.path.join(folder, web))
        if os.path.isdir(path):
            EXTENSION_WEB_DIRS[pack.name] = record.web_directory = path


async def _declared_nodes(module: ModuleType) -> tuple[dict[str, type], dict[str, str]]:
    """(name -> class, name -> title) a pack offers. NODE_CLASS_MAPPINGS wins over comfy_entrypoint."""
    classes = getattr(module, "NODE_CLASS_MAPPINGS", None)
    if classes is not None:
        return dict(classes), _texts(getattr(module, "NODE_DISPLAY_NAME_MAPPINGS", None), module)
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
