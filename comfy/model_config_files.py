"""Configuration files (.yaml) beside old checkpoints: what in them a checkpoint's tensors do not tell."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from comfy.weights import WeightsFileError


class ConfigFileError(WeightsFileError):
    """A configuration file cannot be used."""


class ModelConfigFile(NamedTuple):
    """velocity: the network predicts velocity; clip_layer: which layer of the text encoder is used (None: the family's
    own)."""

    velocity: bool = False
    clip_layer: int | None = None


def read_config_file(path: str) -> ModelConfigFile:
    """The facts of a file in the layout of Stability AI's repositories. Raises ConfigFileError naming the file."""
    import yaml

    if not os.path.isfile(path):
        raise ConfigFileError(path, None, "there is no such file")
    size = os.path.getsize(path)
    try:
        with open(path, encoding="utf-8") as f:
            content = yaml.safe_load(f)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigFileError(path, size, f"it is no YAML file ({str(error).splitlines()[0]})") from error
    params = _entry(content, "model", "params")
    if not isinstance(params, dict):
        raise ConfigFileError(path, size, "it has no entry model.params, as configurations of models have")
    layer = None
    text = _entry(params, "cond_stage_config", "params")
    if isinstance(text, dict) and text.get("layer") in ("penultimate", "hidden"):
        layer = text.get("layer_idx", -2)
        if not isinstance(layer, int):
            raise ConfigFileError(path, size, f"its layer_idx {layer!r} is no whole number")
    return ModelConfigFile(params.get("parameterization") == "v", layer)


def _entry(content: Any, *names: str) -> Any:
    for name in names:
        content = content.get(name) if isinstance(content, dict) else None
    return content
