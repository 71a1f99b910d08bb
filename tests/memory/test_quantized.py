"""int8, MXFP8 and NVFP4 files: what is read of them, computed with, patched, mixed and saved."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import comfy.hooks
import comfy.model_management
import comfy.sd
import comfy.utils
from comfy.lora_extract import differences
from comfy.model_base import load_assigned
from comfy.models.diffusers_names import diffusers_names
from comfy.quantization import BLOCK_SCALE, MXFP8, NVFP4, SCALE, Rotated, Scaled, hadamard, swizzled, unswizzled
from comfy.quantized_files import marker_of, with_shapes_of_values
from comfy.quantized_layers import QuantizedWeight
from comfy.text_encoders import llama
from comfy.text_encoders.open_clip import from_text_model, to_text_model
from tests.memory.conftest import HOST, PAPER
from tests.memory.test_scaled_weights import output
from tests.networks.checkpoints import parts
from tests.networks.golden import DATA, Golden
from tests.recorded_files import load_tensors

ROTATED = {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 16}
# By name: how a layer is stored, its marker, dtype and shape of scales.
FORMATS = {
    "rows": Scaled({"format": "int8_tensorwise"}),
    "whole": Scaled({"format": "int8_tensorwise"}),
    "rotated": Rotated(ROTATED, 16),
    "mxfp8": MXFP8({"format": "mxfp8"}),
    "nvfp4": NVFP4({"format": "nvfp4"}),
}
# The largest error of a number, relative to the largest one of its row.
COARSE = {"rows": 1 / 250, "whole": 1 / 50, "rotated": 1 / 60, "mxfp8": 1 / 14, "nvfp4": 1 / 5}
PREFIX = "model.diffusion_model."
every_format = pytest.mark.parametrize("name", FORMATS)


def recorded(name):
    """(stored, scales, numbers): see record_quantized.py."""
    tensors = load_tensors(DATA.parent / "quantized.safetensors")
    scales = {buffer: tensors[f"{name}.{ending}"] for buffer, ending in FORMATS[name].names.items()}
    return tensors[f"{name}.weight"], scales, tensors[f"{name}.values"]


@every_format
def test_numbers_are_those_of_the_library_that_defines_the_format(name):
    stored, scales, values = recorded(name)
    found = FORMATS[name].values(stored, scales, torch.float32)
    assert found.shape == values.shape == FORMATS[name].shape(stored.shape)
    assert (found - values).abs().max() <= 1e-6 * values.abs().max() and values.count_nonzero() > 100
    index = torch.tensor([[3, 0], [len(values) - 1, 3]])
    assert torch.equal(FORMATS[name].rows(stored, scales, index, torch.float32), found[index])
    half = FORMATS[name].values(stored, scales, torch.bfloat16)
    assert half.dtype == torch.bfloat16 and (half - values).abs().max() <= 2**-7 * values.abs().max()


@every_format
def test_numbers_are_stored_as_that_library_stores_them(name):
    stored, scales, values = recorded(name)
    smaller = {n: scale / 2 if n == SCALE else torch.zeros_like(scale) for n, scale in scales.items()}
    again, new_scales = FORMATS[name].store(values, stored, smaller)
    assert again.dtype == stored.dtype
    if name == "mxfp8":  # 224 times a scale is also 448 times half of it
        assert torch.equal(FORMATS[name].values(again, new_scales, torch.float32), values)
        assert (bits(again) == bits(stored)).float().mean() > 0.99
        scales = {}
    else:
        assert torch.equal(bits(again), bits(stored))
    for buffer, scale in scales.items():
        assert new_scales[buffer].shape == scale.shape and new_scales[buffer].dtype == scale.dtype
        assert torch.allclose(new_scales[buffer].float(), scale.float(), rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@every_format
def test_products(name, dtype):
    """As with the numbers, however they are computed; large ones stay finite."""
    stored, scales, values = recorded(name)
    x = torch.randn(2, 3, values.shape[1], generator=torch.Generator().manual_seed(0)) * 200
    bias = torch.linspace(-1, 1, values.shape[0])
    wanted = torch.nn.functional.linear(x.to(dtype).float(), values, bias)
    got = FORMATS[name].linear(x.to(dtype), stored, scales, bias.to(dtype))
    assert got.dtype == dtype and got.shape == (2, 3, values.shape[0])
    assert (got.float() - wanted).abs().max() < 4 * torch.finfo(dtype).eps * wanted.abs().max()
    without = FORMATS[name].linear(x.to(dtype), stored, scales, None)
    assert (without.float() - (wanted - bias)).abs().max() < 4 * torch.finfo(dtype).eps * wanted.abs().max()


def bits(tensor):
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor


@pytest.mark.parametrize("shape", [(1, 1), (32, 4), (33, 5), (128, 4), (129, 9), (300, 2)])
def test_order_of_block_scales(shape):
    scales = torch.arange(1, shape[0] * shape[1] + 1).remainder(200).add(1).to(torch.uint8).reshape(shape)
    there = swizzled(scales)
    assert there.shape[0] % 128 == 0 and there.shape[1] % 4 == 0
    assert torch.equal(unswizzled(there, *shape), scales)
    assert torch.equal(unswizzled(there.flatten(), *shape), scales)
    flat = there.flatten()
    assert flat[0] == scales[0, 0] and (shape[0] <= 32 or flat[4] == scales[32, 0])
    assert shape[0] == 1 or flat[16] == scales[1, 0]


def test_rotation():
    for size in (4, 16, 256):
        matrix = hadamard(size, HOST)
        assert torch.allclose(matrix @ matrix, torch.eye(size), atol=1e-6) and torch.equal(matrix, matrix.T)
        assert torch.allclose(matrix.sum(0), torch.ones(size))
    for size in (2, 8, 20):
        with pytest.raises(ValueError, match=f"groups of {size}"):
            hadamard(size, HOST)


def test_extremes():
    """Blocks of zeros and rows of zeros stay zeros; the largest and the smallest numbers stay finite."""
    values = torch.zeros(4, 64)
    values[1, :3] = torch.tensor([1e30, -1e30, 1e-30])
    values[2, 40] = 1e-38
    for name in ("mxfp8", "nvfp4", "rows", "rotated"):
        stored, scales = fresh(name, values)
        found = FORMATS[name].values(stored, scales, torch.float32)
        assert found.isfinite().all() and not found[0].any() and not found[3].any(), name
        assert (found[1, :2] / values[1, :2] - 1).abs().max() < 0.1, name


# --- files


def fresh(name, values):
    """(stored, scales) of numbers."""
    rows, columns = values.shape
    tiles = -(-rows // 128) * 128
    templates = {
        "rows": (torch.int8, {SCALE: torch.zeros(rows, 1)}),
        "whole": (torch.int8, {SCALE: torch.zeros(())}),
        "rotated": (torch.int8, {SCALE: torch.zeros(rows, 1)}),
        "mxfp8": (torch.float8_e4m3fn, {BLOCK_SCALE: torch.zeros(tiles, -(-columns // 128) * 4, dtype=torch.uint8)}),
        "nvfp4": (
            torch.uint8,
            {
                BLOCK_SCALE: torch.zeros(tiles, -(-columns // 64) * 4).to(torch.float8_e4m3fn),
                SCALE: torch.zeros(()),
            },
        ),
    }
    dtype, scales = templates[name]
    return FORMATS[name].store(values, torch.zeros(rows, columns, dtype=dtype), scales)


def quantized(sd, name, where=("attn", "ff", "mlp", "feed_forward", "attention")):
    """(the tensors of a quantised file, the same weights written out): matrices of blocks, as far as they fit."""
    stored, plain, count = {}, {}, 0
    for key, value in sd.items():
        layer = key.removesuffix("weight")
        fits = value.ndim == 2 and value.shape[1] % (32 if name == "mxfp8" else 16) == 0
        if not (fits and layer != key and any(part in key for part in where)):
            stored[key] = plain[key] = value.float()
            continue
        count += 1
        stored[key], scales = fresh(name, value.float())
        for buffer, ending in FORMATS[name].names.items():
            stored[layer + ending] = scales[buffer]
        stored[layer + "comfy_quant"] = marker_of(FORMATS[name].marker)
        plain[key] = FORMATS[name].values(stored[key], scales, torch.float32)
    assert count > 5
    return stored, plain


def loaded(tensors):
    options = {"load_device": PAPER, "offload_device": HOST}
    return comfy.sd.load_diffusion_model_state_dict(dict(tensors), model_options=options)


def patched_layer(patcher):
    """(name, layer) of a matrix that is quantised."""
    return next((n, m) for n, m in patcher.model.named_modules() if n.endswith("attn1.to_q"))


def values_of(patcher):
    layer = patched_layer(patcher)[1]
    weight = layer.weight.detach()
    if layer.quantization is None:
        return weight.float()
    return layer.quantization.values(weight, layer._buffers, torch.float32)


@pytest.fixture(params=FORMATS)
def models(request):
    return request.param, *map(loaded, quantized(parts("unet_sd1")["unet"], request.param))


def test_a_network_computes_with_the_numbers(device, models):
    _, packed, plain = models
    layer = patched_layer(packed)[1]
    assert layer.weight.element_size() == 1
    expected = output(plain)
    assert (output(packed) - expected).abs().max() < 2e-5 * expected.abs().max()
    comfy.model_management.unload_all_models()
    device.size = packed.model_size() // 2
    assert (output(packed) - expected).abs().max() < 2e-5 * expected.abs().max()


@pytest.mark.parametrize("streamed", [False, True])
def test_patches_change_the_numbers_and_go_without_a_trace(device, models, streamed):
    name, packed, plain = models
    key = patched_layer(packed)[0] + ".weight"
    weight, stored = values_of(plain), bits(patched_layer(packed)[1].weight.detach()).clone()
    scales = {n: bits(b).clone() for n, b in patched_layer(packed)[1]._buffers.items()}
    if streamed:
        device.size = packed.model_size() // 3
    for strength in (0.5, 0.1, 0.5):
        patched = packed.clone()
        patched.add_patches({key: (weight,)}, strength)
        comfy.model_management.load_models_gpu([patched])
        rows = (values_of(packed) - weight * (1 + strength)).abs().amax(1) / (weight.abs().amax(1) * (1 + strength))
        assert rows.max() < 2 * COARSE[name]
    comfy.model_management.load_models_gpu([packed])
    layer = patched_layer(packed)[1]
    assert torch.equal(bits(layer.weight), stored)
    assert all(torch.equal(bits(layer._buffers[n]), scale) for n, scale in scales.items())


def test_hooks_change_the_numbers(device, models):
    name, packed, plain = models
    key, weight = patched_layer(packed)[0] + ".weight", values_of(plain)
    comfy.model_management.load_models_gpu([packed])
    before = bits(patched_layer(packed)[1].weight.detach()).clone()
    hook = comfy.hooks.WeightHook(strength_model=0.5)
    hook.weights, hook.is_diff = {key: ("diff", (weight,))}, True
    group = comfy.hooks.HookGroup()
    group.add(hook)
    packed.register_all_hook_patches(group, {}, {})
    packed.apply_hooks(group)
    rows = (values_of(packed) - weight * 1.5).abs().amax(1) / (weight.abs().amax(1) * 1.5)
    assert rows.max() < 2 * COARSE[name]
    packed.apply_hooks(None)
    assert torch.equal(bits(patched_layer(packed)[1].weight), before)
    assert torch.equal(values_of(packed), weight)


def test_mixing_uses_the_numbers(device, models):
    """As ModelMergeSimple does: 0.25 of the first, 0.75 of the second."""
    name, packed, plain = models
    weight = values_of(plain)
    for first, second in ((plain, packed), (packed, plain), (packed, packed)):
        mixed = first.clone()
        patches = second.get_key_patches("diffusion_model.")
        assert not any("scale" in key for key in patches)
        for key, patch in patches.items():
            mixed.add_patches({key: patch}, 0.75, 0.25)
        comfy.model_management.load_models_gpu([mixed])
        found = values_of(first)
        assert (found - weight).abs().max() < (2 * COARSE[name] if first is packed else 1e-5) * weight.abs().max()
        comfy.model_management.unload_all_models()


def test_a_difference_is_one_of_numbers(device, models):
    packed = models[1]
    key = patched_layer(packed)[0] + ".weight"
    difference = packed.clone()
    difference.add_patches({key: packed.get_key_patches("diffusion_model.")[key]}, -1.0, 1.0)
    assert dict(differences(difference, "diffusion_model."))[key].abs().max() < 1e-6


@pytest.mark.parametrize("patched", [False, True])
def test_saved_models_are_files_of_that_format(device, models, tmp_path, patched):
    name, packed, plain = models
    key, weight = patched_layer(packed)[0] + ".weight", values_of(plain)
    saved = packed.clone()
    if patched:
        saved.add_patches({key: (weight,)}, 1.0)
        comfy.model_management.load_models_gpu([saved])  # patches that are in force are saved once
    comfy.utils.save_torch_file(saved.state_dict_for_saving(), str(tmp_path / "saved.safetensors"))
    tensors = load_file(tmp_path / "saved.safetensors")
    layer = "model." + key.removesuffix("weight")
    assert {layer + ending for ending in (*FORMATS[name].names.values(), "comfy_quant")} <= tensors.keys()
    again = comfy.sd.load_diffusion_model(str(tmp_path / "saved.safetensors"))
    wanted = weight * 2 if patched else weight
    assert (values_of(again) - wanted).abs().max() <= (COARSE[name] if patched else 0) * wanted.abs().max()


def test_formats_may_be_told_in_the_files_metadata(tmp_path):
    stored, plain = quantized(parts("unet_sd1")["unet"], "nvfp4")
    layers = {k.removesuffix(".comfy_quant"): "nvfp4" for k in stored if k.endswith(".comfy_quant")}
    first = next(iter(layers))
    layers |= {first: {"format": "nvfp4"}, "not.there": "nvfp4"}
    tensors = {k: v.contiguous() for k, v in stored.items() if not k.endswith(".comfy_quant")}
    path = str(tmp_path / "told.safetensors")
    save_file(tensors, path, metadata={"_quantization_metadata": json.dumps({"layers": layers})})
    assert torch.equal(values_of(comfy.sd.load_diffusion_model(path)), values_of(loaded(plain)))
    save_file(tensors, path, metadata={"_quantization_metadata": "[broken"})
    with pytest.raises(comfy.sd.UnknownModelError, match=r"integers \(uint8\)"):
        comfy.sd.load_diffusion_model(path)


@every_format
def test_transformers_and_their_configuration(name):
    """Packed weights are half as wide; the configuration is read all the same."""
    golden = Golden("z_image")
    stored, plain = quantized(golden.weights, name)
    first, second = loaded(stored), loaded(plain)
    assert first.model.diffusion_model.config == second.model.diffusion_model.config
    inputs = dict(golden.inputs)
    inputs.pop("timesteps")
    x, sigma, context = inputs.pop("x"), inputs.pop("sigma"), inputs.pop("context")
    with torch.inference_mode():
        got, wanted = (m.model.apply_model(x, sigma, c_crossattn=context, **inputs) for m in (first, second))
    assert (got - wanted).abs().max() < 1e-4 * wanted.std()


@every_format
def test_text_encoders_and_their_tables(name):
    stored, plain = quantized(Golden("llm_qwen3_4b").weights, name, ("self_attn", "mlp", "embed_tokens"))
    assert ("model.embed_tokens.comfy_quant" in stored) == (name != "mxfp8")
    encoders = []
    for tensors in (stored, plain):
        config = llama.config_from_state_dict(with_shapes_of_values(tensors), family="qwen3")
        encoders.append(llama.LlamaEncoder(config, device="meta"))
        load_assigned(encoders[-1], tensors, "text encoder")
    words = torch.tensor([[1, 5, 7, 5]])
    with torch.inference_mode():
        got, wanted = (net(words).last for net in encoders)
    assert (got - wanted).abs().max() < 1e-4 * wanted.std()


@every_format
def test_checkpoints(name, tmp_path):
    """Network and text encoder of one file; vectors of words are quantised, too."""
    tensors = parts("unet_sd1")
    network, network_plain = quantized(tensors["unet"], name)
    text, text_plain = quantized(tensors["clip"], name, ("self_attn", "mlp", "token_embedding"))
    found = []
    for file, sides in {"a": (network, text), "b": (network_plain, text_plain)}.items():
        whole = {k: v.contiguous() for part in (*sides, tensors["vae"]) for k, v in part.items()}
        save_file(whole, tmp_path / f"{file}.safetensors")
        model, clip, *_ = comfy.sd.load_checkpoint_guess_config(str(tmp_path / f"{file}.safetensors"))
        with torch.inference_mode():
            cond = clip.encode_from_tokens(clip.tokenize("a red (circle:1.2)"))
            sigma, latent = torch.tensor([2.0]), torch.linspace(-1, 1, 256).reshape(1, 4, 8, 8)
            context = cond[..., : Golden("unet_sd1").inputs["context"].shape[-1]]
            found.append((cond, model.model.apply_model(latent, sigma, c_crossattn=context)))
    for got, wanted in zip(*found):
        assert (got - wanted).abs().max() < 1e-4 * wanted.std()


@every_format
def test_layouts_that_have_to_be_changed(name, tmp_path):
    """Files of diffusers and open_clip, whose weights are cut and joined: quantised ones are written out."""
    golden = Golden("z_image")
    names = diffusers_names({k.removeprefix(PREFIX): v.shape for k, v in golden.weights.items()})
    tensors = {}
    for theirs, place in names.items():
        own, cut, *turned = (place, None) if isinstance(place, str) else place
        value = golden.weights.get(PREFIX + own)
        if value is not None:
            tensors[theirs] = value.narrow(*cut) if cut else turned[0](value) if turned else value
    stored, plain = quantized(tensors, name)
    first, second = loaded(stored), loaded({k: v.bfloat16() if "attention" in k else v for k, v in plain.items()})
    layer = next(n for n, _ in second.model.named_parameters() if n.endswith("layers.0.attention.qkv.weight"))
    assert torch.equal(first.model.get_parameter(layer).float(), second.model.get_parameter(layer).float())

    text = from_text_model({k.partition("transformer.")[2]: v for k, v in parts("unet_sd1")["clip"].items()})
    stored, plain = quantized(text, name, ("mlp.c_fc", "mlp.c_proj", "out_proj"))
    first, second = to_text_model(stored), to_text_model(plain)
    assert first.keys() == second.keys()
    assert all((first[k] - second[k]).abs().max() <= 2**-8 * second[k].abs().max() for k in first)


# --- what does not fit


def broken(change):
    stored, _ = quantized(parts("unet_sd1")["unet"], change[0])
    layer = next(k for k in stored if k.endswith("attn1.to_q.comfy_quant")).removesuffix("comfy_quant")
    change[1](stored, layer)
    return stored


def without(name):
    return lambda sd, layer: sd.pop(layer + name)


def with_(name, value):
    return lambda sd, layer: sd.update({layer + name: value})


def marked(**entries):
    return with_("comfy_quant", marker_of(entries))


MISFITS = {
    "no scale": ("rows", without("weight_scale"), r"attn1\.to_q\.weight is stored as int8.*lacks .*weight_scale"),
    "no block scales": ("nvfp4", without("weight_scale"), r"stored as nvfp4.*lacks .*weight_scale"),
    "no scale of the whole": ("nvfp4", without("weight_scale_2"), r"lacks .*weight_scale_2"),
    "scales of other rows": ("rows", with_("weight_scale", torch.ones(3, 1)), r"weight_scale is \(3, 1\)"),
    "too few block scales": ("mxfp8", with_("weight_scale", torch.ones(4, 4).byte()), r"weight_scale is \(4, 4\)"),
    "another shape": ("nvfp4", with_("weight", torch.zeros(16, 8).byte()), r"to_q\.weight is \(16, 16\)"),
    "no marker": ("rows", without("comfy_quant"), r"stored as integers \(int8\)"),
    "group": ("rotated", marked(format="int8_tensorwise", convrot=True, convrot_groupsize=256), r"rotated by 256"),
    "odd group": ("rotated", marked(format="int8_tensorwise", convrot=True, convrot_groupsize=32), "with convrot"),
    "more": ("rows", marked(format="int8_tensorwise", zero_point=True), "int8_tensorwise with zero_point"),
    "unknown": ("rows", marked(format="int3"), "stored as int3"),
    "rotated float8": ("mxfp8", marked(format="mxfp8", convrot=True), "mxfp8 with convrot"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_what_does_not_fit_is_told(case, tmp_path):
    name, change, told = MISFITS[case]
    path = str(tmp_path / "model.safetensors")
    save_file({k: v.contiguous() for k, v in broken((name, change)).items()}, path)
    with pytest.raises(comfy.sd.UnknownModelError, match=told):
        comfy.sd.load_diffusion_model(path)


def test_a_weight_is_found_by_its_name():
    packed = loaded(quantized(parts("unet_sd1")["unet"], "rows")[0])
    name = patched_layer(packed)[0]
    assert QuantizedWeight.find(packed.model, f"{name}.weight") is not None
    assert QuantizedWeight.find(packed.model, f"{name}.bias") is None
    assert QuantizedWeight.find(packed.model, "diffusion_model.out.2.weight") is None
