"""What is the same for all tests."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def small_heap():
    """Whatever is there before a module's tests is no business of the garbage collector's while they run.

    The server and several tests collect garbage often. Each collection walks every object: the tests themselves, the
    recordings they are made of, what torch's compiler has imported. That took longer than the tests.
    """
    gc.collect()
    gc.freeze()
