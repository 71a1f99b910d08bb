"""Checking prompts: each kind of error by itself, conversions, own checks, cycles, long chains."""

import asyncio
import math
import os
import shutil
import threading

import pytest
from engine_kit import n, node

import folder_paths
from comfy_execution.links import ConstantList
from comfy_execution.types import types_fit

GOOD = {"number": 5, "ratio": 0.5, "text": "t", "flag": True, "choice": "red", "modern": "one"}


class EqualToAll(str):
    """What many packs name a type with: it equals every other, and cannot be looked up."""

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    __hash__ = None


@pytest.fixture(autouse=True)
def more_classes(classes):
    @node(
        {
            "number": ("INT", {"min": 0, "max": 10}),
            "ratio": ("FLOAT", {"min": 0.0, "max": 1.0}),
            "text": ("STRING", {}),
            "flag": ("BOOLEAN", {}),
            "choice": (["red", "green"],),
            "modern": ("COMBO", {"options": ["one", "two"]}),
        },
        optional={
            "many": ("COMBO", {"options": ["a", "b"], "multiselect": True}),
            "long": (list(map(str, range(30))),),
            "free": ("FLOAT", {}),
            "any": (EqualToAll("*"), {}),
            "file": ([f"folder/model_{i:04}.safetensors" for i in range(3000)],),
        },
        returns=["STRING"],
        OUTPUT_NODE=True,
    )
    class Typed:
        def run(self, **inputs):
            return ("",)

    @node({"text": ("STRING", {})}, ["STRING"])
    class Text:
        def run(self, text):
            return (text,)

    @node({"value": ("INT", {"min": 0, "max": 10}), "other": ("INT", {"min": 0, "max": 10})}, ["INT"], OUTPUT_NODE=True)
    class Check:
        @classmethod
        def VALIDATE_INPUTS(cls, value):
            if value == 97:
                raise KeyError("broken")
            return {98: False, 99: "not 99"}.get(value, True)

        def run(self, value, other):
            return (value,)

    @node({"value": ("INT,FLOAT", {})}, ["INT"], OUTPUT_NODE=True)
    class CheckTypes:
        @classmethod
        async def VALIDATE_INPUTS(cls, input_types, **kwargs):
            await asyncio.sleep(0)
            return input_types.get("value") in (None, "STRING") or "wrong type"

        def run(self, value):
            return (value,)

    for cls in (Typed, Text, Check, CheckTypes):
        classes[cls.__name__] = cls


def typed(**changes):
    inputs = {k: v for k, v in {**GOOD, **changes}.items() if v is not ...}
    return {"n": n("Typed", **inputs)}


def only(result, node_id="n"):
    ok, error, outputs, node_errors = result
    assert not ok and outputs == [] and error["type"] == "prompt_outputs_failed_validation"
    (found,) = node_errors[node_id]["errors"]
    return found


@pytest.mark.parametrize("name", list(GOOD))
def test_required_input_missing(check, name):
    error = only(check(typed(**{name: ...})))
    assert error == {
        "type": "required_input_missing",
        "message": "Required input is missing",
        "details": name,
        "extra_info": {"input_name": name},
    }


@pytest.mark.parametrize(
    "name, value, kind, details",
    [
        ("number", -1, "value_smaller_than_min", "number"),
        ("number", 11, "value_bigger_than_max", "number"),
        ("ratio", 1.01, "value_bigger_than_max", "ratio"),
        ("choice", "pink", "value_not_in_list", "choice: 'pink' not in ['red', 'green']"),
        ("modern", 3, "value_not_in_list", "modern: 3 not in ['one', 'two']"),
        ("long", "x", "value_not_in_list", "long: 'x' not in (list of length 30)"),
        ("many", {"__value__": ["a", "z"]}, "value_not_in_list", "many: 'z' not in ['a', 'b']"),
        ("number", "abc", "invalid_input_type", None),
        ("number", None, "invalid_input_type", None),
        ("ratio", {}, "invalid_input_type", None),
        ("ratio", math.nan, "invalid_input_type", "ratio, nan, it is not a finite number"),
        ("ratio", "nan", "invalid_input_type", None),
        ("ratio", math.inf, "value_bigger_than_max", "ratio"),
        ("free", math.nan, "invalid_input_type", None),
        ("free", -math.inf, "invalid_input_type", None),
        ("free", "1e999", "invalid_input_type", None),
        ("number", [1, 2, 3], "bad_linked_input", "number"),
        ("number", [], "bad_linked_input", "number"),
    ],
)
def test_errors_of_one_input(check, name, value, kind, details):
    error = only(check(typed(**{name: value})))
    assert error["type"] == kind
    assert error["extra_info"]["input_name"] == name
    assert details is None or error["details"] == details


def test_extra_info(check):
    error = only(check(typed(number=11)))
    assert error["message"] == "Value 11 bigger than max of 10"
    assert error["extra_info"] == {
        "input_name": "number",
        "input_config": ["INT", {"min": 0, "max": 10}],
        "received_value": 11,
    }
    assert only(check(typed(long="x")))["extra_info"]["input_config"] is None


def test_all_errors_of_a_node(check):
    _, _, _, errors = check(typed(number=11, ratio=-1, choice="pink"))
    assert [e["extra_info"]["input_name"] for e in errors["n"]["errors"]] == ["number", "ratio", "choice"]
    assert errors["n"]["dependent_outputs"] == ["n"] and errors["n"]["class_type"] == "Typed"


@pytest.mark.parametrize(
    "name, sent, stored",
    [
        ("number", 3.9, 3),
        ("number", "7", 7),
        ("number", True, 1),
        ("any", "text", "text"),
        ("any", None, None),
        ("ratio", 1, 1.0),
        ("text", 5, "5"),
        ("flag", "x", True),
    ],
)
def test_conversion_in_place(check, name, sent, stored):
    prompt = typed(**{name: sent})
    assert check(prompt)[0]
    value = prompt["n"]["inputs"][name]
    assert value == stored and type(value) is type(stored)


def test_wrapped_list_stays_a_constant(check):
    prompt = {"s": n("Show", value={"__value__": ["x", 1]})}
    assert check(prompt)[0]
    assert prompt["s"]["inputs"]["value"] == ["x", 1]
    assert isinstance(prompt["s"]["inputs"]["value"], ConstantList)
    assert check(prompt)[0]  # checking again changes nothing


def test_link_errors(check):
    prompt = {"t": n("Text", text="x"), **typed(number=("t", 0))}
    error = only(check(prompt))
    assert error["type"] == "return_type_mismatch"
    assert error["details"] == "number, received_type(STRING) mismatch input_type(INT)"
    assert error["extra_info"]["received_type"] == "STRING" and error["extra_info"]["linked_node"] == ["t", 0]


@pytest.mark.parametrize(
    "link, kind", [(["no", 0], "KeyError"), *((["i", slot], "IndexError") for slot in (3, -1, False, 10**30))]
)
def test_link_to_nowhere(check, link, kind):
    error = only(check({"i": n("Int", value=1), **typed(number=link)}))
    assert error["type"] == "exception_during_validation"
    assert error["extra_info"] == {"exception_type": kind, "traceback": []}
    assert "'number'" in error["details"]
    inner = {"i": n("Int", value=1), "p": n("Pass", value=link), "s": n("Show", value=("p", 0))}
    error = only(check(inner), "p")
    assert error["type"] == "exception_during_inner_validation"
    assert error["extra_info"]["linked_node"] == ["p", 0] and error["extra_info"]["exception_type"] == kind


def test_missing_class(check):
    ok, error, _, node_errors = check({"x": {"inputs": {}, "_meta": {"title": "T"}}, **typed()})
    assert not ok and node_errors == {}
    assert error["type"] == "missing_node_type" and error["details"] == "Node ID '#x'"
    assert error["extra_info"] == {"node_id": "x", "class_type": None, "node_title": "T"}
    assert check({"x": n("Nope"), **typed()})[1]["extra_info"]["node_title"] == "Nope"


def test_all_missing_classes_are_named(check):
    _, error, _, _ = check({"x": n("Nope"), **typed(), "y": {"inputs": {}}, "z": n("Gone")})
    assert error["extra_info"]["node_id"] == "x"
    assert [(m["node_id"], m["class_type"]) for m in error["extra_info"]["missing"]] == [
        ("x", "Nope"),
        ("y", None),
        ("z", "Gone"),
    ]


def test_the_first_error_is_summed_up_wherever_it_is(check):
    error = check({"i": n("Typed", **{**GOOD, "number": 99}), "s": n("Show", value=("i", 0))}, ["s"])[1]
    assert error["details"] == ""
    assert error["extra_info"]["summary"] == "Node i (Typed): Value 99 bigger than max of 10: number"
    error = check(typed(number=99, ratio=2.0))[1]
    assert error["extra_info"]["summary"].endswith("(and 1 more)")


@pytest.mark.parametrize(
    "value, similar",
    [
        ("model_0007.safetensors", ["folder/model_0007.safetensors"]),
        ("other\\MODEL_0007.safetensors", ["folder/model_0007.safetensors"]),
        ("folder/model_0007.safetensor", ["folder/model_0007.safetensors"]),
        ("something else", None),
    ],
)
def test_what_may_have_been_meant(check, value, similar):
    error = only(check(typed(file=value)))
    assert error["extra_info"].get("similar", [None])[0] == (similar or [None])[0]
    assert ("did you mean" in error["details"]) == (similar is not None)


def test_separators_of_another_system_name_the_same_file(check):
    prompt = typed(file="folder\\model_0007.safetensors")
    assert check(prompt)[0] and prompt["n"]["inputs"]["file"] == "folder/model_0007.safetensors"


def test_no_folders_of_this_machine_in_errors(check):
    error = only(check({"n": n("Check", value=97, other=0)}))
    frames = error["extra_info"]["traceback"]
    assert frames and all('File "/' not in frame for frame in frames)
    assert any("tests/engine/test_validation.py" in frame for frame in frames)


@pytest.mark.parametrize(
    "prompt, targets, details",
    [
        ({}, None, ""),
        ({"i": n("Int", value=1)}, None, ""),
        (typed(), [], "partial_execution_targets is empty"),
        (typed(), ["x"], "partial_execution_targets: not in the prompt: 'x'"),
        ({"i": n("Int", value=1), **typed()}, ["i"], "partial_execution_targets: no output node: 'i'"),
    ],
)
def test_no_outputs(check, prompt, targets, details):
    error = check(prompt, targets)[1]
    assert error["type"] == "prompt_no_outputs" and error["details"] == details


def test_partial_execution(check):
    prompt = {"a": n("Show", value=1), "bad": n("Typed"), "b": n("Show", value=2)}
    ok, _, outputs, errors = check(prompt, ["b", "a"])
    assert ok and outputs == ["a", "b"] and errors == {}
    ok, _, outputs, errors = check(prompt)
    assert ok and outputs == ["a", "b"] and list(errors) == ["bad"]


def test_own_check(check):
    def one(**inputs):
        return check({"n": n("Check", **{"other": 1, **inputs})})

    assert one(value=50)[0]  # named by the check: the limits are its business
    assert only(one(value=5, other=50))["type"] == "value_bigger_than_max"
    assert only(one(value=99))["details"] == "value - not 99"
    assert only(one(value=98))["details"] == "value"
    broken = only(one(value=97))
    assert broken["type"] == "exception_during_validation" and broken["extra_info"]["exception_type"] == "KeyError"
    assert broken["extra_info"]["traceback"]


def test_own_check_without_its_argument_is_not_asked(check):
    error = only(check({"n": n("Check", other=1)}))
    assert error["type"] == "required_input_missing" and error["details"] == "value"


def test_own_check_with_input_types(check):
    prompt = {"t": n("Text", text="x"), "n": n("CheckTypes", value=("t", 0))}
    assert check(prompt)[0]
    prompt = {"i": n("Int", value=1), "n": n("CheckTypes", value=("i", 0))}
    _, _, _, errors = check(prompt)
    names = [e["extra_info"]["input_name"] for e in errors["n"]["errors"]]
    assert sorted(names) == ["input_types", "value"]


def test_cycles(check):
    prompt = {"a": n("Add", a=("b", 0), b=1), "b": n("Add", a=("a", 0), b=1), "s": n("Show", value=("b", 0))}
    _, _, _, errors = check(prompt)
    assert set(errors) == {"a", "b"}
    for node_id, entry in errors.items():
        (error,) = entry["errors"]
        assert error["type"] == "dependency_cycle" and error["extra_info"]["node_id"] == node_id
        assert sorted(error["extra_info"]["cycle_nodes"]) == ["a", "b"]
        assert entry["dependent_outputs"] == ["s"]
    itself = {"a": n("Pass", value=("a", 0)), "s": n("Show", value=("a", 0))}
    assert only(check(itself), "a")["details"] == "a (Pass) -> a (Pass)"


def test_downstream_nodes_are_not_listed(check):
    prompt = {"i": n("Int", value=-2000), "p": n("Pass", value=("i", 0)), "s": n("Show", value=("p", 0)),
              "t": n("Show", value=("i", 0))}  # fmt: skip
    _, error, _, errors = check(prompt)
    assert list(errors) == ["i"] and errors["i"]["dependent_outputs"] == ["s", "t"]
    assert error["details"] == ""


def test_node_without_inputs(check):
    prompt = {"n": {"class_type": "Typed"}}
    _, _, _, errors = check(prompt)
    assert {e["type"] for e in errors["n"]["errors"]} == {"required_input_missing"}
    assert prompt == {"n": {"class_type": "Typed"}}


class AnySlot(tuple):
    """What some packs write output types with: the first stands for every slot."""

    def __getitem__(self, index):
        return super().__getitem__(min(index, len(self) - 1))


def test_a_tuple_of_types_may_answer_for_every_slot(check, classes):
    @node({}, ["INT"])
    class Pipe:
        def run(self):
            return (1, 2, 3)

    Pipe.RETURN_TYPES = AnySlot(("INT",))
    classes["Pipe"] = Pipe
    assert check({"p": n("Pipe"), "o": n("Show", value=("p", 2)), "q": n("Check", value=("p", 7), other=1)})[0]
    assert only(check({"p": n("Pipe"), "o": n("Typed", **{**GOOD, "text": ("p", 5)})}), "o")["type"] == (
        "return_type_mismatch"
    )
    for slot in (-1, 1.0, None):
        error = only(check({"p": n("Pipe"), "o": n("Show", value=["p", slot])}), "o")
        assert error["type"] == "exception_during_validation"


def test_types_fit():
    class Anything(str):
        def __ne__(self, other):
            return False

    fits = [("INT", "INT"), ("*", "INT"), ("INT", "*"), ("INT", "INT,FLOAT"), ("A,B", "B,C"), ("A", "*,B"),
            (["a"], "COMBO"), (["a"], ["a"]), (Anything("X"), "INT"), ("COMFY_MATCHTYPE_V3", "INT")]  # fmt: skip
    does_not = [("INT", "FLOAT"), (["a"], ["b"]), (["a"], "STRING"), ("COMBO", ["a"])]
    assert all(types_fit(*pair) for pair in fits)
    assert not any(types_fit(*pair) for pair in does_not)


def test_long_chain(check):
    prompt = {"0": n("Int", value=1)}
    for index in range(1, 20_000):
        prompt[str(index)] = n("Add", a=(str(index - 1), 0), b=1)
    prompt["s"] = n("Show", value=("19999", 0))
    assert check(prompt)[0]
    prompt["0"]["inputs"]["value"] = -2000
    assert list(check(prompt)[3]) == ["0"]


def test_diamonds(check):
    prompt = {"0": n("Int", value=1)}
    for index in range(1, 500):
        prompt[str(index)] = n("Add", a=(str(index - 1), 0), b=(str(index - 1), 0))
    prompt["s"] = n("Show", value=("499", 0))
    assert check(prompt)[0]


@pytest.fixture
def full_folder(tmp_path, monkeypatch):
    """A folder that counts as one that takes long to list, and how often it has been listed."""
    for index in range(200):
        (tmp_path / f"{index}.png").touch()
    os.utime(tmp_path, (1, 1))  # long ago, so that nothing can have changed since
    monkeypatch.setattr(folder_paths, "SLOW_LISTING_SECONDS", 0.0)
    monkeypatch.setattr(folder_paths, "_top_files", folder_paths._TopFilesCache())
    listed = []
    scandir = os.scandir
    monkeypatch.setattr(folder_paths.os, "scandir", lambda path: (listed.append(path), scandir(path))[1])
    return tmp_path, listed


def test_a_full_folder_is_not_listed_on_the_event_loop(check, classes, full_folder):
    folder, listed = full_folder
    threads = []

    def input_types(cls):
        threads.append(threading.current_thread())
        return {"required": {"file": (folder_paths.get_top_files(str(folder), "image"), {})}}

    @node({}, OUTPUT_NODE=True)
    class Pick:
        def run(self, file):
            return ()

    Pick.INPUT_TYPES = classmethod(input_types)
    classes["Pick"] = Pick
    prompt = {"p": n("Pick", file="7.png")}
    assert check(prompt)[0] and len(listed) == 1
    assert check(prompt)[0] and len(listed) == 1, "what has not changed is not listed again"
    assert threads == [threading.main_thread()] * 2
    (folder / "new.png").touch()
    assert check({"p": n("Pick", file="new.png")})[0] and len(listed) == 2
    assert len(threads) == 3 and threads[2] is not threading.main_thread()


def test_a_folder_that_has_gone_is_empty(check, classes, full_folder):
    folder, _ = full_folder
    assert len(folder_paths.get_top_files(str(folder), "image")) == 200
    shutil.rmtree(folder)
    assert not folder_paths.listing_would_take_long()
    assert folder_paths.get_top_files(str(folder), "image") == []


BROKEN = {
    "exit": SystemExit("no inputs"),
    "keyboard": KeyboardInterrupt(),
    "cancelled": asyncio.CancelledError(),
    "base": BaseException("of no kind"),
    "value": ValueError("bad"),
}


@pytest.mark.parametrize("where", ["INPUT_TYPES", "VALIDATE_INPUTS", "async VALIDATE_INPUTS", "RETURN_TYPES"])
@pytest.mark.parametrize("kind", BROKEN)
def test_classes_that_try_to_end_the_process_are_errors_of_their_node(check, classes, where, kind):
    def fail(cls, **inputs):
        raise BROKEN[kind]

    async def fail_later(cls, value):
        await asyncio.sleep(0)
        raise BROKEN[kind]

    class Type(type):
        @property
        def RETURN_TYPES(cls):
            raise BROKEN[kind]

    @node({"value": ("INT", {})}, ["INT"], OUTPUT_NODE=True)
    class Broken:
        pass

    if where == "RETURN_TYPES":
        classes["Broken"] = Type("Broken", (), {"INPUT_TYPES": Broken.INPUT_TYPES, "OUTPUT_NODE": True})
    else:
        setattr(Broken, where.split()[-1], classmethod(fail_later if "async" in where else fail))
        classes["Broken"] = Broken
    ok, error, outputs, node_errors = check({"b": n("Broken", value=5)})
    assert not ok and outputs == []
    found = node_errors["b"]["errors"][0] if node_errors else error
    assert found["type"] == "exception_during_validation"
    assert found["extra_info"]["exception_type"].endswith(type(BROKEN[kind]).__name__)
    if where == "RETURN_TYPES":
        assert found["extra_info"]["node_id"] == "b" and "Broken" in found["details"]


def test_a_request_that_is_cancelled_ends_its_check(classes):
    from comfy_execution.validation import validate_prompt

    @node({"value": ("INT", {})}, ["INT"], OUTPUT_NODE=True)
    class Slow:
        @classmethod
        async def VALIDATE_INPUTS(cls, value):
            await asyncio.sleep(60)

    classes["Slow"] = Slow

    async def ask():
        task = asyncio.create_task(validate_prompt("p", {"s": n("Slow", value=5)}, None))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(ask())
