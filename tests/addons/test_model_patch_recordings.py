"""Nodes that patch models, against recorded guided steps."""

import json

import pytest
import torch
from safetensors import safe_open

import comfy.sd
import nodes
from tests.addons.guided_step import guided
from tests.addons.recorded_addons import host
from tests.networks.golden import DATA, LIMIT, Golden, error

with safe_open(DATA / "model_patches.io.safetensors", "pt") as f:
    STEP = {key: f.get_tensor(key) for key in f.keys()}  # noqa: SIM118
    CASES = json.loads(f.metadata()["config"])["cases"]

# Guidance amplifies differences of the kernels.
GUIDED_LIMIT = 1e-3
GUIDANCE = {
    "apg": "APG",
    "cfg_norm_1": "CFGNorm",
    "cfg_zero_star": "CFGZeroStar",
    "fresca": "FreSca",
    "mahiro": "Mahiro",
    "ms_continuous_v": "ModelSamplingContinuousV",
    "ms_edm_cosmos_rflow": "ModelSamplingContinuousEDM",
    "ms_edm_edm": "ModelSamplingContinuousEDM",
    "ms_edm_edm_playground_v2.5": "ModelSamplingContinuousEDM",
    "ms_edm_eps": "ModelSamplingContinuousEDM",
    "ms_edm_v_prediction": "ModelSamplingContinuousEDM",
    "ms_eps_zsnr": "ModelSamplingDiscrete",
    "ms_lcm": "ModelSamplingDiscrete",
    "ms_sd3_on_unet": "ModelSamplingSD3",
    "ms_v_prediction": "ModelSamplingDiscrete",
    "ms_v_prediction_zsnr": "ModelSamplingDiscrete",
    "ms_x0": "ModelSamplingDiscrete",
    "perp_neg": "PerpNeg",
    "rescale_cfg_07": "RescaleCFG",
    "tcfg": "TCFG",
}
NODES = {
    "freeu": "FreeU",
    "freeu_v2": "FreeU_V2",
    "hypertile_seeded": "HyperTile",
    "tome_05": "TomePatchModel",
    "deep_shrink": "PatchModelAddDownscale",
    "pag_3": "PerturbedAttentionGuidance",
    "sag": "SelfAttentionGuidance",
}


def run(name: str, model, **inputs):
    node = nodes.NODE_CLASS_MAPPINGS[name]
    if hasattr(node, "execute"):
        return node.execute(model, **inputs).result[0]
    return getattr(node(), node.FUNCTION)(model, **inputs)[0]


def step(model, cfg: float = 7.0, sigma: float | None = None) -> torch.Tensor:
    positive, negative = [[STEP["in.positive"], {}]], [[STEP["in.negative"], {}]]
    sigmas = STEP["in.sigma"] if sigma is None else torch.full_like(STEP["in.sigma"], sigma)
    return guided(model, STEP["in.x"], sigmas, positive, negative, cfg)


@pytest.mark.parametrize("case", NODES)
def test_guided_step_matches_recording(case):
    model, _ = host("sd1")
    patched = run(NODES[case], model, **CASES[case]["args"])
    assert patched is not model
    assert error(step(patched), STEP[f"out.{case}"]) < LIMIT
    assert error(step(model), STEP["out.cfg_7"]) < LIMIT


@pytest.mark.parametrize("case", GUIDANCE)
def test_guidance_and_sampling_match_recording(case):
    model, _ = host("sd1")
    inputs = dict(CASES[case]["args"])
    if case == "perp_neg":
        inputs["empty_conditioning"] = [[STEP["in.empty"], {}]]
    patched = run(GUIDANCE[case], model, **inputs)
    assert error(step(patched, CASES[case]["cfg"], CASES[case]["sigma"]), STEP[f"out.{case}"]) < GUIDED_LIMIT
    assert error(step(model), STEP["out.cfg_7"]) < LIMIT


@pytest.mark.parametrize("case", ["cfg_0", "cfg_1", "cfg_7"])
def test_plain_guidance_matches_recording(case):
    model, _ = host("sd1")
    assert error(step(model, CASES[case]["cfg"]), STEP[f"out.{case}"]) < LIMIT


def test_no_recording_is_left_out():
    tested = {*NODES, *GUIDANCE, *SD3_NODES, "cfg_0", "cfg_1", "cfg_7", "sd3_cfg_5", "sd3_ms_shift_1"}
    assert tested == CASES.keys()


# What the recordings of Stable Diffusion 3 were made with: its second block left out, guidance 5.
SKIPPED = {"double_layers": "1", "single_layers": "", "start_percent": 0.0, "end_percent": 1.0}
SD3_NODES = {
    "sd3_slg": ("SkipLayerGuidanceSD3", {"layers": "1", "scale": 3.0, "start_percent": 0.0, "end_percent": 1.0}),
    "sd3_slg_rescale": ("SkipLayerGuidanceDiT", {**SKIPPED, "scale": 3.0, "rescaling_scale": 0.5}),
    "sd3_slg_simple": ("SkipLayerGuidanceDiTSimple", SKIPPED),
}


@pytest.fixture(scope="module")
def sd3():
    golden = Golden("mmdit_sd3")
    return comfy.sd.load_diffusion_model_state_dict(dict(golden.weights)), golden.inputs["y"][:1]


def sd3_step(model, pooled) -> torch.Tensor:
    positive, negative = ([[STEP[f"in.{side}"], {"pooled_output": pooled}]] for side in ("positive", "negative"))
    return guided(model, STEP["in.sd3.x"], STEP["in.sd3.sigma"], positive, negative, 5.0)


@pytest.mark.parametrize("case", SD3_NODES)
def test_guided_step_of_sd3_matches_recording(sd3, case):
    model, pooled = sd3
    name, inputs = SD3_NODES[case]
    assert error(sd3_step(run(name, model, **inputs), pooled), STEP[f"out.{case}"]) < LIMIT
    assert error(sd3_step(model, pooled), STEP["out.sd3_cfg_5"]) < LIMIT


def test_shift_of_sd3_matches_recording(sd3):
    model, pooled = sd3
    shifted = run("ModelSamplingSD3", model, shift=1.0)
    assert error(sd3_step(shifted, pooled), STEP["out.sd3_ms_shift_1"]) < GUIDED_LIMIT


@pytest.mark.parametrize("case", SD3_NODES)
def test_layers_count_only_in_their_range(sd3, case):
    model, pooled = sd3
    name, inputs = SD3_NODES[case]
    late = run(name, model, **{**inputs, "start_percent": 0.9})
    assert torch.equal(sd3_step(late, pooled), sd3_step(model, pooled))


def test_no_layers_change_nothing(sd3):
    model, _ = sd3
    for name, inputs in SD3_NODES.values():
        none = {key: "" if "layers" in key else value for key, value in inputs.items()}
        assert run(name, model, **none) is model


@pytest.mark.parametrize(
    "name, inputs",
    [
        ("TomePatchModel", {"ratio": 0.0}),
        ("PerturbedAttentionGuidance", {"scale": 0.0}),
        ("SelfAttentionGuidance", {"scale": 0.0, "blur_sigma": 2.0}),
        ("FreeU", {"b1": 1.0, "b2": 1.0, "s1": 1.0, "s2": 1.0}),
        ("HyperTile", {"tile_size": 2048, "swap_size": 2, "max_depth": 0, "scale_depth": False}),
    ],
)
def test_neutral_settings_leave_the_prediction(name, inputs):
    model, _ = host("sd1")
    assert error(step(run(name, model, **inputs)), step(model)) < LIMIT


def test_patches_survive_odd_sizes():
    """17 x 13 cells: nothing can be tiled or merged evenly."""
    model, _ = host("sd1")
    generator = torch.Generator().manual_seed(0)
    x, sigma = torch.randn(1, 4, 17, 13, generator=generator) * 3, torch.tensor([3.0])
    positive, negative = [[STEP["in.positive"], {}]], [[STEP["in.negative"], {}]]
    for case, name in NODES.items():
        patched = run(name, model, **CASES[case]["args"])
        out = guided(patched, x, sigma, positive, negative, 7.0)
        assert out.shape == x.shape and out.isfinite().all(), name
