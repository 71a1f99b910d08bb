"""Lumina-Image 2.0 and Z-Image against recorded outputs and the key maps of the published files."""

import pytest
import torch

from comfy.models import lumina2
from comfy.models.lumina2 import Lumina2, config_from_state_dict
from tests.architectures.recorded import build, build_from_map, denoise, run
from tests.networks.golden import EPS_LIMIT, LIMIT, Golden, error

PREFIX = "model.diffusion_model."


def network(golden: Golden, **kwargs) -> Lumina2:
    axes = tuple(golden.config["unet_config"]["axes_dims"])
    return build(golden, config_from_state_dict(golden.weights, PREFIX, axes_dims=axes), Lumina2, PREFIX, **kwargs)


@pytest.mark.parametrize(
    "name, limit",
    [
        ("lumina2", LIMIT),
        ("lumina2_mask", LIMIT),
        ("eps_lumina2", EPS_LIMIT),
        ("z_image", LIMIT),
        ("eps_z_image", EPS_LIMIT),
    ],
)
def test_output_matches_recording(name, limit):
    golden = Golden(name)
    net = network(golden)
    assert error(run(net, golden), golden.out["raw"]) < limit
    if "denoised" in golden.out:
        assert error(denoise(net, golden), golden.out["denoised"]) < limit


@pytest.mark.parametrize("name", ["lumina2", "z_image"])
def test_config_is_read_from_shapes(name):
    golden = Golden(name)
    config, recorded = config_from_state_dict(golden.weights, PREFIX), golden.config["unet_config"]
    for field in (
        "in_channels",
        "patch_size",
        "dim",
        "n_layers",
        "n_heads",
        "n_kv_heads",
        "cap_feat_dim",
        "rope_theta",
    ):
        assert getattr(config, field) == recorded[field], field
    assert config.z_image == recorded.get("z_image_modulation", False)
    assert config.pad_tokens == ("pad_tokens_multiple" in recorded)


def test_takes_the_published_lumina():
    config, _ = build_from_map("lumina2", lumina2, Lumina2)
    assert config == lumina2.Lumina2Config()


def test_takes_the_published_z_image():
    config, _ = build_from_map("z_image", lumina2, Lumina2)
    assert config == lumina2.Lumina2Config(
        dim=3840,
        n_layers=30,
        n_heads=30,
        n_kv_heads=30,
        ffn_dim=10240,
        cap_feat_dim=2560,
        axes_dims=(32, 48, 48),
        rope_theta=256.0,
        time_width=256,
        z_image=True,
        pad_tokens=True,
    )


@pytest.mark.parametrize("name", ["lumina2", "z_image"])
def test_odd_sizes(name):
    golden = Golden(name)
    golden.inputs["x"] = golden.inputs["x"][:, :, :7, :11]
    assert run(network(golden), golden).shape == (2, 16, 7, 11)


def test_full_multiples_are_not_padded():
    tokens, pad = torch.zeros(2, 32, 8), torch.ones(1, 8)
    assert lumina2.fill(tokens, pad) is tokens
    assert lumina2.fill(tokens[:, :30], pad)[:, 30:].eq(1).all()
    assert lumina2.fill(tokens[:, :30], pad).shape == (2, 32, 8)
    assert lumina2.fill(tokens[:, :30], None).shape == (2, 30, 8)


def test_blocks_can_be_replaced():
    golden = Golden("lumina2")
    net = network(golden)
    options = {"patches_replace": {"dit": {("double_block", 1): lambda args, extra: {"img": args["img"]}}}}
    skipped = run(net, golden, transformer_options=options)
    net.layers[1].forward = lambda x, *rest: x
    assert torch.equal(skipped, run(net, golden))
    assert error(skipped, golden.out["raw"]) > 0.01
