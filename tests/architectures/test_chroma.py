"""Chroma against recorded outputs and the key map of the published file."""

import pytest
import torch

from comfy.models import chroma
from comfy.models.chroma import Chroma, config_from_state_dict
from tests.architectures.recorded import build, build_from_map, denoise, residual, run
from tests.networks.golden import EPS_LIMIT, LIMIT, Golden, error

PREFIX = "model.diffusion_model."


def network(golden: Golden, **kwargs) -> Chroma:
    axes = tuple(golden.config["unet_config"]["axes_dim"])
    return build(golden, config_from_state_dict(golden.weights, PREFIX, axes_dim=axes), Chroma, PREFIX, **kwargs)


@pytest.mark.parametrize("name, limit", [("chroma", LIMIT), ("eps_chroma", EPS_LIMIT)])
def test_output_matches_recording(name, limit):
    golden = Golden(name)
    net = network(golden)
    assert error(run(net, golden), golden.out["raw"]) < limit
    if "denoised" in golden.out:
        assert error(denoise(net, golden), golden.out["denoised"]) < limit


def test_config_is_read_from_shapes():
    golden = Golden("chroma")
    config, recorded = config_from_state_dict(golden.weights, PREFIX), golden.config["unet_config"]
    for field in (
        *("hidden_size", "num_heads", "depth", "depth_single_blocks", "mlp_ratio", "context_in_dim", "theta"),
        *("qkv_bias", "in_dim", "hidden_dim", "n_layers"),
    ):
        assert getattr(config, field) == recorded[field], field
    # Recorded as the width of a patch.
    assert config.in_channels * config.patch_size**2 == recorded["in_channels"]
    assert config.out_channels * config.patch_size**2 == recorded["out_channels"]


def test_takes_a_published_file():
    config, _ = build_from_map("chroma", chroma, Chroma)
    assert config == chroma.ChromaConfig()


def test_every_modulation_index_has_one_owner():
    """At full depth the indices are used up exactly."""
    config = chroma.ChromaConfig(hidden_size=64, num_heads=2, context_in_dim=8, hidden_dim=8, n_layers=1)
    net = Chroma(config, device="meta")
    numbers = torch.arange(chroma.MODULATION_COUNT).reshape(1, -1, 1)
    used = [*range(3 * config.depth_single_blocks), *numbers[0, -2:, 0].tolist()]
    for block in range(config.depth):
        img, txt = net.double_modulations(numbers, block)
        used += [vector.item() for vector in (*img, *txt)]
    assert sorted(used) == list(range(chroma.MODULATION_COUNT))


def test_control_and_odd_sizes():
    golden = Golden("chroma")
    net = network(golden)
    golden.inputs["x"] = golden.inputs["x"][:, :, :7, :11]
    out = run(net, golden)
    assert out.shape == golden.inputs["x"].shape
    assert error(run(net, golden, control={"output": [residual(2, 24, 64)]}), out) > 0.01
