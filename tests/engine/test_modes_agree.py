"""The same results whatever is kept between prompts, for graphs with every feature at once; and diamonds."""

import pytest
from engine_kit import n, node

import execution
from comfy_execution.graph_utils import GraphBuilder
from execution import CacheType

MODES = {
    "classic": (CacheType.CLASSIC, {}),
    "lru": (CacheType.LRU, {"lru": 4}),
    "none": (CacheType.NONE, {}),
    "ram": (CacheType.RAM_PRESSURE, {}),
    "ram, always short of memory": (CacheType.RAM_PRESSURE, {"ram": 1e9, "ram_inactive": 1e9}),
}


@node({"choose": ("INT", {})}, ["INT"], optional={"yes": ("INT", {"lazy": True}), "no": ("INT", {"lazy": True})})
class Switch:
    def check_lazy_status(self, choose, yes=None, no=None):
        wanted = "yes" if choose else "no"
        return [wanted] if (yes if choose else no) is None else []

    def run(self, choose, yes=None, no=None):
        return (yes if choose else no,)


@node({"value": ("INT", {}), "times": ("INT", {})}, ["INT"])
class Repeat:
    """Expands to a chain that adds `value` so many times, with a lazy switch at its end."""

    def run(self, value, times):
        graph = GraphBuilder()
        last = graph.node("Int", value=0).out(0)
        for _ in range(times):
            last = graph.node("Add", a=last, b=value).out(0)
        chosen = graph.node("Switch", choose=1, yes=last, no=graph.node("Fail").out(0))
        return {"result": (chosen.out(0),), "expand": graph.finalize()}


@node({}, ["INT"])
class Fail:
    def run(self):
        raise AssertionError("nobody needs this")


@node({"value": ("INT", {})}, ["INT"])
class Later:
    async def run(self, value):
        return (value + 1,)


@node({"value": ("INT", {})}, ["INT"], INPUT_IS_LIST=False, OUTPUT_IS_LIST=(True,))
class Upto:
    def run(self, value):
        return (list(range(value)),)


@node({"value": ("INT", {})}, ["INT"], INPUT_IS_LIST=True)
class Sum:
    def run(self, value):
        return (sum(value),)


GRAPH = {
    "n": n("Int", value=3),
    "r": n("Repeat", value=("n", 0), times=4),
    "s": n("Switch", choose=("n", 0), yes=("r", 0), no=("f", 0)),
    "f": n("Fail"),
    "l": n("Later", value=("s", 0)),
    "u": n("Upto", value=("n", 0)),
    "t": n("Repeat", value=("u", 0), times=2),
    "sum": n("Sum", value=("t", 0)),
    "a": n("Add", a=("l", 0), b=("sum", 0)),
    "o": n("Show", value=("a", 0)),
    "o2": n("Show", value=("t", 0)),
    "o3": n("Show", value=("s", 0)),
}
# 3 * 4 = 12; 12 + 1 + 2 * (0 + 1 + 2) = 19
EXPECTED = {"o": ["19"], "o2": ["0", "2", "4"], "o3": ["12"]}


@pytest.fixture(autouse=True)
def own_classes(classes):
    classes.update((c.__name__, c) for c in (Switch, Repeat, Fail, Later, Upto, Sum))


@pytest.mark.parametrize("mode", MODES)
def test_results(make_runner, mode):
    cache, options = MODES[mode]
    runner = make_runner(cache, **options)
    other = {**GRAPH, "n": n("Int", value=2)}
    for graph, expected in (
        (GRAPH, EXPECTED),
        (GRAPH, EXPECTED),
        (other, {"o": ["11"], "o2": ["0", "2"], "o3": ["8"]}),
        (GRAPH, EXPECTED),
    ):
        outputs = runner.good(graph)
        assert {node_id: ui["value"] for node_id, ui in outputs.items()} == expected


def test_an_exception_in_the_fingerprint_means_run_again_and_is_logged(runner, classes, caplog):
    @node({"value": ("INT", {})}, ["INT"])
    class Changing:
        runs = 0

        @classmethod
        def IS_CHANGED(cls, value):
            raise OSError("no such camera")

        def run(self, value):
            Changing.runs += 1
            return (value,)

    classes["Changing"] = Changing
    prompt = {"c": n("Changing", value=1), "o": n("Show", value=("c", 0))}
    runner.good(prompt)
    runner.good(prompt)
    assert Changing.runs == 2
    assert "no such camera" in caplog.text and "Changing" in caplog.text


def test_diamonds_take_one_run_per_node(runner, classes):
    """Each node feeds both inputs of the next: 2 to the power of 300 paths."""
    runs = []

    @node({"a": ("INT", {}), "b": ("INT", {})}, ["INT"])
    class Both:
        def run(self, a, b):
            runs.append(1)
            return (max(a, b) + 1,)

    classes["Both"] = Both
    prompt = {"0": n("Int", value=0)}
    for index in range(1, 301):
        prompt[str(index)] = n("Both", a=(str(index - 1), 0), b=(str(index - 1), 0))
    prompt["o"] = n("Show", value=("300", 0))
    assert runner.good(prompt)["o"]["value"] == ["300"] and len(runs) == 300
    runner.good(prompt)
    assert len(runs) == 300


@pytest.mark.parametrize("value", [None, 5, 2.5, object()])
def test_returns_that_are_no_values_name_the_node_and_its_outputs(runner, classes, value):
    @node({}, ["INT", "IMAGE"])
    class Odd:
        def run(self):
            return value

    classes["Odd"] = Odd
    error = runner.bad({"x": n("Odd"), "o": n("Show", value=("x", 0))})
    assert error["node_id"] == "x" and error["node_type"] == "Odd"
    for part in ("Odd", "INT", "IMAGE", type(value).__name__):
        assert part in error["exception_message"]


def test_the_engine_leaves_the_posted_prompt_as_it_is(runner):
    before = repr(GRAPH)
    runner.good(GRAPH)
    assert repr(GRAPH) == before and isinstance(runner.executor, execution.PromptExecutor)
