"""Prompts that ask for nodes to run although their results are known."""

import pytest
from engine_kit import n, node

from comfy_execution.forced import forced_nodes
from execution import CacheType

PROMPT = {"i": n("Counted"), "p": n("Pass", value=("i", 0)), "s": n("Show", value=("p", 0)), "o": n("Show", value=7)}


@pytest.fixture
def counted(classes):
    @node({}, ["INT"])
    class Counted:
        runs = 0

        def run(self):
            Counted.runs += 1
            return (Counted.runs,)

    classes["Counted"] = Counted
    return Counted


@pytest.mark.parametrize(
    "force, found",
    [
        (True, set("ipso")),
        (["p"], set("ps")),
        (["s", "o"], set("so")),
        (["x"], set()),
        ([], set()),
        (False, set()),
        (None, set()),
        ("s", set()),
        ([5, ["s"]], set()),
    ],
)
def test_what_is_meant(force, found):
    assert forced_nodes(force, PROMPT) == found


@pytest.mark.parametrize("cache", [CacheType.CLASSIC, CacheType.LRU, CacheType.RAM_PRESSURE, CacheType.NONE])
def test_forced_nodes_run_and_their_new_results_are_kept(make_runner, counted, cache):
    runner = make_runner(cache, **({"lru": 10} if cache is CacheType.LRU else {}))
    assert runner.good(PROMPT)["s"] == {"value": ["1"]}
    assert runner.good(PROMPT, force=True)["s"] == {"value": ["2"]} and runner.cached == []
    if cache is not CacheType.NONE:
        assert runner.good(PROMPT)["s"] == {"value": ["2"]} and set(runner.cached) == set("ipso")


def test_what_a_forced_node_needs_comes_from_the_cache(make_runner, counted):
    runner = make_runner(CacheType.CLASSIC)
    runner.good(PROMPT)
    assert runner.good(PROMPT, force=["s"])["s"] == {"value": ["1"]}
    assert set(runner.cached) == set("ipo") and counted.runs == 1


def test_what_a_forced_node_expands_to_is_forced(make_runner, counted, classes):
    from comfy_execution.graph_utils import GraphBuilder

    @node({}, ["INT"])
    class Expands:
        def run(self):
            graph = GraphBuilder()
            return {"result": (graph.node("Counted").out(0),), "expand": graph.finalize()}

    classes["Expands"] = Expands
    prompt = {"e": n("Expands"), "s": n("Show", value=("e", 0))}
    runner = make_runner(CacheType.CLASSIC)
    assert [runner.good(prompt, force=force)["s"]["value"] for force in (None, True, ["e"], ["s"])] == [
        ["1"],
        ["2"],
        ["3"],
        ["3"],
    ]
