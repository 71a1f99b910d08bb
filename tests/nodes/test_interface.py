"""What `/object_info` says about each built-in node, against the reference's (tests/data/nodes/interface.json.gz)."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

import nodes
from nodes import registry
from protocol import to_json
from tests.recorded_files import load_json

# Of all the reference's nodes, those not here included.
DATA = load_json(Path(__file__).parents[1] / "data/nodes/interface.json")
REFERENCE, FILE_LISTS = DATA["nodes"], DATA["file_lists"]
V1_ALWAYS = {
    "input", "input_order", "is_input_list", "output", "output_is_list", "output_name", "name", "display_name",
    "description", "python_module", "category", "output_node", "has_intermediate_output", "search_aliases",
}  # fmt: skip
V1_SOMETIMES = {"output_tooltips", "deprecated", "experimental", "dev_only", "api_node", "essentials_category"}
V3_KEYS = V1_ALWAYS | V1_SOMETIMES | {"output_matchtypes", "price_badge"}
# Left out of the reference's entry when they have their default.
DEFAULTS = {
    "output_node": False, "is_input_list": False, "has_intermediate_output": False, "deprecated": False,
    "experimental": False, "essentials_category": None, "output_matchtypes": None,
}  # fmt: skip


def entry(name: str) -> dict:
    """As a client receives it."""
    return json.loads(to_json(nodes.node_info(name)))


def without_prose(value):
    if isinstance(value, dict):
        return {key: without_prose(item) for key, item in value.items() if key != "tooltip"}
    if isinstance(value, list):
        return [without_prose(item) for item in value]
    return value


def comparable(name: str, inputs: dict, expected: dict) -> dict:
    """Our inputs in the form of the recording: no prose, no empty options, choices from folders emptied."""
    result: dict = {}
    for section, specs in without_prose(inputs).items():
        result[section] = {}
        for key, spec in specs.items():
            if isinstance(spec, list) and len(spec) == 2 and spec[1] == {}:
                spec = spec[:1]
            if f"{name}::{key}" in FILE_LISTS and isinstance(spec[0], list):
                fixed = FILE_LISTS[f"{name}::{key}"].get("fixed_members", [])
                assert set(fixed) <= set(spec[0])
                spec[0] = expected[section][key][0]
            result[section][key] = spec
    return result


@pytest.mark.parametrize("name", sorted(registry.BUILT_IN_NAMES))
def test_the_entry_is_the_references(name):
    got, expected = entry(name), REFERENCE[name]
    inputs = comparable(name, got["input"], expected["input"])
    assert inputs == expected["input"]
    # Their order decides how widgets are laid out, and how saved workflows are read.
    assert {section: list(specs) for section, specs in inputs.items()} == {
        section: list(specs) for section, specs in expected["input"].items()
    }
    assert got["input_order"] == {section: list(specs) for section, specs in got["input"].items()}
    for key in ("display_name", "category", "output", "output_name"):
        assert got[key] == expected[key], key
    assert got["python_module"] == expected["module"]
    assert got["name"] == name
    assert got["output_is_list"] == expected.get("output_is_list", [False] * len(expected["output"]))
    for key, default in DEFAULTS.items():
        assert got.get(key, default) == expected.get(key, default), key

    keys = set(got)
    if expected["style"] == "V3":
        assert keys == V3_KEYS
    else:
        assert keys >= V1_ALWAYS and keys <= V1_ALWAYS | V1_SOMETIMES

    assert len(got["description"]) > 10
    tooltips = got.get("output_tooltips")
    assert not tooltips or len(tooltips) == len(got["output"])


def test_unknown_class():
    with pytest.raises(KeyError):
        nodes.node_info("NoSuchNode")


def test_every_family_is_there():
    """A family that cannot be imported is only logged at start, which must not go unnoticed here."""
    missing = [name for name in nodes.CORE_FAMILIES + nodes.EXTRA_FAMILIES if f"nodes.{name}" not in sys.modules]
    assert not missing
    assert set(REFERENCE) >= registry.BUILT_IN_NAMES


def test_no_node_is_there_twice():
    """The later of two families would silently replace the earlier one's."""
    owners: dict[str, list[str]] = {}
    for family in nodes.CORE_FAMILIES + nodes.EXTRA_FAMILIES:
        for classes in importlib.import_module(f"nodes.{family}").NODES.values():
            for cls in classes:
                name = cls.GET_SCHEMA().node_id if registry.is_v3(cls) else cls.__dict__.get("NODE_ID", cls.__name__)
                owners.setdefault(name, []).append(family)
    assert not {name: families for name, families in owners.items() if len(families) > 1}


def test_core_classes_are_attributes_of_the_package():
    core = [name for name in registry.BUILT_IN_NAMES if REFERENCE[name]["module"] == "nodes"]
    assert len(core) > 40
    for name in core:
        assert getattr(nodes, name) is nodes.NODE_CLASS_MAPPINGS[name]
    assert nodes.MAX_RESOLUTION == 16384 and callable(nodes.common_ksampler)


def test_v1_defaults():
    class Bare:
        RETURN_TYPES = ("INT", "*")
        FUNCTION = "run"
        OUTPUT_NODE = 1

        @classmethod
        def INPUT_TYPES(cls):
            return {"required": {"a": ("INT",)}, "hidden": {"id": "UNIQUE_ID"}}

    registry.NODE_CLASS_MAPPINGS["InterfaceBare"] = Bare
    try:
        assert entry("InterfaceBare") == {
            "input": {"required": {"a": ["INT"]}, "hidden": {"id": "UNIQUE_ID"}},
            "input_order": {"required": ["a"], "hidden": ["id"]},
            "is_input_list": False, "output": ["INT", "*"], "output_is_list": [False, False],
            "output_name": ["INT", "*"], "name": "InterfaceBare", "display_name": "InterfaceBare",
            "description": "", "python_module": "nodes", "category": "sd", "output_node": False,
            "has_intermediate_output": False, "search_aliases": [],
        }  # fmt: skip
    finally:
        del registry.NODE_CLASS_MAPPINGS["InterfaceBare"]
