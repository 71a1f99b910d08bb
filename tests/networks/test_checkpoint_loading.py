"""From a checkpoint file to model, text encoder and VAE."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import comfy.model_management
import comfy.sd
import comfy.utils
from comfy import model_detection
from comfy.sd import InvalidVAE, UnknownModelError
from comfy.weights import TruncatedWeightsError
from tests.networks import checkpoints
from tests.networks.golden import DATA, LIMIT, Golden, error

DETECTED = json.loads((DATA / "detect.json").read_text())


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    return checkpoints.write(tmp_path_factory.mktemp("ckpt") / "sd1.safetensors")


@pytest.fixture(scope="module")
def loaded(path):
    return comfy.sd.load_checkpoint_guess_config(path)


def test_all_parts_work(loaded):
    model, clip, vae, vision = loaded
    assert vision is None
    golden = Golden("unet_sd1")
    comfy.model_management.load_models_gpu([model])
    out = model.model.apply_model(golden.inputs["x"], golden.inputs["sigma"], c_crossattn=golden.inputs["context"])
    assert error(out, golden.out["denoised"]) < LIMIT

    golden = Golden("vae_kl4")
    assert error(vae.decode(golden.inputs["latent"]), golden.out["decode"]) < LIMIT

    cond = clip.encode_from_tokens(clip.tokenize("a (red:1.3) cat"))
    assert cond.shape == (1, 77, 32)
    assert torch.isfinite(cond).all()


def test_weights_are_the_mapped_file(loaded, path):
    """Neither copied nor cast: float16 as in the file, in memory that belongs to the mapping."""
    with open("/proc/self/maps") as f:
        mapped = [line.split()[0].split("-") for line in f if path in line]
    ranges = [(int(start, 16), int(end, 16)) for start, end in mapped]
    model, clip, vae, _ = loaded
    for module in (model.model.diffusion_model, clip.cond_stage_model, vae.first_stage_model):
        for name, parameter in module.named_parameters():
            assert parameter.dtype == torch.float16, name
            assert any(start <= parameter.data_ptr() < end for start, end in ranges), name
            assert not parameter.requires_grad


def test_weights_can_be_used_outside_inference_mode(path):
    """Loaded by a node (inference mode), perhaps trained by another one."""
    model, _, _, _ = comfy.sd.load_checkpoint_guess_config(path)
    assert not any(p.is_inference() for p in model.model.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_number_format_gives_the_same_picture(tmp_path, dtype):
    model = comfy.sd.load_checkpoint_guess_config(checkpoints.write(tmp_path / "x.safetensors", "unet", dtype=dtype))[0]
    assert model.model_dtype() == dtype
    assert model.model.get_dtype_inference() == torch.float32
    golden = Golden("unet_sd1")
    out = model.model.apply_model(golden.inputs["x"], golden.inputs["sigma"], c_crossattn=golden.inputs["context"])
    assert out.dtype == torch.float32
    assert error(out, golden.out["denoised"]) < (LIMIT if dtype != torch.bfloat16 else 0.2)


def test_mixed_number_formats(tmp_path):
    tensors = load_file(checkpoints.write(tmp_path / "x.safetensors", "unet", dtype=torch.float32))
    tensors = {k: v.half() if ".attn" in k else v for k, v in tensors.items()}
    save_file(tensors, tmp_path / "mixed.safetensors")
    model = comfy.sd.load_checkpoint_guess_config(str(tmp_path / "mixed.safetensors"))[0]
    golden = Golden("unet_sd1")
    out = model.model.apply_model(golden.inputs["x"], golden.inputs["sigma"], c_crossattn=golden.inputs["context"])
    assert error(out, golden.out["denoised"]) < LIMIT


def test_asked_for_number_format(path):
    model = comfy.sd.load_checkpoint_guess_config(path, model_options={"dtype": torch.float32})[0]
    assert all(p.dtype == torch.float32 for p in model.model.diffusion_model.parameters())


def test_old_ckpt_file(tmp_path, path):
    old = tmp_path / "sd1.ckpt"
    torch.save({"state_dict": load_file(path), "global_step": 7}, old)
    model, clip, vae, _ = comfy.sd.load_checkpoint_guess_config(str(old))
    assert model is not None and clip is not None
    vae.throw_exception_if_invalid()


def test_missing_parts_are_told_when_used(tmp_path):
    model, clip, vae, _ = comfy.sd.load_checkpoint_guess_config(
        checkpoints.write(tmp_path / "unet.safetensors", "unet")
    )
    assert model is not None
    assert clip is None
    with pytest.raises(InvalidVAE, match="VAE loader"):
        vae.decode(torch.zeros(1, 4, 4, 4))


def test_parts_can_be_left_out(path):
    model, clip, vae, _ = comfy.sd.load_checkpoint_guess_config(
        path, output_vae=False, output_clip=False, output_model=False
    )
    assert (model, clip, vae) == (None, None, None)


def test_network_alone(tmp_path):
    tensors = {k.removeprefix("model.diffusion_model."): v for k, v in Golden("unet_sd1").weights.items()}
    path = str(tmp_path / "unet.safetensors")
    save_file(tensors, path)
    assert comfy.sd.load_diffusion_model(path).model_dtype() == torch.float32
    model, clip, _, _ = comfy.sd.load_checkpoint_guess_config(path)
    assert model is not None and clip is None


def test_text_encoder_alone(tmp_path):
    tensors = {
        k.removeprefix("cond_stage_model.transformer."): v.contiguous() for k, v in checkpoints.parts()["clip"].items()
    }
    path = str(tmp_path / "clip_l.safetensors")
    save_file(tensors, path)
    clip = comfy.sd.load_clip([path])
    assert clip.encode("a cat").shape == (1, 77, 32)


@pytest.mark.parametrize(
    ("tensors", "cause"),
    [
        ({"lora_unet_x.lora_up.weight": torch.zeros(2, 2)}, "a LoRA"),
        ({"decoder.conv_in.weight": torch.zeros(2, 2)}, "a VAE"),
        ({"text_model.encoder.x": torch.zeros(2, 2)}, "a text encoder"),
        ({"something": torch.zeros(2, 2)}, "no diffusion model"),
        ({}, "no tensors"),
    ],
)
def test_other_files_are_recognised(tmp_path, tensors, cause):
    path = str(tmp_path / "other.safetensors")
    save_file(tensors, path)
    for load in (comfy.sd.load_checkpoint_guess_config, comfy.sd.load_diffusion_model):
        with pytest.raises(UnknownModelError, match=cause) as caught:
            load(path)
        assert "other.safetensors" in str(caught.value) and str(tmp_path) not in str(caught.value)
    with pytest.raises(UnknownModelError, match="no text encoder"):
        comfy.sd.load_clip([path])


def test_incomplete_model_names_what_is_missing(tmp_path, path):
    tensors = load_file(path)
    del tensors["model.diffusion_model.middle_block.0.emb_layers.1.weight"]
    broken = str(tmp_path / "broken.safetensors")
    save_file(tensors, broken)
    with pytest.raises(UnknownModelError, match=r"lacks middle_block\.0\.emb_layers\.1\.weight"):
        comfy.sd.load_checkpoint_guess_config(broken)


def test_cut_off_checkpoint(tmp_path, path):
    cut = tmp_path / "cut.safetensors"
    with open(path, "rb") as f:
        cut.write_bytes(f.read(1_000_000))
    with pytest.raises(TruncatedWeightsError, match="announces"):
        comfy.sd.load_checkpoint_guess_config(str(cut))


def test_saved_checkpoint_loads_again(tmp_path, loaded):
    model, clip, vae, _ = loaded
    out = str(tmp_path / "saved.safetensors")
    patched = model.clone()
    key = "diffusion_model.out.2.bias"
    patched.add_patches({key: (torch.ones(4),)}, 0.5)
    comfy.sd.save_checkpoint(out, patched, clip, vae, metadata={"title": "x"})
    tensors, metadata = comfy.utils.load_torch_file(out, return_metadata=True)
    assert metadata == {"title": "x"}
    original = load_file(checkpoints.write(tmp_path / "again.safetensors"))
    assert tensors.keys() == {k for k in original if not k.endswith("position_ids")}
    for name, value in tensors.items():
        expected = original[name] + 0.5 if name == f"model.{key}" else original[name]
        assert torch.allclose(value.float(), expected.float(), atol=1e-3), name
    assert comfy.sd.load_checkpoint_guess_config(out)[1] is not None


# Shapes of the published files


@pytest.mark.parametrize("name", ["sd15", "sd15_inpaint", "sd15_ip2p"])
def test_published_checkpoint_fits_without_rest(name):
    sd = checkpoints.key_map(name)
    model, clip, vae, _ = comfy.sd.load_state_dict_guess_config(sd)
    assert sum(p.nelement() for p in model.model.diffusion_model.parameters()) > 850_000_000
    assert clip.cond_stage_model.clip_l.num_layers == 12
    assert clip.cond_stage_model.clip_l.transformer.config.num_attention_heads == 12
    assert vae.first_stage_model.config.ch == 128
    # Every tensor went somewhere (position ids are no weights), and nothing is missing (loading checks that).
    assert [k for k in sd if not k.endswith("position_ids")] == []
    assert type(model.model.model_config).__name__ == DETECTED[name]["model_class"]
    assert list(model.model.concat_keys) == DETECTED[name]["concat_keys"]


@pytest.mark.parametrize("name", ["sd15", "sd15_inpaint", "sd15_ip2p", "sd21_v", "sdxl_base"])
def test_configuration_of_published_checkpoints(name):
    sd = checkpoints.key_map(name)
    prefix = model_detection.unet_prefix_from_state_dict(sd)
    assert prefix == DETECTED[name]["prefix_answer"]
    config = model_detection.detect_unet_config(sd, prefix)
    recorded = DETECTED[name]["unet_config"]
    for key in recorded.keys() & config.keys() - {"attn_precision"}:
        assert config[key] == recorded[key], key


def test_published_parts_alone():
    vae = comfy.sd.VAE(sd=checkpoints.key_map("vae_sd"))
    assert vae.latent_channels == 4
    clip = comfy.sd.load_text_encoder_state_dicts([checkpoints.key_map("te_clip_l")])
    assert clip.cond_stage_model.clip_l.transformer.text_projection is not None
    assert comfy.sd.load_text_encoder_state_dicts([checkpoints.key_map("vae_sd")]) is None
