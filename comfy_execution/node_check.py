"""The checks of one node: its constants, and the check its class brings along (spec execution.md 2.2 and 2.3)."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from comfy_execution.arguments import hidden_values
from comfy_execution.facts import DeclaredInput, InputSpec, NodeFacts, nested
from comfy_execution.links import ConstantList
from comfy_execution.problems import InputRef, linked, problem
from comfy_execution.types import spelled

_CONVERSIONS = {"INT": int, "FLOAT": float, "STRING": str, "BOOLEAN": bool}
_LONG_LIST = 20  # options; longer lists are not repeated in errors
_SIMILAR = 3  # options named instead
_COMPARED = 500  # options whose spelling is compared
DYNAMIC_COMBO = "COMFY_DYNAMICCOMBO_V3"


def constants(
    facts: NodeFacts, spec: InputSpec, names: Iterable[str], inputs: dict[str, Any], errors: list[dict[str, Any]]
) -> None:
    """Unwrap, convert and check the declared constants of these names, in place."""
    parameters = facts.own_check_parameters
    for name in names:
        declared = spec.find(name)
        if parameters is None and _is_plainly_good(inputs[name], declared):
            continue
        ref = InputRef(name, declared)
        error = _convert(ref, inputs)
        if error is None and not _checked_by_class(name, parameters):
            error = _range(ref, inputs[name])
            if error is None:
                options = _options_of(ref)
                if options is not None:
                    error = _choice(ref, options, inputs)
        if error is None and spelled(declared.type) == "FLOAT" and not math.isfinite(inputs[name]):
            error = _not_finite(ref, inputs[name])
        if error is not None:
            errors.append(error)


def _is_plainly_good(value: Any, declared: DeclaredInput) -> bool:
    """Whether it takes no closer look to see that a value has the declared type and is within the limits."""
    kind = declared.type
    if type(kind) is not str or type(value) is not _CONVERSIONS.get(kind):
        return False
    if kind == "FLOAT" and not math.isfinite(value):
        return False
    options = declared.options
    least, most = options.get("min"), options.get("max")
    try:
        return (least is None or not value < least) and (most is None or not value > most)
    except TypeError:
        return False


def _checked_by_class(name: str, parameters: inspect.FullArgSpec | None) -> bool:
    if parameters is None:
        return False
    return parameters.varkw is not None or name in parameters.args or name in parameters.kwonlyargs


def _convert(ref: InputRef, inputs: dict[str, Any]) -> dict[str, Any] | None:
    value = inputs[ref.name]
    if isinstance(value, dict) and "__value__" in value:
        value = value["__value__"]
        inputs[ref.name] = value = ConstantList(value) if isinstance(value, list) else value
    convert = _CONVERSIONS.get(spelled(ref.type))
    if convert is None:
        return None
    try:
        inputs[ref.name] = convert(value)
    except Exception as error:
        text = str(error)
        return problem(
            "invalid_input_type",
            f"{ref.name}, {value}, {text}",
            ref.info(received_value=value, exception_message=text),
            f"Failed to convert an input value to a {ref.type} value",
        )
    return None


def _not_finite(ref: InputRef, value: float) -> dict[str, Any]:
    """NaN and the infinities pass every limit, cannot be stored with a prompt, and spoil whatever they touch."""
    text = "it is not a finite number"
    info = ref.info(received_value=value, exception_message=text)
    message = "Failed to convert an input value to a FLOAT value"
    return problem("invalid_input_type", f"{ref.name}, {value}, {text}", info, message)


def _range(ref: InputRef, value: Any) -> dict[str, Any] | None:
    options = ref.declared.options
    if not options:
        return None
    least, most = options.get("min"), options.get("max")
    try:
        if least is not None and value < least:
            message = f"Value {value} smaller than min of {least}"
            return problem("value_smaller_than_min", ref.name, ref.info(received_value=value), message)
        if most is not None and value > most:
            message = f"Value {value} bigger than max of {most}"
            return problem("value_bigger_than_max", ref.name, ref.info(received_value=value), message)
    except TypeError as error:
        return problem(
            "invalid_input_type",
            f"{ref.name}, {value}, {error}",
            ref.info(received_value=value, exception_message=str(error)),
            f"Failed to compare an input value with the limits of a {ref.type} value",
        )
    return None


def _choice(ref: InputRef, options: Any, inputs: dict[str, Any]) -> dict[str, Any] | None:
    _other_separators(ref, options, inputs)
    value = inputs[ref.name]
    if ref.declared.options.get("multiselect", False) and isinstance(value, list):
        bad = [member for member in value if member not in options]
    else:
        bad = [] if value in options else [value]
    if not bad:
        return None
    info = ref.info(received_value=value)
    if len(options) > _LONG_LIST:
        listed = f"(list of length {len(options)})"
        info["input_config"] = None
        similar = _similar(str(bad[0]), options)
        if similar:
            listed += f"; did you mean {' or '.join(map(repr, similar))}?"
            info["similar"] = similar
    else:
        listed = str(list(options))
    return problem("value_not_in_list", f"{ref.name}: {', '.join(map(repr, bad))} not in {listed}", info)


def _similar(value: str, options: Iterable[Any]) -> list[str]:
    """Options that may have been meant: files of the same name in other folders, then names spelled alike."""
    name = value.replace("\\", "/").rsplit("/", 1)[-1].lower()
    texts = [option for option in options if isinstance(option, str)]
    found = [text for text in texts if text.replace("\\", "/").rsplit("/", 1)[-1].lower() == name]
    if not found:  # comparing is slow: thousands of files would hold up other requests
        likely = texts if len(texts) <= _COMPARED else [text for text in texts if text[:2].lower() == value[:2].lower()]
        found = get_close_matches(value, likely[:_COMPARED], _SIMILAR)
    return found[:_SIMILAR]


def _other_separators(ref: InputRef, options: Any, inputs: dict[str, Any]) -> None:
    """A path written on another system names the same file: `folder\\name` and `folder/name`."""
    value = inputs[ref.name]
    if not isinstance(value, str) or not ("\\" in value or "/" in value):
        return
    if value in options:
        return
    for other in (value.replace("\\", "/"), value.replace("/", "\\")):
        if other in options:
            inputs[ref.name] = other
            return


def _options_of(ref: InputRef) -> list | tuple | None:
    """What a value may be chosen from; None when the input is no choice."""
    if isinstance(ref.type, list | tuple):
        return ref.type
    kind = spelled(ref.type)
    if kind == DYNAMIC_COMBO:
        return [option["key"] for option in ref.declared.options.get("options", [])]
    if kind == "COMBO":
        return ref.declared.options.get("options")
    return None


async def own_check(
    node_id: str,
    facts: NodeFacts,
    spec: InputSpec,
    inputs: Mapping[str, Any],
    input_types: Mapping[str, Any],
    errors: list[dict[str, Any]],
) -> None:
    """Ask VALIDATE_INPUTS / validate_inputs, if the class has it and everything it names is there.

    Raises:
        Exception: whatever the check raises.
    """
    parameters = facts.own_check_parameters
    if parameters is None:
        return
    values = {
        name: [None if linked(value) else value] if facts.input_is_list else None if linked(value) else value
        for name, value in inputs.items()
        if spec.find(name) is not None
    }
    if facts.is_v3:
        values = nested(spec, values)
    named = {*parameters.args, *parameters.kwonlyargs}
    if parameters.varkw is None:
        values = {name: value for name, value in values.items() if name in named}
    hidden = {k: v for k, v in hidden_values(spec.hidden, node_id, None, {}).items() if k in named}
    if "input_types" in named:
        values["input_types"] = dict(input_types)
    missing = _without_value(facts, parameters, {**values, **hidden})
    if missing:
        _report_missing(missing, errors)
        return
    check = facts.own_check
    verdict = check(**values, **{k: [v] if facts.input_is_list else v for k, v in hidden.items()})
    if inspect.isawaitable(verdict):
        verdict = await verdict
    if verdict is True:
        return
    for name in values:
        details = name if verdict is False else f"{name} - {verdict}"
        errors.append(problem("custom_validation_failed", details, {"input_name": name}))


def _without_value(facts: NodeFacts, parameters: inspect.FullArgSpec, given: Mapping[str, Any]) -> list[str]:
    """Parameters of the check that have neither a value nor a default."""
    positional = parameters.args[1:] if inspect.ismethod(facts.own_check) else parameters.args
    needed = positional[: len(positional) - len(parameters.defaults or ())]
    needed += [name for name in parameters.kwonlyargs if name not in (parameters.kwonlydefaults or {})]
    return [name for name in needed if name not in given]


def _report_missing(missing: list[str], errors: list[dict[str, Any]]) -> None:
    known = {error["extra_info"].get("input_name") for error in errors if error["type"] == "required_input_missing"}
    for name in missing:
        if name not in known and not any(str(k).startswith(name + ".") for k in known):
            errors.append(problem("required_input_missing", name, {"input_name": name}))
