"""Nodes for lists of texts and images, boxes and sounds, against results recorded from the reference."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import nodes
from tests.nodes.golden_format import Goldens, compare
from tests.nodes.runner import GraphRunner, NodeFailed
from tests.nodes.test_recorded import built_in_parent, error_name

GOLDENS = Goldens(str(Path(__file__).parents[1] / "data" / "nodes_more"))


@pytest.mark.parametrize("case", GOLDENS.cases, ids=lambda case: case["id"])
def test_recorded_case(case):
    prompt, links = GOLDENS.prompt(case)
    runner = GraphRunner(prompt, GOLDENS.source_values(case))
    error, slots = None, None
    with torch.inference_mode():
        try:
            slots = [runner.slot(link) for link in links]
        except NodeFailed as failure:
            error = failure.error
    problems = compare(case, GOLDENS, slots, ui=runner.ui.get("t"), error=error_name(error))
    if problems and error is not None:
        problems = compare(case, GOLDENS, slots, error=built_in_parent(error))
    assert not problems, (problems, error)


def test_the_recordings_are_about_registered_nodes():
    assert {case["node"] for case in GOLDENS.cases} <= set(nodes.NODE_CLASS_MAPPINGS)
