"""PixArt-Sigma against recorded outputs and the key map of the published file."""

import pytest
import torch

from comfy.models import pixart
from comfy.models.pixart import PixArt, config_from_state_dict, position_embedding
from tests.architectures.recorded import build, build_from_map, denoise, run
from tests.networks.golden import EPS_LIMIT, LIMIT, Golden, error

PREFIX = "model.diffusion_model."


def network(golden: Golden, **kwargs) -> PixArt:
    recorded = golden.config["unet_config"]
    config = config_from_state_dict(
        golden.weights, PREFIX, num_heads=recorded["num_heads"], pe_interpolation=recorded["pe_interpolation"]
    )
    return build(golden, config, PixArt, PREFIX, **kwargs)


@pytest.mark.parametrize("name, limit", [("pixart_sigma", LIMIT), ("eps_pixart_sigma", EPS_LIMIT)])
def test_output_matches_recording(name, limit):
    golden = Golden(name)
    net = network(golden)
    assert error(run(net, golden), golden.out["raw"]) < limit
    if "denoised" in golden.out:
        assert error(denoise(net, golden), golden.out["denoised"]) < limit


def test_config_is_read_from_shapes():
    golden = Golden("pixart_sigma")
    config, recorded = config_from_state_dict(golden.weights, PREFIX), golden.config["unet_config"]
    for field in ("in_channels", "patch_size", "hidden_size", "depth", "caption_channels", "model_max_length"):
        assert getattr(config, field) == recorded[field], field


def test_takes_a_published_file():
    config, _ = build_from_map("pixart_sigma_1024", pixart, PixArt)
    assert config == pixart.PixArtConfig()


def test_positions_span_the_trained_range_whatever_the_size():
    """At twice the base size the steps halve: every other position is one of the base size."""
    base = position_embedding(32, 32, 32, (64, 64), None).unflatten(1, (32, 32))
    double = position_embedding(32, 64, 64, (128, 128), None).unflatten(1, (64, 64))
    assert torch.allclose(double[:, ::2, ::2], base, atol=1e-6)
    small = position_embedding(32, 4, 4, (8, 8), None)
    assert small.isfinite().all()


def test_odd_sizes_and_mask():
    golden = Golden("pixart_sigma")
    net = network(golden)
    golden.inputs["x"] = golden.inputs["x"][:, :, :33, :41]
    out = run(net, golden)
    assert out.shape == golden.inputs["x"].shape
    mask = torch.ones(2, 13, dtype=torch.int64)
    assert torch.equal(run(net, golden, attention_mask=mask), out)
    mask[:, 5:] = 0
    assert error(run(net, golden, attention_mask=mask), out) > 1e-3
