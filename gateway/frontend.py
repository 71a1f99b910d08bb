"""The browser front end: finding its folder, and serving the files below it (spec: frontend-needs.md)."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from typing import Any

from aiohttp import web

import folder_paths
from gateway.file_answer import FileAnswer
from gateway.files import file_response

PACKAGE = "comfyui_frontend_package"
INDEX_HEADERS = {
    "Cache-Control": "no-store, must-revalidate",
    "Pragma": "no-cache",
    "Expires": "0",
    "Content-Type": "text/html; charset=utf-8",
}
NO_FRONT_END = """<!doctype html><meta charset="utf-8"><title>Darkroom</title>
<h1>Darkroom is running</h1><p>The browser front end is not installed. Install it with
<code>pip install comfyui-frontend-package</code>, or name a folder with <code>--front-end-root</code>.</p>"""


def package_folder(package: str, subfolder: str) -> str | None:
    """A folder inside an installed package, found without importing it; None if it is not there."""
    spec = importlib.util.find_spec(package)
    for root in (spec.submodule_search_locations or []) if spec else []:
        path = os.path.join(root, subfolder)
        if os.path.isdir(path):
            return path
    return None


def installed_version(distribution: str) -> str | None:
    """Version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


class FrontEnd:
    """The static root: `--front-end-root`, else the installed package's files, else a page that says so."""

    def __init__(self, args: Any):
        self.root: str | None = args.front_end_root or package_folder(PACKAGE, "static")

    async def index(self, request: web.Request) -> web.StreamResponse:
        """The page itself."""
        path = os.path.join(self.root, "index.html") if self.root else ""
        if not os.path.isfile(path):
            return web.Response(text=NO_FRONT_END, headers=INDEX_HEADERS)
        return FileAnswer(path, INDEX_HEADERS)

    def find(self, path: str) -> web.StreamResponse | None:
        """The answer for a URL path (decoded): a file, 403 for a folder, None if there is nothing."""
        if self.root is None:
            return None
        full = inside(self.root, path.lstrip("/"))
        if full is None:
            return None
        if os.path.isdir(full):
            return web.Response(status=403)
        return file_response(full) if os.path.isfile(full) else None

    def extension_files(self) -> list[str]:
        """URLs of the script files below the front end's own `extensions` folder."""
        folder = os.path.join(self.root, "extensions") if self.root else ""
        return [f"/extensions/{name}" for name in script_files(folder)]


def inside(folder: str, relative: str) -> str | None:
    """The full path of a relative URL path below `folder`; None if it leads out of it."""
    try:
        return folder_paths.safe_join(folder, relative)
    except folder_paths.PathOutsideFolder:
        return None


def script_files(folder: str) -> list[str]:
    """Sorted relative URL paths of all `.js` files below a folder."""
    found = []
    for root, folders, files in os.walk(folder, followlinks=True):
        folders.sort()
        relative = os.path.relpath(root, folder)
        found += [os.path.normpath(os.path.join(relative, f)) for f in files if f.endswith(".js")]
    return sorted(name.replace(os.sep, "/") for name in found)
