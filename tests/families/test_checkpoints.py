"""Whole checkpoints of transformers: network, bundled text encoders and VAE in one file."""

import pytest
import torch
from safetensors.torch import load_file, save_file

import comfy.sd
from comfy.sd import InvalidVAE
from comfy.text_encoders import flux, sd3
from tests.families.text import encoder_file
from tests.networks.golden import LIMIT, Golden, error


def bundle(name: str, vae_prefix: str, *encoders: str) -> dict[str, torch.Tensor]:
    tensors = dict(Golden(name).weights)
    vae = Golden("vae_kl16")
    tensors |= {vae_prefix + k: v for k, v in vae.module_weights().items()}
    for encoder in encoders:
        sd = encoder_file({"clip_l": "L", "t5xxl": "T"}[encoder])
        tensors |= {f"text_encoders.{encoder}.transformer.{k}": v for k, v in sd.items()}
    return {k: v.contiguous() for k, v in tensors.items()}


@pytest.mark.parametrize(
    "name, vae_prefix, encoders, kind",
    [
        ("flux_schnell", "vae.", ("clip_l", "t5xxl"), flux.FluxClipModel),
        ("mmdit_sd3", "first_stage_model.", ("clip_l",), sd3.SD3ClipModel),
    ],
)
def test_all_parts_of_a_file(tmp_path, vocabularies, name, vae_prefix, encoders, kind):
    path = str(tmp_path / "all.safetensors")
    save_file(bundle(name, vae_prefix, *encoders), path)
    model, clip, vae, _ = comfy.sd.load_checkpoint_guess_config(path)
    golden = Golden(name)
    inputs = golden.inputs
    out = model.model.apply_model(inputs["x"], inputs["sigma"], c_crossattn=inputs["context"], y=inputs["y"])
    assert error(out, golden.out["denoised"]) < LIMIT
    recorded = Golden("vae_kl16")
    assert error(vae.decode(recorded.inputs["latent"]), recorded.out["decode"]) < LIMIT
    assert isinstance(clip.cond_stage_model, kind)
    cond, pooled = clip.encode_from_tokens(clip.tokenize("a (red:1.3) cat"), return_pooled=True)
    assert torch.isfinite(cond).all() and torch.isfinite(pooled).all()

    # What is saved has the same tensors at the same places.
    again = str(tmp_path / "again.safetensors")
    comfy.sd.save_checkpoint(again, model, clip, vae)
    before, after = load_file(path), load_file(again)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[k], after[k]) for k in before)


def test_file_that_lacks_an_encoder(tmp_path, caplog):
    """The model can be used with encoders from elsewhere."""
    path = str(tmp_path / "part.safetensors")
    save_file(bundle("flux_schnell", "vae.", "clip_l"), path)
    model, clip, vae, _ = comfy.sd.load_checkpoint_guess_config(path)
    assert model is not None and clip is None
    vae.throw_exception_if_invalid()
    assert "lacks the text encoder t5xxl" in caplog.text


def test_network_alone(tmp_path):
    path = str(tmp_path / "net.safetensors")
    save_file({k.removeprefix("model.diffusion_model."): v for k, v in Golden("flux_dev").weights.items()}, path)
    model, clip, vae, _ = comfy.sd.load_checkpoint_guess_config(path)
    assert type(model.model.model_config).__name__ == "Flux" and clip is None
    with pytest.raises(InvalidVAE):
        vae.decode(torch.zeros(1, 16, 2, 2))
