"""Fixtures of the engine's tests; what they are made of is in `engine_kit`."""

from __future__ import annotations

import asyncio
import os
import sys
import types

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from engine_kit import BASIC, FakeServer, Int, Runner


@pytest.fixture
def classes(monkeypatch):
    """The registered node classes; tests add their own."""
    module = types.ModuleType("nodes")
    module.NODE_CLASS_MAPPINGS = dict(BASIC)
    monkeypatch.setitem(sys.modules, "nodes", module)
    Int.calls = []
    return module.NODE_CLASS_MAPPINGS


@pytest.fixture
def server():
    return FakeServer()


@pytest.fixture
def make_runner(classes, server):
    """Make a Runner with a cache type and its options."""
    return lambda cache_type, **args: Runner(server, cache_type, **args)


@pytest.fixture
def runner(make_runner):
    """A Runner that keeps the results of the last prompt."""
    from execution import CacheType

    return make_runner(CacheType.CLASSIC)


@pytest.fixture
def check(classes):
    """Validate a prompt."""
    from comfy_execution.validation import validate_prompt

    return lambda prompt, targets=None: asyncio.run(validate_prompt("p", prompt, targets))
