"""Nodes that mix models, against recorded weights and outputs; and what is written to files."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import comfy.model_management
import comfy.sd
import comfy.utils
import folder_paths
from nodes import NODE_CLASS_MAPPINGS
from tests.addons.recorded_addons import host
from tests.networks import checkpoints
from tests.networks.golden import DATA, LIMIT, Golden, error

with safe_open(DATA / "model_merge.io.safetensors", "pt") as f:
    MERGED = {key: f.get_tensor(key) for key in f.keys()}  # noqa: SIM118

NODES = {
    "simple_03": ("ModelMergeSimple", {"ratio": 0.3}),
    "add": ("ModelMergeAdd", {}),
    "subtract_05": ("ModelMergeSubtract", {"multiplier": 0.5}),
    "blocks": ("ModelMergeBlocks", {"input": 0.2, "middle": 0.5, "out": 0.9}),
}


def merge(name: str, first, second, **inputs):
    cls = NODE_CLASS_MAPPINGS[name]
    return cls().merge(first, second, **inputs)[0]


@pytest.fixture(scope="module")
def second():
    """Made from the first, as the recording says."""
    weights = {k: (0.5 * v + 0.25 * v.flip(0)).half().float() for k, v in Golden("unet_sd1").weights.items()}
    return comfy.sd.load_diffusion_model_state_dict(weights)


def check(case: str, out) -> None:
    comfy.model_management.load_models_gpu([out])
    prefix = f"out.{case}.weight."
    for key in [k for k in MERGED if k.startswith(prefix)]:
        weight = comfy.utils.get_attr(out.model.diffusion_model, key.removeprefix(prefix))
        assert torch.allclose(weight, MERGED[key], atol=1e-6), key
    inputs = Golden("unet_sd1").inputs
    denoised = out.model.apply_model(inputs["x"], inputs["sigma"], c_crossattn=inputs["context"])
    # Doubled weights amplify rounding: two attention kernels alone differ by half of this here.
    assert error(denoised, MERGED[f"out.{case}.denoised"]) < 3 * LIMIT
    out.detach()


@pytest.mark.parametrize("case", NODES)
def test_merge_matches_recording(case, second):
    name, inputs = NODES[case]
    check(case, merge(name, host("sd1")[0], second, **inputs))


def test_difference_added_matches_recording(second):
    first, _ = host("sd1")
    difference = merge("ModelMergeSubtract", second, first, multiplier=1.0)
    check("add_difference", merge("ModelMergeAdd", first, difference))


def test_family_node_takes_a_ratio_for_each_block(second):
    first, _ = host("sd1")
    starts = list(NODE_CLASS_MAPPINGS["ModelMergeSD1"].INPUT_TYPES()["required"])[2:]
    ratios = dict.fromkeys(starts, 1.0) | {"input_blocks.1.": 0.25}
    out = merge("ModelMergeSD1", first, second, **ratios)
    patched = out._patched_state_dict()
    for key, weight in first.model_state_dict("diffusion_model.").items():
        other = second.model_state_dict()[key]
        expected = 0.25 * weight + 0.75 * other if ".input_blocks.1." in key else weight
        assert torch.allclose(patched[key], expected, atol=1e-6), key


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    path = checkpoints.write(tmp_path_factory.mktemp("checkpoint") / "small.safetensors")
    return comfy.sd.load_checkpoint_guess_config(path)[:3]


@pytest.fixture
def output(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_paths, "output_directory", str(tmp_path))
    return tmp_path


def save(name: str, *inputs, **hidden) -> None:
    assert NODE_CLASS_MAPPINGS[name]().save(*inputs, **hidden) == {}


def test_text_encoders_are_mixed(parts):
    _, clip, _ = parts
    own = clip.get_sd()
    for name, inputs, factor in (
        ("CLIPMergeSimple", {"ratio": 0.3}, 1.0),
        ("CLIPMergeAdd", {}, 2.0),
        ("CLIPMergeSubtract", {"multiplier": 2.0}, 0.0),
    ):
        for key, weight in merge(name, clip, clip, **inputs).get_sd().items():
            if key.endswith(".weight"):
                assert torch.allclose(weight.float(), own[key].float() * factor, atol=1e-2, rtol=1e-3), (name, key)


def test_checkpoint_with_patches_comes_back(parts, output):
    model, clip, vae = parts
    key = "diffusion_model.input_blocks.0.0.weight"
    patched = model.clone()
    patched.add_patches({key: (torch.ones(32, 4, 3, 3),)}, 0.5)
    prompt, workflow = {"1": {"class_type": "CheckpointSave"}}, {"workflow": {"nodes": []}}
    for _ in range(2):
        save("CheckpointSave", patched, clip, vae, "models/mine", prompt=prompt, extra_pnginfo=workflow)
    files = sorted(p.name for p in (output / "models").iterdir())
    assert files == ["mine_00001_.safetensors", "mine_00002_.safetensors"]
    path = str(output / "models" / files[0])
    with safe_open(path, "pt") as f:
        assert json.loads(f.metadata()["prompt"]) == prompt and json.loads(f.metadata()["workflow"]) == {"nodes": []}
    again, clip_again, vae_again = comfy.sd.load_checkpoint_guess_config(path)[:3]
    before, after = model.model_state_dict(key), again.model_state_dict(key)
    assert torch.allclose(after[key].float(), before[key].float() + 0.5, atol=1e-2)
    for first, second in ((clip.get_sd(), clip_again.get_sd()), (vae.get_sd(), vae_again.get_sd())):
        assert first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_parts_come_back(parts, output):
    model, clip, vae = parts
    save("ModelSave", model, "unet")
    save("VAESave", vae, "vae")
    save("CLIPSave", clip, "clip")
    unet = comfy.sd.load_diffusion_model(str(output / "unet_00001_.safetensors"))
    own = model.model_state_dict()
    assert all(torch.equal(v, own[k]) for k, v in unet.model_state_dict().items())
    read = comfy.sd.VAE(sd=load_file(output / "vae_00001_.safetensors")).get_sd()
    assert all(torch.equal(v, read[k]) for k, v in vae.get_sd().items())
    text = comfy.sd.load_clip([str(output / "clip_00001_.safetensors")]).get_sd()
    assert all(torch.equal(v, text[k]) for k, v in clip.get_sd().items() if k in text)


def test_failed_write_leaves_no_file(parts, output, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError("no space left")

    monkeypatch.setattr(comfy.utils, "save_torch_file", fail)
    with pytest.raises(OSError, match="no space"):
        save("VAESave", parts[2], "vae")
    assert list(output.iterdir()) == []
