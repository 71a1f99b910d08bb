"""LoRA beside the weights, from memory, and out of the difference of two models."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

import comfy.sd
import folder_paths
import nodes
from comfy.lora import load_lora_for_models
from comfy.lora_bypass import load_bypass_lora_for_models
from comfy.lora_extract import low_rank
from comfy.supported_models_base import ClipTarget
from comfy.text_encoders import sd2
from nodes.lora_tools import NothingToSave
from tests.addons.recorded_addons import ADDONS, denoised, host, recorded, weights
from tests.addons.transformer_controls import random
from tests.families.text import clip_config, model_tensors
from tests.networks.golden import LIMIT, error

NODES = nodes.NODE_CLASS_MAPPINGS
KINDS = [
    "kohya_linear",
    "locon_conv",
    "locon_mid_tucker",
    "loha",
    "lokr_full",
    "dora_out_axis_half",
    "oft",
    "full_diff",
]


@pytest.mark.parametrize("name", [*KINDS, "norm_diff", "sd3_kohya", "flux_diffusers_peft"])
def test_beside_the_weights_is_as_in_them(name):
    """Same outputs as recorded for patched weights, which stay what they were."""
    tensors, config = recorded(f"lora_{name}")
    model, golden = host(config["host"])
    before = {k: v.clone() for k, v in model.model.state_dict().items()}
    beside, _ = load_bypass_lora_for_models(model, None, weights(f"lora_{name}.safetensors"), config["strengths"][0], 0)
    assert error(denoised(beside, golden), tensors["out.denoised"]) < LIMIT
    beside.detach()
    assert all(torch.equal(v, before[k]) for k, v in model.model.state_dict().items())
    assert error(denoised(model, golden), golden.out["denoised"]) < LIMIT


def test_two_beside_each_other_and_on_top_of_one_inside():
    model, golden = host("sd1")
    first, second = (weights(f"lora_{n}.safetensors") for n in ("kohya_linear", "loha"))
    inside = load_lora_for_models(load_lora_for_models(model, None, first, 0.5, 0)[0], None, second, 0.8, 0)[0]
    expected = denoised(inside, golden).clone()
    inside.detach()
    beside = load_bypass_lora_for_models(model, None, first, 0.5, 0)[0]
    beside = load_bypass_lora_for_models(beside, None, second, 0.8, 0)[0]
    assert error(denoised(beside, golden), expected) < LIMIT
    beside.detach()
    mixed = load_bypass_lora_for_models(load_lora_for_models(model, None, first, 0.5, 0)[0], None, second, 0.8, 0)[0]
    assert error(denoised(mixed, golden), expected) < LIMIT
    mixed.detach()


@pytest.fixture
def folders(tmp_path, monkeypatch):
    _, extensions = folder_paths.folder_names_and_paths["loras"]
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "loras", ([str(tmp_path)], extensions))
    monkeypatch.setattr(folder_paths, "output_directory", str(tmp_path / "out"))
    for name in ("lora_kohya_linear.safetensors",):
        (tmp_path / name).write_bytes((ADDONS / name).read_bytes())
    return tmp_path


def test_through_the_loaders(folders):
    tensors, config = recorded("lora_kohya_linear")
    model, golden = host("sd1")
    file, strength = "lora_kohya_linear.safetensors", config["strengths"][0]
    (only,) = NODES["LoraLoaderBypassModelOnly"]().load_lora_model_only(model, file, strength)
    assert error(denoised(only, golden), tensors["out.denoised"]) < LIMIT
    only.detach()
    assert NODES["LoraLoaderBypass"]().load_lora(model, None, file, 0, 0) == (model, None)
    lora = weights(file)
    for bypass in (False, True):
        loaded = NODES["LoraModelLoader"].execute(model, lora, strength, bypass).result[0]
        assert error(denoised(loaded, golden), tensors["out.denoised"]) < LIMIT
        loaded.detach()
    assert NODES["LoraModelLoader"].execute(model, lora, 0.0, False).result[0] is model


def saved(folders) -> dict[str, torch.Tensor]:
    (path,) = (folders / "out").rglob("*.safetensors")
    return load_file(path)


def run(name: str, **inputs) -> None:
    """As the executor runs an output node: with hidden inputs."""
    NODES[name].PREPARE_CLASS_CLONE({}).execute(**inputs)


def difference_of(changed, model):
    return NODES["ModelMergeSubtract"]().merge(changed, model, 1.0)[0]


@pytest.mark.parametrize("lora_type", ["standard", "full_diff"])
def test_difference_becomes_a_lora_with_the_same_effect(folders, lora_type):
    """The change has rank 4, so a LoRA of that rank holds all of it."""
    model, golden = host("sd1")
    changed, _ = load_lora_for_models(model, None, weights("lora_kohya_linear.safetensors"), 1.0, 0)
    inputs = {"filename_prefix": "loras/x", "rank": 8, "lora_type": lora_type, "bias_diff": True}
    run("LoraSave", model_diff=difference_of(changed, model), **inputs)
    lora = saved(folders)
    assert all(v.dtype == torch.float16 for v in lora.values())
    ends = {".lora_up.weight", ".lora_down.weight"} if lora_type == "standard" else {".diff"}
    assert all(any(k.endswith(end) for end in ends) for k in lora)
    again, _ = load_lora_for_models(model, None, {k: v.float() for k, v in lora.items()}, 1.0, 0)
    assert set(again.patches) == set(changed.patches)
    expected = denoised(changed, golden).clone()
    changed.detach()
    assert error(denoised(again, golden), expected) < 0.01
    again.detach()


def test_lower_rank_is_the_nearest():
    diff = random("a", 40, 6) @ random("b", 6, 30)
    up, down = low_rank(diff, 6)
    assert (up @ down - diff).norm() < 1e-4 * diff.norm()
    values = torch.linalg.svdvals(diff)
    up, down = low_rank(diff, 2)
    best = values[2:].norm()
    assert torch.isclose((up @ down - diff).norm(), best)
    up, down = low_rank(random("c", 8, 4, 3, 3), 100)
    assert up.shape == (8, 8, 1, 1) and down.shape == (8, 4, 3, 3)


def test_nothing_to_save_is_said(folders):
    model, _ = host("sd1")
    with pytest.raises(NothingToSave, match="ModelMergeSubtract"):
        run("LoraSave", filename_prefix="x", rank=8, lora_type="standard", bias_diff=True, model_diff=model)


def test_lora_in_memory_is_written(folders):
    run("SaveLoRA", lora={"a.lora_up.weight": torch.ones(2, 1)}, prefix="loras/t", steps=7)
    (path,) = (folders / "out").rglob("*.safetensors")
    assert path.name.startswith("t_7_steps_") and torch.equal(load_file(path)["a.lora_up.weight"], torch.ones(2, 1))


# --- attention's weights


def test_attention_multiply_scales_weights():
    model, _ = host("sd1")
    factors = {"q": 0.5, "k": 2.0, "v": 3.0, "out": 0.25}
    for name, attention, other in (
        ("UNetSelfAttentionMultiply", "attn1", "attn2"),
        ("UNetCrossAttentionMultiply", "attn2", "attn1"),
    ):
        patched = NODES[name].execute(model, **factors).result[0]
        plain, changed = model.model_state_dict(), patched._patched_state_dict()
        found = 0
        for key in plain:
            part = next((p for p in factors if f".{attention}.to_{p}." in key), None)
            assert torch.allclose(changed[key], plain[key] * (factors[part] if part else 1.0)), key
            found += part is not None
            assert part is None or other not in key
        assert found and not NODES[name].execute(model, q=1.0, k=1.0, v=1.0, out=1.0).result[0].patches


def test_temporal_attention_multiply_tells_frames_from_pictures():
    model, _ = host("sd1")
    factors = dict.fromkeys(("self_structural", "self_temporal", "cross_structural", "cross_temporal"), 1.0)
    factors["cross_structural"] = 0.5
    patched = NODES["UNetTemporalAttentionMultiply"].execute(model, **factors).result[0]
    assert patched.patches and all(".attn2.to_out.0." in key for key in patched.patches)
    factors |= {"cross_structural": 1.0, "cross_temporal": 0.5}
    # This UNet has no attention between frames.
    assert not NODES["UNetTemporalAttentionMultiply"].execute(model, **factors).result[0].patches


def test_clip_attention_multiply():
    def build(sd, **kwargs):
        return sd2.SD2ClipModel(config=clip_config("G"), **kwargs)

    clip = comfy.sd.CLIP(ClipTarget(sd2.SD2Tokenizer, build), state_dict=model_tensors(clip_h="G"))
    patched = NODES["CLIPAttentionMultiply"].execute(clip, q=0.5, k=1.0, v=1.0, out=2.0).result[0]
    plain, changed = clip.get_sd(), patched.get_sd()
    for key in plain:
        factor = 0.5 if ".self_attn.q_proj." in key else 2.0 if ".self_attn.out_proj." in key else 1.0
        assert torch.allclose(changed[key], plain[key] * factor), key
    assert clip.patcher.patches == {} and len(patched.patcher.patches) > 3
