"""Files whose tensors have the right names and yet do not fit: whatever loads them names the file, and why."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import comfy.clip_vision
import comfy.controlnet
import comfy.sd
import comfy.upscale_models
import comfy.utils
import folder_paths
from comfy.model_patches import load_model_patch
from comfy.text_encoders import families
from comfy.weights import WeightsFileError
from tests.networks import checkpoints
from tests.networks.golden import DATA, Golden, load_weights

ERRORS = (WeightsFileError, comfy.upscale_models.UnknownUpscaleModel)


def addon(name: str) -> dict[str, torch.Tensor]:
    return load_file(DATA / "addons" / f"{name}.safetensors")


def vision() -> dict[str, torch.Tensor]:
    names = ("embeddings.patch_embedding.weight", "embeddings.position_embedding.weight", "embeddings.class_embedding")
    parts = {f"vision_model.{name}": torch.zeros(8, 8) for name in names}
    return {**parts, "vision_model.encoder.layers.0.mlp.fc1.weight": torch.zeros(8, 8)}


# What is in a file, and what is to load it.
KINDS = {
    **{
        f"diffusion model {name}": (lambda name=name: load_weights(name), comfy.sd.load_diffusion_model)
        for name in (
            *("unet_sd1", "unet_sdxl", "mmdit_sd3", "flux_dev", "chroma", "auraflow", "pixart_sigma", "flux2"),
            *("lumina2", "z_image", "qwen_image", "wan21_t2v", "hidream"),
        )
    },
    "checkpoint": (
        lambda: {k: v for part in checkpoints.parts().values() for k, v in part.items()},
        comfy.sd.load_checkpoint_guess_config,
    ),
    **{f"VAE {name}": (lambda name=name: load_weights(name), comfy.sd.load_vae) for name in ("vae_kl4", "vae_flux2")},
    "text encoder CLIP": (lambda: checkpoints.parts()["clip"], lambda path: comfy.sd.load_clip([path])),
    "text encoder T5": (lambda: load_weights("t5xxl"), lambda path: comfy.sd.load_clip([path])),
    "text encoder Qwen": (lambda: load_weights("llm_qwen3_4b"), lambda path: comfy.sd.load_clip([path])),
    "ControlNet": (lambda: addon("controlnet_sd1"), comfy.controlnet.load_controlnet),
    "control LoRA": (lambda: addon("control_lora_sd1"), comfy.controlnet.load_controlnet),
    "T2I-Adapter": (lambda: addon("t2i_full"), comfy.controlnet.load_controlnet),
    "upscaler": (lambda: addon("esrgan_4x_tiny"), comfy.upscale_models.load_upscale_model),
    "image encoder": (vision, comfy.clip_vision.load),
    "style model": (
        lambda: {"redux_up.weight": torch.zeros(8, 4), "redux_down.weight": torch.zeros(4, 8)},
        comfy.sd.load_style_model,
    ),
    "GLIGEN": (
        lambda: {"input_blocks.1.1.transformer_blocks.0.fuser.linear.weight": torch.zeros(8, 8)},
        comfy.sd.load_gligen,
    ),
    "model patch": (lambda: {"controlnet_blocks.0.y_rms.weight": torch.zeros(8)}, load_model_patch),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", ["scalars", "one dimension", "few", "no blocks"])
def test_tensors_that_do_not_fit_are_told(tmp_path, kind, damage):
    tensors, load = KINDS[kind]
    tensors = tensors()
    if damage == "scalars":
        tensors = {k: torch.zeros(()) for k in tensors}
    elif damage == "one dimension":
        tensors = {k: torch.zeros(4) for k in tensors}
    elif damage == "few":
        tensors = {k: v for i, (k, v) in enumerate(tensors.items()) if i % 3}
    else:
        tensors = {k: v for k, v in tensors.items() if "output_blocks" not in k and ".1." not in k}
    path = tmp_path / "odd.safetensors"
    save_file({k: v.contiguous() for k, v in tensors.items()}, path)
    try:
        load(str(path))
    except ERRORS as error:
        assert str(error).startswith(("Cannot load odd.safetensors", "odd.safetensors: ")) and str(tmp_path) not in str(
            error
        )


def test_half_a_unet_is_told(tmp_path):
    tensors = {k: v for k, v in Golden("unet_sd1").weights.items() if "output_blocks.3" not in k}
    save_file(tensors, tmp_path / "half.safetensors")
    with pytest.raises(comfy.sd.UnknownModelError, match=r"half.*lacks model\.diffusion_model\.output_blocks\.3"):
        comfy.sd.load_diffusion_model(str(tmp_path / "half.safetensors"))


GAPS = {
    "diffusion model flux_dev": "single_blocks.1.",
    "diffusion model pixart_sigma": "blocks.1.",
    "text encoder CLIP": "encoder.layers.2.",
}


@pytest.mark.parametrize("kind", GAPS)
def test_blocks_behind_a_gap_are_told(tmp_path, caplog, kind):
    """The first ones alone make a network, which is not what the file was to be."""
    tensors, load = KINDS[kind]
    last = GAPS[kind]
    behind = last.replace("1.", "7.").replace("2.", "7.")
    own = {k.replace(last, behind) if last in k else k: v.contiguous() for k, v in tensors().items()}
    save_file(own, tmp_path / "gap.safetensors")
    load(str(tmp_path / "gap.safetensors"))
    told = next(r for r in caplog.records if "tensors of the file are not used" in r.message)
    assert told.levelname == "WARNING" and behind in told.message


def test_what_is_of_no_use_is_no_warning(tmp_path, caplog):
    """Autoencoders are published with what trained them."""
    caplog.set_level("INFO")
    extra = {"loss.logvar": torch.zeros(1), "loss.discriminator.main.0.weight": torch.zeros(2, 2)}
    save_file({**Golden("vae_kl4").module_weights("first_stage_model."), **extra}, tmp_path / "vae.safetensors")
    comfy.sd.load_vae(str(tmp_path / "vae.safetensors"))
    told = next(r for r in caplog.records if "tensors of the file are not used" in r.message)
    assert told.levelname == "INFO"


def test_memory_that_runs_out_is_not_the_files_fault(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(comfy.sd, "load_diffusion_model_state_dict", full)
    save_file({"x": torch.zeros(1)}, tmp_path / "x.safetensors")
    with pytest.raises(torch.OutOfMemoryError):
        comfy.sd.load_diffusion_model(str(tmp_path / "x.safetensors"))


# --- parts saved out of a checkpoint, levels above and all


@pytest.mark.parametrize("above", ["first_stage_model.", "vae."])
def test_a_vae_with_the_prefix_of_a_checkpoint(tmp_path, above):
    own = Golden("vae_kl4").module_weights()
    save_file({above + k: v for k, v in own.items()}, tmp_path / "vae.safetensors")
    vae = comfy.sd.load_vae(str(tmp_path / "vae.safetensors"))
    assert set(vae.get_sd()) == set(own)


@pytest.mark.parametrize("above", ["", "cond_stage_model.", "text_encoders.clip_l."])
def test_a_text_encoder_with_the_prefix_of_a_checkpoint(above):
    own = {k.removeprefix("cond_stage_model."): v for k, v in checkpoints.parts()["clip"].items()}
    width = own["transformer.text_model.final_layer_norm.weight"].shape[0]
    extra = {"logit_scale": torch.zeros(()), "transformer.text_projection.weight": torch.eye(width)}
    clip = comfy.sd.load_text_encoder_state_dicts([{above + k: v for k, v in {**own, **extra}.items()}])
    assert clip is not None
    table = "transformer.text_model.embeddings.token_embedding.weight"
    assert torch.equal(clip.get_sd()[f"clip_l.{table}"], own[table])
    assert torch.equal(clip.get_sd()["clip_l.transformer.text_projection.weight"], torch.eye(width))


def test_two_text_encoders_in_one_file_are_not_taken_for_one(tmp_path):
    own = checkpoints.parts()["clip"]
    both = {**own, **{k.replace("cond_stage_model", "another"): v.clone() for k, v in own.items()}}
    save_file({k: v.contiguous() for k, v in both.items()}, tmp_path / "two.safetensors")
    with pytest.raises(comfy.sd.UnknownModelError, match=r"two\.safetensors.*a text encoder, of a kind not known"):
        comfy.sd.load_clip([str(tmp_path / "two.safetensors")])


@pytest.mark.parametrize("damaged", ["clip_l", "t5xxl"])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("lacking", [False, True])
def test_of_two_text_encoders_the_damaged_one_is_named(tmp_path, monkeypatch, damaged, swapped, lacking):
    files = {str(tmp_path / f"my_{name}.pt"): checkpoints.key_map(f"te_{name}") for name in ("clip_l", "t5xxl")}
    layer = {
        "clip_l": "text_model.encoder.layers.1.mlp.fc1.weight",
        "t5xxl": "encoder.block.1.layer.1.DenseReluDense.wo.weight",
    }[damaged]
    for path, tensors in files.items():
        Path(path).write_bytes(b"")
        if damaged in path:
            tensors[layer] = torch.empty(3, 4, device="meta")
            if lacking:
                del tensors[layer]
    monkeypatch.setattr(comfy.utils, "load_torch_file", files.get)
    paths = list(files)[::-1] if swapped else list(files)
    with pytest.raises(comfy.sd.UnknownModelError) as caught:
        comfy.sd.load_clip(paths, clip_type=comfy.sd.CLIPType.FLUX)
    assert str(caught.value).startswith(f"Cannot load my_{damaged}.pt") and layer in str(caught.value)


def test_a_t5_whose_table_has_the_other_name():
    wide = checkpoints.key_map("te_t5xxl")
    wide["encoder.embed_tokens.weight"] = wide.pop("shared.weight")
    found = families.recognise(wide)
    assert found.name == "t5xxl" and "t5xxl.transformer.shared.weight" in found.tensors
    assert "encoder.embed_tokens.weight" in wide  # the caller's own


def test_a_checkpoint_without_the_first_level_of_names(tmp_path):
    parts = checkpoints.parts()
    tensors = {k.removeprefix("model."): v.contiguous() for part in parts.values() for k, v in part.items()}
    save_file(tensors, tmp_path / "short.safetensors")
    model, clip, vae, _ = comfy.sd.load_checkpoint_guess_config(str(tmp_path / "short.safetensors"))
    assert type(model.model.model_config).__name__ == "SD15" and clip is not None
    vae.throw_exception_if_invalid()


# --- Load VAE


def load_by_node(monkeypatch, folder: str, path: Path, name: str):
    import nodes

    entry = ([str(path)], {".safetensors"})
    monkeypatch.setitem(folder_paths.folder_names_and_paths, folder, entry)
    return nodes.VAELoader().load_vae(name)[0]


@pytest.mark.parametrize(
    "tensors, cause",
    [
        (lambda: {"lora_unet_x.lora_up.weight": torch.zeros(2, 2)}, "looks like a LoRA, not like a known VAE"),
        (lambda: Golden("unet_sd1").weights, "looks like a whole checkpoint"),
        (
            lambda: {k: v for k, v in Golden("vae_kl4").module_weights().items() if "decoder.mid.block_1" not in k},
            "file lacks decoder.mid.block_1",
        ),
    ],
)
def test_the_vae_loader_names_the_file(tmp_path, monkeypatch, tensors, cause):
    save_file(tensors(), tmp_path / "mine.safetensors")
    with pytest.raises(WeightsFileError, match=rf"mine\.safetensors.*{cause}"):
        load_by_node(monkeypatch, "vae", tmp_path, "mine.safetensors")


def test_the_vae_loader_names_a_small_one(tmp_path, monkeypatch):
    for part in ("encoder", "decoder"):
        save_file({"0.weight": torch.zeros(8, 4, 3, 3)}, tmp_path / f"taesd_{part}.safetensors")
    with pytest.raises(WeightsFileError, match="Cannot load taesd"):
        load_by_node(monkeypatch, "vae_approx", tmp_path, "taesd")
