"""Models that enlarge images: from a file to something that can be called, and its use on images of any size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import comfy.model_management
import comfy.ops
import comfy.utils
from comfy.device_memory import normalized
from comfy.held_weights import patcher_for
from comfy.model_patcher import ModelPatcher
from comfy.models import rrdbnet
from comfy.tiling import get_tiled_scale_steps, tiled_scale

TILE, OVERLAP, SMALLEST_TILE = 512, 32, 128
_BYTES_PER_PIXEL_AND_BYTE = 384  # working memory of a tile, per pixel and byte of a number
_PREFIXES = ("module.", "netG.", "params_ema.", "params.")
_PATCHER = "weights_on_device"  # the attribute of a model that keeps its patcher
_WRAPPERS = ("params_ema", "params-ema", "params", "state_dict", "model_state_dict", "model", "net")


class UnknownUpscaleModel(ValueError):
    """The tensors of a file are of no architecture that is known here."""


class UpscaleModel:
    """A network that enlarges images, with what packs ask of it.

    model: the Module; scale: side of the output over that of the input; input_channels, output_channels.
    Calling it with an image [batch, channels, height, width] in 0..1 gives the large one, in 0..1.
    """

    def __init__(self, model: rrdbnet.RRDBNet):
        self.model = model
        config = model.config
        self.scale = int(config.scale) if config.scale == int(config.scale) else config.scale
        self.input_channels = config.in_channels
        self.output_channels = config.out_channels

    def __call__(self, image: Tensor) -> Tensor:
        return self.model(image).clamp(0.0, 1.0)

    def to(self, device: Any = None, dtype: torch.dtype | None = None) -> UpscaleModel:
        """Move the weights. Returns itself."""
        self.model.to(device=device, dtype=dtype)
        return self

    def cpu(self) -> UpscaleModel:
        return self.to("cpu")

    def cuda(self) -> UpscaleModel:
        return self.to("cuda")

    def eval(self) -> UpscaleModel:
        self.model.eval()
        return self

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype

    def parameters(self) -> Any:
        return self.model.parameters()

    def state_dict(self) -> dict[str, Tensor]:
        return self.model.state_dict()


def load_state_dict(state_dict: Mapping[str, Any]) -> Any:
    """The model for a file's tensors, in float32 on the CPU: ESRGAN and Real-ESRGAN as an `UpscaleModel`, any other
    architecture as the library spandrel describes it (extra `upscale`), which is called the same way.

    Raises UnknownUpscaleModel naming some of the tensors when the architecture is not known.
    """
    sd = state_dict
    for name in _WRAPPERS:  # training frameworks put the tensors one level down
        if isinstance(sd.get(name), Mapping):
            sd = sd[name]
            break
    for prefix in _PREFIXES:
        sd = {key.removeprefix(prefix): value for key, value in sd.items()}
    try:
        tensors = rrdbnet.common_names({key: value for key, value in sd.items() if isinstance(value, Tensor)})
        config = rrdbnet.config_from_state_dict(tensors)
        with torch.inference_mode(False):
            model = rrdbnet.RRDBNet(config, device="meta", operations=comfy.ops.disable_weight_init)
            model.load_state_dict({key: value.float() for key, value in tensors.items()}, assign=True)
    except (LookupError, RuntimeError, ValueError, TypeError, ArithmeticError) as error:
        shown = ", ".join(list(sd)[:5])
        text = f"no known upscale model has these {len(sd)} tensors: {shown}, ..."
        return _load_with_spandrel(sd, text, error)
    return UpscaleModel(model.eval().requires_grad_(False))


def _load_with_spandrel(sd: Mapping[str, Any], text: str, cause: Exception) -> Any:
    """As `load_state_dict`, for the architectures that spandrel knows. text: what to say of others."""
    try:
        import spandrel
    except Exception as error:  # a torchvision made for another torch is a RuntimeError
        hint = "; other architectures than ESRGAN need the library spandrel: pip install 'darkroom[upscale]'"
        if not (isinstance(error, ModuleNotFoundError) and error.name == "spandrel"):
            hint = f"; the library spandrel, for other architectures than ESRGAN, cannot be imported ({error})"
        raise UnknownUpscaleModel(text + hint) from cause
    try:
        with torch.inference_mode(False):
            described = spandrel.ModelLoader().load_from_state_dict(dict(sd))
    except spandrel.UnsupportedModelError as error:
        raise UnknownUpscaleModel(text) from error
    except Exception as error:  # it takes a file for one of its own by few names, and then fails in many ways
        why = f"the library spandrel cannot use these {len(sd)} tensors ({type(error).__name__}: {error})"
        raise UnknownUpscaleModel(why) from error
    if not isinstance(described, spandrel.ImageModelDescriptor):
        kind = type(described).__name__
        raise UnknownUpscaleModel(f"the model is a {kind}, which takes more than one image")
    described.model.eval().requires_grad_(False)
    return described


def load_upscale_model(path: str) -> UpscaleModel:
    """Read a file. Raises UnknownUpscaleModel naming the file, and what `comfy.utils.load_torch_file` raises."""
    import os

    try:
        loaded = load_state_dict(comfy.utils.load_torch_file(path, safe_load=True))
    except UnknownUpscaleModel as error:
        raise UnknownUpscaleModel(f"{os.path.basename(path)}: {error}") from error
    loaded.model.weights_file = path
    return loaded


def patcher_of(model: Any) -> ModelPatcher | None:
    """What loads the model's weights onto the device of the moment; None for something that has no network `model`."""
    network = getattr(model, "model", None)
    if not isinstance(network, nn.Module):
        return None
    device = normalized(comfy.model_management.get_torch_device())
    patcher = getattr(model, _PATCHER, None)
    if patcher is None or patcher.model is not network or patcher.load_device != device:
        patcher = patcher_for(network, device)
        setattr(model, _PATCHER, patcher)
    return patcher


def upscale(model: Any, images: Tensor) -> Tensor:
    """Images [batch, height, width, 3] in 0..1, enlarged in tiles; tiles are halved when memory does not suffice.

    model: an `UpscaleModel`, or whatever a pack made that is called the same way. Its weights stay on the device.
    Raises ValueError for images with another number of channels than the model takes.
    """
    device = comfy.model_management.get_torch_device()
    image = images.movedim(-1, -3)
    taken = getattr(model, "input_channels", None)
    if taken is not None and taken != image.shape[-3]:
        raise ValueError(f"the upscale model takes images with {taken} channels, these have {image.shape[-3]}")
    pixels = min(TILE, image.shape[-2]) * min(TILE, image.shape[-1])
    needed = int(pixels * 3 * image.element_size() * max(model.scale, 1.0) * _BYTES_PER_PIXEL_AND_BYTE)
    needed += image.nelement() * image.element_size()
    patcher = patcher_of(model)
    if patcher is None:
        comfy.model_management.free_memory(needed, device, by=type(model).__name__)
        model.to(device)
    else:
        comfy.model_management.load_models_gpu([patcher], memory_required=needed)
    try:
        return comfy.model_management.to_intermediate(_in_tiles(model, image, device)).movedim(-3, -1)
    finally:
        if patcher is None:
            model.to("cpu")
        else:
            patcher.cleanup()


def _in_tiles(model: Any, image: Tensor, device: torch.device) -> Tensor:
    tile = TILE
    while True:
        try:
            steps = image.shape[0] * get_tiled_scale_steps(image.shape[3], image.shape[2], tile, tile, OVERLAP)
            return tiled_scale(
                image,
                lambda part: model(part.to(device).float()),
                tile_x=tile,
                tile_y=tile,
                overlap=OVERLAP,
                upscale_amount=model.scale,
                output_device=comfy.model_management.intermediate_device(),
                pbar=comfy.utils.ProgressBar(steps),
            )
        except comfy.model_management.OOM_EXCEPTION:
            tile //= 2
            if tile < SMALLEST_TILE:
                raise
