"""Folders of its own for each server in the tests' process."""

from tests.server.conftest import base

__all__ = ["base"]
