"""HiDream-I1 against recorded outputs and the key map of the published file."""

import pytest
import torch

from comfy.models import hidream
from comfy.models.hidream import HiDream, config_from_state_dict
from tests.architectures.recorded import build, build_from_map, denoise, run
from tests.networks.golden import EPS_LIMIT, LIMIT, Golden, error

PREFIX = "model.diffusion_model."


def network(golden: Golden, **kwargs) -> HiDream:
    recorded = golden.config["unet_config"]
    config = config_from_state_dict(
        golden.weights,
        PREFIX,
        attention_head_dim=recorded["attention_head_dim"],
        axes_dims_rope=tuple(recorded["axes_dims_rope"]),
        llama_layers=tuple(recorded["llama_layers"]),
    )
    return build(golden, config, HiDream, PREFIX, **kwargs)


@pytest.mark.parametrize("name, limit", [("hidream", LIMIT), ("eps_hidream", EPS_LIMIT)])
def test_output_matches_recording(name, limit):
    golden = Golden(name)
    net = network(golden)
    assert error(run(net, golden), golden.out["raw"]) < limit
    if "denoised" in golden.out:
        assert error(denoise(net, golden), golden.out["denoised"]) < limit


def test_config_is_read_from_shapes():
    golden = Golden("hidream")
    recorded = golden.config["unet_config"]
    config = config_from_state_dict(golden.weights, PREFIX, attention_head_dim=recorded["attention_head_dim"])
    for field in (
        *("in_channels", "out_channels", "patch_size", "num_layers", "num_single_layers", "num_attention_heads"),
        *("text_emb_dim", "num_routed_experts", "num_activated_experts"),
    ):
        assert getattr(config, field) == recorded[field], field
    assert list(config.caption_channels) == recorded["caption_channels"]
    assert list(config.llama_layers) == recorded["llama_layers"]


def test_takes_a_published_file():
    config, _ = build_from_map("hidream_i1", hidream, HiDream)
    assert config == hidream.HiDreamConfig()
    assert config.llama_layers == (*range(32), *[31] * 16)


def test_only_the_likeliest_experts_count():
    gate = hidream.ExpertGate(8, 4)
    gate.weight = torch.nn.Parameter(torch.randn(4, 8))
    x = torch.randn(3, 5, 8)
    weights = gate(x, 2)
    scores = (x @ gate.weight.T).softmax(-1)
    assert ((weights > 0).sum(-1) == 2).all()
    assert torch.equal(weights.amax(-1), scores.amax(-1))
    assert torch.equal(weights[weights > 0], scores[weights > 0])


@pytest.mark.parametrize("missing", ["y", "encoder_hidden_states_llama3"])
def test_missing_conditioning_is_named(missing):
    golden = Golden("hidream")
    with pytest.raises(ValueError, match=f"argument {missing} is missing"):
        run(network(golden), golden, **{missing: None})


def test_blocks_can_be_replaced():
    golden = Golden("hidream")
    net = network(golden)
    seen = []

    def replacement(args, extra):
        seen.append(args["transformer_options"]["block_type"])
        return extra["original_block"](args)

    keys = [("double_block", 0), ("single_block", 0)]
    options = {"patches_replace": {"dit": dict.fromkeys(keys, replacement)}}
    assert torch.equal(run(net, golden, transformer_options=options), run(net, golden))
    assert seen == ["double", "single"]
