"""What all transformers have in common: less than float32, and configurations as plain mappings."""

import dataclasses
import importlib

import pytest
import torch

import comfy.ops
from tests.architectures.recorded import run
from tests.networks.golden import LIMIT, Golden, error

FAMILIES = {
    "mmdit": "mmdit_sd35_medium",
    "flux": "flux_kontext_ref",
    "flux2": "flux2_ref",
    "chroma": "chroma",
    "auraflow": "auraflow",
    "pixart": "pixart_sigma",
    "lumina2": "z_image",
    "qwen_image": "qwen_image_edit",
    "hidream": "hidream",
    "wan": "wan22_5b_frame_t",
}


def network(family: str, golden: Golden, **kwargs) -> torch.nn.Module:
    return importlib.import_module(f"tests.architectures.test_{family}").network(golden, **kwargs)


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_may_rest_in_half_precision(family):
    """The recorded weights are float16 numbers: casting them on each call loses nothing."""
    golden = Golden(FAMILIES[family])
    golden.weights = {k: v.half() for k, v in golden.weights.items()}
    net = network(family, golden, operations=comfy.ops.manual_cast)
    assert {p.dtype for p in net.parameters()} == {torch.float16}
    assert error(run(net, golden), golden.out["raw"]) < LIMIT


@pytest.mark.parametrize("family", FAMILIES)
def test_arithmetic_may_be_bfloat16(family):
    golden = Golden(FAMILIES[family])
    net = network(family, golden).to(torch.bfloat16)
    keep = {"sigma", "timesteps", "guidance"}
    golden.inputs = {k: v if k in keep or not v.is_floating_point() else v.bfloat16() for k, v in golden.inputs.items()}
    out = run(net, golden)
    assert out.dtype == torch.bfloat16
    assert error(out, golden.out["raw"]) < 0.3


@pytest.mark.parametrize("family", FAMILIES)
def test_config_survives_as_a_mapping(family):
    config = network(family, Golden(FAMILIES[family])).config
    listed = {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(config).items()}
    assert type(config).from_dict({"image_model": family, **listed}) == config
