"""The tables of node classes, and what `/object_info` says about a class.

The two mappings are plain dicts because packs read and write them; they are the one owner of what is registered.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

NODE_CLASS_MAPPINGS: dict[str, type] = {}
NODE_DISPLAY_NAME_MAPPINGS: dict[str, str] = {}

# Names registered by this program itself; packs cannot take them over.
BUILT_IN_NAMES: set[str] = set()

# Flags that appear in a V1 entry only when they are true, and texts that appear only when the class has them.
_V1_TRUE_ONLY = {"DEPRECATED": "deprecated", "EXPERIMENTAL": "experimental", "DEV_ONLY": "dev_only"}
_V1_WHEN_SET = {"API_NODE": "api_node", "ESSENTIALS_CATEGORY": "essentials_category"}


def add_built_in(module: str, classes: Iterable[type]) -> None:
    """Register built-in classes under `python_module` = module.

    A V1 class is registered under its class name (or its NODE_ID) with its DISPLAY_NAME as title, if it has one; a V3
    class under the node id of its schema.
    """
    for cls in classes:
        cls.RELATIVE_PYTHON_MODULE = module
        if is_v3(cls):
            schema = cls.GET_SCHEMA()
            name, display = schema.node_id, schema.display_name
        else:
            name = cls.__dict__.get("NODE_ID", cls.__name__)
            display = cls.__dict__.get("DISPLAY_NAME")
        NODE_CLASS_MAPPINGS[name] = cls
        if display is not None:
            NODE_DISPLAY_NAME_MAPPINGS[name] = display
        BUILT_IN_NAMES.add(name)


def is_v3(cls: type) -> bool:
    """Whether a class is written against the schema interface (`comfy_api`)."""
    return hasattr(cls, "GET_NODE_INFO_V1")


def node_info(class_name: str) -> dict[str, Any]:
    """The `/object_info` entry of a registered class (node-api.md 2.4 and 3.2).

    Raises KeyError for an unknown name, and whatever the class raises while it describes itself.
    """
    cls = NODE_CLASS_MAPPINGS[class_name]
    return cls.GET_NODE_INFO_V1() if is_v3(cls) else _v1_info(class_name, cls)


def _v1_info(class_name: str, cls: type) -> dict[str, Any]:
    inputs = cls.INPUT_TYPES()
    outputs = cls.RETURN_TYPES
    info = {
        "input": inputs,
        "input_order": {section: list(names) for section, names in inputs.items()},
        "is_input_list": getattr(cls, "INPUT_IS_LIST", False),
        "output": outputs,
        "output_is_list": getattr(cls, "OUTPUT_IS_LIST", [False] * len(outputs)),
        "output_name": getattr(cls, "RETURN_NAMES", outputs),
        "name": class_name,
        "display_name": NODE_DISPLAY_NAME_MAPPINGS.get(class_name, class_name),
        "description": getattr(cls, "DESCRIPTION", ""),
        "python_module": getattr(cls, "RELATIVE_PYTHON_MODULE", "nodes"),
        "category": getattr(cls, "CATEGORY", "sd"),
        # The reference demands the very value True, so that a class with OUTPUT_NODE = 1 is no output.
        "output_node": getattr(cls, "OUTPUT_NODE", False) is True,
        "has_intermediate_output": getattr(cls, "HAS_INTERMEDIATE_OUTPUT", False) is True,
    }
    if hasattr(cls, "OUTPUT_TOOLTIPS"):
        info["output_tooltips"] = cls.OUTPUT_TOOLTIPS
    for attribute, key in _V1_TRUE_ONLY.items():
        if getattr(cls, attribute, False):
            info[key] = True
    for attribute, key in _V1_WHEN_SET.items():
        if hasattr(cls, attribute):
            info[key] = getattr(cls, attribute)
    info["search_aliases"] = getattr(cls, "SEARCH_ALIASES", [])
    return info
