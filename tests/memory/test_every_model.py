"""Whatever has weights goes through the ledger: counted, kept, taken off for others, streamed, given back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import comfy.devices as devices
import comfy.latent_formats
import comfy.model_management
import comfy.ops
import comfy.upscale_models
import folder_paths
import latent_preview
from comfy.clip_vision import ClipVisionModel
from comfy.controlnet import load_controlnet
from comfy.gligen import GligenModel
from comfy.ledger import ledger_of, totals
from comfy.loaded_models import run_goes_on
from comfy.lora_bypass import INJECTION, load_bypass_lora_for_models
from comfy.model_patcher import ModelPatcher
from comfy.style_model import ReduxImageEncoder, StyleModel
from nodes.hypernetworks import HypernetworkLoader
from tests.addons.recorded_addons import ADDONS, host, recorded
from tests.addons.test_hypernetworks import file_for
from tests.memory.conftest import HOST, PAPER
from tests.networks.golden import DATA, Golden
from tests.surface.test_upscale_models import FakeSpandrel


@pytest.fixture(autouse=True)
def runs_on_paper(monkeypatch, device):
    """The simulated device is where models run; the model that add-ons' tests share stays where it was."""
    host("sd1")
    for name in ("get_torch_device", "text_encoder_device"):
        monkeypatch.setattr(comfy.model_management, name, lambda: PAPER)
    with torch.inference_mode():
        yield


@dataclass
class Case:
    """A model that nodes use, and one use of it. file: what the ledger is to call its file."""

    model: nn.Module
    run: Callable[[], Tensor]
    file: str | None = None


def _filled(network: nn.Module) -> nn.Module:
    with torch.inference_mode(False):
        network = network.to_empty(device="cpu").requires_grad_(False)
        for loose in network.parameters():  # those of no layer keep this
            loose.fill_(0.1)
        return comfy.ops.init_weights(network, seed=3).eval()


def _control(unet: ModelPatcher, file: str) -> Case:
    inputs = Golden("unet_sd1").inputs
    control = load_controlnet(str(ADDONS / file))
    hint = recorded("t2i")[0]["in.hint"] if "t2i" in file else recorded("controlnet_sd1")[0]["in.hint"]
    control = control.copy().set_cond_hint(hint, 0.7)

    def run() -> Tensor:
        models = [unet, *control.get_models()]
        comfy.model_management.load_models_gpu(models)
        control.pre_run(unet.model, unet.model.model_sampling.percent_to_sigma)
        sigma = torch.full((inputs["x"].shape[0],), 3.0)
        made = control.get_control(inputs["x"], sigma, {"c_crossattn": inputs["context"]}, 1, {})
        control.cleanup()
        for patcher in models:
            patcher.cleanup()
        return torch.cat([t.flatten() for tensors in made.values() for t in tensors if t is not None])

    return Case(control.get_models()[0].model, run, file)


def control_net(unet, tmp_path, monkeypatch):
    return _control(unet, "controlnet_sd1.safetensors")


def control_lora(unet, tmp_path, monkeypatch):
    return _control(unet, "control_lora_sd1.safetensors")


def t2i_adapter(unet, tmp_path, monkeypatch):
    return _control(unet, "t2i_full.safetensors")


IMAGE = torch.rand(1, 12, 10, 3, generator=torch.Generator().manual_seed(0))


def upscaler(unet, tmp_path, monkeypatch):
    model = comfy.upscale_models.load_upscale_model(str(ADDONS / "esrgan_4x_tiny.safetensors"))
    return Case(model.model, lambda: comfy.upscale_models.upscale(model, IMAGE), "esrgan_4x_tiny.safetensors")


def upscaler_of_spandrel(unet, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "spandrel", FakeSpandrel)
    model = comfy.upscale_models.load_state_dict({"swin.weight": torch.tensor(0.5)})
    return Case(model.model, lambda: comfy.upscale_models.upscale(model, IMAGE))


def style_model(unet, tmp_path, monkeypatch):
    model = StyleModel(_filled(ReduxImageEncoder(8, 32, 16, device="meta")))
    seen = type("Seen", (), {"last_hidden_state": torch.ones(1, 5, 8)})()
    return Case(model.model, lambda: model.get_cond(seen))


def image_encoder(unet, tmp_path, monkeypatch):
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    encoder = ClipVisionModel({**shape, "image_size": 28, "patch_size": 14, "projection_dim": 8}, torch.float32)
    _filled(encoder.model)
    return Case(encoder.model, lambda: encoder.encode_image(IMAGE).last_hidden_state)


def hypernetwork(unet, tmp_path, monkeypatch):
    file_for(24, tmp_path / "net.pt", is_layer_norm=True)
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "hypernetworks", ([str(tmp_path)], {".pt"}))
    patched = HypernetworkLoader.execute(unet, "net.pt", 0.5).args[0].clone()
    patch = patched.model_options["transformer_options"]["patches"]["attn1_patch"][0]
    keys = torch.ones(1, 3, 24)

    def run() -> Tensor:
        comfy.model_management.load_models_gpu([patched])
        return patch(keys, keys, keys * 2, {})[1]

    return Case(patched.get_additional_models()[0].model, run, "net.pt")


def lora_beside(unet, tmp_path, monkeypatch):
    patched, _ = load_bypass_lora_for_models(unet, None, load_file(ADDONS / "lora_kohya_linear.safetensors"), 0.8, 0)
    golden = Golden("unet_sd1")

    def run() -> Tensor:
        comfy.model_management.load_models_gpu([patched])
        out = patched.model.diffusion_model(
            golden.inputs["x"], golden.inputs["timesteps"], context=golden.inputs["context"]
        )
        patched.cleanup()
        return out

    return Case(patched.get_additional_models_with_key(INJECTION)[0].model, run)


def preview(unet, tmp_path, monkeypatch):
    (tmp_path / "taesd_decoder.safetensors").write_bytes((DATA / "taesd_decoder.safetensors").read_bytes())
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "vae_approx", ([str(tmp_path)], {".safetensors"}))
    monkeypatch.setattr(latent_preview.args, "preview_method", latent_preview.LatentPreviewMethod.TAESD)
    latent = torch.rand(1, 4, 4, 4, generator=torch.Generator().manual_seed(1))

    def run() -> Tensor:
        previewer = latent_preview.get_previewer(PAPER, comfy.latent_formats.SD15())
        return torch.tensor(list(previewer.decode_latent_to_preview(latent).tobytes()))

    run()
    return Case(latent_preview.get_previewer(PAPER, comfy.latent_formats.SD15()).taesd.patcher.model, run)


def gligen(unet, tmp_path, monkeypatch):
    from comfy.gligen import load_gligen
    from tests.addons.test_gligen import for_host

    torch.save(for_host(), tmp_path / "gligen.pt")
    patcher = load_gligen(str(tmp_path / "gligen.pt"))
    assert isinstance(patcher.model, GligenModel)
    x = torch.ones(1, 16, patcher.model.module_list[0].linear.weight.shape[0])

    def run() -> Tensor:
        comfy.model_management.load_models_gpu([patcher])
        patch = patcher.model.set_empty((1, 4, 4, 4), HOST)
        return patch(x, {"transformer_index": 0})

    return Case(patcher.model, run, "gligen.pt")


CASES = [
    control_net,
    control_lora,
    t2i_adapter,
    upscaler,
    upscaler_of_spandrel,
    style_model,
    image_encoder,
    hypernetwork,
    lora_beside,
    preview,
    gligen,
]


@pytest.fixture(params=CASES, ids=lambda case: case.__name__)
def case(request, unet, tmp_path, monkeypatch, runs_on_paper):
    return request.param(unet, tmp_path, monkeypatch)


class Guest(nn.Sequential):
    """A model that needs the whole device."""


def test_it_stays_counted_until_others_need_the_memory(device, case):
    first = case.run()
    record = ledger_of(PAPER).record(case.model)
    assert record.loads == 1 and record.evictions == 0 and record.last_use > 0
    assert record.bytes == record.loaded_bytes == devices.module_size(case.model) > 0
    assert device.used >= record.bytes
    assert case.file is None or record.file.endswith(case.file)

    before = totals()
    assert torch.equal(case.run(), first)
    again = totals() - before
    assert (again.disk_reads, again.copies, again.streamed, again.patches, again.loads) == (0, 0, 0, 0, 0)

    guest = ModelPatcher(Guest(comfy.ops.manual_cast.Linear(64, 64)), PAPER, HOST)
    comfy.model_management.load_models_gpu([guest], memory_required=device.size)
    assert (record.loaded_bytes, record.evictions, record.evicted_by) == (0, 1, "Guest")
    assert torch.equal(case.run(), first) and record.loads == 2

    comfy.model_management.unload_all_models("a test")
    assert device.used == 0 and record.evicted_by == "a test"
    assert all(tensor.device == HOST for tensor in case.model.state_dict().values())


def test_it_is_streamed_where_nothing_may_stay(device, case, monkeypatch):
    if case.model.__class__.__name__ in ("Conv2d", "PreviewNetwork"):
        pytest.skip("layers that are not ours cannot visit; previews need no budget")
    whole = case.run()
    comfy.model_management.unload_all_models()
    monkeypatch.setattr(devices, "vram_state", devices.VRAMState.NO_VRAM)
    before = totals()
    assert torch.equal(case.run(), whole)
    assert (totals() - before).streamed_bytes > 0
    record = ledger_of(PAPER).record(case.model)
    assert record.loaded_bytes < record.bytes / 2 and record.loads == 2


def test_a_control_lora_takes_no_second_encoder(device, unet, tmp_path, monkeypatch):
    case = control_lora(unet, tmp_path, monkeypatch)
    case.run()
    assert device.used == unet.model_size() + devices.module_size(case.model)


def test_nothing_gives_way_for_a_preview(device, unet, tmp_path, monkeypatch):
    case = preview(unet, tmp_path, monkeypatch)
    picture = case.run()
    comfy.model_management.unload_all_models()
    comfy.model_management.load_models_gpu([unet])
    device.size = device.used + devices.module_size(case.model) // 2
    before = totals()
    assert torch.equal(case.run(), picture)
    after = totals() - before
    assert (after.loads, after.evictions, after.copies) == (0, 0, 0) and unet.loaded_size() == unet.model_size()


@pytest.mark.parametrize("content", [b"<html>", (ADDONS / "esrgan_4x_tiny.safetensors").read_bytes()])
def test_a_previews_file_that_is_none_stops_no_prompt(unet, tmp_path, monkeypatch, caplog, content):
    preview(unet, tmp_path, monkeypatch)
    (tmp_path / "taesd_decoder.safetensors").write_bytes(content)
    previewer = latent_preview.get_previewer(PAPER, comfy.latent_formats.SD15())
    assert isinstance(previewer, latent_preview.Latent2RGBPreviewer) and "taesd_decoder.safetensors" in caplog.text


def test_a_run_that_needs_another_model_in_between_gets_its_own_back(device, unet, monkeypatch):
    """A VAE in the middle of sampling: afterwards the run's models are there, beside the memory the run works in;
    models that it never used stay away."""
    idle, vae = (ModelPatcher(Guest(*_layers(4)), PAPER, HOST) for _ in range(2))
    device.size = unet.model_size() + idle.model_size() + 2**20
    comfy.model_management.load_models_gpu([idle])
    working = 2**21
    comfy.model_management.load_models_gpu([unet], memory_required=working)
    resident = unet.loaded_size()
    with run_goes_on():
        comfy.model_management.load_models_gpu([vae], memory_required=device.size)
        assert unet.loaded_size() == 0
    assert abs(unet.loaded_size() - resident) <= 0.05 * unet.model_size()
    assert device.free() >= working and idle.loaded_size() == 0


def _layers(count: int) -> list[nn.Module]:
    return [comfy.ops.manual_cast.Linear(256, 256, bias=False) for _ in range(count)]
