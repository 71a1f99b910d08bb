"""The model around the network against recorded denoised latents, and what conditioning brings into it."""

import pytest
import torch

import comfy.conds
import comfy.latent_formats
from comfy import model_detection
from comfy.model_base import WeightsMismatch
from comfy.model_sampling import ModelType
from comfy.patcher_extension import WrappersMP, add_wrapper
from comfy.supported_models_base import BASE
from tests.networks.golden import LIMIT, Golden, error

PREFIX = "model.diffusion_model."
SD1 = ["unet_sd1", "unet_sd1_odd", "unet_sd1_inpaint9", "unet_sd1_ip2p8"]


class AnyUNet(BASE):
    """For families whose registry entry is not under test here."""

    latent_format = comfy.latent_formats.SD15
    kind = ModelType.EPS

    def model_type(self, state_dict, prefix=""):
        return self.kind


def build(golden: Golden, family=None):
    unet_config = model_detection.detect_unet_config(golden.weights, PREFIX)
    recorded = golden.config["unet_config"]["num_head_channels"]
    if recorded > 0:
        unet_config["num_head_channels"] = recorded
    detected = model_detection.model_config_from_unet_config(unet_config, golden.weights)
    config = family(unet_config) if family else detected
    config.set_inference_dtype(torch.float32, None)
    return config.get_model(golden.weights, PREFIX, device="meta").load_model_weights(dict(golden.weights), PREFIX)


@pytest.mark.parametrize("name", SD1)
def test_denoised_matches_recording(name):
    golden = Golden(name)
    model = build(golden)
    assert type(model.model_config).__name__ == golden.config["model_class"]
    assert type(model.latent_format).__name__ == golden.config["latent_format"]
    out = model.apply_model(
        golden.inputs["x"],
        golden.inputs["sigma"],
        c_concat=golden.inputs.get("c_concat"),
        c_crossattn=golden.inputs["context"],
    )
    assert error(out, golden.out["denoised"]) < LIMIT


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("unet_sd2_v", ModelType.V_PREDICTION),
        ("unet_sdxl", ModelType.EPS),
        ("unet_sdxl_refiner", ModelType.EPS),
    ],
)
def test_other_parametrisations(name, kind):
    golden = Golden(name)
    family = type("Family", (AnyUNet,), {"kind": kind})
    out = build(golden, family).apply_model(
        golden.inputs["x"],
        golden.inputs["sigma"],
        c_crossattn=golden.inputs["context"],
        y=golden.inputs.get("y"),
    )
    assert error(out, golden.out["denoised"]) < LIMIT


def test_wrappers_go_around_model_and_network():
    golden = Golden("unet_sd1")
    model = build(golden)
    seen = []

    def around(name):
        def wrapper(executor, *args, **kwargs):
            seen.append((name, executor.class_obj))
            return executor(*args, **kwargs)

        return wrapper

    options: dict = {}
    add_wrapper(WrappersMP.APPLY_MODEL, around("model"), options)
    add_wrapper(WrappersMP.DIFFUSION_MODEL, around("network"), options)
    inputs = (golden.inputs["x"], golden.inputs["sigma"])
    out = model.apply_model(*inputs, c_crossattn=golden.inputs["context"], transformer_options=options)
    assert seen == [("model", model), ("network", model.diffusion_model)]
    assert error(out, golden.out["denoised"]) < LIMIT


def conds(model, **kwargs):
    noise = torch.zeros(2, 4, 8, 8)
    return model.extra_conds(noise=noise, device=torch.device("cpu"), **kwargs)


def test_plain_model_takes_the_context_only():
    context = torch.ones(1, 77, 24)
    out = conds(build(Golden("unet_sd1")), cross_attn=context, pooled_output=torch.ones(1, 24))
    assert list(out) == ["c_crossattn"]
    assert isinstance(out["c_crossattn"], comfy.conds.CONDCrossAttn)


def test_inpainting_model_sees_mask_and_picture():
    model = build(Golden("unet_sd1_inpaint9"))
    # Without anything to go by: all is to be painted, on grey.
    blank = conds(model)["c_concat"].cond
    assert blank.shape == (2, 5, 8, 8)
    assert (blank[:, 0] == 1).all()
    assert blank[0, 1:, 3, 3].tolist() == pytest.approx([0.8223, -0.6876, 0.6364, 0.1380])

    mask = torch.zeros(1, 64, 64)
    mask[:, :32] = 1.0
    image = torch.full((1, 4, 16, 16), 2.0)
    out = conds(model, concat_mask=mask, concat_latent_image=image)["c_concat"].cond
    assert (out[:, 0, :4] == 1).all() and (out[:, 0, 4:] == 0).all()
    assert torch.allclose(out[:, 1:], torch.tensor(2.0 * 0.18215))


def test_editing_model_sees_the_picture_unscaled():
    model = build(Golden("unet_sd1_ip2p8"))
    assert (conds(model)["c_concat"].cond == 0).all()
    image = torch.full((1, 4, 8, 8), 2.0)
    out = conds(model, concat_latent_image=image)["c_concat"].cond
    assert out.shape == (2, 4, 8, 8)
    assert (out == 2.0).all()


def test_missing_and_misshapen_weights_are_named():
    golden = Golden("unet_sd1")
    del golden.weights[PREFIX + "out.0.weight"]
    with pytest.raises(WeightsMismatch, match=r"lacks out\.0\.weight"):
        build(golden)
    golden = Golden("unet_sd1")
    golden.weights[PREFIX + "out.0.weight"] = torch.zeros(3)
    with pytest.raises(WeightsMismatch, match=r"out\.0\.weight"):
        build(golden)


def test_memory_estimate_grows_with_the_work():
    model = build(Golden("unet_sd1"))
    one = model.memory_required([1, 4, 64, 64])
    assert model.memory_required([2, 4, 64, 64]) == 2 * one
    assert model.memory_required([1, 4, 128, 64], cond_shapes={}) == 2 * one


def test_saving_uses_the_names_of_a_checkpoint():
    model = build(Golden("unet_sd1"))
    sd = model.state_dict_for_saving(
        {"diffusion_model.out.0.weight": torch.ones(1)},
        {"clip_l.transformer.text_model.x": torch.ones(1)},
        {"decoder.y": torch.ones(1)},
    )
    assert sorted(sd) == [
        "cond_stage_model.transformer.text_model.x",
        "first_stage_model.decoder.y",
        "model.diffusion_model.out.0.weight",
    ]
