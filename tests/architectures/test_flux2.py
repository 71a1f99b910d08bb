"""FLUX.2 against recorded outputs and the key map of the published file."""

import pytest

from comfy.models import flux2
from comfy.models.flux2 import Flux2, config_from_state_dict
from tests.architectures.recorded import build, build_from_map, denoise, run
from tests.networks.golden import EPS_LIMIT, LIMIT, Golden, error

PREFIX = "model.diffusion_model."


def network(golden: Golden, **kwargs) -> Flux2:
    axes = tuple(golden.config["unet_config"]["axes_dim"])
    return build(golden, config_from_state_dict(golden.weights, PREFIX, axes_dim=axes), Flux2, PREFIX, **kwargs)


@pytest.mark.parametrize("name", ["flux2", "flux2_ref"])
def test_output_matches_recording(name):
    golden = Golden(name)
    net = network(golden)
    assert error(run(net, golden), golden.out["raw"]) < LIMIT
    assert error(denoise(net, golden), golden.out["denoised"]) < LIMIT


def test_norm_epsilons():
    golden = Golden("eps_flux2")
    assert error(run(network(golden), golden), golden.out["raw"]) < EPS_LIMIT


def test_config_is_read_from_shapes():
    golden = Golden("flux2")
    config, recorded = config_from_state_dict(golden.weights, PREFIX), golden.config["unet_config"]
    for field in (
        *("in_channels", "out_channels", "hidden_size", "num_heads", "depth", "depth_single_blocks"),
        *("mlp_ratio", "context_in_dim", "guidance_embed", "theta"),
    ):
        assert getattr(config, field) == recorded[field], field


def test_takes_a_published_file():
    config, _ = build_from_map("flux2_dev", flux2, Flux2)
    assert config == flux2.Flux2Config()


@pytest.mark.parametrize("method", ["offset", "uxo", "index_timestep_zero"])
def test_reference_methods_differ(method):
    golden = Golden("flux2_ref")
    out = run(network(golden), golden, ref_latents_method=method)
    assert out.shape == golden.inputs["x"].shape
    assert error(out, golden.out["raw"]) > 1e-3
