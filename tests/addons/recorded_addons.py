"""Reading the recorded add-ons in tests/data/models/addons, and the small models they go on."""

from __future__ import annotations

import functools
import json
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

import comfy.model_management
import comfy.sd
from comfy.model_patcher import ModelPatcher
from comfy.models import flux, mmdit
from tests.architectures.recorded import build, denoise
from tests.networks.golden import DATA, Golden

ADDONS = DATA / "addons"


def recorded(name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors (float32) and configuration of one recording."""
    with safe_open(ADDONS / f"{name}.io.safetensors", "pt") as f:
        tensors = {key: f.get_tensor(key) for key in f.keys()}  # noqa: SIM118
        return tensors, json.loads(f.metadata()["config"])


def weights(file: str) -> dict[str, Tensor]:
    """The tensors of an add-on's file; stored as float16, used as float32."""
    return {k: v.float() if v.is_floating_point() else v for k, v in load_file(ADDONS / file).items()}


class Alone(nn.Module):
    """A network where patchers look for one."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.diffusion_model = network


PREFIX = "model.diffusion_model."
HOSTS = {"sd1": "unet_sd1", "sd3": "mmdit_sd3", "flux": "flux_dev"}


@functools.cache
def host(name: str) -> tuple[ModelPatcher, Golden]:
    """A small model behind a patcher, and the recording with its inputs. Shared by all tests: they patch clones."""
    golden = Golden(HOSTS[name])
    if name == "sd1":
        return comfy.sd.load_diffusion_model_state_dict(dict(golden.weights)), golden
    if name == "sd3":
        network = build(golden, mmdit.config_from_state_dict(golden.weights, PREFIX), mmdit.MMDiT, PREFIX)
    else:
        axes = tuple(golden.config["unet_config"]["axes_dim"])
        config = flux.config_from_state_dict(golden.weights, PREFIX, axes_dim=axes)
        network = build(golden, config, flux.Flux, PREFIX)
    return ModelPatcher(Alone(network), torch.device("cpu"), torch.device("cpu")), golden


def denoised(patcher: ModelPatcher, golden: Golden, **kwargs: Any) -> Tensor:
    """The full call on the recorded inputs, with the patcher's patches in force."""
    comfy.model_management.load_models_gpu([patcher])
    return denoise(patcher.model.diffusion_model, golden, **kwargs)
