"""The model around each family's network: recorded denoised latents, and what conditioning brings into it."""

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

import comfy.conds
import comfy.latent_formats
import comfy.model_base
from comfy.denoisers.flux import Flux
from comfy.model_base import MissingConditioning, UnfitConditioning
from comfy.models.wan import WanConfig
from comfy.supported_models import SDXL, WAN21_T2V, SDXL_instructpix2pix, SDXLRefiner
from comfy.supported_models_base import BASE
from tests.architectures.recorded import set_recorded_frequency
from tests.families.models import conds, family_model
from tests.networks.golden import DATA, LIMIT, Golden, error

GOLDENS = [
    *("unet_sd1", "unet_sd1_inpaint9", "unet_sd1_ip2p8", "unet_sd2_v", "unet_sdxl", "unet_sdxl_refiner"),
    *("mmdit_sd3", "mmdit_sd3_odd", "mmdit_sd35_large", "mmdit_sd35_medium"),
    *("flux_dev", "flux_dev_odd", "flux_schnell", "flux_kontext_ref", "flux2", "flux2_ref", "chroma"),
    *("auraflow", "pixart_sigma", "lumina2", "lumina2_mask", "z_image", "qwen_image", "qwen_image_edit", "hidream"),
    *("wan21_t2v", "wan22_5b_frame_t"),
]


def denoised(model, golden: Golden) -> torch.Tensor:
    inputs = dict(golden.inputs)
    x, sigma, context = inputs.pop("x"), inputs.pop("sigma"), inputs.pop("context")
    inputs.pop("timesteps")
    refs = [inputs.pop(k) for k in sorted(k for k in inputs if k.startswith("ref_latents."))]
    if refs:
        inputs["ref_latents"] = refs
    return model.apply_model(x, sigma, c_concat=inputs.pop("c_concat", None), c_crossattn=context, **inputs)


@pytest.mark.parametrize("name", GOLDENS)
def test_denoised_latent_is_the_recorded_one(name):
    golden = Golden(name)
    model = family_model(golden)
    assert type(model.model_config).__name__ == golden.config["model_class"]
    assert model.model_type.name == golden.config["model_type"]
    assert error(denoised(model, golden), golden.out["denoised"]) < LIMIT


def test_fill(monkeypatch):
    set_recorded_frequency(monkeypatch)
    golden = Golden("flux_fill")
    assert error(denoised(family_model(golden), golden), golden.out["denoised"]) < LIMIT


# --- SDXL


class WithoutNetwork:
    """A family's model whose network is not built."""

    def __new__(cls, family: type[BASE], **config) -> comfy.model_base.BaseModel:
        found = family({"disable_unet_model_creation": True, "in_channels": 4, **config})
        return found.base_model(found)


def test_vectors_of_sdxl_and_refiner():
    recorded = load_file(DATA / "addons" / "adm_vectors.io.safetensors")
    pooled = recorded["in.pooled"]
    base, refiner = WithoutNetwork(SDXL), WithoutNetwork(SDXLRefiner)
    run = {"device": torch.device("cpu"), "pooled_output": pooled}
    assert error(base.encode_adm(**run), recorded["out.sdxl_defaults"]) < LIMIT
    assert error(refiner.encode_adm(**run, prompt_type="positive"), recorded["out.refiner_defaults"]) < LIMIT
    assert error(refiner.encode_adm(**run, prompt_type="negative"), recorded["out.refiner_negative"]) < LIMIT
    # A cond's own size, crop and target, told apart from each other.
    one = base.encode_adm(**run, width=832, height=1216, crop_w=8, crop_h=16, target_width=1024, target_height=896)
    for place, number in enumerate((1216, 832, 16, 8, 896, 1024)):
        alone = base.encode_adm(**run, **dict.fromkeys(("width", "height"), number))
        width = pooled.shape[1]
        assert torch.equal(one[:, width + 256 * place :][:, :256], alone[:, width : width + 256])


def test_missing_pooled_vector_is_told():
    with pytest.raises(MissingConditioning, match="SDXL needs the text encoder's pooled vector"):
        WithoutNetwork(SDXL).encode_adm(device=torch.device("cpu"))


def test_editing_sdxl_scales_the_picture_only_where_it_predicts_velocity():
    model = WithoutNetwork(SDXL_instructpix2pix, in_channels=8)
    noise, image = torch.zeros(2, 4, 8, 8), torch.ones(1, 4, 16, 16)
    run = {"noise": noise, "device": noise.device}
    assert torch.equal(model.concat_cond(**run, concat_latent_image=image), torch.ones(2, 4, 8, 8))
    assert torch.equal(model.concat_cond(**run), noise)
    model.model_type = comfy.model_base.ModelType.V_PREDICTION_EDM
    assert model.concat_cond(**run, concat_latent_image=image).unique().item() == pytest.approx(0.13025)


# --- transformers


def test_sd3_takes_tokens_and_pooled_vector():
    made = conds(family_model(Golden("mmdit_sd3")), cross_attn=torch.ones(1, 5, 24), pooled_output=torch.ones(1, 32))
    assert sorted(made) == ["c_crossattn", "y"]


def test_flux_takes_guidance_references_and_pooled_vector():
    model = family_model(Golden("flux_dev"))
    refs = [torch.full((1, 16, 4, 4), 0.5)]
    made = conds(
        model,
        cross_attn=torch.ones(1, 5, 24),
        pooled_output=torch.ones(1, 32),
        guidance=2.5,
        reference_latents=refs,
        reference_latents_method="index",
        attention_mask=torch.ones(1, 5),
    )
    assert sorted(made) == ["c_crossattn", "guidance", "ref_latents", "ref_latents_method", "y"]
    assert made["guidance"].tolist() == [2.5] and made["ref_latents_method"] == "index"
    assert torch.allclose(made["ref_latents"][0], torch.tensor((0.5 - 0.1159) * 0.3611))
    assert conds(model)["guidance"].tolist() == [3.5]
    assert "guidance" not in conds(model, guidance=None)
    assert conds(family_model(Golden("chroma")))["guidance"].tolist() == [0.0]
    assert conds(family_model(Golden("flux2")), pooled_output=torch.ones(1, 32)).keys() == {"guidance"}


def test_style_is_weighed_in_the_attention():
    """Weight 0 hides its tokens: the same picture as without them."""
    golden = Golden("flux_dev")
    model = family_model(golden)
    style = torch.randn(1, 3, 24, generator=torch.Generator().manual_seed(0))
    plain = torch.cat([golden.inputs["context"], torch.zeros(2, 0, 24)], dim=1)
    styled = torch.cat([plain, style.expand(2, -1, -1)], dim=1)
    bias = torch.zeros(1, plain.shape[1] + 3)
    bias[:, -3:] = -1e30
    run = {k: golden.inputs[k] for k in ("guidance", "y")}
    scores = conds(model, style_attention_bias=bias)["attention_mask"]
    x, sigma = golden.inputs["x"], golden.inputs["sigma"]
    hidden = model.apply_model(x, sigma, c_crossattn=styled, attention_mask=scores, **run)
    assert error(hidden, golden.out["denoised"]) < LIMIT
    assert error(model.apply_model(x, sigma, c_crossattn=styled, **run), golden.out["denoised"]) > 1e-3


def test_fill_sees_picture_then_pixels_of_the_mask():
    model = family_model(Golden("flux_fill"))
    mask = torch.zeros(1, 64, 96)
    mask[:, 3, 17] = 1.0  # row 0, column 2 of the latent; pixel (3, 1) of that cell
    image = torch.full((1, 16, 8, 12), 0.5)
    concat = conds(model, concat_mask=mask, concat_latent_image=image)["c_concat"]
    assert concat.shape == (2, 80, 8, 12)
    assert torch.allclose(concat[:, :16], torch.tensor((0.5 - 0.1159) * 0.3611))
    expected = torch.zeros(2, 64, 8, 12)
    expected[:, 3 * 8 + 1, 0, 2] = 1.0
    assert torch.equal(concat[:, 16:], expected)
    # Nothing to go by: all is to be painted.
    blank = conds(model)["c_concat"]
    assert not blank[:, :16].any() and (blank[:, 16:] == 1).all()
    # The sampler's own mask counts where the conditioning has none.
    denoise = torch.zeros(1, 1, 8, 12)
    assert not conds(model, denoise_mask=denoise)["c_concat"][:, 16:].any()


def test_canny_and_depth_see_a_picture():
    class Config:
        in_channels, out_channels = 32, 16

    model = family_model(Golden("flux_dev"))
    assert isinstance(model, Flux) and "c_concat" not in conds(model)
    model.diffusion_model.config = Config()
    concat = conds(model, concat_latent_image=torch.full((1, 16, 4, 6), 0.1159))["c_concat"]
    assert concat.shape == (2, 16, 8, 12) and torch.allclose(concat, torch.tensor(0.0), atol=1e-6)


def test_masks_of_the_text():
    mask = torch.ones(1, 5)
    assert "attention_mask" in conds(family_model(Golden("pixart_sigma")), attention_mask=mask)
    made = conds(
        family_model(Golden("qwen_image")), attention_mask=mask, reference_latents=[torch.zeros(1, 16, 1, 4, 4)]
    )
    assert sorted(made) == ["attention_mask", "ref_latents"]


def test_hidream_takes_llama_too():
    made = conds(
        family_model(Golden("hidream")), pooled_output=torch.ones(1, 32), conditioning_llama3=torch.ones(1, 2, 11, 24)
    )
    assert sorted(made) == ["encoder_hidden_states_llama3", "y"]


# --- Wan


def wan_model(in_dim: int, **config):
    """Wan's model around a network that is nothing but its configuration."""
    model = WithoutNetwork(WAN21_T2V, dim=64, **config)
    model.diffusion_model = SimpleNamespace(config=WanConfig(in_dim=in_dim))
    return model


def beside(model, frames: int = 3, **conditioning) -> torch.Tensor | None:
    """What goes beside two latents of 4 x 6 cells."""
    noise = torch.zeros(2, model.latent_format.latent_channels, frames, 4, 6)
    return model.concat_cond(noise=noise, device=noise.device, **conditioning)


def test_wan_from_a_text_takes_the_latent_alone():
    assert beside(wan_model(16), concat_latent_image=torch.ones(1, 16, 3, 4, 6)) is None


def test_wan_sees_which_frames_are_given_then_their_latents():
    model = wan_model(36)
    mask = torch.ones(1, 1, 2, 4, 6)
    mask[:, :, 0] = 0.0
    image = torch.randn(1, 16, 3, 4, 6, generator=torch.Generator().manual_seed(0))
    out = beside(model, concat_latent_image=image, concat_mask=mask)
    assert out.shape == (2, 20, 3, 4, 6)
    assert (out[:, :4, 0] == 1).all()
    # The mask says nothing about the third frame: it is to be made, too.
    assert not out[:, :4, 1:].any()
    assert torch.allclose(out[:, 4:], model.process_latent_in(image).expand(2, -1, -1, -1, -1))
    # No picture: nothing is given, whatever the mask says.
    assert not beside(model, concat_mask=mask).any()
    # The mask of the sampler counts where the conditioning has none; without any, nothing is known to be given.
    assert torch.equal(beside(model, concat_latent_image=image, denoise_mask=mask)[:, :4], out[:, :4])
    assert not beside(model, concat_latent_image=image)[:, :4].any()


def test_wan_masks_of_pixel_frames_stay_four():
    mask = torch.ones(1, 4, 3, 4, 6)
    mask[:, 2, 1] = 0.0
    out = beside(wan_model(36), concat_latent_image=torch.zeros(1, 16, 3, 4, 6), concat_mask=mask)
    assert (out[:, 2, 1] == 1).all() and out[:, :4].sum() == 2 * 4 * 6


def test_wan_controls_are_latents_side_by_side():
    model = wan_model(48)
    image = torch.randn(1, 32, 3, 4, 6, generator=torch.Generator().manual_seed(0))
    out = beside(model, concat_latent_image=image, concat_mask=torch.zeros(1, 4, 3, 4, 6))
    for part, recorded in zip(out.split(16, dim=1), image.split(16, dim=1)):
        assert torch.allclose(part, model.process_latent_in(recorded).expand(2, -1, -1, -1, -1))
    # Wan 2.2's has a mask between control and picture.
    masked = beside(
        wan_model(52), concat_latent_image=image, concat_mask=torch.zeros(1, 4, 3, 4, 6), concat_mask_index=16
    )
    assert (masked[:, 16:20] == 1).all()
    assert torch.equal(torch.cat([masked[:, :16], masked[:, 20:]], dim=1), out)


def test_wan_picture_of_another_size_is_fitted_and_other_frames_are_told():
    assert beside(wan_model(36), concat_latent_image=torch.zeros(1, 16, 3, 8, 8)).shape == (2, 20, 3, 4, 6)
    with pytest.raises(UnfitConditioning, match=r"20 channels and 3 frames beside its latent.* brings 20 and 5"):
        beside(wan_model(36), concat_latent_image=torch.zeros(1, 16, 5, 4, 6))
    with pytest.raises(UnfitConditioning, match=r"32 channels .* brings 16"):
        beside(wan_model(48), concat_latent_image=torch.zeros(1, 16, 3, 4, 6))


def test_wan_looks_at_pictures_and_frames():
    model = family_model(Golden("wan21_t2v"))
    seen = SimpleNamespace(penultimate_hidden_states=torch.ones(1, 257, 1280))
    latents = [torch.zeros(1, 16, 1, 8, 12), torch.ones(1, 16, 1, 8, 12)]
    made = conds(model, clip_vision_output=seen, time_dim_concat=latents[1], reference_latents=latents)
    assert sorted(made) == ["clip_fea", "reference_latent", "time_dim_concat"]
    scaled = model.process_latent_in(latents[1])
    assert torch.equal(made["time_dim_concat"], scaled) and torch.equal(made["reference_latent"], scaled[:, :, 0])


def test_wan22_frames_that_are_given_are_at_timestep_zero():
    """The recorded network with a timestep for each frame."""
    golden = Golden("wan22_5b_frame_t")
    model = family_model(golden)
    x, sigma, context = (golden.inputs[k] for k in ("x", "sigma", "context"))
    mask = torch.ones_like(x)
    mask[:, :, 0] = 0.0
    made = model.extra_conds(noise=x, device=x.device, denoise_mask=mask)
    out = model.apply_model(x, sigma, c_crossattn=context, denoise_mask=made["denoise_mask"].cond)
    assert error(out, x - sigma * golden.out["raw"]) < LIMIT
    # Half of a frame: half its noise.
    mask[:, :, 1, :3] = 0.0
    told = model.process_timestep(torch.tensor([900.0]), denoise_mask=mask)
    assert told.tolist() == [[0.0, 450.0, 900.0]]
    # What is given stays free of noise.
    clean = torch.ones_like(x)
    assert torch.equal(model.scale_latent_inpaint(x=x, sigma=sigma, noise=x, latent_image=clean), clean)


# --- all


def test_entries_of_one_run_are_batched():
    """Positive and negative of equal shape go through the network together."""
    model = family_model(Golden("flux_dev"))

    def entry(guidance):
        noise = torch.zeros(1, 16, 8, 12)
        made = model.extra_conds(noise=noise, device=noise.device, guidance=guidance, pooled_output=torch.ones(1, 32))
        return {name: cond.process_cond(batch_size=1) for name, cond in made.items()}

    first, second = entry(3.5), entry(1.0)
    assert all(first[name].can_concat(second[name]) for name in first)
    assert first["guidance"].concat([second["guidance"]]).tolist() == [3.5, 1.0]


# --- names


@pytest.mark.parametrize("name", ["SDXL", "SDXLRefiner", "SD3", "Flux", "Chroma", "IP2P", "SD15_instructpix2pix"])
def test_classes_by_the_names_packs_import(name):
    assert getattr(comfy.model_base, name).__name__ == name


def test_unknown_name():
    with pytest.raises(AttributeError, match="NoSuchModel"):
        _ = comfy.model_base.NoSuchModel


def test_network_of_a_pack_takes_the_place_of_the_familys():
    class Own(torch.nn.Module):
        def __init__(self, model_channels, device=None, operations=None, **kwargs):
            super().__init__()
            self.width, self.dtype = model_channels, None

    config = SDXL({"in_channels": 4, "model_channels": 7})
    assert comfy.model_base.BaseModel(config, unet_model=Own).diffusion_model.width == 7
