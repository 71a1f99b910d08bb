"""Files that have been saved, as UI data tells about them (spec node-api.md 3.5)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from comfy_api.latest._base import enum_value
from comfy_api.latest._widgets import FolderType


class UIOutput(ABC):
    """Something that knows itself as UI data."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """The UI data: key -> list."""


class SavedResult(dict):
    """A saved file: name, subfolder, and the folder it is in."""

    def __init__(self, filename: str, subfolder: str, type: FolderType | str) -> None:
        super().__init__(filename=filename, subfolder=subfolder, type=enum_value(type))

    @property
    def filename(self) -> str:
        return self["filename"]

    @property
    def subfolder(self) -> str:
        return self["subfolder"]

    @property
    def type(self) -> FolderType:
        return FolderType(self["type"])


class SavedImages(UIOutput):
    """Saved images."""

    def __init__(self, results: list[SavedResult], is_animated: bool = False) -> None:
        self.results = results
        self.is_animated = is_animated

    def as_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = {"images": self.results}
        if self.is_animated:
            data["animated"] = (True,)
        return data


class SavedAudios(UIOutput):
    """Saved sound files."""

    def __init__(self, results: list[SavedResult]) -> None:
        self.results = results

    def as_dict(self) -> dict[str, Any]:
        return {"audio": self.results}
