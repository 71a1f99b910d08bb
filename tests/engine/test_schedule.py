"""Which node comes next."""

import pytest
from engine_kit import n

from comfy_execution.graph import DynamicPrompt, NodeInputError, NodeNotFoundError
from comfy_execution.schedule import Schedule


def make(prompt, outputs=(), coroutines=(), lazy=None, done=()):
    return Schedule(
        DynamicPrompt(prompt),
        is_output=lambda i: i in outputs,
        is_async=lambda i: i in coroutines,
        lazy_inputs=lambda i: frozenset((lazy or {}).get(i, ())),
        has_result=lambda i: i in done,
    )


def p(value=None, **links):
    return n("Pass", **({"value": value} if value is not None else {}), **links)


def run(schedule, outputs):
    for output in outputs:
        schedule.add(output)
    order = []
    while (node_id := schedule.take()) is not None:
        order.append(node_id)
        schedule.complete(node_id)
    assert len(schedule) == 0
    return order


def test_sources_of_the_last_input_first():
    prompt = {"a": p(1), "b": p(2), "out": p(x=("a", 0), y=("b", 0))}
    assert run(make(prompt, ["out"]), ["out"]) == ["b", "a", "out"]


def test_outputs_go_first():
    prompt = {"a": p(1), "long1": p(x=("a", 0)), "long2": p(x=("long1", 0)), "late": p(x=("long2", 0)), "early": p(1)}
    assert run(make(prompt, ["late", "early"]), ["late", "early"])[0] == "early"


def test_coroutines_go_first():
    prompt = {"a": p(1), "b": p(2), "out": p(x=("b", 0), y=("a", 0))}
    assert run(make(prompt, ["out"], ["b"]), ["out"]) == ["b", "a", "out"]


def test_feeding_an_output_comes_before_feeding_a_feeder():
    prompt = {
        "far": p(1), "far2": p(x=("far", 0)), "far3": p(x=("far2", 0)), "out": p(x=("far3", 0)),
        "two": p(1), "mid": p(x=("two", 0)), "out2": p(x=("mid", 0)),
        "one": p(1), "out3": p(x=("one", 0)),
    }  # fmt: skip
    order = run(make(prompt, ["out", "out2", "out3"]), ["out", "out2", "out3"])
    assert order == ["one", "out3", "two", "mid", "out2", "far", "far2", "far3", "out"]


def test_what_is_there_is_not_run():
    prompt = {"a": p(1), "b": p(x=("a", 0)), "out": p(x=("b", 0))}
    assert run(make(prompt, ["out"], done={"b"}), ["out"]) == ["out"]


def test_lazy_inputs_wait_for_a_request():
    prompt = {"a": p(1), "b": p(2), "sw": p(x=("a", 0), y=("b", 0))}
    schedule = make(prompt, ["sw"], lazy={"sw": {"x", "y"}})
    schedule.add("sw")
    assert schedule.take() == "sw" and schedule.take() is None
    assert schedule.request("sw", ["y"])
    schedule.put_back("sw")
    assert schedule.take() == "b"
    schedule.complete("b")
    assert schedule.take() == "sw"
    schedule.complete("sw")
    assert len(schedule) == 0


def test_asking_for_what_does_not_exist():
    schedule = make({"a": p(1)})
    schedule.add("a")
    schedule.take()
    with pytest.raises(NodeInputError, match="nothing"):
        schedule.request("a", ["nothing"])


def test_missing_node():
    with pytest.raises(NodeNotFoundError, match="gone") as caught:
        make({"a": p(x=("b", 0)), "b": p(x=("gone", 0))}).add("a")
    assert caught.value.node_id == "b"


def test_cycle_is_found():
    prompt = {"a": p(x=("b", 0)), "b": p(x=("c", 0)), "c": p(x=("b", 0)), "out": p(x=("a", 0))}
    schedule = make(prompt, ["out"])
    schedule.add("out")
    assert schedule.take() is None
    assert sorted(schedule.cycle().nodes) == ["b", "c"]


def test_set_aside():
    prompt = {"a": p(1), "b": p(2), "out": p(x=("b", 0), y=("a", 0))}
    schedule = make(prompt, ["out"])
    schedule.add("out")
    assert schedule.take() == "a"
    resume = schedule.set_aside("a")
    assert schedule.waiting_outside
    assert schedule.take() == "b"
    schedule.complete("b")
    assert schedule.take() is None
    resume()
    assert not schedule.waiting_outside and schedule.take() == "a"


@pytest.mark.parametrize("wide", [True, False])
def test_large_graphs(wide):
    size = 20_000
    prompt = {"0": p(1)}
    for index in range(1, size):
        prompt[str(index)] = p(x=("0" if wide else str(index - 1), 0))
    outputs = list(prompt)[1:] if wide else [str(size - 1)]
    assert len(run(make(prompt, set(outputs)), outputs)) == size
