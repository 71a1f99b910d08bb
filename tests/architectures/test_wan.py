"""Wan 2.1 and 2.2 against recorded outputs and the key maps of the published files."""

import pytest
import torch

from comfy.models import wan
from comfy.models.wan import Wan, WanConfig, config_from_state_dict
from tests.architectures.recorded import build, build_from_map, denoise, residual, run
from tests.networks.golden import EPS_LIMIT, LIMIT, Golden, error

PREFIX = "model.diffusion_model."


def network(golden: Golden, **kwargs) -> Wan:
    heads = golden.config["unet_config"]["num_heads"]
    return build(golden, config_from_state_dict(golden.weights, PREFIX, num_heads=heads), Wan, PREFIX, **kwargs)


@pytest.mark.parametrize(
    "name, limit", [("wan21_t2v", LIMIT), ("wan22_5b_frame_t", LIMIT), ("eps_wan21_t2v", EPS_LIMIT)]
)
def test_output_matches_recording(name, limit):
    golden = Golden(name)
    net = network(golden)
    assert error(run(net, golden), golden.out["raw"]) < limit
    if "denoised" in golden.out:
        assert error(denoise(net, golden), golden.out["denoised"]) < limit


@pytest.mark.parametrize("name", ["wan21_t2v", "wan22_5b_frame_t"])
def test_config_is_read_from_shapes(name):
    golden = Golden(name)
    config, recorded = config_from_state_dict(golden.weights, PREFIX), golden.config["unet_config"]
    for field in ("model_type", "in_dim", "out_dim", "dim", "ffn_dim", "freq_dim", "text_dim", "num_layers", "eps"):
        assert getattr(config, field) == recorded[field], field
    assert list(config.patch_size) == recorded["patch_size"]


PUBLISHED = {
    "wan21_t2v_14b": WanConfig(),
    "wan21_t2v_1_3b": WanConfig(dim=1536, ffn_dim=8960, num_heads=12, num_layers=30),
    "wan21_i2v_14b": WanConfig(model_type="i2v", in_dim=36, image_dim=1280),
    "wan22_i2v_14b": WanConfig(in_dim=36),
    "wan22_ti2v_5b": WanConfig(in_dim=48, out_dim=48, dim=3072, ffn_dim=14336, num_heads=24, num_layers=30),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_takes_a_published_file(name):
    config, _ = build_from_map(name, wan, Wan)
    assert config == PUBLISHED[name]


def test_odd_sizes():
    golden = Golden("wan21_t2v")
    golden.inputs["x"] = golden.inputs["x"][..., :5, :7]
    assert run(network(golden), golden).shape == (2, 16, 3, 5, 7)


def test_timesteps_of_frames_that_are_alike_are_one():
    golden = Golden("wan21_t2v")
    net = network(golden)
    frames = golden.inputs["timesteps"][:, None].expand(-1, 3)
    assert error(run(net, golden, timesteps=frames), golden.out["raw"]) < LIMIT


def test_blocks_can_be_replaced():
    golden = Golden("wan21_t2v")
    net = network(golden)
    added = residual(2, 36, 64)
    seen = {}

    def replacement(args, extra):
        seen.update(args)
        return {"img": extra["original_block"](args)["img"] + added}

    options = {"patches_replace": {"dit": {("double_block", 1): replacement}}}
    assert error(run(net, golden, transformer_options=options), golden.out["raw"]) > 0.01
    assert {"img", "txt", "vec", "pe", "transformer_options"} <= seen.keys()
    assert seen["transformer_options"]["block_index"] == 1 and seen["transformer_options"]["total_blocks"] == 2


def test_attention_can_be_patched():
    golden = Golden("wan21_t2v")
    net = network(golden)
    shapes = []

    def same(out, options):
        shapes.append(tuple(out.shape))
        return out

    def halved(out, options):
        return out * 0.5

    names = ("attn1_output_patch", "attn2_output_patch")
    plain = run(net, golden, transformer_options={"patches": {name: [same] for name in names}})
    assert torch.equal(plain, run(net, golden)) and shapes == [(2, 36, 64)] * 4
    for name in names:
        assert error(run(net, golden, transformer_options={"patches": {name: [halved]}}), golden.out["raw"]) > 1e-3


def test_positions_can_be_scaled():
    golden = Golden("wan21_t2v")
    net = network(golden)
    scaled = run(net, golden, transformer_options={"rope_options": {"scale_t": 3.0}})
    assert error(scaled, golden.out["raw"]) > 1e-3
    shifted = run(net, golden, transformer_options={"rope_options": {"shift_x": 5.0}})
    # Attention sees differences of positions alone.
    assert error(shifted, golden.out["raw"]) < LIMIT


def test_frames_behind_the_video_are_looked_at_and_cut_off():
    golden = Golden("wan21_t2v")
    net = network(golden)
    more = residual(1, 16, 2, 6, 8)
    out = run(net, golden, time_dim_concat=more)
    assert out.shape == golden.out["raw"].shape and error(out, golden.out["raw"]) > 1e-3
    x = golden.inputs["x"]
    longer = run(net, golden, x=torch.cat([x, more.expand(2, -1, -1, -1, -1)], dim=2))
    assert error(out, longer[:, :, :3]) < LIMIT
