"""A user's own files: workflows, bookmarks, style sheets (spec: http-api.md section 9).

Names are relative, with `/`. Every method raises `folder_paths.PathOutsideFolder` for a name that leads out of the
user's folder. Files starting with a dot are not listed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from folder_paths import is_file, is_folder, make_folders, safe_join
from userdata.atomic import move_into_place, write_atomic


@dataclass(frozen=True)
class FileInfo:
    """path: relative to the folder that was listed; size: bytes; modified, created: milliseconds since the epoch."""

    path: str
    size: int
    modified: int
    created: int

    @classmethod
    def of(cls, full: str, path: str) -> FileInfo:
        """Describe the file at `full`."""
        stat = os.stat(full)
        created = getattr(stat, "st_birthtime", stat.st_ctime)
        return cls(path, stat.st_size, int(stat.st_mtime * 1000), int(created * 1000))


def _visible(folder: str, recurse: bool, above: frozenset[str] = frozenset()) -> Iterator[os.DirEntry]:
    here = os.path.realpath(folder)
    try:
        with os.scandir(folder) as found:
            entries = sorted((e for e in found if not e.name.startswith(".")), key=lambda e: e.name)
    except OSError:
        if not above:
            raise
        return  # a folder that cannot be read does not hide the others
    for entry in entries:
        if is_folder(entry):
            # A link may lead back to a folder on the way down.
            if recurse and os.path.realpath(entry.path) not in above | {here}:
                yield from _visible(entry.path, recurse, above | {here})
        elif is_file(entry):
            yield entry


class UserFiles:
    """The files below one user's folder."""

    def __init__(self, folder: str):
        self._folder = folder

    def path(self, name: str) -> str:
        """Full path of a name."""
        return safe_join(self._folder, name, label="user")

    def _relative(self, full: str, start: str) -> str:
        return os.path.relpath(full, start).replace(os.sep, "/")

    def list(self, directory: str, recurse: bool) -> list[FileInfo]:
        """The files of a folder, paths relative to it. Raises FileNotFoundError."""
        start = self.path(directory)
        if not os.path.isdir(start):
            raise FileNotFoundError(directory)
        return [FileInfo.of(e.path, self._relative(e.path, start)) for e in _visible(start, recurse)]

    def tree(self, directory: str) -> list[dict[str, Any]]:
        """Folders and files below a folder, paths from the user's root, folders first, then by name.

        Raises FileNotFoundError, or NotADirectoryError for a file.
        """
        start = self.path(directory)
        if not os.path.exists(start):
            raise FileNotFoundError(directory)
        if not os.path.isdir(start):
            raise NotADirectoryError(directory)
        found: list[dict[str, Any]] = []
        for root, folders, files in os.walk(start):
            folders[:] = [f for f in folders if not f.startswith(".")]
            for name in folders:
                path = self._relative(os.path.join(root, name), self._folder)
                found.append({"name": name, "path": path, "type": "directory"})
            for name in files:
                if name.startswith("."):
                    continue
                full = os.path.join(root, name)
                try:
                    stat = os.stat(full)
                except OSError:  # a link that leads nowhere or in a circle, or a file deleted just now
                    continue
                path = self._relative(full, self._folder)
                found.append(
                    {"name": name, "path": path, "type": "file", "size": stat.st_size, "modified": stat.st_mtime}
                )
        return sorted(found, key=lambda e: (e["type"] != "directory", e["name"].lower(), e["path"]))

    def existing(self, name: str) -> str:
        """Full path of a file that is there. Raises FileNotFoundError, also for a folder."""
        path = self.path(name)
        if not os.path.isfile(path):
            raise FileNotFoundError(name)
        return path

    def write(self, name: str, data: bytes, overwrite: bool) -> FileInfo:
        """Store a file. Raises FileExistsError when it must not be replaced, IsADirectoryError for a folder."""
        path = self.path(name)
        if os.path.isdir(path):
            raise IsADirectoryError(name)
        write_atomic(path, data, overwrite)
        return FileInfo.of(path, self._relative(path, self._folder))

    def move(self, name: str, to: str, overwrite: bool) -> FileInfo:
        """Rename a file. Raises as `existing` and `write`."""
        target = self.path(to)
        source = self.existing(name)
        if os.path.isdir(target):
            raise IsADirectoryError(to)
        make_folders(os.path.dirname(target))
        if source != target:
            move_into_place(source, target, overwrite)
        elif not overwrite:
            raise FileExistsError(to)
        return FileInfo.of(target, self._relative(target, self._folder))

    def delete(self, name: str) -> None:
        """Remove a file. Raises FileNotFoundError, IsADirectoryError."""
        path = self.path(name)
        if os.path.isdir(path):
            raise IsADirectoryError(name)
        os.unlink(self.existing(name))
