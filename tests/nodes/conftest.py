"""Folders of its own for each test, so that nothing is read from or written to the checkout."""

from __future__ import annotations

import pytest

import folder_paths


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """tmp_path with `input`, `output` and `temp`, which the server's folders point to."""
    for name in ("input", "output", "temp"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(folder_paths, f"{name}_directory", str(tmp_path / name))
    return tmp_path
