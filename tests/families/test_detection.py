"""Which family a file is of, from names and shapes of the published files, against recorded answers."""

import gzip
import json

import pytest
import torch

import comfy.sd
from comfy import model_detection
from comfy.model_sampling import ModelType
from comfy.models import unet
from tests.architectures.recorded import key_map
from tests.networks.golden import DATA, Golden

DETECTED = json.loads(gzip.decompress((DATA / "detected.json.gz").read_bytes()))
CHECKPOINTS = DETECTED["checkpoints"]
# Families whose networks are not part of this program.
OTHERS = ("cosmos", "hunyuan_video", "ltxv", "mochi")
NAMES = [name for name in CHECKPOINTS if not name.startswith(OTHERS)]
# Values that are kept in another form here. `in_channels` of Chroma counts those of a latent cell, not of a patch.
OTHER_FORM = {"attn_precision", "num_res_blocks"}
CHROMA_FORM = {"in_channels", "out_channels"}


def published(name: str) -> dict[str, torch.Tensor]:
    """The recorded key maps: NAME, NAME@PREFIX (put in front) or NAME@bare (prefix taken away)."""
    name, _, prefix = name.partition("@")
    if name == "sd20_eps":
        # The same shapes; the tensor that tells them apart spreads little.
        sd = key_map("sd21_v")
        sd[SPREAD] = torch.linspace(-0.1, 0.1, 320)
        return sd
    sd = key_map(name)
    if name == "sd21_v":
        sd[SPREAD] = torch.linspace(-1, 1, 320)
    if prefix == "bare":
        own = model_detection.unet_prefix_from_state_dict(sd)
        return {k.removeprefix(own): v for k, v in sd.items() if k.startswith(own)}
    return {prefix + k: v for k, v in sd.items()}


SPREAD = "model.diffusion_model.output_blocks.11.1.transformer_blocks.0.norm1.bias"


@pytest.mark.parametrize("name", NAMES)
def test_answer_is_the_recorded_one(name):
    recorded = CHECKPOINTS[name]
    sd = published(name)
    model = comfy.sd.load_diffusion_model_state_dict(dict(sd)).model
    config = model.model_config
    assert type(config).__name__ == recorded["model_class"]
    assert type(model).__name__ == recorded["base_model_class"]
    assert model.model_type == ModelType[recorded["model_type"]]
    assert config.sampling_settings == recorded["sampling_settings"]
    assert type(model.latent_format).__name__ == recorded["latent_format"]
    assert model.latent_format.latent_channels == recorded["latent_channels"]
    assert model.latent_format.scale_factor == recorded["scale_factor"]
    assert list(model.concat_keys) == recorded["concat_keys"]
    assert model.memory_usage_factor == pytest.approx(recorded["memory_usage_factor"])
    assert [str(d) for d in config.supported_inference_dtypes] == recorded["supported_inference_dtypes"]
    assert list(config.vae_key_prefix) == recorded["vae_key_prefix"]
    assert list(config.text_encoder_key_prefix) == recorded["text_encoder_key_prefix"]
    assert any(
        table in [c.__name__ for c in type(model.model_sampling).__mro__] for table in recorded["model_sampling"]
    )

    other_form = OTHER_FORM | (CHROMA_FORM if recorded["model_class"] == "Chroma" else set())
    for key in recorded["unet_config"].keys() & config.unet_config.keys() - other_form:
        assert config.unet_config[key] == recorded["unet_config"][key], key
    assert (config.unet_config.get("attn_precision") is not None) == ("attn_precision" in recorded["unet_config"])


@pytest.mark.parametrize("name", NAMES)
def test_prefix_of_a_checkpoint(name):
    prefix = CHECKPOINTS[name]["prefix_answer"]
    found = model_detection.unet_prefix_from_state_dict(published(name))
    # The rule's last resort for files that have no prefix at all.
    assert found == prefix or (prefix == "" and found == "model.")


@pytest.mark.parametrize("name", NAMES)
def test_no_tensor_is_missing_or_left_over(name):
    """Loading raises for missing ones; that none is left over shows in the sum."""
    sd = published(name)
    network = comfy.sd.load_diffusion_model_state_dict(dict(sd)).model.diffusion_model
    prefix = CHECKPOINTS[name]["prefix_answer"]
    expected = sum(v.nelement() for k, v in sd.items() if k.startswith(prefix))
    assert sum(p.nelement() for p in network.parameters()) == expected


@pytest.mark.parametrize("name", ["sd21_v", "sd2_inpaint", "sdxl_base", "sdxl_refiner"])
def test_whole_checkpoints_fit(name):
    """Model, text encoder and VAE: nothing missing (loading checks that), nothing left but what is no weight."""
    sd = published(name)
    model, clip, vae, _ = comfy.sd.load_state_dict_guess_config(sd)
    assert sd == {}
    vae.throw_exception_if_invalid()
    recorded = CHECKPOINTS[name]["text_encoder"]
    assert type(clip.cond_stage_model).__name__ == recorded["clip"]
    assert type(clip.tokenizer).__name__ == recorded["tokenizer"]
    assert model.model.model_config.latent_format.latent_channels == vae.latent_channels


@pytest.mark.parametrize("name", OTHERS)
def test_families_not_known_here_are_told(name):
    for full in (k for k in CHECKPOINTS if k.startswith(name) and "@" not in k):
        if (DATA / "keys" / f"{full}.json.gz").exists():
            assert comfy.sd.load_diffusion_model_state_dict(key_map(full)) is None


@pytest.mark.parametrize("extra, kind", [(("v_pred",), "V_PREDICTION"), (("v_pred", "ztsnr"), "V_PREDICTION")])
def test_files_of_sdxl_that_say_what_they_predict(extra, kind):
    sd = {**published("sdxl_base"), **{name: torch.tensor([]) for name in extra}}
    model = comfy.sd.load_diffusion_model_state_dict(sd).model
    assert model.model_type == ModelType[kind]
    assert bool(model.model_sampling.zsnr) == ("ztsnr" in extra)


def test_cosxl_and_playground():
    cosxl = {**published("sdxl_base"), "edm_vpred.sigma_max": torch.tensor(120.0)}
    model = comfy.sd.load_diffusion_model_state_dict(cosxl).model
    assert model.model_type == ModelType.V_PREDICTION_EDM
    assert float(model.model_sampling.sigma_max) == pytest.approx(120.0)
    playground = {**published("sdxl_base"), "edm_mean": torch.zeros(4), "edm_std": torch.ones(4)}
    model = comfy.sd.load_diffusion_model_state_dict(playground).model
    assert model.model_type == ModelType.EDM
    assert type(model.latent_format).__name__ == "SDXL_Playground_2_5"


# Input depths, middle and output depths of the published distilled models (their diffusers configurations).
DISTILLED = {
    "SSD1B": ((0, 0, 2, 2, 4, 4), -1, (0, 0, 0, 1, 1, 2, 10, 4, 4)),
    "Segmind_Vega": ((0, 0, 1, 1, 2, 2), -1, (0, 0, 0, 1, 1, 1, 2, 2, 2)),
    "KOALA_700M": ((0, 2, 5), -2, (0, 0, 2, 2, 5, 5)),
    "KOALA_1B": ((0, 2, 6), 6, (0, 0, 2, 2, 6, 6)),
}


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
@pytest.mark.parametrize("family", DISTILLED)
def test_distilled_sdxl(family, prefix):
    inputs, middle, outputs = DISTILLED[family]
    config = unet.UNetConfig(
        channel_mult=(1, 2, 4),
        num_res_blocks=(len(inputs) // 3,) * 3,
        transformer_depth=inputs,
        transformer_depth_middle=middle,
        transformer_depth_output=outputs,
        context_dim=2048,
        adm_in_channels=2816,
        use_linear_in_transformer=True,
        num_head_channels=64,
    )
    sd = {prefix + k: v for k, v in unet.UNetModel(config, device="meta").state_dict().items()}
    model = comfy.sd.load_diffusion_model_state_dict(dict(sd)).model
    assert type(model.model_config).__name__ == family
    assert type(model).__name__ == "SDXL" and type(model.latent_format).__name__ == "SDXL"
    assert model.diffusion_model.state_dict().keys() == {k.removeprefix(prefix) for k in sd}


@pytest.mark.parametrize(
    "channels, family, concat", [(9, "SDXL", ["mask", "masked_image"]), (8, "SDXL_instructpix2pix", [])]
)
def test_sdxl_that_takes_a_picture(channels, family, concat):
    sd = published("sdxl_base")
    key = "model.diffusion_model.input_blocks.0.0.weight"
    sd[key] = torch.empty(320, channels, 3, 3, device="meta", dtype=torch.float16)
    model = comfy.sd.load_diffusion_model_state_dict(sd).model
    assert type(model.model_config).__name__ == family
    assert list(model.concat_keys) == concat


@pytest.mark.parametrize(
    "golden",
    [
        *("mmdit_sd3", "mmdit_sd35_large", "mmdit_sd35_medium", "flux_schnell", "flux_fill", "flux_dev", "flux2"),
        *("chroma", "wan21_t2v", "wan22_5b_frame_t"),
    ],
)
def test_small_files_are_of_their_family(golden):
    golden = Golden(golden)
    found = model_detection.model_config_from_unet(golden.weights, golden.prefix)
    assert type(found).__name__ == golden.config["model_class"]


def test_upscaler_and_video_unets_are_not_taken_for_sd2():
    sd = published("sd21_v")
    sd["model.diffusion_model.label_emb.weight"] = torch.empty(1000, 1280, device="meta")
    assert model_detection.model_config_from_unet(sd, "model.diffusion_model.") is None


def wan(**extra: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Wan 2.1 1.3B with further tensors."""
    sd = published("wan21_t2v_1_3b")
    return {
        **sd,
        **{k.replace("__", "."): torch.empty(v, device="meta", dtype=sd[WAN_PATCH].dtype) for k, v in extra.items()},
    }


WAN_PATCH = "patch_embedding.weight"


def test_wan_with_a_reference_frame():
    sd = wan(ref_conv__weight=(1536, 16, 2, 2), ref_conv__bias=(1536,))
    sd[WAN_PATCH] = torch.empty(1536, 52, 1, 2, 2, device="meta", dtype=torch.float16)
    model = comfy.sd.load_diffusion_model_state_dict(sd).model
    assert type(model.model_config).__name__ == "WAN21_T2V"
    config = model.diffusion_model.config
    assert (config.in_dim, config.reference_channels) == (52, 16)


def test_wan_fun_control():
    sd = published("wan21_i2v_14b")
    sd[WAN_PATCH] = torch.empty(5120, 48, 1, 2, 2, device="meta", dtype=torch.float16)
    model = comfy.sd.load_diffusion_model_state_dict(sd).model
    assert type(model.model_config).__name__ == "WAN21_FunControl2V"


def test_wans_relatives_that_do_more_are_not_taken_for_it():
    """They would load, and ignore what they are there for."""
    assert comfy.sd.load_diffusion_model_state_dict(wan(audio_proj__layer__weight=(8, 8))) is None
    # A marker that some files carry is no network.
    assert comfy.sd.load_diffusion_model_state_dict(wan(scaled_fp8=(2,))) is not None
