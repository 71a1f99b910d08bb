"""AuraFlow against recorded outputs and the key map of the published file."""

import pytest
import torch

from comfy.models import auraflow
from comfy.models.auraflow import AuraFlow, config_from_state_dict
from tests.architectures.recorded import build, build_from_map, denoise, run
from tests.networks.golden import EPS_LIMIT, LIMIT, Golden, error

PREFIX = "model."


def network(golden: Golden, **kwargs) -> AuraFlow:
    heads = golden.config["unet_config"]["n_heads"]
    return build(golden, config_from_state_dict(golden.weights, PREFIX, n_heads=heads), AuraFlow, PREFIX, **kwargs)


@pytest.mark.parametrize("name, limit", [("auraflow", LIMIT), ("eps_auraflow", EPS_LIMIT)])
def test_output_matches_recording(name, limit):
    golden = Golden(name)
    net = network(golden)
    assert error(run(net, golden), golden.out["raw"]) < limit
    if "denoised" in golden.out:
        assert error(denoise(net, golden), golden.out["denoised"]) < limit


def test_config_is_read_from_shapes():
    golden = Golden("auraflow")
    config, recorded = config_from_state_dict(golden.weights, PREFIX), golden.config["unet_config"]
    for field in (
        *("in_channels", "out_channels", "patch_size", "dim", "n_layers", "n_double_layers"),
        *("cond_seq_dim", "max_seq"),
    ):
        assert getattr(config, field) == recorded[field], field


def test_takes_a_published_file():
    config, _ = build_from_map("auraflow", auraflow, AuraFlow, PREFIX)
    assert config == auraflow.AuraFlowConfig()


def test_positions_come_from_the_middle_and_are_stretched_beyond_the_table():
    golden = Golden("auraflow")
    net = network(golden)
    side = round(net.config.max_seq**0.5)
    table = net.positional_encoding.unflatten(1, (side, side))
    middle = net.position_embedding(4, 6).unflatten(1, (4, 6))
    assert torch.equal(middle, table[:, side // 2 - 2 : side // 2 + 2, side // 2 - 3 : side // 2 + 3])
    larger = net.position_embedding(2 * side, side).unflatten(1, (2 * side, side))
    assert torch.equal(larger[:, 0], table[:, 0])
    assert torch.equal(larger[:, -1], table[:, -1])
    x = torch.randn(1, 4, 4 * side + 1, 5)
    assert net(x, torch.tensor([0.5]), golden.inputs["context"][:1]).shape == x.shape


def test_blocks_can_be_replaced():
    golden = Golden("auraflow")
    net = network(golden)
    seen = []

    def replacement(args, extra):
        seen.append((args["transformer_options"]["block_type"], args["transformer_options"]["block_index"]))
        return extra["original_block"](args)

    keys = [("double_block", 0), ("single_block", 0), ("single_block", 1)]
    options = {"patches_replace": {"dit": dict.fromkeys(keys, replacement)}}
    assert torch.equal(run(net, golden, transformer_options=options), run(net, golden))
    assert seen == [("double", 0), ("single", 0), ("single", 1)]
