"""The errors a refused prompt is answered with: types, fixed messages, fields (spec http-api.md, POST /prompt)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from comfy_execution import faults
from comfy_execution.facts import DeclaredInput
from comfy_execution.links import ConstantList

_MESSAGES = {
    "required_input_missing": "Required input is missing",
    "bad_linked_input": "Bad linked input, must be a length-2 list of [node_id, slot_index]",
    "return_type_mismatch": "Return type mismatch between linked nodes",
    "value_not_in_list": "Value not in list",
    "custom_validation_failed": "Custom validation failed for node",
    "dependency_cycle": "Dependency cycle detected",
    "exception_during_inner_validation": "Exception when validating inner node",
    "exception_during_validation": "Exception when validating node",
    "prompt_no_outputs": "Prompt has no outputs",
    "prompt_outputs_failed_validation": "Prompt outputs failed validation",
}


def problem(
    type: str, details: str = "", extra_info: dict[str, Any] | None = None, message: str | None = None
) -> dict[str, Any]:
    """One error. Types with a fixed message need none."""
    return {
        "type": type,
        "message": _MESSAGES[type] if message is None else message,
        "details": details,
        "extra_info": {} if extra_info is None else extra_info,
    }


def linked(value: object) -> bool:
    """Whether validation takes a value for a link: any list that was not wrapped."""
    return isinstance(value, list) and not isinstance(value, ConstantList)


@dataclass(slots=True)
class InputRef:
    """An input that errors speak of, and the link that was being followed through it, if any."""

    name: str
    declared: DeclaredInput
    link: list | None = None

    @property
    def type(self) -> Any:
        return self.declared.type

    def config(self) -> list:
        """`[type, options]` as the class declares them."""
        return [self.declared.type, dict(self.declared.options)]

    def info(self, **more: Any) -> dict[str, Any]:
        """The extra_info of an error: with the configuration, if there is more to say than the name."""
        if not more:
            return {"input_name": self.name}
        return {"input_name": self.name, "input_config": self.config(), **more}

    def followed(self, link: list) -> InputRef:
        """This input, with the link that leads to the node checked next."""
        return InputRef(self.name, self.declared, link)


def exception_problem(error: BaseException, via: InputRef | None) -> dict[str, Any]:
    """An exception while a node was checked: an output node itself, or the source of the link in `via`."""
    text = faults.text_of(error)
    if type(error) is KeyError and " " in text:  # a sentence, which Python shows in quotes
        text = str(error.args[0])
    kind = faults.type_name(error)
    frames = faults.frames_of(error)
    if via is None:
        return problem("exception_during_validation", text, {"exception_type": kind, "traceback": frames})
    info = via.info(exception_message=text, exception_type=kind, traceback=frames, linked_node=via.link)
    return problem("exception_during_inner_validation", text, info)


def summary(node_errors: dict[str, Any]) -> str:
    """The first error of a refused prompt in one sentence."""
    for node_id, entry in node_errors.items():
        for error in entry["errors"]:
            details = f": {error['details']}" if error["details"] else ""
            more = sum(len(other["errors"]) for other in node_errors.values()) - 1
            others = f" (and {more} more)" if more else ""
            return f"Node {node_id} ({entry['class_type']}): {error['message']}{details}{others}"
    return ""


def cycle_problem(turn: list[tuple[str, str]], length: int) -> dict[str, Any]:
    """The error of one node of a cycle.

    turn: (id, class) of the node, and of those that follow it in the order of the walk, or only the next few.
    length: how many nodes the cycle has.
    """
    node_id = turn[0][0]
    steps = [f"{member} ({class_type})" for member, class_type in turn]
    info: dict[str, Any] = {"node_id": node_id, "cycle_nodes": [member for member, _ in turn]}
    if len(turn) < length:
        steps.append(f"{length - len(turn)} more")
        info["cycle_length"] = length
    return problem("dependency_cycle", " -> ".join([*steps, steps[0]]), info)
