"""Files of the input, output and temp folders: finding one by the names clients use, and storing uploads.

Rules: spec/http-api.md section 8. Blocking; meant for worker threads.
"""

from __future__ import annotations

import filecmp
import os
import posixpath
import shutil
import uuid

import folder_paths
from userdata.atomic import move_into_place

HASH_PREFIX = "blake3:"  # of names that mean the asset of a hash
LONGEST_NAME = 255  # bytes, the limit of most file systems
MOST_NUMBERED = 10_000


class BadFileName(ValueError):
    """A name or folder that cannot be used; the message is meant for the client."""


class OutsideFolder(BadFileName):
    """A name or subfolder that leads out of its folder."""


def locate(filename: str, type_name: str = "output", subfolder: str = "") -> str:
    """Full path of an existing file. `filename` may be annotated (`a.png [input]`), which wins over `type_name`.

    Raises BadFileName, OutsideFolder, FileNotFoundError. Symbolic links that lead out are not followed
    (`folder_paths.stays_inside`).
    """
    bare, folder = folder_paths.annotated_filepath(filename)
    if not bare or bare.startswith("/") or ".." in bare or "\0" in bare + subfolder:
        raise BadFileName(f"{filename!r} is not a file name")
    folder = folder or folder_paths.get_directory_by_type(type_name)
    if folder is None:
        raise BadFileName(f"type must be input, output or temp, not {type_name!r}")
    try:
        directory = folder_paths.safe_join(folder, subfolder)
        path = folder_paths.safe_join(directory, os.path.basename(bare))
    except folder_paths.PathOutsideFolder as error:
        raise OutsideFolder(str(error)) from error
    if not folder_paths.stays_inside(directory, folder):
        raise OutsideFolder(f"{subfolder!r} leads out of the {type_name} folder")
    if not os.path.isfile(path):
        raise FileNotFoundError(filename)
    if not folder_paths.stays_inside(path, folder):
        raise OutsideFolder(f"{filename!r} leads out of the {type_name} folder")
    return path


def remove(filename: str, type_name: str = "output", subfolder: str = "") -> str:
    """Delete a file; of a symbolic link, the link. Names as in `locate`. Returns its path.

    Raises BadFileName, OutsideFolder, FileNotFoundError, OSError.
    """
    path = locate(filename, type_name, subfolder)
    if os.path.basename(path).startswith("."):
        raise BadFileName("hidden files are not deleted")
    os.remove(path)
    return path


def upload_name(raw: str) -> str:
    """A checked file name of an upload. Raises BadFileName."""
    name = raw.lstrip("/")
    if not name or name in (".", ".."):
        raise BadFileName("the file has no name")
    if ".." in name or "\\" in name:
        raise BadFileName(f"{raw!r}: a file name must not contain '..' or a backslash")
    if _has_control_characters(name):
        raise BadFileName("a file name must not contain control characters")
    # Stored under such a name it could not be found again: there it means something else.
    if folder_paths.annotated_filepath(name)[1] is not None or os.path.basename(name).startswith(HASH_PREFIX):
        raise BadFileName(f"{raw!r}: a file name must not begin with {HASH_PREFIX} or end with a folder in brackets")
    try:
        size = len(os.path.basename(name).encode())
    except UnicodeEncodeError as error:
        raise BadFileName("the file name is not valid text") from error
    if size > LONGEST_NAME:
        raise BadFileName(f"a file name has at most {LONGEST_NAME} bytes, this one {size}")
    return name


def _has_control_characters(text: str) -> bool:
    return any(ord(c) < 32 or ord(c) == 127 for c in text)


def upload_folder(type_name: str, subfolder: str, name: str) -> tuple[str, str]:
    """(full path of the folder, subfolder as stored) for an upload; the subfolder is created.

    Raises BadFileName, OutsideFolder. A folder that is part of the file's own name must exist.
    """
    folder = folder_paths.get_directory_by_type(type_name)
    if folder is None:
        raise BadFileName(f"type must be input, output or temp, not {type_name!r}")
    if _has_control_characters(subfolder):
        raise BadFileName("a subfolder must not contain control characters")
    try:
        directory = folder_paths.safe_join(folder, subfolder)
        parent = os.path.dirname(folder_paths.safe_join(directory, name))
    except folder_paths.PathOutsideFolder as error:
        raise OutsideFolder(str(error)) from error
    if not folder_paths.stays_inside(parent, folder):
        raise OutsideFolder(f"{subfolder!r} leads out of the {type_name} folder")
    folder_paths.make_folders(directory)
    if not os.path.isdir(parent):
        raise BadFileName(f"{name!r}: there is no such folder")
    stored = posixpath.normpath(subfolder.replace(os.sep, "/")) if subfolder else ""
    return directory, "" if stored == "." else stored


def place(staged: str, directory: str, name: str, overwrite: bool) -> str:
    """Move a staged file to `directory`/`name`; returns the name it got.

    If the name is taken and `overwrite` is false: the same content keeps the name and nothing is written; other
    content gets ` (1)`, ` (2)`… before the extension. Two uploads at once never get each other's name.
    """
    near = os.path.join(directory, f".upload-{uuid.uuid4().hex}")
    shutil.move(staged, near)  # the staging folder may be on another disk; from here on it is a rename
    try:
        if overwrite:
            target = os.path.join(directory, name)
            if os.path.isdir(target):
                raise BadFileName(f"{name!r} is a folder")
            os.replace(near, target)
            return name
        stem, extension = os.path.splitext(name)
        for number in range(MOST_NUMBERED):
            candidate = f"{stem} ({number}){extension}" if number else name
            target = os.path.join(directory, candidate)
            try:
                move_into_place(near, target, overwrite=False)
                return candidate
            except FileExistsError:
                if os.path.isfile(target) and filecmp.cmp(near, target, shallow=False):
                    return candidate
        raise BadFileName(f"{name!r} is taken, with every number up to {MOST_NUMBERED}")
    finally:
        if os.path.exists(near):
            os.unlink(near)
