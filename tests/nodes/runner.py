"""Runs single nodes, or small graphs of them, on given input values: no queue, no cache, no validation.

List rules as in execution.md 5.2, so that recorded cases with lists come out as they were recorded.
"""

from __future__ import annotations

import inspect
from typing import Any

import nodes


class NodeFailed(Exception):
    """A node raised; `error` is what it raised."""

    def __init__(self, error: Exception):
        super().__init__(repr(error))
        self.error = error


class GraphRunner:
    """Runs a prompt in wire format. `sources` maps source node ids to the list their slot 0 holds."""

    def __init__(self, prompt: dict, sources: dict[str, list], workflow: Any = None):
        self.prompt, self.sources, self.workflow = prompt, sources, workflow
        self.done: dict[str, list] = {}
        self.ui: dict[str, dict] = {}

    def slot(self, link: list) -> list:
        """All values of a slot."""
        node_id, index = link
        if node_id in self.sources:
            return self.sources[node_id]
        if node_id not in self.done:
            self.done[node_id] = self._run(node_id)
        return self.done[node_id][index]

    def run_for_ui(self, node_id: str) -> list:
        """Run a node that has no outputs to ask for."""
        self._run(node_id)
        return []

    def _run(self, node_id: str) -> list:
        node = self.prompt[node_id]
        cls = nodes.NODE_CLASS_MAPPINGS[node["class_type"]]
        declared = cls.INPUT_TYPES()
        values = {}
        for name, value in node["inputs"].items():
            is_link = isinstance(value, list) and len(value) == 2 and isinstance(value[1], int)
            if is_link:
                values[name] = self.slot(value)
            else:
                values[name] = [value["__value__"] if isinstance(value, dict) and "__value__" in value else value]
        hidden = {"PROMPT": self.prompt, "EXTRA_PNGINFO": {"workflow": self.workflow}, "UNIQUE_ID": node_id}
        v3 = hasattr(cls, "GET_SCHEMA")
        for name, kind in declared.get("hidden", {}).items():
            kind = kind[0] if isinstance(kind, (tuple, list)) else kind
            if not v3 and kind in hidden:
                values[name] = [hidden[kind]]
        try:
            results = [self._call(cls, kwargs, v3, hidden) for kwargs in self._calls(cls, values)]
        except Exception as error:
            raise NodeFailed(error) from error
        return self._collect(cls, node_id, results)

    @staticmethod
    def _calls(cls: type, values: dict[str, list]) -> list[dict]:
        if getattr(cls, "INPUT_IS_LIST", False):
            return [values]
        count = max((len(v) for v in values.values()), default=1)
        return [{k: v[min(i, len(v) - 1)] for k, v in values.items()} for i in range(count)]

    @staticmethod
    def _call(cls: type, kwargs: dict, v3: bool, hidden: dict) -> Any:
        if v3:
            kwargs = nest(kwargs, cls)
            # What the engine does for each call: a locked copy of the class that knows the hidden values.
            clone = cls.PREPARE_CLASS_CLONE(_hidden_members(cls, hidden))
            result = clone.execute(**kwargs)
        else:
            result = getattr(cls(), cls.FUNCTION)(**kwargs)
        if inspect.isawaitable(result):
            raise TypeError("asynchronous nodes are not run here")
        return result

    def _collect(self, cls: type, node_id: str, results: list) -> list:
        is_list = getattr(cls, "OUTPUT_IS_LIST", None) or [False] * len(cls.RETURN_TYPES)
        slots: list[list] = [[] for _ in cls.RETURN_TYPES]
        for result in results:
            if hasattr(result, "result"):
                values, ui = result.result, result.ui
            elif isinstance(result, dict):
                values, ui = result.get("result", ()), result.get("ui")
            else:
                values, ui = result, None
            if ui is not None:
                ui = ui if isinstance(ui, dict) else ui.as_dict()
                for key, items in ui.items():
                    self.ui.setdefault(node_id, {}).setdefault(key, []).extend(items)
            for slot, flat, value in zip(slots, is_list, values or ()):
                slot.extend(value) if flat else slot.append(value)
        return slots


def _hidden_members(cls: type, hidden: dict) -> dict:
    """Hidden inputs the schema asks for, by the names under which the class sees them."""
    return {member.name: hidden.get(member.value) for member in cls.GET_SCHEMA().hidden}


def nest(kwargs: dict, cls: type) -> dict:
    """Dotted names of dynamic inputs -> one dict per input. Inputs that got nothing become empty dicts."""
    result: dict = {}
    for spec in cls.GET_SCHEMA().inputs:
        if spec.get_io_type() in ("COMFY_AUTOGROW_V3", "COMFY_DYNAMICCOMBO_V3"):
            result[spec.id] = {}
    for name, value in kwargs.items():
        head, *rest = name.split(".")
        target = result
        for part in rest:
            if not isinstance(target.get(head), dict):
                target[head] = {}
            target, head = target[head], part
        if isinstance(target.get(head), dict):
            target[head][head] = value  # the key of a dynamic combo stands beside its inner inputs
        else:
            target[head] = value
    return result
