"""Stable Diffusion 3 and 3.5 against recorded outputs and the key maps of the published files."""

import pytest
import torch

from comfy.models import mmdit
from comfy.models.mmdit import MMDiT, config_from_state_dict
from tests.architectures.recorded import build, build_from_map, denoise, residual, run
from tests.networks.golden import EPS_LIMIT, LIMIT, Golden, error

PREFIX = "model.diffusion_model."


def network(golden: Golden, **kwargs) -> MMDiT:
    return build(golden, config_from_state_dict(golden.weights, PREFIX), MMDiT, PREFIX, **kwargs)


@pytest.mark.parametrize("name", ["mmdit_sd3", "mmdit_sd3_odd", "mmdit_sd35_large", "mmdit_sd35_medium"])
def test_output_matches_recording(name):
    golden = Golden(name)
    net = network(golden)
    assert error(run(net, golden), golden.out["raw"]) < LIMIT
    assert error(denoise(net, golden), golden.out["denoised"]) < LIMIT


def test_norm_epsilons():
    golden = Golden("eps_mmdit_sd35_large")
    assert error(run(network(golden), golden), golden.out["raw"]) < EPS_LIMIT


@pytest.mark.parametrize("name", ["mmdit_sd3", "mmdit_sd35_large", "mmdit_sd35_medium"])
def test_config_is_read_from_shapes(name):
    golden = Golden(name)
    config, recorded = config_from_state_dict(golden.weights, PREFIX), golden.config["unet_config"]
    for field in ("in_channels", "out_channels", "patch_size", "depth", "adm_in_channels", "pos_embed_max_size"):
        assert getattr(config, field) == recorded[field], field
    assert config.context_dim == recorded["context_embedder_config"]["params"]["in_features"]
    assert config.hidden_size == recorded["context_embedder_config"]["params"]["out_features"]
    assert config.qk_norm == recorded.get("qk_norm")
    assert list(config.x_block_self_attn_layers) == recorded["x_block_self_attn_layers"]


@pytest.mark.parametrize(
    "name, depth, side, qk_norm, second, heads",
    [
        ("sd3_medium", 24, 192, None, 0, 24),
        ("sd35_medium", 24, 384, "rms", 13, 24),
        ("sd35_large", 38, 192, "rms", 0, 38),
    ],
)
def test_takes_a_published_file(name, depth, side, qk_norm, second, heads):
    config, net = build_from_map(name, mmdit, MMDiT, PREFIX)
    assert (config.depth, config.pos_embed_max_size, config.qk_norm, config.num_heads) == (
        depth,
        side,
        qk_norm,
        heads,
    )
    assert config.x_block_self_attn_layers == tuple(range(second))
    assert next(net.parameters()).is_meta


def test_missing_tensor_is_named():
    with pytest.raises(KeyError, match=r"x_embedder\.proj\.weight"):
        config_from_state_dict({}, PREFIX)


def test_latent_larger_than_the_table_of_positions():
    golden = Golden("mmdit_sd3")
    net = network(golden)
    whole = net.position_embedding(12, 12).unflatten(1, (12, 12))
    larger = net.position_embedding(16, 12).unflatten(1, (16, 12))
    assert torch.equal(larger[:, 2:14], whole)
    assert torch.equal(larger[:, 0], whole[:, 0])
    assert torch.equal(larger[:, 15], whole[:, 11])
    x = torch.randn(1, 16, 30, 8)
    out = net(x, torch.tensor([500.0]), golden.inputs["context"][:1], golden.inputs["y"][:1])
    assert out.shape == x.shape
    assert out.isfinite().all()


def test_control_is_added_after_its_block():
    golden = Golden("mmdit_sd3")
    net = network(golden)
    plain = run(net, golden)
    added = residual(2, 24, 128)
    controlled = run(net, golden, control={"output": [None, added]})

    def replacement(args, extra):
        out = extra["original_block"](args)
        return {**out, "img": out["img"] + added}

    options = {"patches_replace": {"dit": {("double_block", 1): replacement}}}
    assert error(controlled, plain) > 0.01
    assert error(controlled, run(net, golden, transformer_options=options)) < 1e-6


def test_replaced_block_sees_its_place():
    golden = Golden("mmdit_sd3")
    net = network(golden)
    seen = []

    def replacement(args, extra):
        options = args["transformer_options"]
        seen.append((options["block_type"], options["block_index"], options["total_blocks"], set(args)))
        return extra["original_block"](args)

    options = {"patches_replace": {"dit": {("double_block", 0): replacement}}}
    out = run(net, golden, transformer_options=options)
    assert torch.equal(out, run(net, golden))
    assert seen == [("double", 0, 2, {"img", "txt", "vec", "transformer_options"})]
    assert set(options) == {"patches_replace"}, "the caller's options were written to"
