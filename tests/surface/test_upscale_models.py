"""Models that enlarge images, against a recorded one."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import comfy.upscale_models as upscale_models
import folder_paths
from comfy.models.rrdbnet import RRDBNet, RRDBNetConfig, common_names, config_from_state_dict

DATA = Path(__file__).parents[1] / "data" / "models" / "addons"
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def tensors():
    return load_file(DATA / "esrgan_4x_tiny.safetensors")


@pytest.fixture(scope="module")
def recorded():
    return load_file(DATA / "esrgan_4x_tiny.io.safetensors")


def close(out, expected):
    assert out.shape == expected.shape
    assert (out - expected).abs().max() < TOLERANCE


def test_the_network(tensors, recorded):
    model = upscale_models.load_state_dict(tensors)
    assert (model.scale, model.input_channels, model.output_channels) == (4, 3, 3)
    assert model.model.config == RRDBNetConfig(num_feat=8, num_block=1, num_grow_ch=32)
    close(model(recorded["in.pixels"].movedim(-1, 1)), recorded["out.raw"])


def test_tiles(tensors, recorded):
    from comfy.tiling import tiled_scale

    model = upscale_models.load_state_dict(tensors)
    out = tiled_scale(recorded["in.pixels"].movedim(-1, 1), model, tile_x=16, tile_y=16, overlap=4, upscale_amount=4)
    close(out, recorded["out.tiled_16_o4"])


def test_the_nodes(tmp_path, monkeypatch, tensors, recorded):
    from comfy_extras.nodes_upscale_model import ImageUpscaleWithModel, UpscaleModelLoader

    save_file(tensors, tmp_path / "tiny.safetensors")
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "upscale_models", ([str(tmp_path)], {".safetensors"}))
    model = UpscaleModelLoader.execute("tiny.safetensors").args[0]
    close(ImageUpscaleWithModel.execute(model, recorded["in.pixels"]).args[0], recorded["out.node"])
    assert "tiny.safetensors" in UpscaleModelLoader.INPUT_TYPES()["required"]["model_name"][1]["options"]


def test_smaller_tiles_when_memory_does_not_suffice(monkeypatch, tensors):
    model = upscale_models.load_state_dict(tensors)
    image = torch.rand(1, 300, 300, 3, generator=torch.Generator().manual_seed(0))
    sizes = []
    run = model.model.forward

    def limited(x):
        sizes.append(max(x.shape[-2:]))
        if sizes[-1] > 256:
            raise torch.OutOfMemoryError("no room")
        return run(x)

    monkeypatch.setattr(model.model, "forward", limited)
    assert upscale_models.upscale(model, image).shape == (1, 1200, 1200, 3)
    assert max(sizes) == 300 and sizes[1] <= 256
    monkeypatch.setattr(model.model, "forward", lambda x: (_ for _ in ()).throw(torch.OutOfMemoryError("never")))
    with pytest.raises(torch.OutOfMemoryError):
        upscale_models.upscale(model, image)


NAMINGS = {
    "BasicSR": lambda key: key,
    "paper": lambda key: (
        key.replace("body.0.rdb", "RRDB_trunk.0.RDB")
        .replace("conv_body", "trunk_conv")
        .replace("conv_up", "upconv")
        .replace("conv_hr", "HRconv")
    ),
    "wrapped": lambda key: "module." + key,
    "generator": lambda key: "netG." + key,
    "with its optimiser": lambda key: key,
}


@pytest.mark.parametrize("naming", NAMINGS)
def test_namings(tensors, recorded, naming):
    renamed = {NAMINGS[naming](key): value for key, value in common_names(tensors).items()}
    if naming == "wrapped":
        renamed = {"params_ema": renamed, "params": {}}
    if naming == "with its optimiser":
        renamed = {"model_state_dict": renamed, "optimizer": {}}
    close(upscale_models.load_state_dict(renamed)(recorded["in.pixels"].movedim(-1, 1)), recorded["out.raw"])


@pytest.mark.parametrize(
    "config",
    [
        RRDBNetConfig(num_feat=4, num_block=2, num_grow_ch=2, unshuffle=2),
        RRDBNetConfig(num_feat=4, num_block=1, num_grow_ch=2, unshuffle=4),
        RRDBNetConfig(num_feat=4, num_block=1, num_grow_ch=2, upsamples=1),
        RRDBNetConfig(num_feat=4, num_block=1, num_grow_ch=2, upsamples=3),
        RRDBNetConfig(num_feat=4, num_block=1, num_grow_ch=2, in_channels=1, out_channels=1),
    ],
)
def test_configurations_are_read_from_shapes(config):
    net = RRDBNet(config)
    assert config_from_state_dict(net.state_dict()) == config
    out = net(torch.zeros(1, config.in_channels, 9, 7))
    assert out.shape == (1, config.out_channels, 9 * config.scale, 7 * config.scale)


def test_the_first_release_with_one_doubling(tensors):
    """Layers 0, 1, 3 (doubling), 5, 7."""
    shorter = {k: v for k, v in tensors.items() if not k.startswith("model.6.")}
    shorter = {k.replace("model.8.", "model.5.").replace("model.10.", "model.7."): v for k, v in shorter.items()}
    assert upscale_models.load_state_dict(shorter).scale == 2


def test_other_files_are_refused_by_name(tmp_path):
    save_file({"some.weight": torch.zeros(1)}, tmp_path / "odd.safetensors")
    with pytest.raises(upscale_models.UnknownUpscaleModel, match=r"odd\.safetensors.*some\.weight"):
        upscale_models.load_upscale_model(str(tmp_path / "odd.safetensors"))


class FakeSpandrel:
    """Stands in for the library where it is not installed."""

    class UnsupportedModelError(Exception):
        pass

    class ImageModelDescriptor:
        scale, input_channels, output_channels = 2, 3, 3

        def __init__(self, weight):
            self.model = torch.nn.Conv2d(1, 1, 1)
            self.factor = float(weight)

        def to(self, device):
            self.model.to(device)
            return self

        def __call__(self, image):
            return (image.repeat_interleave(2, -1).repeat_interleave(2, -2) * self.factor).clamp(0, 1)

    class ModelLoader:
        def load_from_state_dict(self, sd):
            if "mask" in sd:
                return object()
            if "swin.weight" not in sd:
                raise FakeSpandrel.UnsupportedModelError
            if "swin.damaged" in sd:
                raise sd["swin.damaged"]
            return FakeSpandrel.ImageModelDescriptor(sd["swin.weight"])


def test_other_architectures_are_left_to_spandrel(monkeypatch):
    monkeypatch.setitem(sys.modules, "spandrel", FakeSpandrel)
    model = upscale_models.load_state_dict({"params": {"module.swin.weight": torch.tensor(0.5)}})
    assert not any(p.requires_grad for p in model.model.parameters())
    image = torch.rand(1, 6, 5, 3)
    out = upscale_models.upscale(model, image)
    assert out.shape == (1, 12, 10, 3) and torch.allclose(out[:, ::2, ::2], image * 0.5, atol=1e-6)
    with pytest.raises(upscale_models.UnknownUpscaleModel, match=r"no known upscale model.*a\.weight"):
        upscale_models.load_state_dict({"a.weight": torch.zeros(1)})
    with pytest.raises(upscale_models.UnknownUpscaleModel, match="more than one image"):
        upscale_models.load_state_dict({"mask": torch.zeros(1)})


def test_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "spandrel", None)
    with pytest.raises(upscale_models.UnknownUpscaleModel, match=r"swin\.weight.*darkroom\[upscale\]"):
        upscale_models.load_state_dict({"swin.weight": torch.tensor(0.5)})


@pytest.mark.parametrize("error", [KeyError("conv_last.weight"), RuntimeError("size mismatch"), ZeroDivisionError()])
def test_what_the_library_stumbles_over_is_told(monkeypatch, error):
    monkeypatch.setitem(sys.modules, "spandrel", FakeSpandrel)
    with pytest.raises(upscale_models.UnknownUpscaleModel, match=f"spandrel cannot use.*{type(error).__name__}"):
        upscale_models.load_state_dict({"swin.weight": torch.tensor(0.5), "swin.damaged": error})


def test_a_library_that_cannot_be_imported_is_told(monkeypatch, tmp_path):
    """A torchvision made for another torch."""
    (tmp_path / "spandrel.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "spandrel", raising=False)
    with pytest.raises(upscale_models.UnknownUpscaleModel, match=r"cannot be imported.*torchvision::nms"):
        upscale_models.load_state_dict({"swin.weight": torch.tensor(0.5)})


@pytest.mark.parametrize("channels", [1, 4])
def test_images_of_other_channels_are_refused(tensors, channels):
    model = upscale_models.load_state_dict(tensors)
    with pytest.raises(ValueError, match=f"takes images with 3 channels, these have {channels}"):
        upscale_models.upscale(model, torch.zeros(1, 16, 16, channels))


def test_with_the_library_itself():
    spandrel = pytest.importorskip("spandrel")
    architecture = importlib.import_module("spandrel.architectures.Compact.__arch.SRVGG")
    net = architecture.SRVGGNetCompact(num_in_ch=3, num_out_ch=3, num_feat=8, num_conv=2, upscale=2)
    model = upscale_models.load_state_dict(net.state_dict())
    assert isinstance(model, spandrel.ImageModelDescriptor) and model.scale == 2
    assert upscale_models.upscale(model, torch.rand(1, 16, 16, 3)).shape == (1, 32, 32, 3)
