"""What custom node packs bring besides code: example workflows, translations, subgraphs (http-api.md section 11).

Blocking; needs the packs to be known, not loaded.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from typing import Any

import folder_paths

log = logging.getLogger(__name__)

WORKFLOW_FOLDERS = ("example_workflows", "example", "examples", "workflow", "workflows")
TRANSLATION_FILES = {"nodeDefs.json": "nodeDefs", "commands.json": "commands", "settings.json": "settings"}
BLUEPRINTS = "blueprints"  # in the program's folder


def pack_folders() -> dict[str, str]:
    """Pack name -> folder, in directory order; a name found in two places counts once."""
    found: dict[str, str] = {}
    for root in folder_paths.get_folder_paths("custom_nodes"):
        try:
            names = sorted(os.listdir(root))
        except OSError:
            continue
        for name in names:
            path = os.path.join(root, name)
            if not name.startswith((".", "__")) and not name.endswith(".disabled") and os.path.isdir(path):
                found.setdefault(name, path)
    return found


def _json_files(folder: str) -> list[str]:
    try:
        return sorted(n for n in os.listdir(folder) if n.endswith(".json") and not n.startswith("."))
    except OSError:
        return []


def workflow_templates() -> dict[str, list[str]]:
    """Pack -> names of its example workflows."""
    found = {}
    for pack, folder in pack_folders().items():
        names = [
            os.path.splitext(file)[0]
            for subfolder in WORKFLOW_FOLDERS
            for file in _json_files(os.path.join(folder, subfolder))
        ]
        if names:
            found[pack] = names
    return found


def workflow_template_file(pack: str, name: str) -> str | None:
    """Full path of a file in one of the pack's example folders, None if there is none."""
    folder = pack_folders().get(pack)
    for subfolder in WORKFLOW_FOLDERS if folder else ():
        try:
            path = folder_paths.safe_join(os.path.join(folder, subfolder), name)
        except folder_paths.PathOutsideFolder:
            return None
        if os.path.isfile(path):
            return path
    return None


def _read_object(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as stream:
            value = json.load(stream)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        log.warning("%s is skipped: %s", path, error)
        return {}
    return value if isinstance(value, dict) else {}


def merge(into: dict[str, Any], more: dict[str, Any]) -> None:
    """Merge nested objects; for other values the newer one counts."""
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


def translations() -> dict[str, Any]:
    """Language -> the merged translations of all packs."""
    found: dict[str, Any] = {}
    for folder in pack_folders().values():
        locales = os.path.join(folder, "locales")
        languages = sorted(os.listdir(locales)) if os.path.isdir(locales) else []
        for language in languages:
            path = os.path.join(locales, language)
            if not os.path.isdir(path):
                continue
            texts = _read_object(os.path.join(path, "main.json"))
            for file, key in TRANSLATION_FILES.items():
                more = _read_object(os.path.join(path, file))
                if more:
                    merge(texts, {key: more})
            if texts:
                merge(found.setdefault(language, {}), texts)
    return found


def _subgraph_files() -> Iterator[tuple[str, str, str]]:
    """(source, node pack, full path) of every subgraph file."""
    blueprints = os.path.join(folder_paths.program_path, BLUEPRINTS)
    for name in _json_files(blueprints):
        yield "templates", "comfyui", os.path.join(blueprints, name)
    for pack, folder in pack_folders().items():
        subgraphs = os.path.join(folder, "subgraphs")
        for name in _json_files(subgraphs):
            yield "custom_node", f"custom_nodes.{pack}", os.path.join(subgraphs, name)


def subgraphs() -> dict[str, dict[str, Any]]:
    """Id -> a subgraph with `source`, `name`, `info` and its text as `data`."""
    found = {}
    for source, pack, path in _subgraph_files():
        try:
            with open(path, encoding="utf-8") as stream:
                data = stream.read()
        except (OSError, ValueError) as error:
            log.warning("%s is skipped: %s", path, error)
            continue
        name = os.path.splitext(os.path.basename(path))[0]
        ident = hashlib.sha256(f"{source}\0{pack}\0{name}".encode()).hexdigest()
        found[ident] = {"source": source, "name": name, "info": {"node_pack": pack}, "data": data}
    return found
