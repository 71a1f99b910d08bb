"""LoRA for another model: what does not fit is named in the log and left out, in the weights and beside them."""

from __future__ import annotations

import pytest
import torch

from comfy.lora import load_lora_for_models
from comfy.lora_bypass import load_bypass_lora_for_models
from comfy.weight_adapter.lora import LoRAAdapter
from tests.addons.recorded_addons import denoised, host, weights
from tests.networks.golden import LIMIT, error

LOADERS = {"in the weights": load_lora_for_models, "beside them": load_bypass_lora_for_models}


def wider(value):
    return torch.cat([value, value], dim=1) if value.ndim > 1 else value


# name of the file -> (which tensors, what becomes of them)
DAMAGE = {
    "for a wider model": ("kohya_linear", "lora_down", wider),
    "of rank 0": ("kohya_linear", "lora_down", lambda v: v[:0]),
    "of no shape": ("kohya_linear", "", lambda v: torch.tensor(1.0)),
    "with two alphas": ("kohya_linear", "alpha", lambda v: torch.tensor([1.0, 2.0])),
    "convolutions of other sizes": ("locon_mid_tucker", "lora_down", wider),
    "LoHa": ("loha", "hada_w1_b", lambda v: v[:, :3]),
    "LoKr": ("lokr_both_factored", "", lambda v: v[:1] if v.ndim else v),
    "GLoRA": ("glora", "", lambda v: v[:1] if v.ndim else v),
    "DoRA": ("dora_in_axis", "dora_scale", lambda v: v.flatten()[:3]),
    "OFT": ("oft", "oft_blocks", lambda v: v[:1]),
    "BOFT": ("boft", "oft_blocks", lambda v: v[:, :1]),
    "differences": ("full_diff", "", lambda v: v.flatten()[:5]),
    "replaced weights": ("set_weight", "", lambda v: v.flatten()[:5]),
}


@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize("damage", DAMAGE)
def test_what_does_not_fit_is_left_out(caplog, damage, load):
    name, which, change = DAMAGE[damage]
    tensors = {k: change(v) if which in k else v for k, v in weights(f"lora_{name}.safetensors").items()}
    model, golden = host("sd1")
    patched, _ = LOADERS[load](model, None, tensors, 0.7, 0)
    try:
        assert error(denoised(patched, golden), golden.out["denoised"]) < LIMIT
    finally:
        patched.detach()
    assert "left out" in caplog.text and "diffusion_model." in caplog.text


@pytest.mark.parametrize("load", LOADERS)
def test_the_rest_of_the_file_is_used(caplog, load):
    tensors = weights("lora_kohya_linear.safetensors")
    unfit = next(k for k in tensors if "lora_down" in k)
    model, golden = host("sd1")
    patched, _ = LOADERS[load](model, None, {**tensors, unfit: wider(tensors[unfit])}, 0.7, 0)
    try:
        assert error(denoised(patched, golden), golden.out["denoised"]) > LIMIT
    finally:
        patched.detach()
    assert caplog.text.count("left out") == 1


def test_memory_that_runs_out_is_not_the_loras_fault(monkeypatch):
    """A picture without the LoRA would be the worse answer."""

    def full(*args):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(LoRAAdapter, "delta", full)
    model, golden = host("sd1")
    patched, _ = load_lora_for_models(model, None, weights("lora_kohya_linear.safetensors"), 0.7, 0)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            denoised(patched, golden)
    finally:
        monkeypatch.undo()
        patched.detach()
