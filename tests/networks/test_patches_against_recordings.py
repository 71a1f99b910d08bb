"""The seams that nodes and packs use, with known techniques put together from them: guidance by perturbed attention,
deep shrink, merging of models."""

import json

import pytest
import torch
from safetensors import safe_open

import comfy.sd
import comfy.utils
from tests.networks.golden import DATA, LIMIT, Golden, error


def recorded(name: str) -> tuple[dict, dict]:
    with safe_open(DATA / f"{name}.io.safetensors", "pt") as f:
        tensors = {key: f.get_tensor(key) for key in f.keys()}  # noqa: SIM118
        return tensors, json.loads(f.metadata()["config"])


STEP, CASES = recorded("model_patches")
CASES = CASES["cases"]
MERGED, _ = recorded("model_merge")


@pytest.fixture(scope="module")
def model():
    return comfy.sd.load_diffusion_model_state_dict(dict(Golden("unet_sd1").weights))


def predict(patcher, context: str, options: dict | None = None) -> torch.Tensor:
    comfy.model_management.load_models_gpu([patcher])
    return patcher.model.apply_model(
        STEP["in.x"],
        STEP["in.sigma"],
        c_crossattn=STEP[f"in.{context}"],
        transformer_options=patcher.model_options["transformer_options"] if options is None else options,
    )


def guided(patcher, cfg: float = 7.0) -> torch.Tensor:
    positive, negative = predict(patcher, "positive"), predict(patcher, "negative")
    return negative + (positive - negative) * cfg


def test_plain_guidance(model):
    assert error(guided(model), STEP["out.cfg_7"]) < LIMIT


def test_perturbed_attention(model):
    patched = model.clone()
    patched.set_model_attn1_replace(lambda q, k, v, options: v, "middle", 0)
    scale = CASES["pag_3"]["args"]["scale"]
    out = guided(model) + (predict(model, "positive") - predict(patched, "positive")) * scale
    assert error(out, STEP["out.pag_3"]) < LIMIT


def test_deep_shrink(model):
    args = CASES["deep_shrink"]["args"]
    patched = model.clone()

    def shrink(h, options):
        if options["block"] != ("input", args["block_number"]):
            return h
        size = [round(n / args["downscale_factor"]) for n in h.shape[2:]]
        return comfy.utils.common_upscale(h, size[1], size[0], args["downscale_method"], "disabled")

    def grow(h, skip, options):
        if h.shape[2:] != skip.shape[2:]:
            h = comfy.utils.common_upscale(h, skip.shape[-1], skip.shape[-2], args["upscale_method"], "disabled")
        return h, skip

    patched.set_model_input_block_patch_after_skip(shrink)
    patched.set_model_output_block_patch(grow)
    assert error(guided(patched), STEP["out.deep_shrink"]) < LIMIT


def test_freeu(model):
    """Si et al. 2023: the backbone's first half scaled up, the skip's low frequencies scaled down."""
    args = CASES["freeu"]["args"]
    channels = model.model.diffusion_model.model_channels
    factors = {channels * 4: (args["b1"], args["s1"]), channels * 2: (args["b2"], args["s2"])}
    patched = model.clone()

    def free(h, skip, options):
        if h.shape[1] not in factors:
            return h, skip
        backbone, low = factors[h.shape[1]]
        h = torch.cat([h[:, : h.shape[1] // 2] * backbone, h[:, h.shape[1] // 2 :]], dim=1)
        spectrum = torch.fft.fftshift(torch.fft.fftn(skip.float(), dim=(-2, -1)), dim=(-2, -1))
        row, column = skip.shape[-2] // 2, skip.shape[-1] // 2
        spectrum[..., row - 1 : row + 1, column - 1 : column + 1] *= low
        skip = torch.fft.ifftn(torch.fft.ifftshift(spectrum, dim=(-2, -1)), dim=(-2, -1)).real
        return h, skip

    patched.set_model_output_block_patch(free)
    assert error(guided(patched), STEP["out.freeu"]) < LIMIT


def model_b(model):
    """The second model of the merges is made from the first."""
    weights = {k: (0.5 * v + 0.25 * v.flip(0)).half().float() for k, v in Golden("unet_sd1").weights.items()}
    return comfy.sd.load_diffusion_model_state_dict(weights)


def block_ratio(key: str) -> float:
    for name, ratio in (("input_blocks.", 0.2), ("middle_block.", 0.5), ("output_blocks.", 0.9), ("out.", 0.9)):
        if key.startswith(f"diffusion_model.{name}"):
            return ratio
    return 0.2


def merged(case: str, a, b):
    out = a.clone()
    patches = b.get_key_patches("diffusion_model.")
    for key, patch in patches.items():
        if case == "simple_03":
            out.add_patches({key: patch}, 1 - 0.3, 0.3)
        elif case == "add":
            out.add_patches({key: patch}, 1.0, 1.0)
        elif case == "subtract_05":
            out.add_patches({key: patch}, -0.5, 0.5)
        elif case == "blocks":
            ratio = block_ratio(key)
            out.add_patches({key: patch}, 1 - ratio, ratio)
        elif case == "add_difference":
            # A + (B - A): subtraction as a model of its own, then added.
            pass
    if case == "add_difference":
        difference = b.clone()
        for key, patch in a.get_key_patches("diffusion_model.").items():
            difference.add_patches({key: patch}, -1.0, 1.0)
        for key, patch in difference.get_key_patches("diffusion_model.").items():
            out.add_patches({key: patch}, 1.0, 1.0)
    return out


@pytest.mark.parametrize("case", ["simple_03", "add", "subtract_05", "add_difference", "blocks"])
def test_merging(model, case):
    out = merged(case, model, model_b(model))
    comfy.model_management.load_models_gpu([out])
    prefix = f"out.{case}.weight."
    for key in [k for k in MERGED if k.startswith(prefix)]:
        weight = comfy.utils.get_attr(out.model.diffusion_model, key.removeprefix(prefix))
        assert torch.allclose(weight, MERGED[key], atol=1e-6), key
    golden = Golden("unet_sd1")
    denoised = out.model.apply_model(golden.inputs["x"], golden.inputs["sigma"], c_crossattn=golden.inputs["context"])
    # Doubled weights amplify rounding: two attention kernels alone differ by half of this here.
    assert error(denoised, MERGED[f"out.{case}.denoised"]) < 3 * LIMIT
    out.detach()
    bias = golden.weights["model.diffusion_model.out.2.bias"]
    assert torch.equal(model.model.diffusion_model.out[2].bias, bias)
