"""Running prompts: lists, lazy inputs, blockers, coroutines, expansion, return forms, errors."""

import asyncio
import inspect

import pytest
from engine_kit import n, node

from comfy.interrupt import interrupt_current_processing
from comfy_execution.graph import ExecutionBlocker
from comfy_execution.graph_utils import GraphBuilder
from comfy_execution.utils import get_executing_context
from execution import CacheType


@pytest.fixture(autouse=True)
def more_classes(classes):
    @node({"start": ("INT", {}), "count": ("INT", {})}, ["INT"], OUTPUT_IS_LIST=(True,))
    class Range:
        def run(self, start, count):
            return (list(range(start, start + count)),)

    @node({"value": ("*", {}), "label": ("STRING", {})}, ["STRING"], INPUT_IS_LIST=True)
    class Whole:
        def run(self, value, label):
            return (f"{value}/{label}",)

    @node({"choose": ("BOOLEAN", {}), "yes": ("*", {"lazy": True}), "no": ("*", {"lazy": True})}, ["*"])
    class Switch:
        asked: list = []

        def check_lazy_status(self, choose, yes=None, no=None):
            Switch.asked.append((yes, no))
            return ["yes" if choose else "no"]

        def run(self, choose, yes=None, no=None):
            return (yes if choose else no,)

    @node({"value": ("*", {}), "message": ("STRING", {})}, ["*", "*"])
    class Block:
        def run(self, value, message):
            return (ExecutionBlocker(message or None), value)

    @node({"value": ("*", {}), "seconds": ("FLOAT", {})}, ["*"])
    class Later:
        log: list = []

        async def run(self, value, seconds):
            Later.log.append(("start", value))
            if seconds:
                await asyncio.sleep(seconds)
            Later.log.append(("end", value, get_executing_context()))
            return (value,)

    @node({"value": ("INT", {}), "times": ("INT", {})}, ["INT"])
    class Expand:
        def run(self, value, times):
            graph = GraphBuilder()
            for _ in range(times):
                value = graph.node("Add", a=value, b=1).out(0)
            return {"result": (value,), "expand": graph.finalize()}

    @node({"value": ("INT", {}), "depth": ("INT", {})}, ["INT"])
    class Nest:
        def run(self, value, depth):
            if depth <= 0:
                return (value,)
            graph = GraphBuilder()
            inner = graph.node("Nest", value=value, depth=depth - 1)
            return {"result": (graph.node("Add", a=inner.out(0), b=1).out(0),), "expand": graph.finalize()}

    for cls in (Range, Whole, Switch, Block, Later, Expand, Nest):
        classes[cls.__name__] = cls


def shown(runner, prompt, *sources, **extra):
    """What Show nodes on these sources reported."""
    prompt = {**prompt, **{f"o{i}": n("Show", value=source) for i, source in enumerate(sources)}}
    outputs = runner.good(prompt, **extra)
    found = [outputs.get(f"o{i}", {}).get("value") for i in range(len(sources))]
    return found[0] if len(found) == 1 else found


# --- lists


def test_lists(runner):
    prompt = {"r": n("Range", start=3, count=3), "a": n("Add", a=("r", 0), b=10), "s": n("Range", start=7, count=2)}
    assert shown(runner, prompt, ("a", 0)) == ["13", "14", "15"]
    prompt["p"] = n("Add", a=("r", 0), b=("s", 0))
    assert shown(runner, prompt, ("p", 0)) == ["10", "12", "13"]
    prompt["w"] = n("Whole", value=("r", 0), label="x")
    assert shown(runner, prompt, ("w", 0)) == [repr("[3, 4, 5]/['x']")]
    prompt["f"] = n("Range", start=0, count=("s", 0))
    assert shown(runner, prompt, ("f", 0)) == [str(i) for i in (*range(7), *range(8))]


def test_empty_lists(runner):
    prompt = {"r": n("Range", start=0, count=0), "a": n("Add", a=("r", 0), b=1), "s": n("Show", value=("a", 0))}
    error = runner.bad(prompt)
    assert (error["node_id"], error["exception_type"]) == ("a", "IndexError")
    error = runner.bad({"r": n("Range", start=0, count=0), "s": n("Show", value=("r", 0))})
    assert error["exception_type"] == "TypeError" and error["current_inputs"] == {"value": []}
    assert shown(runner, {"r": prompt["r"], "w": n("Whole", value=("r", 0), label="x")}, ("w", 0)) == [repr("[]/['x']")]


# --- lazy inputs


def test_lazy(runner, classes):
    prompt = {"y": n("Int", value=1), "n": n("Int", value=2), "s": n("Switch", choose=True, yes=("y", 0), no=("n", 0))}
    assert shown(runner, prompt, ("s", 0)) == ["1"]
    assert runner.server.order == ["s", "y", "s", "o0"]
    assert classes["Switch"].asked == [(None, None), (1, None)]


def test_lazy_without_cache(make_runner, classes):
    """A lazy source that has run for another node is not run again, even without a cache."""
    runner = make_runner(CacheType.NONE)
    prompt = {"y": n("Int", value=1), "p": n("Pass", value=("y", 0)), "n": n("Int", value=2),
              "s": n("Switch", choose=("p", 0), yes=("y", 0), no=("n", 0))}  # fmt: skip
    assert shown(runner, prompt, ("s", 0)) == ["1"]
    assert classes["Int"].calls == [1]


def test_lazy_asking_for_nonsense(runner, classes):
    classes["Switch"].check_lazy_status = lambda self, **inputs: ["nonsense"]
    prompt = {"s": n("Switch", choose=True, yes=1, no=2), "o": n("Show", value=("s", 0))}
    assert runner.bad(prompt)["exception_type"].endswith("NodeInputError")
    classes["Switch"].check_lazy_status = lambda self, **inputs: None
    assert shown(runner, {"s": prompt["s"]}, ("s", 0)) == ["1"]


def test_a_switch_that_reads_the_call_stack_is_lazy(runner, classes):
    """Impact's switch takes any number of inputs, and says that all are lazy to whom it takes for the scheduler."""

    class LazyAll:
        def __contains__(self, name):
            return True

        def __getitem__(self, name):
            return ("*", {"lazy": True})

    class AnySwitch:
        RETURN_TYPES, FUNCTION = ("*",), "run"

        @classmethod
        def INPUT_TYPES(cls):
            scheduling = inspect.stack()[2].function == "get_input_info"
            declared = LazyAll() if scheduling else {"input1": ("*", {"lazy": True})}
            return {"required": {"select": ("INT", {})}, "optional": declared}

        def check_lazy_status(self, select, **inputs):
            return [f"input{select}"] if f"input{select}" in inputs else []

        def run(self, select, **inputs):
            return (inputs[f"input{select}"],)

    classes["AnySwitch"] = AnySwitch
    prompt = {f"i{number}": n("Int", value=number) for number in (1, 2, 3)}
    prompt["s"] = n("AnySwitch", select=2, **{f"input{number}": (f"i{number}", 0) for number in (1, 2, 3)})
    assert shown(runner, prompt, ("s", 0)) == ["2"]
    assert classes["Int"].calls == [2]


# --- blockers


def test_blocker(runner):
    prompt = {"b": n("Block", value=1, message="stop"), "p": n("Pass", value=("b", 0))}
    assert shown(runner, prompt, ("p", 0), ("b", 1)) == [None, ["1"]]
    (error,) = runner.server.of("execution_error")
    assert error["node_id"] == "p" and error["exception_message"] == "Execution Blocked: stop"
    assert [name for name, _ in runner.executor.status_messages][-1] == "execution_success"
    prompt["b"]["inputs"]["message"] = ""
    assert shown(runner, prompt, ("p", 0)) is None
    assert runner.server.of("execution_error") == []


def test_blocker_in_a_list(runner, classes):
    @node({"value": ("INT", {})}, ["INT"])
    class BlockOdd:
        def run(self, value):
            return (ExecutionBlocker(None) if value % 2 else value,)

    classes["BlockOdd"] = BlockOdd
    prompt = {
        "r": n("Range", start=0, count=4),
        "b": n("BlockOdd", value=("r", 0)),
        "w": n("Whole", value=("b", 0), label=""),
    }
    assert shown(runner, prompt, ("b", 0), ("w", 0)) == [["0", "2"], None]


# --- coroutines


def test_coroutines_overlap_and_keep_order(runner, classes):
    prompt = {"r": n("Range", start=0, count=3), "l": n("Later", value=("r", 0), seconds=0.02)}
    assert shown(runner, prompt, ("l", 0)) == ["0", "1", "2"]
    log = classes["Later"].log
    assert [entry[0] for entry in log] == ["start"] * 3 + ["end"] * 3
    assert {entry[2] for entry in log[3:]} == {("p1", "l", 0), ("p1", "l", 1), ("p1", "l", 2)}
    assert runner.server.order == ["r", "l", "o0"]


def test_coroutine_that_does_not_wait(runner):
    assert shown(runner, {"l": n("Later", value=5, seconds=0)}, ("l", 0)) == ["5"]


def test_plain_nodes_run_while_a_coroutine_waits(runner, classes):
    prompt = {"l": n("Later", value=1, seconds=0.05), "i": n("Int", value=2), "p": n("Pass", value=("i", 0)),
              "a": n("Add", a=("p", 0), b=("l", 0))}  # fmt: skip
    assert shown(runner, prompt, ("a", 0)) == ["3"]
    assert runner.server.order == ["l", "i", "p", "a", "o0"]


def test_left_over_coroutines_are_cancelled(runner, classes):
    @node({"value": ("*", {})}, OUTPUT_NODE=True)
    class Fail:
        def run(self, value):
            raise ValueError("deliberate")

    classes["Fail"] = Fail
    prompt = {"l": n("Later", value=1, seconds=30), "o": n("Show", value=("l", 0)), "f": n("Fail", value=1)}
    assert runner.bad(prompt)["node_id"] == "f"
    assert [entry[0] for entry in classes["Later"].log] == ["start"]


# --- expansion


def test_expansion(runner):
    prompt = {"i": n("Int", value=5), "e": n("Expand", value=("i", 0), times=2)}
    assert shown(runner, prompt, ("e", 0)) == ["7"]
    assert runner.server.order == ["i", "e", "e.0.0.1", "e.0.0.2", "o0"]
    state = runner.server.of("progress_state")[-1]["nodes"]["e.0.0.1"]
    assert (state["parent_node_id"], state["real_node_id"], state["display_node_id"]) == ("e", "e", "e")
    prompt["e"]["inputs"]["times"] = 3
    assert shown(runner, prompt, ("e", 0)) == ["8"]
    assert runner.server.order == ["e", "e.0.0.3", "o0"]  # the first two are known


@pytest.mark.parametrize("cache", list(CacheType))
def test_expansion_in_lists_in_every_mode(make_runner, cache):
    runner = make_runner(cache, lru=100)
    prompt = {"r": n("Range", start=0, count=3), "e": n("Expand", value=("r", 0), times=("r", 0))}
    for _ in range(2):
        assert shown(runner, prompt, ("e", 0)) == ["0", "2", "4"]


def test_deep_expansion(runner):
    assert shown(runner, {"e": n("Nest", value=1, depth=60)}, ("e", 0)) == ["61"]


def test_result_of_an_expansion_may_come_from_anywhere_in_it(make_runner, classes):
    """Without a cache, inner results stay until the expanding node has taken its own from them."""

    @node({"value": ("INT", {})}, ["INT", "INT", "STRING"])
    class Two:
        def run(self, value):
            graph = GraphBuilder()
            first = graph.node("Add", a=value, b=1)
            second = graph.node("Add", a=first.out(0), b=1)
            return {"result": (first.out(0), second.out(0), "plain"), "expand": graph.finalize()}

    classes["Two"] = Two
    runner = make_runner(CacheType.NONE)
    assert shown(runner, {"e": n("Two", value=1)}, ("e", 0), ("e", 1), ("e", 2)) == [["2"], ["3"], ["'plain'"]]


@pytest.mark.parametrize(
    "graph, text",
    [
        ({"x": {"class_type": "NoSuchClass", "inputs": {}}}, "NoSuchClass"),
        ({"x": {"inputs": {}}}, "unknown class"),
        ({"x": 5}, "no node"),
        ({"i": {"class_type": "Int", "inputs": {"value": 1}}}, "already in use"),
        ({"x": {"class_type": "Pass", "inputs": {"value": ["gone", 0]}}}, "gone"),
        ([1], "graph"),
    ],
)
def test_bad_expansions(runner, classes, graph, text):
    @node({"value": ("*", {})}, ["*"])
    class Bad:
        def run(self, value):
            return {"result": (["x", 0],), "expand": graph}

    classes["Bad"] = Bad
    error = runner.bad({"i": n("Int", value=1), "e": n("Bad", value=("i", 0)), "o": n("Show", value=("e", 0))})
    assert error["node_id"] == "e" and text in error["exception_message"]


def test_cycle_in_an_expansion(runner, classes):
    @node({"value": ("*", {})}, ["*"])
    class Cycle:
        def run(self, value):
            graph = GraphBuilder()
            one, two = graph.node("Pass"), graph.node("Pass")
            one.set_input("value", two.out(0))
            two.set_input("value", one.out(0))
            return {"result": (two.out(0),), "expand": graph.finalize()}

    classes["Cycle"] = Cycle
    error = runner.bad({"e": n("Cycle", value=1), "o": n("Show", value=("e", 0))})
    assert error["exception_type"] == "graph.DependencyCycleError" and error["node_id"] == "e"
    assert error["exception_message"] == "Dependency cycle detected"


# --- return forms


@pytest.mark.parametrize("value", [None, 5, "text", {1, 2}])
def test_returns_that_are_no_values(runner, classes, value):
    @node({}, ["*"])
    class Odd:
        def run(self):
            return value

    classes["Odd"] = Odd
    error = runner.bad({"x": n("Odd"), "o": n("Show", value=("x", 0))})
    assert error["node_id"] == "x" and error["exception_type"] == "TypeError"
    assert "Odd" in error["exception_message"] and "['*']" in error["exception_message"]


@pytest.mark.parametrize("value", [(), {}, {"ui": {}}, {"result": None}])
def test_missing_slot_is_named(runner, classes, value):
    @node({}, ["*"])
    class Short:
        def run(self):
            return value

    classes["Short"] = Short
    error = runner.bad({"x": n("Short"), "o": n("Show", value=("x", 0))})
    assert error["node_id"] == "o"
    assert "output 0 of node x (Short)" in error["exception_message"]


def test_a_graph_whose_result_is_nowhere(runner, classes):
    @node({}, ["INT"])
    class Lost:
        def run(self):
            return {"expand": {"x": n("Int", value=5)}, "result": (["nowhere", 0],)}

    classes["Lost"] = Lost
    error = runner.bad({"l": n("Lost"), "o": n("Show", value=("l", 0))})
    assert error["node_id"] == "l" and error["exception_message"].startswith(
        "The graph returned by node l is linked to"
    )
    assert "nowhere" in error["exception_message"]


def test_ui_data(runner, classes):
    @node({"value": ("*", {})}, OUTPUT_NODE=True)
    class Ui:
        def run(self, value):
            return {"ui": {"a": [value], "b": (value,)}}

    classes["Ui"] = Ui
    outputs = runner.good({"r": n("Range", start=0, count=2), "u": n("Ui", value=("r", 0))})
    assert outputs == {"u": {"a": [0, 1], "b": [0, 1]}}
    assert runner.executor.history_result["meta"]["u"] == {
        "node_id": "u", "display_node": "u", "parent_node": None, "real_node_id": "u"}  # fmt: skip
    for odd in (10**30, "\ud800", [{"a": -(2**63) - 1}]):  # JSON, although not every library writes it
        assert runner.good({"u": n("Ui", value=odd)}) == {"u": {"a": [odd], "b": [odd]}}
    error = runner.bad({"u": n("Ui", value={"a": {1: object()}})})
    assert "JSON" in error["exception_message"]
    for value in ("half \ud83d", 2**70, [2**64, {"x": "\udcff"}], float("nan")):  # JSON can express all of them
        outputs = runner.good({"u": n("Ui", value={"a": value})})
        expected = None if value != value else value
        assert outputs == {"u": {"a": [{"a": expected}], "b": [{"a": expected}]}}
    classes["Ui"].run = lambda self, value: {"ui": {"a": 5}}
    assert "'a'" in runner.bad({"u": n("Ui", value=2)})["exception_message"]


# --- inputs


def test_hidden_inputs_and_secrets(runner, classes):
    @node({}, ["*"], hidden={"uid": "UNIQUE_ID", "prompt": "PROMPT", "png": "EXTRA_PNGINFO", "dyn": "DYNPROMPT",
                             "key": "API_KEY_COMFY_ORG"})  # fmt: skip
    class Hidden:
        def run(self, uid, prompt, png, dyn, key):
            prompt["h"]["inputs"]["changed"] = True
            return ([uid, sorted(prompt), png, dyn.get_node(uid)["class_type"], key],)

    classes["Hidden"] = Hidden
    prompt = {"h": n("Hidden"), "o": n("Show", value=("h", 0))}
    outputs = runner.good(prompt, extra_pnginfo={"w": 1}, api_key_comfy_org="k")
    assert outputs["o"]["value"] == [repr(["h", ["h", "o"], {"w": 1}, "Hidden", "k"])]
    assert prompt["h"]["inputs"] == {}  # what nodes do to the prompt stays in the run


def test_hidden_inputs_that_are_inputs(runner, classes):
    """Loops declare the input that only their own expansion sends as hidden, with a type."""

    class EqualToAll(str):
        def __eq__(self, other):
            return True

        __hash__ = None

    @node({}, ["*"], hidden={"a": (EqualToAll("*"),), "b": EqualToAll("*"), "c": "NO_SUCH", "uid": "UNIQUE_ID"})
    class Loop:
        def run(self, uid, **inputs):
            return ([uid, inputs],)

    classes["Loop"] = Loop
    assert shown(runner, {"h": n("Loop")}, ("h", 0)) == [repr(["h", {}])]
    assert shown(runner, {"h": n("Loop", a=1, b=2)}, ("h", 0)) == [repr(["h", {"a": 1, "b": 2}])]


def test_undeclared_inputs(runner, classes):
    @node({"value": ("*", {})}, ["*"], optional={"extra": ("*", {})})
    class Any:
        def run(self, value, extra="absent", **others):
            return ({"value": value, "extra": extra, **others},)

    classes["Any"] = Any
    prompt = {"i": n("Int", value=2), "a": n("Any", value=1, constant=5, link=("i", 0))}
    assert shown(runner, prompt, ("a", 0)) == [repr({"value": 1, "extra": "absent", "link": 2})]


def test_raw_link_and_wrapped_list(runner, classes, check):
    @node({"value": ("*", {"rawLink": True})}, ["*"])
    class Raw:
        def run(self, value):
            return (value,)

    classes["Raw"] = Raw
    prompt = {"i": n("Int", value=2), "r": n("Raw", value=("i", 0))}
    assert shown(runner, prompt, ("r", 0)) == [repr(["i", 0])]
    assert "i" in runner.server.order
    prompt = {"p": n("Pass", value={"__value__": ["x", 1]}), "o": n("Show", value=("p", 0))}
    assert check(prompt)[0]
    assert runner.good(prompt) == {"o": {"value": [repr(["x", 1])]}}


# --- errors and interrupts


def test_error_report(runner, classes):
    @node({"value": ("*", {}), "other": ("*", {})}, ["*"])
    class Fail:
        def run(self, value, other):
            raise LookupError("deliberate")

    class Silent:
        def __str__(self):
            raise RuntimeError

    classes["Fail"] = Fail
    prompt = {"i": n("Int", value=1), "f": n("Fail", value=("i", 0), other=None), "o": n("Show", value=("f", 0))}
    error = runner.bad(prompt)
    assert error["exception_type"] == "LookupError" and error["exception_message"] == "deliberate\n"
    assert 'raise LookupError("deliberate")' in error["traceback"][-1]
    assert error["current_inputs"] == {"value": [1], "other": [None]}
    assert error["executed"] == ["i"] and sorted(error["current_outputs"]) == ["f", "i", "o"]
    assert runner.server.of("execution_error") == [error]
    assert runner.server.of("progress_state")[-1]["nodes"]["f"]["state"] == "running"
    prompt["f"]["inputs"]["other"] = Silent()
    assert "Silent" in runner.bad(prompt)["current_inputs"]["other"][0]


def test_error_inside_an_expansion_blames_the_visible_node(runner, classes):
    @node({"value": ("*", {})}, ["*"])
    class Outer:
        def run(self, value):
            graph = GraphBuilder()
            bad = graph.node("Add", a=value, b="text")
            return {"result": (bad.out(0),), "expand": graph.finalize()}

    classes["Outer"] = Outer
    error = runner.bad({"e": n("Outer", value=1), "o": n("Show", value=("e", 0))})
    assert (error["node_id"], error["node_type"]) == ("e", "Outer")
    assert error["current_inputs"] == {"a": [1], "b": ["text"]}


def test_out_of_memory(runner, classes):
    torch = pytest.importorskip("torch")

    @node({}, ["*"])
    class Oom:
        def run(self):
            raise torch.OutOfMemoryError("full")

    classes["Oom"] = Oom
    error = runner.bad({"x": n("Oom"), "o": n("Show", value=("x", 0))})
    first, advice = error["exception_message"].split("\n", 1)
    assert first == "full" and len(advice) > 20


def test_interrupt_takes_effect_before_the_next_call(runner, classes):
    @node({"value": ("*", {})}, ["*"])
    class Interrupting:
        def run(self, value):
            interrupt_current_processing()
            return (value,)

    classes["Interrupting"] = Interrupting
    prompt = {"x": n("Interrupting", value=1), "o": n("Show", value=("x", 0))}
    data = runner.bad(prompt)
    assert set(data) == {"prompt_id", "node_id", "node_type", "executed", "timestamp"}
    assert data["node_id"] == "o" and data["executed"] == ["x"]
    assert runner.server.of("execution_interrupted") == [data] and runner.server.of("execution_error") == []
    assert runner.good(prompt) == {"o": {"value": ["1"]}}  # the result of x was kept
    assert runner.cached == ["x"]


def test_inference_mode(runner, classes):
    torch = pytest.importorskip("torch")

    @node({}, ["*"])
    class Mode:
        async def run(self):
            return (torch.is_inference_mode_enabled(),)

    classes["Mode"] = Mode
    assert shown(runner, {"m": n("Mode")}, ("m", 0)) == ["True"]
    assert not torch.is_inference_mode_enabled()


def test_without_client_nothing_is_sent(runner):
    runner.good({"s": n("Show", value=1)}, client_id=None)
    assert runner.server.events == []


@pytest.mark.parametrize("cache", [CacheType.CLASSIC, CacheType.NONE])
def test_long_chain(make_runner, cache):
    runner = make_runner(cache)
    prompt = {"0": n("Int", value=1)}
    for index in range(1, 20_000):
        prompt[str(index)] = n("Add", a=(str(index - 1), 0), b=1)
    prompt["s"] = n("Show", value=("19999", 0))
    assert runner.good(prompt) == {"s": {"value": ["20000"]}}
    if cache is CacheType.CLASSIC:
        runner.good(prompt)
        assert len(runner.cached) == 20_001 and runner.server.order == []


def test_wide_prompt(runner):
    prompt = {f"s{i}": n("Show", value=i) for i in range(2000)}
    assert len(runner.good(prompt)) == 2000
