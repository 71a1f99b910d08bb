"""Float8 files with scales: loaded, computed with, patched; and products in float8."""

import json

import pytest
import torch
from safetensors.torch import save_file

import comfy.model_management
import comfy.ops
import comfy.sd
from comfy import acceleration
from comfy.cli_args import PerformanceFeature, args
from comfy.quantized_layers import scale_of
from tests.memory.conftest import HOST, PAPER
from tests.networks.checkpoints import parts

FP8 = torch.float8_e4m3fn


def scaled(sd: dict[str, torch.Tensor], name: str) -> tuple[dict, dict]:
    """(a scaled float8 file, the same weights written out) of a network's tensors."""
    stored, plain = {"model.diffusion_model.scaled_fp8": torch.zeros(0, dtype=FP8)}, {}
    for key, value in sd.items():
        if value.ndim == 2 and key.endswith(".weight") and "transformer_blocks" in key:
            layer, whole = key.removesuffix("weight"), name != "rows"
            scale = value.abs().max() / 448 if whole else value.abs().amax(dim=1, keepdim=True) / 448
            stored[key] = (value / scale).to(FP8)
            if whole:
                stored[layer + name] = scale.reshape(1) if name == "weight_scale" else scale
            else:
                stored[layer + "weight_scale"] = scale if "attn1" in key else scale[:, 0]
                stored[layer + "comfy_quant"] = marker(format="float8_e4m3fn")
            plain[key] = stored[key].float() * scale
        else:
            stored[key] = plain[key] = value.float()
    return stored, plain


def marker(**entries) -> torch.Tensor:
    """What newer files have beside a quantised weight."""
    return torch.tensor(list(json.dumps(entries).encode()), dtype=torch.uint8)


@pytest.fixture(params=["scale_weight", "weight_scale", "rows"])
def models(request):
    stored, plain = scaled(parts("unet_sd1")["unet"], request.param)
    options = {"load_device": PAPER, "offload_device": HOST}
    return [comfy.sd.load_diffusion_model_state_dict(dict(part), model_options=options) for part in (stored, plain)]


def output(patcher):
    comfy.model_management.load_models_gpu([patcher])
    generator = torch.Generator().manual_seed(0)
    latent = torch.randn(1, 4, 8, 8, generator=generator)
    width = next(p for n, p in patcher.model.named_parameters() if n.endswith("attn2.to_k.weight")).shape[1]
    context = torch.randn(1, 7, width, generator=generator)
    with torch.inference_mode():
        return patcher.model.apply_model(latent, torch.ones(1), c_crossattn=context)


def test_scaled_weights_compute_as_their_values(device, models):
    eight, full = models
    layer = next(m for n, m in eight.model.named_modules() if n.endswith("attn1.to_q"))
    assert layer.weight.dtype == FP8 and scale_of(layer) is not None
    expected = output(full)
    assert (output(eight) - expected).abs().max() < 1e-5 * expected.abs().max()
    comfy.model_management.unload_all_models()
    device.size = eight.model_size() // 2
    assert (output(eight) - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize("streamed", [False, True])
def test_patches_see_the_values(device, models, streamed):
    eight, full = models
    name = next(n for n, _ in full.model.named_parameters() if n.endswith("attn1.to_q.weight"))
    layer = eight.model.get_submodule(name.removesuffix(".weight"))
    weight, original = full.model.get_parameter(name).detach(), scale_of(layer).clone()
    stored = layer.weight.detach().clone()
    if streamed:
        device.size = eight.model_size() // 3
    for strength in (0.5, 0.1, 0.5):  # half as much again does not fit with the file's scale
        patched = eight.clone()
        patched.add_patches({name: (weight,)}, strength)
        comfy.model_management.load_models_gpu([patched])
        values = layer.weight.float() * scale_of(layer)
        assert layer.weight.dtype == FP8
        assert (values - weight * (1 + strength)).abs().max() < weight.abs().max() / 16
    comfy.model_management.load_models_gpu([eight])
    assert torch.equal(layer.weight.float(), stored.float()) and torch.equal(scale_of(layer), original)


def test_products_in_float8(monkeypatch):
    monkeypatch.setattr(args, "supports_fp8_compute", True)
    monkeypatch.setattr(args, "fast", {PerformanceFeature.Fp8MatrixMultiplication})
    assert comfy.ops.pick_operations(FP8, torch.bfloat16, HOST) is comfy.ops.fp8_matrix_products
    assert comfy.ops.pick_operations(torch.float16, None, HOST) is comfy.ops.disable_weight_init
    layer = comfy.ops.fp8_matrix_products.Linear(64, 32, bias=True, dtype=torch.float32)
    generator = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(32, 64, generator=generator), torch.randn(32, generator=generator)
    layer.weight = torch.nn.Parameter(weight.to(FP8), requires_grad=False)
    layer.bias = torch.nn.Parameter(bias, requires_grad=False)
    x = torch.randn(2, 5, 64, generator=generator).bfloat16()
    exact = x.float() @ layer.weight.float().T + bias
    assert (layer(x).float() - exact).abs().max() < 0.08 * exact.abs().max()
    assert torch.equal(layer(x.float()), torch.nn.functional.linear(x.float(), layer.weight.float(), bias))


def test_float8_products_need_the_flag(monkeypatch):
    monkeypatch.setattr(args, "supports_fp8_compute", True)
    assert not acceleration.uses_fp8_products(FP8, HOST)
    monkeypatch.setattr(args, "fast", {PerformanceFeature.Fp8MatrixMultiplication})
    monkeypatch.setattr(args, "supports_fp8_compute", False)
    assert not acceleration.uses_fp8_products(FP8, HOST)


def test_rows_keep_their_own_scales_when_patched(device):
    """A row of small numbers is not rounded by the scale of a row of large ones."""
    sd = parts("unet_sd1")["unet"]
    name = next(k for k in sd if k.endswith("attn1.to_q.weight"))
    sd[name] = torch.cat([sd[name][:1].float() * 1e-4, sd[name][1:].float()])
    stored, plain = scaled(sd, "rows")
    options = {"load_device": PAPER, "offload_device": HOST}
    eight = comfy.sd.load_diffusion_model_state_dict(stored, model_options=options)
    key = "diffusion_model." + name.removeprefix("model.diffusion_model.")
    patched = eight.clone()
    patched.add_patches({key: (plain[name],)}, 1.0)
    comfy.model_management.load_models_gpu([patched])
    layer = eight.model.get_submodule(key.removesuffix(".weight"))
    values, wanted = layer.weight.float() * scale_of(layer), plain[name] * 2
    rows = (values - wanted).abs().amax(dim=1) / wanted.abs().amax(dim=1)
    assert scale_of(layer).shape == (wanted.shape[0], 1) and rows.max() < 1 / 16


INTEGERS = torch.zeros(4, 4, dtype=torch.int8)
BESIDE = {
    "comfy_quant": (marker(format="asymmetric_w4a8", group=64), "asymmetric_w4a8 with group"),
    "weight.absmax": (torch.zeros(4), "bitsandbytes"),
    "weight.quant_state.bitsandbytes__nf4": (INTEGERS, "bitsandbytes nf4"),
    "weight_scale_2": (torch.zeros(1), "nvfp4 of another program"),
    "qweight": (INTEGERS, "packed integers"),
    "weight": (INTEGERS, r"integers \(int8\)"),
}


@pytest.mark.parametrize("name", BESIDE)
def test_formats_that_are_not_read_are_told(name, tmp_path):
    """By the loaders of networks, checkpoints and text encoders; not garbage, nor a complaint about shapes."""
    value, told = BESIDE[name]
    tensors = {k: v.half().contiguous() for part in parts("unet_sd1").values() for k, v in part.items()}
    unet = "model.diffusion_model.input_blocks.1.1.transformer_blocks.0.attn1.to_q."
    text = "cond_stage_model.transformer.text_model.encoder.layers.0.mlp.fc1."
    path = str(tmp_path / "model.safetensors")
    expected = rf"model\.safetensors.*stored as {told}.*bf16"
    save_file({**tensors, unet + name: value}, path)
    for load in (comfy.sd.load_checkpoint_guess_config, comfy.sd.load_diffusion_model):
        with pytest.raises(comfy.sd.UnknownModelError, match=expected):
            load(path)
    prefix = "cond_stage_model.transformer."
    tensors = {k.removeprefix(prefix): v for k, v in {**tensors, text + name: value}.items() if k.startswith(prefix)}
    save_file(tensors, path)
    with pytest.raises(comfy.sd.UnknownModelError, match=expected):
        comfy.sd.load_clip([path])


def test_a_marker_that_cannot_be_read_is_no_format():
    from comfy.quantized_files import unread_format

    odd = {"a.comfy_quant": torch.tensor([123, 1], dtype=torch.uint8)}
    assert "does not tell" in unread_format(odd)
    assert unread_format({"a.comfy_quant": marker(format="float8_e5m2", full_precision_matrix_mult=True)}) is None
    assert unread_format({"position_ids": torch.arange(3), "a.weight": torch.zeros(2, 2)}) is None
