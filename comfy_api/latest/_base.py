"""Sockets and widgets: what an input or output of a schema is (spec node-api.md 3.3)."""

from __future__ import annotations

from enum import Enum
from typing import Any


def prune(options: dict[str, Any]) -> dict[str, Any]:
    """Without the entries that are None."""
    return {key: value for key, value in options.items() if value is not None}


def enum_value(value: Any) -> Any:
    """The value of an enum member; anything else as it is."""
    return value.value if isinstance(value, Enum) else value


class Input:
    """An input socket.

    Args:
        id: the name of the argument.
        lazy: evaluated only on request. raw_link: the node gets the link instead of the value.
        extra_dict: further options, as they are.
    """

    Parent: type[ComfyType]

    def __init__(
        self,
        id: str,
        display_name: str | None = None,
        optional: bool = False,
        tooltip: str | None = None,
        lazy: bool | None = None,
        extra_dict: dict[str, Any] | None = None,
        raw_link: bool | None = None,
        advanced: bool | None = None,
    ) -> None:
        self.id = id
        self.display_name = display_name
        self.optional = optional
        self.tooltip = tooltip
        self.lazy = lazy
        self.extra_dict = extra_dict if extra_dict is not None else {}
        self.rawLink = raw_link
        self.advanced = advanced

    @property
    def io_type(self) -> str:
        """The name of the type."""
        return self.Parent.io_type

    def get_io_type(self) -> str:
        """The type as /object_info shows it."""
        return self.io_type

    def as_dict(self) -> dict[str, Any]:
        """The options as /object_info shows them."""
        options: dict[str, Any] = {}  # filled one by one: this is asked of every node of every prompt
        if self.display_name is not None:
            options["display_name"] = self.display_name
        if self.tooltip is not None:
            options["tooltip"] = self.tooltip
        if self.lazy is not None:
            options["lazy"] = self.lazy
        if self.rawLink is not None:
            options["rawLink"] = self.rawLink
        if self.advanced is not None:
            options["advanced"] = self.advanced
        if self.extra_dict:
            options |= prune(self.extra_dict)
        return options

    def declaration(self) -> tuple[str, dict[str, Any]]:
        """`(type, options)`, as a V1 class would write it."""
        return self.get_io_type(), self.as_dict()

    def validate(self) -> None:
        """Raises ValueError when the declaration makes no sense."""


class WidgetInput(Input):
    """An input that is a widget unless something is linked to it."""

    def __init__(
        self,
        id: str,
        display_name: str | None = None,
        optional: bool = False,
        tooltip: str | None = None,
        lazy: bool | None = None,
        default: Any = None,
        socketless: bool | None = None,
        widget_type: str | None = None,
        force_input: bool | None = None,
        extra_dict: dict[str, Any] | None = None,
        raw_link: bool | None = None,
        advanced: bool | None = None,
    ) -> None:
        super().__init__(id, display_name, optional, tooltip, lazy, extra_dict, raw_link, advanced)
        self.default = default
        self.socketless = socketless
        self.widget_type = widget_type
        self.force_input = force_input

    def as_dict(self) -> dict[str, Any]:
        options = super().as_dict()
        default = self.shown_default()
        if default is not None:
            options["default"] = default
        if self.socketless is not None:
            options["socketless"] = self.socketless
        if self.widget_type is not None:
            options["widgetType"] = self.widget_type
        if self.force_input is not None:
            options["forceInput"] = self.force_input
        for name, value in self.own_options().items():
            if value is not None:
                options[name] = value
        return options

    def shown_default(self) -> Any:
        """The default as /object_info shows it."""
        return enum_value(self.default)

    def own_options(self) -> dict[str, Any]:
        """The options that only this type has."""
        return {}

    def get_io_type(self) -> str:
        return self.io_type


class Output:
    """An output socket. `is_output_list`: the node returns a list of values."""

    Parent: type[ComfyType]

    def __init__(
        self,
        id: str | None = None,
        display_name: str | None = None,
        tooltip: str | None = None,
        is_output_list: bool = False,
    ) -> None:
        self.id = id
        self.display_name = display_name
        self.tooltip = tooltip
        self.is_output_list = is_output_list

    @property
    def io_type(self) -> str:
        """The name of the type."""
        return self.Parent.io_type

    def get_io_type(self) -> str:
        return self.io_type

    def as_dict(self) -> dict[str, Any]:
        """Name, tooltip and list flag, without what is not set."""
        return prune(
            {"display_name": self.display_name, "tooltip": self.tooltip, "is_output_list": self.is_output_list}
        )


class ComfyType:
    """A type of sockets. `Type` is the Python type of its values, for annotations."""

    io_type: str = "*"
    Type: Any = Any
    Parent: Any = None


class ComfyTypeI(ComfyType):
    """A type with inputs only."""

    class Input(Input):
        pass


class ComfyTypeIO(ComfyTypeI):
    """A type with inputs and outputs."""

    class Output(Output):
        pass


def comfytype(io_type: str, **attributes: Any) -> Any:
    """Class decorator: make a ComfyType class stand for `io_type`.

    Its Input and Output, inherited ones included, become classes of its own that know their type.
    """

    def mark(cls: Any) -> Any:
        if isinstance(cls, type) and not issubclass(cls, ComfyType):
            cls = type(cls.__name__, (cls, ComfyTypeIO), {"__module__": cls.__module__, "__doc__": cls.__doc__})
        cls.io_type = io_type
        for name, value in attributes.items():
            setattr(cls, name, value)
        for face in ("Input", "Output"):
            inherited = getattr(cls, face, None)
            if inherited is not None:
                own = type(face, (inherited,), {"Parent": cls, "__qualname__": f"{cls.__qualname__}.{face}"})
                own.__module__ = cls.__module__
                setattr(cls, face, own)
        return cls

    return mark


def Custom(io_type: str) -> type[ComfyTypeIO]:
    """A type for any name."""
    return comfytype(io_type)(type("CustomComfyType", (ComfyTypeIO,), {}))


def named_socket(name: str, io_type: str, value_type: Any = Any) -> type[ComfyTypeIO]:
    """A plain socket type with a class name of its own."""
    return comfytype(io_type, Type=value_type)(type(name, (ComfyTypeIO,), {}))
