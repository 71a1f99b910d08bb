"""Writing graphs in code, ids of expanded nodes."""

import pytest

from comfy_execution.graph import DuplicateNodeError, DynamicPrompt, NodeNotFoundError
from comfy_execution.graph_utils import GraphBuilder, add_graph_prefix, is_link
from comfy_execution.links import ConstantList


def test_builder():
    GraphBuilder.set_default_prefix("ex", 2)
    first, second = GraphBuilder(), GraphBuilder()
    a = first.node("Int", value=1, nothing=None)
    b = first.node("Add", id="sum", a=a.out(0), b=2)
    assert (a.id, b.id, second.node("Int").id) == ("ex.2.0.1", "ex.2.0.sum", "ex.2.1.1")
    assert first.node("Other", id="sum") is b and first.lookup_node("sum") is b
    b.set_override_display_id("shown")
    b.set_input("b", None)
    assert b.get_input("a") == ["ex.2.0.1", 0] and b.get_input("b") is None
    assert first.finalize() == {
        "ex.2.0.1": {"class_type": "Int", "inputs": {"value": 1}},
        "ex.2.0.sum": {"class_type": "Add", "inputs": {"a": ["ex.2.0.1", 0]}, "override_display_id": "shown"},
    }
    first.replace_node_output("1", 0, 7)
    assert b.get_input("a") == 7
    first.remove_node("1")
    assert list(first.finalize()) == ["ex.2.0.sum"]
    assert GraphBuilder(prefix="pre-").node("Int").id == "pre-1"
    assert GraphBuilder.alloc_prefix("r", 1, 5) == "r.1.5."


def test_is_link():
    assert is_link(["1", 0]) and is_link(["1", 0.0])
    for value in (["1", "0"], [1, 0], ["1"], ("1", 0), "1", None, ["1", True], ConstantList(["1", 0])):
        assert not is_link(value)


def test_add_graph_prefix():
    graph, outputs = add_graph_prefix(
        {
            "1": {"class_type": "Int", "inputs": {"value": 1}},
            "2": {"class_type": "Pass", "inputs": {"value": ["1", 0]}},
        },
        [["2", 0], 5],
        "p.",
    )
    assert graph["p.2"]["inputs"] == {"value": ["p.1", 0]} and "p.1" in graph
    assert outputs == (["p.2", 0], 5)


def test_dynamic_prompt():
    prompt = DynamicPrompt({"a": {"class_type": "A", "inputs": {"x": 1}}, "z": {"class_type": "Z", "inputs": {}}})
    prompt.add_ephemeral_node("a.1", {"class_type": "B", "inputs": {}}, "a", None)
    prompt.add_ephemeral_node("a.1.1", {"class_type": "C", "inputs": {}}, "a.1", None)
    prompt.add_ephemeral_node("a.1.2", {"class_type": "C", "inputs": {}}, "a.1", "z")
    assert prompt.get_parent_node_id("a.1.1") == "a.1" and prompt.get_parent_node_id("a") is None
    assert prompt.get_real_node_id("a.1.1") == "a" and prompt.get_real_node_id("a") == "a"
    assert [prompt.get_display_node_id(i) for i in ("a", "a.1", "a.1.1", "a.1.2")] == ["a", "a", "a", "z"]
    assert prompt.all_node_ids() == {"a", "z", "a.1", "a.1.1", "a.1.2"}
    assert set(prompt.get_original_prompt()) == {"a", "z"}
    with pytest.raises(DuplicateNodeError):
        prompt.add_ephemeral_node("a", {}, "z", None)
    with pytest.raises(NodeNotFoundError, match="nope"):
        prompt.get_node("nope")


def test_working_copy_leaves_the_submitted_prompt_alone():
    submitted = {"a": {"class_type": "A", "inputs": {"x": 1}}}
    prompt = DynamicPrompt(dict(submitted))
    prompt.note("a", "is_changed", [1])
    prompt.work_on_copy()
    prompt.get_original_prompt()["a"]["inputs"]["x"] = 2
    prompt.work_on_copy()
    assert prompt.get_node("a") == {"class_type": "A", "inputs": {"x": 2}, "is_changed": [1]}
    assert submitted == {"a": {"class_type": "A", "inputs": {"x": 1}}}
