"""The users of the server, and whose request it is (spec: http-api.md section 9).

Without `--multi-user` there is one, `default`. The `comfy-user` header is no proof of identity.
"""

from __future__ import annotations

import json
import os
import re
import threading
import uuid
from typing import Any

import folder_paths
from comfy.cli_args import args
from userdata.atomic import read_json_object, write_json

DEFAULT_USER = "default"
USERS_FILE = "users.json"
LONGEST_NAME = 128


class UnknownUser(Exception):
    """The request names no known user."""

    def __init__(self, name: str):
        super().__init__(f"unknown user: {name!r}")
        self.name = name


class UserNameError(ValueError):
    """The name cannot be given to a new user; the message is meant for the client."""


class UserManager:
    """Users by id, stored in `users.json` of the user directory."""

    def __init__(self):
        self._lock = threading.Lock()
        self._users: dict[str, str] | None = None

    @property
    def multi_user(self) -> bool:
        """Whether requests choose their user."""
        return bool(args.multi_user)

    @property
    def users(self) -> dict[str, str]:
        """id -> name."""
        with self._lock:
            return dict(self._load())

    def _path(self) -> str:
        return os.path.join(folder_paths.get_user_directory(), USERS_FILE)

    def _load(self) -> dict[str, str]:
        if self._users is None:
            if self.multi_user:
                self._users = {k: str(v) for k, v in read_json_object(self._path()).items()}
            else:
                self._users = {DEFAULT_USER: DEFAULT_USER}
        return self._users

    def add_user(self, name: Any) -> str:
        """Make a user; returns the id. Raises UserNameError for names that are empty, reserved or taken."""
        if not isinstance(name, str) or not name.strip():
            raise UserNameError("username not provided")
        name = name.strip()
        if len(name) > LONGEST_NAME:
            raise UserNameError(f"a username has at most {LONGEST_NAME} characters")
        if name.startswith(folder_paths.SYSTEM_USER_PREFIX):
            raise UserNameError(f"a username must not start with {folder_paths.SYSTEM_USER_PREFIX}")
        ident = re.sub(r"[^A-Za-z0-9_-]+", "-", name) + "_" + str(uuid.uuid4())
        with self._lock:
            users = self._load()
            if name in users.values():
                raise UserNameError("Duplicate username.")
            changed = {**users, ident: name}
            write_json(self._path(), changed)
            self._users = changed
        return ident

    def get_request_user_id(self, request: Any) -> str:
        """The id of the user whose request it is. Raises UnknownUser in multi-user mode."""
        if not self.multi_user:
            return DEFAULT_USER
        ident = request.headers.get("comfy-user", "")
        if ident.startswith(folder_paths.SYSTEM_USER_PREFIX) or ident not in self.users:
            raise UnknownUser(ident)
        return ident

    def get_user_folder(self, request: Any) -> str:
        """The folder of the request's user. Raises UnknownUser."""
        ident = self.get_request_user_id(request)
        folder = folder_paths.get_public_user_directory(ident)
        if folder is None:
            raise UnknownUser(ident)
        return folder

    def get_request_user_filepath(
        self, request: Any, file: str | None, type: str = "userdata", create_dir: bool = True
    ) -> str | None:
        """Full path of a file of the request's user; None if it leads out of the user's folder.

        With `create_dir` the folder it is in is made. Raises UnknownUser, and KeyError for a type other than
        `userdata`.
        """
        if type != "userdata":
            raise KeyError(f"unknown kind of user file: {type!r}")
        folder = self.get_user_folder(request)
        try:
            path = folder_paths.safe_join(folder, file) if file is not None else folder
        except folder_paths.PathOutsideFolder:
            return None
        if create_dir:
            folder_paths.make_folders(os.path.dirname(path) if file is not None else path)
        return path

    def describe(self) -> dict[str, Any]:
        """The answer of GET /users."""
        if self.multi_user:
            return {"storage": "server", "users": self.users}
        folder = folder_paths.get_public_user_directory(DEFAULT_USER)
        return {"storage": "server", "migrated": bool(folder) and os.path.isdir(folder)}

    def __repr__(self) -> str:
        return f"UserManager({json.dumps(sorted(self.users))})"
