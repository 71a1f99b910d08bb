"""Inputs whose number or kind depends on what is sent (spec node-api.md 3.4).

Inner inputs are sent under dotted names `<id>.<inner id>`; the node gets one dict per dynamic input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from comfy_api.internal import ResolvedInputs
from comfy_api.latest._base import ComfyType, ComfyTypeI, ComfyTypeIO, Input, WidgetInput, comfytype, prune
from comfy_api.latest._base import Output as _Output
from comfy_api.latest._sockets import AnyType

_MOST_NAMES = 100


def sections(inputs: Sequence[Input]) -> dict[str, dict[str, tuple]]:
    """Inputs as /object_info shows them: `required`, and `optional` if there are any."""
    shown: dict[str, dict[str, tuple]] = {"required": {}}
    for item in inputs:
        section = "optional" if item.optional else "required"
        shown.setdefault(section, {})[item.id] = item.declaration()
    return shown


@dataclass
class Resolution:
    """Declared inputs under construction."""

    sent: Mapping[str, Any]
    required: dict[str, tuple] = field(default_factory=dict)
    optional: dict[str, tuple] = field(default_factory=dict)
    dynamic: dict[str, tuple[str, ...]] = field(default_factory=dict)
    empty: list[tuple[str, ...]] = field(default_factory=list)

    def declare(self, name: str, item: Input, optional: bool, path: tuple[str, ...], lazy: bool = False) -> None:
        """Declare an inner input that the node receives at `path`."""
        io_type, options = item.declaration()
        if lazy:
            options["lazy"] = True
        (self.optional if optional else self.required)[name] = (io_type, options)
        self.dynamic[name] = path

    def add(self, item: Input, prefix: str = "", path: tuple[str, ...] = ()) -> None:
        """Declare an input of a schema, with all that it has inside."""
        if isinstance(item, DynamicInput):
            item.resolve(self, prefix, path)
        elif path:
            self.declare(prefix + item.id, item, item.optional, (*path, item.id))
        else:
            section = self.optional if item.optional else self.required
            section[item.id] = item.declaration()


def resolve(inputs: Sequence[Input], hidden: dict[str, str], sent: Mapping[str, Any]) -> ResolvedInputs:
    """The declared inputs of a schema, given the names and values that were sent."""
    resolution = Resolution(sent)
    for item in inputs:
        resolution.add(item)
    roots = tuple(item.id for item in inputs if isinstance(item, DynamicInput))
    return ResolvedInputs(
        resolution.required,
        resolution.optional,
        hidden,
        resolution.dynamic,
        roots,
        tuple(resolution.empty),
        depends_on_sent=any(isinstance(item, DynamicInput) and item.depends_on_sent for item in inputs),
    )


class DynamicInput(Input):
    """An input with inputs inside."""

    depends_on_sent = True

    def resolve(self, resolution: Resolution, prefix: str, path: tuple[str, ...]) -> None:
        """Declare what is inside, under names that start with `prefix` and the id."""
        raise NotImplementedError


@comfytype(io_type="COMFY_AUTOGROW_V3")
class Autogrow(ComfyTypeI):
    """Any number of inputs of one kind."""

    Type = dict

    class _Template:
        """Which names there are, and which of them are required."""

        def __init__(self, input: Input, names: list[str], min: int) -> None:
            self.input = input
            self.min = min
            self.all_names = names
            if isinstance(input, DynamicInput):
                raise ValueError(f"the template of an Autogrow cannot be dynamic itself: {input.id}")
            if isinstance(input, WidgetInput):
                input.force_input = True

        def shown(self) -> dict[str, Any]:
            return {"input": sections([self.input])}

    class TemplatePrefix(_Template):
        """Names `prefix0`, `prefix1`, ...: at least `min`, at most `max`."""

        def __init__(self, input: Input, prefix: str, min: int = 1, max: int = 10) -> None:
            if not 0 <= min <= max <= _MOST_NAMES:
                raise ValueError(f"an Autogrow needs 0 <= min <= max <= {_MOST_NAMES}, got {min} and {max}")
            super().__init__(input, [f"{prefix}{number}" for number in range(max)], min)
            self.prefix = prefix
            self.max = max

        def shown(self) -> dict[str, Any]:
            return super().shown() | {"prefix": self.prefix, "min": self.min, "max": self.max}

    class TemplateNames(_Template):
        """Given names, of which the first `min` are required."""

        def __init__(self, input: Input, names: list[str], min: int = 1) -> None:
            if len(names) > _MOST_NAMES:
                raise ValueError(f"an Autogrow has at most {_MOST_NAMES} names, got {len(names)}")
            super().__init__(input, list(names), min)
            self.names = list(names)

        def shown(self) -> dict[str, Any]:
            return super().shown() | {"names": self.names, "min": self.min}

    class Input(DynamicInput):
        depends_on_sent = False

        def __init__(
            self,
            id: str,
            template: Autogrow.TemplatePrefix | Autogrow.TemplateNames,
            display_name: str | None = None,
            optional: bool = False,
            tooltip: str | None = None,
            lazy: bool | None = None,
            extra_dict: dict[str, Any] | None = None,
        ) -> None:
            super().__init__(id, display_name, optional, tooltip, lazy, extra_dict)
            self.template = template

        def as_dict(self) -> dict[str, Any]:
            return super().as_dict() | {"template": self.template.shown()}

        def resolve(self, resolution: Resolution, prefix: str, path: tuple[str, ...]) -> None:
            inner = self.template.input
            resolution.empty.append((*path, self.id))
            for number, name in enumerate(self.template.all_names):
                optional = inner.optional or self.optional or number >= self.template.min
                resolution.declare(
                    f"{prefix}{self.id}.{name}", inner, optional, (*path, self.id, name), bool(self.lazy)
                )


@comfytype(io_type="COMFY_DYNAMICCOMBO_V3")
class DynamicCombo(ComfyTypeI):
    """A choice that brings inputs along."""

    Type = dict

    class Option:
        """One choice and its inputs."""

        def __init__(self, key: str, inputs: list[Input]) -> None:
            self.key = key
            self.inputs = inputs

        def as_dict(self) -> dict[str, Any]:
            return {"key": self.key, "inputs": sections(self.inputs)}

    class Input(DynamicInput):
        def __init__(
            self,
            id: str,
            options: list[DynamicCombo.Option],
            display_name: str | None = None,
            optional: bool = False,
            tooltip: str | None = None,
            lazy: bool | None = None,
            extra_dict: dict[str, Any] | None = None,
        ) -> None:
            super().__init__(id, display_name, optional, tooltip, lazy, extra_dict)
            self.options = options

        def as_dict(self) -> dict[str, Any]:
            return super().as_dict() | {"options": [option.as_dict() for option in self.options]}

        def resolve(self, resolution: Resolution, prefix: str, path: tuple[str, ...]) -> None:
            name = prefix + self.id
            # A choice inside of another one may be missing: prompts made before it was there are still accepted.
            resolution.declare(name, self, self.optional or bool(path), (*path, self.id, self.id))
            chosen = resolution.sent.get(name)
            for option in self.options:
                if option.key == chosen:
                    for item in option.inputs:
                        resolution.add(item, f"{name}.", (*path, self.id))


@comfytype(io_type="COMFY_MULTITYPE_V3")
class MultiType:
    """An input that takes several types."""

    Type = Any

    class Input(Input):
        """Given a widget's input instead of an id, the widget is shown and its type comes first."""

        def __init__(
            self,
            id: str | Input,
            types: list[type[ComfyType] | ComfyType],
            display_name: str | None = None,
            optional: bool = False,
            tooltip: str | None = None,
            lazy: bool | None = None,
            extra_dict: dict[str, Any] | None = None,
            raw_link: bool | None = None,
            advanced: bool | None = None,
        ) -> None:
            self.widget: WidgetInput | None = None
            io_types = [kind.io_type for kind in types]
            if isinstance(id, Input):
                if not isinstance(id, WidgetInput):
                    raise ValueError(f"a MultiType takes an id or the input of a widget, not the socket {id.id!r}")
                self.widget = id
                self.widget.widget_type = id.get_io_type()
                io_types.insert(0, id.get_io_type())
                display_name = id.display_name if display_name is None else display_name
                optional = id.optional or optional
                tooltip = id.tooltip if tooltip is None else tooltip
                lazy = id.lazy if lazy is None else lazy
                raw_link = id.rawLink if raw_link is None else raw_link
                advanced = id.advanced if advanced is None else advanced
                id = self.widget.id
            super().__init__(id, display_name, optional, tooltip, lazy, extra_dict, raw_link, advanced)
            self.io_types = list(dict.fromkeys(io_types))

        def get_io_type(self) -> str:
            return ",".join(self.io_types)

        def as_dict(self) -> dict[str, Any]:
            if self.widget is not None:
                return self.widget.as_dict() | super().as_dict()
            return super().as_dict()


@comfytype(io_type="COMFY_MATCHTYPE_V3")
class MatchType(ComfyTypeIO):
    """Inputs and outputs that must have the same type; which one, the browser decides."""

    class Template:
        """What is to match: everything made with one template."""

        def __init__(self, template_id: str, allowed_types: type[ComfyType] | list[type[ComfyType]] = AnyType) -> None:
            self.template_id = template_id
            self.allowed_types = allowed_types if isinstance(allowed_types, list) else [allowed_types]

        def as_dict(self) -> dict[str, Any]:
            allowed = ",".join(kind.io_type for kind in self.allowed_types)
            return {"template_id": self.template_id, "allowed_types": allowed}

    class Input(Input):
        def __init__(
            self,
            id: str,
            template: MatchType.Template,
            display_name: str | None = None,
            optional: bool = False,
            tooltip: str | None = None,
            lazy: bool | None = None,
            extra_dict: dict[str, Any] | None = None,
            raw_link: bool | None = None,
            advanced: bool | None = None,
        ) -> None:
            super().__init__(id, display_name, optional, tooltip, lazy, extra_dict, raw_link, advanced)
            self.template = template

        def as_dict(self) -> dict[str, Any]:
            return super().as_dict() | prune({"template": self.template.as_dict()})

    class Output(_Output):
        def __init__(
            self,
            template: MatchType.Template,
            id: str | None = None,
            display_name: str | None = None,
            tooltip: str | None = None,
            is_output_list: bool = False,
        ) -> None:
            display_name = "MATCHTYPE" if not id and not display_name else display_name
            super().__init__(id, display_name, tooltip, is_output_list)
            self.template = template


@comfytype(io_type="COMFY_DYNAMICSLOT_V3")
class DynamicSlot(ComfyTypeI):
    """A socket that brings inputs along once something is sent to it. It is always optional.

    `io` does not export it, no node of the reference uses it, and the front end (1.49.6) does not know the type: it
    reads none of the keys below, so their names are proven by nothing.
    """

    Type = dict

    class Input(DynamicInput):
        """`slot`: the socket; of a widget only the socket is taken. `inputs`: what comes along with it."""

        def __init__(
            self,
            slot: Input,
            inputs: list[Input],
            display_name: str | None = None,
            tooltip: str | None = None,
            lazy: bool | None = None,
            extra_dict: dict[str, Any] | None = None,
        ) -> None:
            if isinstance(slot, DynamicInput):
                raise ValueError(f"the slot of a DynamicSlot cannot be dynamic itself: {slot.id}")
            display_name = slot.display_name if display_name is None else display_name
            tooltip = slot.tooltip if tooltip is None else tooltip
            lazy = slot.lazy if lazy is None else lazy
            super().__init__(slot.id, display_name, True, tooltip, lazy, extra_dict)
            self.slot = slot
            self.inputs = inputs
            self.force_input = True if isinstance(slot, WidgetInput) else None

        def as_dict(self) -> dict[str, Any]:
            own = {"slotType": self.slot.get_io_type(), "inputs": sections(self.inputs), "forceInput": self.force_input}
            return super().as_dict() | prune(own)

        def resolve(self, resolution: Resolution, prefix: str, path: tuple[str, ...]) -> None:
            name = prefix + self.id
            resolution.declare(name, self.slot, True, (*path, self.id, self.id), bool(self.lazy))
            if resolution.sent.get(name) is not None:
                for item in self.inputs:
                    resolution.add(item, f"{name}.", (*path, self.id))
