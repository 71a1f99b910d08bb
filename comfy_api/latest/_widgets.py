"""Types whose inputs are widgets (spec node-api.md 3.3, the table)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from comfy_api.latest._base import ComfyTypeI, ComfyTypeIO, WidgetInput, comfytype, enum_value, prune
from comfy_api.latest._base import Output as _Output


class _TextEnum(str, Enum):
    def __str__(self) -> str:
        return self.value


class NumberDisplay(_TextEnum):
    """How a number is shown."""

    number = "number"
    slider = "slider"
    gradient_slider = "gradientslider"


class ControlAfterGenerate(_TextEnum):
    """What the browser does with a number after each run."""

    fixed = "fixed"
    increment = "increment"
    decrement = "decrement"
    randomize = "randomize"


class UploadType(_TextEnum):
    """What an upload button takes; the value is the option's name."""

    image = "image_upload"
    audio = "audio_upload"
    video = "video_upload"
    model = "file_upload"


class FolderType(_TextEnum):
    """The folders that files of the user live in."""

    input = "input"
    output = "output"
    temp = "temp"


@dataclass
class RemoteOptions:
    """Choices that the browser fetches from `route`. `timeout` and `refresh` in milliseconds."""

    route: str
    refresh_button: bool
    control_after_refresh: str = "first"
    timeout: int | None = None
    max_retries: int | None = None
    refresh: int | None = None

    def as_dict(self) -> dict[str, Any]:
        return prune(self.__dict__)


@comfytype(io_type="BOOLEAN")
class Boolean(ComfyTypeIO):
    Type = bool

    class Input(WidgetInput):
        def __init__(
            self,
            id: str,
            display_name: str | None = None,
            optional: bool = False,
            tooltip: str | None = None,
            lazy: bool | None = None,
            default: bool | None = None,
            label_on: str | None = None,
            label_off: str | None = None,
            socketless: bool | None = None,
            force_input: bool | None = None,
            extra_dict: dict[str, Any] | None = None,
            raw_link: bool | None = None,
            advanced: bool | None = None,
        ) -> None:
            super().__init__(
                id, display_name, optional, tooltip, lazy, default, socketless, None, force_input, extra_dict,
                raw_link, advanced,
            )  # fmt: skip
            self.label_on = label_on
            self.label_off = label_off

        def own_options(self) -> dict[str, Any]:
            return {"label_on": self.label_on, "label_off": self.label_off}


@comfytype(io_type="INT")
class Int(ComfyTypeIO):
    Type = int

    class Input(WidgetInput):
        def __init__(
            self,
            id: str,
            display_name: str | None = None,
            optional: bool = False,
            tooltip: str | None = None,
            lazy: bool | None = None,
            default: int | None = None,
            min: int | None = None,
            max: int | None = None,
            step: int | None = None,
            control_after_generate: bool | ControlAfterGenerate | None = None,
            display_mode: NumberDisplay | None = None,
            socketless: bool | None = None,
            force_input: bool | None = None,
            extra_dict: dict[str, Any] | None = None,
            raw_link: bool | None = None,
            advanced: bool | None = None,
        ) -> None:
            super().__init__(
                id, display_name, optional, tooltip, lazy, default, socketless, None, force_input, extra_dict,
                raw_link, advanced,
            )  # fmt: skip
            self.min = min
            self.max = max
            self.step = step
            self.control_after_generate = control_after_generate
            self.display_mode = display_mode

        def own_options(self) -> dict[str, Any]:
            return {
                "min": self.min,
                "max": self.max,
                "step": self.step,
                "control_after_generate": enum_value(self.control_after_generate),
                "display": enum_value(self.display_mode),
            }


@comfytype(io_type="FLOAT")
class Float(ComfyTypeIO):
    Type = float

    class Input(WidgetInput):
        def __init__(
            self,
            id: str,
            display_name: str | None = None,
            optional: bool = False,
            tooltip: str | None = None,
            lazy: bool | None = None,
            default: float | None = None,
            min: float | None = None,
            max: float | None = None,
            step: float | None = None,
            round: float | None = None,
            display_mode: NumberDisplay | None = None,
            gradient_stops: list[dict] | None = None,
            socketless: bool | None = None,
            force_input: bool | None = None,
            extra_dict: dict[str, Any] | None = None,
            raw_link: bool | None = None,
            advanced: bool | None = None,
        ) -> None:
            super().__init__(
                id, display_name, optional, tooltip, lazy, default, socketless, None, force_input, extra_dict,
                raw_link, advanced,
            )  # fmt: skip
            self.min = min
            self.max = max
            self.step = step
            self.round = round
            self.display_mode = display_mode
            self.gradient_stops = gradient_stops

        def own_options(self) -> dict[str, Any]:
            return {
                "min": self.min,
                "max": self.max,
                "step": self.step,
                "round": self.round,
                "display": enum_value(self.display_mode),
                "gradient_stops": self.gradient_stops,
            }


@comfytype(io_type="STRING")
class String(ComfyTypeIO):
    Type = str

    class Input(WidgetInput):
        def __init__(
            self,
            id: str,
            display_name: str | None = None,
            optional: bool = False,
            tooltip: str | None = None,
            lazy: bool | None = None,
            multiline: bool = False,
            placeholder: str | None = None,
            default: str | None = None,
            dynamic_prompts: bool | None = None,
            socketless: bool | None = None,
            force_input: bool | None = None,
            extra_dict: dict[str, Any] | None = None,
            raw_link: bool | None = None,
            advanced: bool | None = None,
        ) -> None:
            super().__init__(
                id, display_name, optional, tooltip, lazy, default, socketless, None, force_input, extra_dict,
                raw_link, advanced,
            )  # fmt: skip
            self.multiline = multiline
            self.placeholder = placeholder
            self.dynamic_prompts = dynamic_prompts

        def own_options(self) -> dict[str, Any]:
            return {
                "multiline": self.multiline,
                "placeholder": self.placeholder,
                "dynamicPrompts": self.dynamic_prompts,
            }


def _choices(options: Any) -> list:
    """A list of choices; the values of an Enum class."""
    if options is None:
        return []
    if isinstance(options, type) and issubclass(options, Enum):
        return [member.value for member in options]
    return [enum_value(option) for option in options]


@comfytype(io_type="COMBO")
class Combo(ComfyTypeIO):
    Type = str

    class Input(WidgetInput):
        def __init__(
            self,
            id: str,
            options: list | type[Enum] | None = None,
            display_name: str | None = None,
            optional: bool = False,
            tooltip: str | None = None,
            lazy: bool | None = None,
            default: Any = None,
            control_after_generate: bool | ControlAfterGenerate | None = None,
            upload: UploadType | None = None,
            image_folder: FolderType | None = None,
            remote: RemoteOptions | None = None,
            socketless: bool | None = None,
            extra_dict: dict[str, Any] | None = None,
            raw_link: bool | None = None,
            advanced: bool | None = None,
        ) -> None:
            super().__init__(
                id, display_name, optional, tooltip, lazy, default, socketless, None, None, extra_dict, raw_link,
                advanced,
            )  # fmt: skip
            self.multiselect = False
            self.options = _choices(options)
            self.control_after_generate = control_after_generate
            self.upload = upload
            self.image_folder = image_folder
            self.remote = remote

        def own_options(self) -> dict[str, Any]:
            own = {
                "multiselect": self.multiselect,
                "options": self.options,
                "control_after_generate": enum_value(self.control_after_generate),
            }
            if self.upload is not None:
                own[enum_value(self.upload)] = True
            own["image_folder"] = enum_value(self.image_folder)
            own["remote"] = self.remote.as_dict() if self.remote is not None else None
            return own

    class Output(_Output):
        def __init__(
            self,
            id: str | None = None,
            display_name: str | None = None,
            options: list[str] | None = None,
            tooltip: str | None = None,
            is_output_list: bool = False,
        ) -> None:
            super().__init__(id, display_name, tooltip, is_output_list)
            self.options = _choices(options)


@comfytype(io_type="COMBO")
class MultiCombo(ComfyTypeI):
    """A combo of which several options may be chosen."""

    Type = list

    class Input(Combo.Input):
        def __init__(
            self,
            id: str,
            options: list[str],
            display_name: str | None = None,
            optional: bool = False,
            tooltip: str | None = None,
            lazy: bool | None = None,
            default: list[str] | None = None,
            placeholder: str | None = None,
            chip: bool | None = None,
            control_after_generate: bool | ControlAfterGenerate | None = None,
            socketless: bool | None = None,
            extra_dict: dict[str, Any] | None = None,
            raw_link: bool | None = None,
            advanced: bool | None = None,
        ) -> None:
            super().__init__(
                id, options, display_name, optional, tooltip, lazy, default, control_after_generate,
                socketless=socketless, extra_dict=extra_dict, raw_link=raw_link, advanced=advanced,
            )  # fmt: skip
            self.multiselect = True
            self.placeholder = placeholder
            self.chip = chip

        def own_options(self) -> dict[str, Any]:
            shown = prune({"placeholder": self.placeholder, "chip": self.chip})
            return super().own_options() | {"multi_select": shown}


@comfytype(io_type="IMAGECOMPARE")
class ImageCompare(ComfyTypeI):
    """Shows two images over each other."""

    class Input(WidgetInput):
        def __init__(
            self,
            id: str,
            display_name: str | None = None,
            optional: bool = False,
            tooltip: str | None = None,
            socketless: bool | None = True,
            advanced: bool | None = None,
        ) -> None:
            super().__init__(id, display_name, optional, tooltip, socketless=socketless, advanced=advanced)


@comfytype(io_type="WEBCAM")
class Webcam(ComfyTypeIO):
    Type = str

    class Input(WidgetInput):
        pass


@comfytype(io_type="COLOR")
class Color(ComfyTypeIO):
    """A colour as #rrggbb."""

    Type = str

    class Input(WidgetInput):
        def __init__(
            self,
            id: str,
            display_name: str | None = None,
            optional: bool = False,
            tooltip: str | None = None,
            socketless: bool | None = True,
            advanced: bool | None = None,
            default: str = "#ffffff",
        ) -> None:
            super().__init__(
                id, display_name, optional, tooltip, default=default, socketless=socketless, advanced=advanced
            )


@comfytype(io_type="COLORS")
class Colors(ComfyTypeIO):
    Type = list

    class Input(WidgetInput):
        def __init__(
            self,
            id: str,
            display_name: str | None = None,
            optional: bool = False,
            tooltip: str | None = None,
            socketless: bool | None = True,
            default: list[str] | None = None,
            advanced: bool | None = None,
        ) -> None:
            default = [] if default is None else default
            super().__init__(
                id, display_name, optional, tooltip, default=default, socketless=socketless, advanced=advanced
            )


@comfytype(io_type="BOUNDING_BOX")
class BoundingBox(ComfyTypeIO):
    """`{x, y, width, height}` in pixels."""

    Type = dict

    class Input(WidgetInput):
        def __init__(
            self,
            id: str,
            display_name: str | None = None,
            optional: bool = False,
            tooltip: str | None = None,
            socketless: bool | None = True,
            default: dict | None = None,
            component: str | None = None,
            force_input: bool | None = None,
        ) -> None:
            default = {"x": 0, "y": 0, "width": 512, "height": 512} if default is None else default
            super().__init__(
                id, display_name, optional, tooltip, default=default, socketless=socketless, force_input=force_input
            )
            self.component = component

        def own_options(self) -> dict[str, Any]:
            return {"component": self.component}


@comfytype(io_type="BOUNDING_BOXES")
class BoundingBoxes(ComfyTypeIO):
    Type = list

    class Input(WidgetInput):
        def __init__(
            self,
            id: str,
            display_name: str | None = None,
            optional: bool = False,
            tooltip: str | None = None,
            socketless: bool | None = True,
            default: list | None = None,
            advanced: bool | None = None,
        ) -> None:
            default = [] if default is None else default
            super().__init__(
                id, display_name, optional, tooltip, default=default, socketless=socketless, advanced=advanced
            )


@comfytype(io_type="CURVE")
class Curve(ComfyTypeIO):
    """Points of a curve, with how to go between them."""

    Type = Any

    class Input(WidgetInput):
        def __init__(
            self,
            id: str,
            display_name: str | None = None,
            optional: bool = False,
            tooltip: str | None = None,
            socketless: bool | None = True,
            default: list[tuple[float, float]] | None = None,
            advanced: bool | None = None,
        ) -> None:
            default = [(0.0, 0.0), (1.0, 1.0)] if default is None else default
            super().__init__(
                id, display_name, optional, tooltip, default=default, socketless=socketless, advanced=advanced
            )

        def shown_default(self) -> dict[str, Any]:
            points = [[float(x), float(y)] for x, y in self.default]
            return {"points": points, "interpolation": "monotone_cubic"}


@comfytype(io_type="RANGE")
class Range(ComfyTypeIO):
    """`{min, max}`, and a midpoint if wanted."""

    Type = dict

    class Input(WidgetInput):
        def __init__(
            self,
            id: str,
            display_name: str | None = None,
            optional: bool = False,
            tooltip: str | None = None,
            socketless: bool | None = True,
            default: dict | None = None,
            display: str | None = None,
            gradient_stops: list[dict] | None = None,
            show_midpoint: bool | None = None,
            midpoint_scale: str | None = None,
            value_min: float | None = None,
            value_max: float | None = None,
            advanced: bool | None = None,
        ) -> None:
            default = {"min": 0.0, "max": 1.0} if default is None else default
            super().__init__(
                id, display_name, optional, tooltip, default=default, socketless=socketless, advanced=advanced
            )
            self._own = {
                "display": display,
                "gradient_stops": gradient_stops,
                "show_midpoint": show_midpoint,
                "midpoint_scale": midpoint_scale,
                "value_min": value_min,
                "value_max": value_max,
            }

        def own_options(self) -> dict[str, Any]:
            return self._own


@comfytype(io_type="COMPOSITOR")
class Compositor(ComfyTypeIO):
    Type = dict

    class Input(WidgetInput):
        def __init__(
            self,
            id: str,
            display_name: str | None = None,
            optional: bool = False,
            tooltip: str | None = None,
            socketless: bool | None = True,
            default: dict | None = None,
            advanced: bool | None = None,
        ) -> None:
            default = {} if default is None else default
            super().__init__(
                id, display_name, optional, tooltip, default=default, socketless=socketless, advanced=advanced
            )
