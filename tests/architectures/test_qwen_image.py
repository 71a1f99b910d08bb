"""Qwen-Image against recorded outputs and the key map of the published file."""

import pytest
import torch

from comfy.models import qwen_image
from comfy.models.qwen_image import QwenImage, config_from_state_dict
from tests.architectures.recorded import build, build_from_map, denoise, residual, run
from tests.networks.golden import EPS_LIMIT, LIMIT, Golden, error

PREFIX = "model.diffusion_model."


def network(golden: Golden, **kwargs) -> QwenImage:
    axes = tuple(golden.config["unet_config"]["axes_dims_rope"])
    return build(
        golden, config_from_state_dict(golden.weights, PREFIX, axes_dims_rope=axes), QwenImage, PREFIX, **kwargs
    )


@pytest.mark.parametrize(
    "name, limit", [("qwen_image", LIMIT), ("qwen_image_edit", LIMIT), ("eps_qwen_image", EPS_LIMIT)]
)
def test_output_matches_recording(name, limit):
    golden = Golden(name)
    net = network(golden)
    assert error(run(net, golden), golden.out["raw"]) < limit
    if "denoised" in golden.out:
        assert error(denoise(net, golden), golden.out["denoised"]) < limit


def test_config_is_read_from_shapes():
    golden = Golden("qwen_image")
    config, recorded = config_from_state_dict(golden.weights, PREFIX), golden.config["unet_config"]
    for field in (
        *("in_channels", "out_channels", "patch_size", "num_layers", "num_attention_heads", "attention_head_dim"),
        "joint_attention_dim",
    ):
        assert getattr(config, field) == recorded[field], field


def test_takes_a_published_file():
    config, _ = build_from_map("qwen_image", qwen_image, QwenImage)
    assert config == qwen_image.QwenImageConfig()


def test_odd_sizes():
    golden = Golden("qwen_image")
    golden.inputs["x"] = golden.inputs["x"][..., :7, :11]
    assert run(network(golden), golden).shape == (2, 16, 1, 7, 11)


@pytest.mark.parametrize("method", ["uxo", "index_timestep_zero"])
def test_reference_methods_differ(method):
    golden = Golden("qwen_image_edit")
    net = network(golden)
    out = run(net, golden, ref_latents_method=method)
    assert error(out, golden.out["raw"]) > 1e-3


def test_masked_words_have_no_influence():
    golden = Golden("qwen_image")
    net = network(golden)
    context = golden.inputs["context"]
    mask = torch.ones(2, 13, dtype=torch.long)
    assert torch.equal(run(net, golden, attention_mask=mask), run(net, golden))
    mask[:, 9:] = 0
    masked = run(net, golden, attention_mask=mask)
    assert error(run(net, golden, context=context[:, :9]), masked) < 1e-5


def test_control_is_added_after_its_block():
    golden = Golden("qwen_image")
    net = network(golden)
    added = residual(2, 24, 64)

    def replacement(args, extra):
        out = extra["original_block"](args)
        return {**out, "img": out["img"] + added}

    options = {"patches_replace": {"dit": {("double_block", 0): replacement}}}
    controlled = run(net, golden, control={"input": [added]})
    assert error(controlled, run(net, golden)) > 0.01
    assert error(controlled, run(net, golden, transformer_options=options)) < 1e-6
