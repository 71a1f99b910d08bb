"""What the engine needs to know about a node class, looked up once per run (spec node-api.md, sections 2 and 3)."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from comfy_execution.graph import DynamicPrompt, NodeNotFoundError
from comfy_execution.types import spelled

log = logging.getLogger(__name__)


class _once:
    """A property that is computed when it is first asked for. Unlike `functools.cached_property` it takes no lock."""

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._compute(instance)
        return value


class DeclaredInput(NamedTuple):
    """One declared input: the section it stands in, its type and its options."""

    section: str
    type: Any
    options: Mapping[str, Any]


@dataclass
class InputSpec:
    """The declared inputs of a node.

    `dynamic` maps the dotted name of an inner input to the path at which the node receives it
    (`"items.item0"` -> `("items", "item0")`), `dynamic_roots` names the inputs that have inner ones, and `empty` are
    the paths at which there is an empty dict when nothing was sent.
    """

    required: Mapping[str, Any]
    optional: Mapping[str, Any]
    hidden: Mapping[str, Any]
    dynamic: dict[str, tuple[str, ...]] = field(default_factory=dict)
    dynamic_roots: tuple[str, ...] = ()
    empty: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        self._found: dict[str, DeclaredInput | None] = {}
        self._lazy: frozenset[str] | None = None
        self.is_final = False  # whether it is the same whatever is sent

    def find(self, name: str) -> DeclaredInput | None:
        """The declaration of an input, None if there is none.

        Asks the dicts by `in` and `[]`, so that a dict subclass may claim to have every name.
        """
        try:
            return self._found[name]
        except KeyError:
            found = self._found[name] = self._look_up(name)
            return found

    def _look_up(self, name: str) -> DeclaredInput | None:
        for section, declared in (("required", self.required), ("optional", self.optional), ("hidden", self.hidden)):
            if name in declared:
                entry = declared[name]
                if section == "hidden" or isinstance(entry, str):
                    return DeclaredInput(section, entry, {})
                options = entry[1] if len(entry) > 1 else {}
                if type(options) is not dict and not isinstance(options, Mapping):
                    options = {}
                return DeclaredInput(section, entry[0], options)
        return None

    def declared(self) -> list[str]:
        """Names of the required, then the optional inputs."""
        return [*self.required, *self.optional]

    def lazy(self, inputs: Mapping[str, Any]) -> frozenset[str]:
        """Which of these inputs are evaluated only on request."""
        if self._lazy is None and self.is_final:
            self._freeze_lazy()
        if self._lazy is not None:
            return self._lazy
        names = set()
        for name in inputs:
            found = self.find(name)
            if found is not None and found.options.get("lazy"):
                names.add(name)
        return frozenset(names)

    def _freeze_lazy(self) -> None:
        """Compute the lazy inputs once, for a spec whose dicts do not invent names."""
        if type(self.required) is dict and type(self.optional) is dict:
            self._lazy = frozenset(
                name for name in self.declared() if (found := self.find(name)) and found.options.get("lazy")
            )


class NodeFacts:
    """A node class as the engine sees it.

    Args:
        running: it is asked for a run, not for the check of a prompt (see `get_input_info`).
    """

    def __init__(self, class_type: str, cls: type, running: bool = False) -> None:
        self.class_type = class_type
        self.cls = cls
        self.running = running
        self.is_v3 = hasattr(cls, "RESOLVE_INPUTS")
        # A V3 class asks its schema for each attribute; here it is asked once.
        self._schema = cls.GET_SCHEMA() if self.is_v3 else None
        if self.is_v3:
            schema = self._schema
            self.is_output = schema.is_output_node is True
            self.input_is_list = bool(schema.is_input_list)
            self.has_intermediate_output = bool(schema.has_intermediate_output)
            self.return_types: tuple = tuple([output.get_io_type() for output in schema.outputs])
        else:
            self.is_output = getattr(cls, "OUTPUT_NODE", False) is True
            self.input_is_list = bool(getattr(cls, "INPUT_IS_LIST", False))
            self.has_intermediate_output = bool(getattr(cls, "HAS_INTERMEDIATE_OUTPUT", False))
            types = getattr(cls, "RETURN_TYPES", ()) or ()
            # A tuple stays the object that it is: packs have some that answer for every slot.
            self.return_types = types if isinstance(types, tuple) else tuple(types)
        self._inputs: InputSpec | None = None

    # What only a run asks for is not found out for each prompt that is checked.

    @_once
    def not_idempotent(self) -> bool:
        """Whether a result is never used again."""
        return bool(self._schema.not_idempotent if self.is_v3 else getattr(self.cls, "NOT_IDEMPOTENT", False))

    @_once
    def accept_all_inputs(self) -> bool:
        """Whether the node gets inputs that it does not declare."""
        return self.is_v3 and bool(self._schema.accept_all_inputs)

    @_once
    def output_is_list(self) -> tuple:
        """For each output, whether the node returns a list of values for it."""
        if self.is_v3:
            return tuple([output.is_output_list for output in self._schema.outputs])
        return tuple(getattr(self.cls, "OUTPUT_IS_LIST", ()) or ())

    @_once
    def function_name(self) -> str:
        """The method that does the work."""
        return getattr(self.cls, "FUNCTION", "")

    @_once
    def is_async(self) -> bool:
        """Whether that method is a coroutine function."""
        return inspect.iscoroutinefunction(getattr(self.cls, self.function_name or "", None))

    def inputs(self, sent: Mapping[str, Any]) -> InputSpec:
        """The declared inputs; those of a V3 class with dynamic inputs depend on what was sent."""
        if self._inputs is not None:
            return self._inputs
        if self.is_v3:
            *parts, depends_on_sent = self.cls.RESOLVE_INPUTS(sent, self._schema)
            spec = InputSpec(*parts)
        else:
            types = get_input_info(self.cls) if self.running else self.cls.INPUT_TYPES()
            spec = InputSpec(types.get("required", {}), types.get("optional", {}), types.get("hidden", {}))
            depends_on_sent = False
        if not depends_on_sent:
            spec.is_final = True
            self._inputs = spec
        return spec

    @_once
    def wants_unique_id(self) -> bool:
        """Whether a node of this class is told its id, which makes its result belong to that id."""
        return any(spelled(wanted) == "UNIQUE_ID" for wanted in self.inputs({}).hidden.values())

    def own_method(self, v1_name: str, v3_name: str) -> Callable | None:
        """An optional classmethod: the V1 attribute, or the V3 one if the class overrides it."""
        if self.is_v3:
            return self.cls.OVERRIDDEN(v3_name)
        return getattr(self.cls, v1_name, None)

    @_once
    def own_check(self) -> Callable | None:
        return self.own_method("VALIDATE_INPUTS", "validate_inputs")

    @_once
    def own_check_parameters(self) -> inspect.FullArgSpec | None:
        """The parameters of the class's own check, None if it has none."""
        return None if self.own_check is None else inspect.getfullargspec(self.own_check)

    @_once
    def checks_types_itself(self) -> bool:
        """Whether the class's own check takes `input_types`, which turns the type-of-link check off."""
        parameters = self.own_check_parameters
        return parameters is not None and "input_types" in (*parameters.args, *parameters.kwonlyargs)

    @_once
    def fingerprint(self) -> Callable | None:
        return self.own_method("IS_CHANGED", "fingerprint_inputs")

    @_once
    def has_lazy_check(self) -> bool:
        return self.own_method("check_lazy_status", "check_lazy_status") is not None


def get_input_info(cls: type, outer: bool = True) -> Mapping[str, Any]:
    """What INPUT_TYPES() returns, when it is asked during a run.

    Switches with any number of inputs read the call stack: if the second caller has this name, they declare every
    input as lazy, so that only the chosen one is evaluated. Hence the name, and the call of itself.
    """
    return get_input_info(cls, False) if outer else cls.INPUT_TYPES()


class FactsBook:
    """Facts by class name, for the length of one run, so that INPUT_TYPES() is asked once per class and run.

    Args:
        running: the facts are for a run, not for the check of a prompt.
    """

    def __init__(self, classes: Mapping[str, type] | None = None, running: bool = False) -> None:
        self._classes = node_classes() if classes is None else classes
        self._running = running
        self._facts: dict[str, NodeFacts] = {}

    def knows(self, class_type: object) -> bool:
        """Whether a class of this name is registered."""
        return isinstance(class_type, str) and class_type in self._classes

    def look_up(self, class_types: Iterable[str]) -> None:
        """Ask these classes for their inputs, so that it need not be done later; those that raise are left for then."""
        for class_type in class_types:
            try:
                self[class_type].inputs({})
            except BaseException:
                log.debug("inputs of %s cannot be told yet", class_type, exc_info=True)

    def any_intermediate_output(self) -> bool:
        """Whether any class asked for so far shows results of nodes that nobody asked for."""
        return any(facts.has_intermediate_output for facts in self._facts.values())

    def __getitem__(self, class_type: str) -> NodeFacts:
        facts = self._facts.get(class_type)
        if facts is None:
            if class_type not in self._classes:
                raise NodeNotFoundError(f"There is no node class named {class_type!r}")
            facts = self._facts[class_type] = NodeFacts(class_type, self._classes[class_type], self._running)
        return facts


class FactsByNode(dict[str, NodeFacts]):
    """What the class of each node is like, looked up once per node."""

    def __init__(self, prompt: DynamicPrompt, book: FactsBook) -> None:
        self._prompt = prompt
        self._book = book

    def __missing__(self, node_id: str) -> NodeFacts:
        facts = self[node_id] = self._book[self._prompt.get_node(node_id)["class_type"]]
        return facts


def node_classes() -> Mapping[str, type]:
    """The registered node classes by name."""
    import nodes

    return nodes.NODE_CLASS_MAPPINGS


def nested(spec: InputSpec, values: Mapping[str, Any], *, with_names: bool = False) -> dict[str, Any]:
    """Arguments for a V3 method: inner inputs gathered into one dict per dynamic input (node-api.md 3.4).

    Args:
        with_names: make every inner value a pair (value, dotted name), as check_lazy_status gets it.
    """
    if not spec.dynamic and not spec.dynamic_roots:
        return dict(values)
    result: dict[str, Any] = {}
    for path in spec.empty:
        target = result
        for step in path:
            target = target.setdefault(step, {})
    for name, value in values.items():
        path = spec.dynamic.get(name)
        if path is None:
            if name.split(".", 1)[0] not in spec.dynamic_roots or "." not in name:
                result[name] = value
            continue
        target = result
        for step in path[:-1]:
            target = target.setdefault(step, {})
        target[path[-1]] = (value, name) if with_names else value
    return result
