"""What is the same for all tests."""

from __future__ import annotations

import gc
import os

import pytest

# The recordings were made on another processor. MKL's sums, logarithms and decompositions differ from one kind to the
# next in the last digit, and some cases hang on that digit (a sigma half-way between two steps of a distilled model,
# the steps an adaptive solver takes). In this mode MKL computes the same everywhere; it reads it when torch comes.
os.environ.setdefault("MKL_CBWR", "COMPATIBLE")


@pytest.fixture(scope="module", autouse=True)
def small_heap():
    """Whatever is there before a module's tests is no business of the garbage collector's while they run.

    The server and several tests collect garbage often. Each collection walks every object: the tests themselves, the
    recordings they are made of, what torch's compiler has imported. That took longer than the tests.
    """
    gc.collect()
    gc.freeze()
