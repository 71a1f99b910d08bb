"""FLUX.1 against recorded outputs and the key maps of the published files."""

import pytest
import torch

from comfy.models import flux
from comfy.models.flux import Flux, config_from_state_dict
from comfy.models.references import UnknownReferenceMethod, place_references
from tests.architectures.recorded import (
    build,
    build_from_map,
    denoise,
    key_map,
    residual,
    run,
    set_recorded_frequency,
)
from tests.networks.golden import EPS_LIMIT, LIMIT, Golden, error

PREFIX = "model.diffusion_model."


def network(golden: Golden, **kwargs) -> Flux:
    axes = tuple(golden.config["unet_config"]["axes_dim"])
    return build(golden, config_from_state_dict(golden.weights, PREFIX, axes_dim=axes), Flux, PREFIX, **kwargs)


@pytest.mark.parametrize("name", ["flux_dev", "flux_dev_odd", "flux_kontext_ref", "flux_schnell"])
def test_output_matches_recording(name):
    golden = Golden(name)
    net = network(golden)
    assert error(run(net, golden), golden.out["raw"]) < LIMIT
    assert error(denoise(net, golden), golden.out["denoised"]) < LIMIT


def test_fill_matches_recording(monkeypatch):
    set_recorded_frequency(monkeypatch)
    golden = Golden("flux_fill")
    net = network(golden)
    assert error(run(net, golden), golden.out["raw"]) < LIMIT
    assert error(denoise(net, golden), golden.out["denoised"]) < LIMIT


def test_norm_epsilons():
    golden = Golden("eps_flux_dev")
    assert error(run(network(golden), golden), golden.out["raw"]) < EPS_LIMIT


@pytest.mark.parametrize("name", ["flux_dev", "flux_schnell", "flux_fill"])
def test_config_is_read_from_shapes(name):
    golden = Golden(name)
    config, recorded = config_from_state_dict(golden.weights, PREFIX), golden.config["unet_config"]
    for field in (
        *("in_channels", "out_channels", "patch_size", "hidden_size", "num_heads", "depth", "depth_single_blocks"),
        *("mlp_ratio", "context_in_dim", "vec_in_dim", "qkv_bias", "guidance_embed", "theta"),
    ):
        assert getattr(config, field) == recorded[field], field


@pytest.mark.parametrize(
    "name, in_channels, guidance",
    [("flux_dev", 16, True), ("flux_schnell", 16, False), ("flux_fill", 96, True), ("flux_canny_depth", 32, True)],
)
def test_takes_a_published_file(name, in_channels, guidance):
    config, _ = build_from_map(name, flux, Flux)
    assert (config.in_channels, config.out_channels, config.guidance_embed) == (in_channels, 16, guidance)
    assert (config.hidden_size, config.num_heads, config.depth, config.depth_single_blocks) == (3072, 24, 19, 38)


def test_norms_may_be_named_scale_or_weight():
    assert any(k.endswith("key_norm.scale") for k in key_map("flux_dev"))
    golden = Golden("flux_schnell")
    plain = run(network(golden), golden)
    golden.weights = {
        k.removesuffix("weight") + "scale" if k.endswith("y_norm.weight") else k: v for k, v in golden.weights.items()
    }
    assert torch.equal(run(network(golden), golden), plain)


@pytest.mark.parametrize(
    "method, places",
    [
        # The first stands at the origin, since index 1 is free; then below or beside, the smaller whole.
        ("offset", [(1, 0, 0), (1, 3, 0), (1, 0, 4)]),
        ("index", [(1, 0, 0), (2, 0, 0), (3, 0, 0)]),
        ("index_timestep_zero", [(1, 0, 0), (2, 0, 0), (3, 0, 0)]),
        ("uxo", [(0, 4, 6), (0, 7, 10), (0, 9, 12)]),
    ],
)
def test_places_of_references(method, places):
    assert place_references((8, 12), [(6, 8), (4, 4), (2, 2)], method) == places


def test_unknown_reference_method_is_named():
    with pytest.raises(UnknownReferenceMethod, match="'besides'"):
        place_references((8, 8), [(8, 8)], "besides")


@pytest.mark.parametrize("method", ["index", "uxo", "index_timestep_zero"])
def test_reference_methods_differ(method):
    golden = Golden("flux_kontext_ref")
    net = network(golden)
    out = run(net, golden, ref_latents_method=method)
    assert out.shape == golden.inputs["x"].shape
    assert error(out, golden.out["raw"]) > 1e-3


def test_timestep_zero_changes_only_what_references_are_conditioned_on():
    golden = Golden("flux_kontext_ref")
    net = network(golden)
    zero = torch.zeros(1)
    by_index = run(net, golden, ref_latents_method="index", timesteps=zero)
    assert error(run(net, golden, ref_latents_method="index_timestep_zero", timesteps=zero), by_index) < 1e-5


def test_control_is_added_after_its_block():
    golden = Golden("flux_dev")
    net = network(golden)
    plain = run(net, golden)
    added = residual(2, 24, 64)
    controlled = run(net, golden, control={"input": [added], "output": [None, added]})

    def double(args, extra):
        out = extra["original_block"](args)
        return {**out, "img": out["img"] + added}

    def single(args, extra):
        out = extra["original_block"](args)["img"].clone()
        out[:, golden.inputs["context"].shape[1] :] += added
        return {"img": out}

    options = {"patches_replace": {"dit": {("double_block", 0): double, ("single_block", 1): single}}}
    assert error(controlled, plain) > 0.01
    assert error(controlled, run(net, golden, transformer_options=options)) < 1e-6


def test_control_covers_the_image_but_not_its_references():
    golden = Golden("flux_kontext_ref")
    net = network(golden)
    controlled = run(net, golden, control={"input": [residual(1, 24, 64)]})
    assert error(controlled, golden.out["raw"]) > 0.01


def test_missing_pooled_vector_counts_as_zeros():
    golden = Golden("flux_dev")
    net = network(golden)
    assert torch.equal(run(net, golden, y=None), run(net, golden, y=torch.zeros(2, 32)))
