"""Names of socket types, and what a V1 node class consists of (spec node-api.md sections 2 and 2.5)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, Literal, TypedDict


class StrEnum(str, Enum):
    """An enum whose members are texts."""

    def __str__(self) -> str:
        return self.value


class IO(StrEnum):
    """Socket types. A union counts as equal to its members in `!=`, and ANY to everything."""

    STRING = "STRING"
    IMAGE = "IMAGE"
    MASK = "MASK"
    LATENT = "LATENT"
    BOOLEAN = "BOOLEAN"
    INT = "INT"
    FLOAT = "FLOAT"
    COMBO = "COMBO"
    CONDITIONING = "CONDITIONING"
    SAMPLER = "SAMPLER"
    SIGMAS = "SIGMAS"
    GUIDER = "GUIDER"
    NOISE = "NOISE"
    CLIP = "CLIP"
    CONTROL_NET = "CONTROL_NET"
    VAE = "VAE"
    MODEL = "MODEL"
    LORA_MODEL = "LORA_MODEL"
    LOSS_MAP = "LOSS_MAP"
    CLIP_VISION = "CLIP_VISION"
    CLIP_VISION_OUTPUT = "CLIP_VISION_OUTPUT"
    STYLE_MODEL = "STYLE_MODEL"
    GLIGEN = "GLIGEN"
    UPSCALE_MODEL = "UPSCALE_MODEL"
    AUDIO = "AUDIO"
    VIDEO = "VIDEO"
    SVG = "SVG"
    POINT = "POINT"
    FACE_ANALYSIS = "FACE_ANALYSIS"
    BBOX = "BBOX"
    SEGS = "SEGS"
    HOOKS = "HOOKS"
    HOOK_KEYFRAMES = "HOOK_KEYFRAMES"
    TIMESTEPS_RANGE = "TIMESTEPS_RANGE"
    WEBCAM = "WEBCAM"
    ANY = "*"
    NUMBER = "FLOAT,INT"
    PRIMITIVE = "STRING,FLOAT,INT,BOOLEAN"

    def __ne__(self, other: object) -> bool:
        if not isinstance(other, str):
            return True
        mine, theirs = str.__str__(self.value), str.__str__(other.value if isinstance(other, Enum) else other)
        if "*" in (mine, theirs):
            return False
        mine_set, their_set = set(mine.split(",")), set(theirs.split(","))
        return not (their_set <= mine_set or mine_set <= their_set)

    __hash__ = str.__hash__


class InputTypeOptions(TypedDict, total=False):
    """The options of an input that the server looks at, and the most common others (spec 2.2)."""

    default: Any
    min: float
    max: float
    step: float
    round: float
    options: list
    multiselect: bool
    lazy: bool
    rawLink: bool
    forceInput: bool
    multiline: bool
    dynamicPrompts: bool
    placeholder: str
    tooltip: str
    control_after_generate: bool
    image_upload: bool
    label_on: str
    label_off: str


class HiddenInputTypeDict(TypedDict, total=False):
    """The usual names of hidden inputs."""

    unique_id: Literal["UNIQUE_ID"]
    prompt: Literal["PROMPT"]
    extra_pnginfo: Literal["EXTRA_PNGINFO"]
    dynprompt: Literal["DYNPROMPT"]


class InputTypeDict(TypedDict, total=False):
    """What INPUT_TYPES returns."""

    required: dict[str, tuple]
    optional: dict[str, tuple]
    hidden: dict[str, str]


class ComfyNodeABC(ABC):
    """The members of a V1 node class, for editors and type checkers; using it is optional."""

    DESCRIPTION: str
    CATEGORY: str
    EXPERIMENTAL: bool
    DEPRECATED: bool
    DEV_ONLY: bool
    API_NODE: bool | None
    INPUT_IS_LIST: bool
    OUTPUT_NODE: bool
    OUTPUT_IS_LIST: tuple[bool, ...]
    RETURN_TYPES: tuple
    RETURN_NAMES: tuple[str, ...]
    OUTPUT_TOOLTIPS: tuple[str, ...]
    FUNCTION: str

    @classmethod
    @abstractmethod
    def INPUT_TYPES(cls) -> InputTypeDict:
        """The inputs."""
        return {"required": {}}


class CheckLazyMixin:
    """A check_lazy_status that asks for every input that is not there yet."""

    def check_lazy_status(self, **kwargs: Any) -> list[str]:
        """The names of the arguments that are None."""
        return [name for name, value in kwargs.items() if value is None]


class FileLocator(TypedDict):
    """A file as UI data tells about it."""

    filename: str
    subfolder: str
    type: Literal["input", "output", "temp"]
