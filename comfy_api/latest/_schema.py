"""What a schema based node says about itself, and how /object_info shows it (spec node-api.md 3.2)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from comfy_api.latest._base import Input, Output, prune
from comfy_api.latest._dynamic import MatchType, sections


class Hidden(str, Enum):
    """What a node can be told besides its inputs."""

    unique_id = "UNIQUE_ID"
    prompt = "PROMPT"
    extra_pnginfo = "EXTRA_PNGINFO"
    dynprompt = "DYNPROMPT"
    auth_token_comfy_org = "AUTH_TOKEN_COMFY_ORG"
    api_key_comfy_org = "API_KEY_COMFY_ORG"
    comfy_usage_source = "COMFY_USAGE_SOURCE"


_OUTPUT_NODE_HIDDEN = (Hidden.prompt, Hidden.extra_pnginfo)
_API_NODE_HIDDEN = (Hidden.auth_token_comfy_org, Hidden.api_key_comfy_org, Hidden.comfy_usage_source)


class HiddenHolder:
    """The values of the hidden inputs of a run; None for those not asked for, and for names that do not exist."""

    def __init__(self, values: dict[str, Any] | None = None) -> None:
        self.__dict__.update(values or {})

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


@dataclass
class PriceBadgeDepends:
    """The inputs a price depends on."""

    widgets: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    input_groups: list[str] = field(default_factory=list)

    def validate(self) -> None:
        """Raises ValueError unless all three are lists of names."""
        for name, names in self.__dict__.items():
            if not isinstance(names, list) or not all(isinstance(item, str) for item in names):
                raise ValueError(f"PriceBadgeDepends.{name} must be a list of names, got {names!r}")


@dataclass
class PriceBadge:
    """A price that the browser computes with `expr`."""

    expr: str
    depends_on: PriceBadgeDepends = field(default_factory=PriceBadgeDepends)
    engine: str = "jsonata"

    def validate(self) -> None:
        """Raises ValueError for an engine that browsers do not know, or an empty expression."""
        if self.engine != "jsonata":
            raise ValueError(f"the engine of a PriceBadge must be jsonata, got {self.engine!r}")
        if not isinstance(self.expr, str) or not self.expr.strip():
            raise ValueError("a PriceBadge needs an expression")
        self.depends_on.validate()

    def as_dict(self, inputs: list[Input]) -> dict[str, Any]:
        """As /object_info shows it, with the types of the widgets it depends on."""
        types = {item.id: item.get_io_type() for item in inputs}
        return {
            "engine": self.engine,
            "depends_on": {
                "widgets": [{"name": name, "type": types.get(name, "")} for name in self.depends_on.widgets],
                "inputs": list(self.depends_on.inputs),
                "input_groups": list(self.depends_on.input_groups),
            },
            "expr": self.expr,
        }


@dataclass
class Schema:
    """A node's name, inputs, outputs and flags."""

    node_id: str
    display_name: str | None = None
    category: str = "sd"
    inputs: list[Input] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    hidden: list[Hidden] = field(default_factory=list)
    description: str = ""
    search_aliases: list[str] = field(default_factory=list)
    is_input_list: bool = False
    is_output_node: bool = False
    is_deprecated: bool = False
    is_experimental: bool = False
    is_dev_only: bool = False
    is_api_node: bool = False
    price_badge: PriceBadge | None = None
    not_idempotent: bool = False
    enable_expand: bool = False
    accept_all_inputs: bool = False
    essentials_category: str | None = None
    has_intermediate_output: bool = False

    def finalize(self) -> None:
        """Fill in what follows from the rest: missing lists, hidden inputs of output and API nodes, output ids."""
        self.inputs = list(self.inputs or [])
        self.outputs = list(self.outputs or [])
        hidden = list(self.hidden or [])
        if self.is_output_node:
            hidden += [item for item in _OUTPUT_NODE_HIDDEN if item not in hidden]
        if self.is_api_node:
            hidden += [item for item in _API_NODE_HIDDEN if item not in hidden]
        self.hidden = hidden
        for index, output in enumerate(self.outputs):
            if output.id is None:
                output.id = f"_{index}_{output.io_type}_"
                output.id_is_made_up = True

    def validate(self) -> None:
        """Raises ValueError when ids of inputs, or of outputs, are not unique."""
        for what, members in (("input", self.inputs), ("output", self.outputs)):
            ids = [item.id for item in members]
            if len(set(ids)) < len(ids):
                twice = [name for name, times in Counter(ids).items() if times > 1]
                raise ValueError(f"{what} ids of node {self.node_id} must be unique: {', '.join(map(str, twice))}")
        for item in self.inputs:
            item.validate()
        if self.price_badge is not None:
            self.price_badge.validate()

    def hidden_names(self) -> dict[str, str]:
        """Hidden inputs as a V1 class would declare them: name -> specification."""
        return {item.name: item.value for item in self.hidden}

    def output_names(self) -> list[str]:
        """The labels of the outputs: display name, else id, else type."""
        return [
            output.display_name
            or (output.id if not getattr(output, "id_is_made_up", False) else None)
            or output.io_type
            for output in self.outputs
        ]

    def get_v1_info(self, cls: type) -> dict[str, Any]:
        """The /object_info entry."""
        shown: dict[str, Any] = sections(self.inputs)
        if self.hidden:
            shown["hidden"] = {name: (value,) for name, value in self.hidden_names().items()}
        matches = [out.template.template_id if isinstance(out, MatchType.Output) else None for out in self.outputs]
        return {
            "input": shown,
            "input_order": {section: list(members) for section, members in shown.items()},
            "is_input_list": self.is_input_list,
            "output": [output.get_io_type() for output in self.outputs],
            "output_is_list": [bool(output.is_output_list) for output in self.outputs],
            "output_name": self.output_names(),
            "output_tooltips": [output.tooltip for output in self.outputs],
            "output_matchtypes": matches if any(matches) else None,
            "name": self.node_id,
            "display_name": self.display_name,
            "description": self.description,
            "python_module": getattr(cls, "RELATIVE_PYTHON_MODULE", None) or "nodes",
            "category": self.category,
            "output_node": self.is_output_node,
            "deprecated": self.is_deprecated,
            "experimental": self.is_experimental,
            "dev_only": self.is_dev_only,
            "api_node": self.is_api_node,
            "price_badge": self.price_badge.as_dict(self.inputs) if self.price_badge is not None else None,
            "search_aliases": self.search_aliases or None,
            "essentials_category": self.essentials_category,
            "has_intermediate_output": self.has_intermediate_output,
        }


@dataclass
class NodeReplace:
    """That one class takes the place of another that is gone.

    Entries of `input_mapping`: `{"new_id", "old_id"}` or `{"new_id", "set_value"}`; of `output_mapping`:
    `{"new_idx", "old_idx"}`.
    """

    new_node_id: str
    old_node_id: str
    old_widget_ids: list[str] | None = None
    input_mapping: list[dict[str, Any]] | None = None
    output_mapping: list[dict[str, Any]] | None = None

    def as_dict(self) -> dict[str, Any]:
        """As /node_replacements lists it."""
        return {
            "new_node_id": self.new_node_id,
            "old_node_id": self.old_node_id,
            "old_widget_ids": self.old_widget_ids,
            "input_mapping": list(self.input_mapping) if self.input_mapping else None,
            "output_mapping": list(self.output_mapping) if self.output_mapping else None,
        }


__all__ = ["Hidden", "HiddenHolder", "NodeReplace", "PriceBadge", "PriceBadgeDepends", "Schema", "prune"]
