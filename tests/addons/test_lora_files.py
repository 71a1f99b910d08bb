"""LoRA files on disk and the nodes that load them."""

from __future__ import annotations

import logging

import pytest
import torch
from safetensors.torch import save_file

import comfy.lora
import comfy.model_management
import comfy.sd
import comfy.utils
import folder_paths
import nodes
from comfy.lora_files import NotALoraError
from comfy.weights import WeightsFileError
from tests.addons.recorded_addons import ADDONS, host, weights

KEY = "diffusion_model.input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight"
LAYER = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k"
FILE = "lora_kohya_no_alpha.safetensors"


@pytest.fixture
def loras(tmp_path, monkeypatch):
    """A folder of LoRA files."""
    _, extensions = folder_paths.folder_names_and_paths["loras"]
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "loras", ([str(tmp_path)], extensions))
    (tmp_path / FILE).write_bytes((ADDONS / FILE).read_bytes())
    return tmp_path


@pytest.fixture
def model():
    patcher, _ = host("sd1")
    yield patcher
    patcher.detach()


def weight_of(patcher) -> torch.Tensor:
    comfy.model_management.load_models_gpu([patcher])
    return comfy.utils.get_attr(patcher.model, KEY).clone()


def test_strength_scales_the_change(loras, model):
    original = weight_of(model)
    loader = nodes.LoraLoaderModelOnly()
    whole = weight_of(loader.load_lora_model_only(model, FILE, 1.0)[0]) - original
    half = weight_of(loader.load_lora_model_only(model, FILE, 0.5)[0]) - original
    assert whole.abs().max() > 0.01
    assert torch.allclose(half * 2, whole, atol=1e-6)
    assert torch.equal(weight_of(model), original)


def test_zero_strength_returns_what_came_in(loras, model):
    clip = object()
    assert nodes.LoraLoader().load_lora(model, clip, "not there.safetensors", 0, 0) == (model, clip)
    assert nodes.LoraLoaderModelOnly().load_lora_model_only(model, "not there.safetensors", 0.0) == (model,)


def test_file_is_read_once_until_it_changes(loras, model, monkeypatch):
    read = []
    original = comfy.lora.load_lora_file
    monkeypatch.setattr(comfy.lora, "load_lora_file", lambda path: read.append(path) or original(path))
    loader = nodes.LoraLoaderModelOnly()
    for strength in (1.0, 0.5, -1.0):
        loader.load_lora_model_only(model, FILE, strength)
    assert len(read) == 1
    save_file({f"{LAYER}.diff": torch.ones(32, 24)}, loras / FILE)
    changed = loader.load_lora_model_only(model, FILE, 1.0)[0]
    assert len(read) == 2
    assert torch.allclose(weight_of(changed) - weight_of(model), torch.ones(32, 24), atol=1e-6)


def test_another_strength_touches_only_patched_weights(loras, model):
    loader = nodes.LoraLoaderModelOnly()
    first = loader.load_lora_model_only(model, FILE, 1.0)[0]
    comfy.model_management.load_models_gpu([first])
    before = {name: p.data_ptr() for name, p in model.model.named_parameters()}
    second = loader.load_lora_model_only(model, FILE, 0.5)[0]
    comfy.model_management.load_models_gpu([second])
    after = {name: p.data_ptr() for name, p in model.model.named_parameters()}
    assert {name for name in before if before[name] != after[name]} <= {KEY}
    assert set(second.patches) == {KEY}


@pytest.mark.parametrize("content", [b"<html>not found</html>", b"version https://git-lfs.github.com/spec/v1\n", b""])
def test_broken_file_is_named(loras, model, content):
    (loras / "broken.safetensors").write_bytes(content)
    with pytest.raises(WeightsFileError, match=r"broken\.safetensors"):
        nodes.LoraLoaderModelOnly().load_lora_model_only(model, "broken.safetensors", 1.0)


def test_truncated_file_is_named(loras, model):
    content = (loras / FILE).read_bytes()
    (loras / "short.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(WeightsFileError, match=r"short\.safetensors"):
        nodes.LoraLoaderModelOnly().load_lora_model_only(model, "short.safetensors", 1.0)


def test_other_weights_are_no_lora(loras, model):
    save_file({"first_stage_model.decoder.conv_in.weight": torch.zeros(2)}, loras / "vae.safetensors")
    with pytest.raises(NotALoraError, match=r"vae\.safetensors.*first_stage_model\.decoder"):
        nodes.LoraLoaderModelOnly().load_lora_model_only(model, "vae.safetensors", 1.0)


def test_unmatched_names_are_one_warning(model, caplog):
    lora = weights(FILE)
    for i in range(20):
        lora[f"lora_unet_elsewhere_{i}.lora_up.weight"] = torch.zeros(4, 2)
        lora[f"lora_unet_elsewhere_{i}.lora_down.weight"] = torch.zeros(2, 4)
    with caplog.at_level(logging.WARNING, logger="comfy.lora"):
        patched, _ = comfy.sd.load_lora_for_models(model, None, lora, 1.0, 0)
    (warning,) = caplog.records
    assert "40 of 42 tensors" in warning.getMessage() and "lora_unet_elsewhere_0.lora_up.weight" in warning.getMessage()
    assert set(patched.patches) == {KEY}


def test_tensors_that_do_not_fit_leave_the_weight(model, caplog):
    lora = {f"{LAYER}.lora_up.weight": torch.ones(7, 2), f"{LAYER}.lora_down.weight": torch.ones(2, 5)}
    original = weight_of(model)
    with caplog.at_level(logging.ERROR):
        patched, _ = comfy.sd.load_lora_for_models(model, None, lora, 1.0, 0)
        assert torch.equal(weight_of(patched), original)
    assert KEY in caplog.text


def test_text_encoder_is_patched(clip):
    layer = "text_model.encoder.layers.0.self_attn.q_proj"
    key = f"clip_l.transformer.{layer}.weight"
    shape = comfy.utils.get_attr(clip.cond_stage_model, key).shape
    for name in (
        f"lora_te_{layer.replace('.', '_')}",
        f"text_encoder.{layer}",
        f"text_encoders.clip_l.transformer.{layer}",
    ):
        lora = {f"{name}.lora_up.weight": torch.ones(shape[0], 1), f"{name}.lora_down.weight": torch.ones(1, shape[1])}
        model, patched = comfy.sd.load_lora_for_models(None, clip, lora, 1.0, 0.5)
        assert model is None
        original = comfy.utils.get_attr(clip.cond_stage_model, key).float().clone()
        changed = patched.patcher._patched_state_dict()[key].float()
        assert torch.allclose(changed - original, torch.full(shape, 0.5), atol=1e-3)
        assert not clip.patcher.patches


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    from tests.networks import checkpoints

    path = checkpoints.write(tmp_path_factory.mktemp("checkpoint") / "small.safetensors", "unet", "clip")
    return comfy.sd.load_checkpoint_guess_config(path)[1]
