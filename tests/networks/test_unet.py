"""The UNet against recorded outputs of the Stable Diffusion 1, 2 and XL families."""

import pytest
import torch

import comfy.ops
from comfy.models.unet import UNetConfig, UNetModel, config_from_state_dict
from tests.networks.golden import EPS_LIMIT, LIMIT, Golden, error

NAMES = [
    "unet_sd1",
    "unet_sd1_odd",
    "unet_sd1_inpaint9",
    "unet_sd1_ip2p8",
    "unet_sd2_v",
    "unet_sdxl",
    "unet_sdxl_refiner",
]
PREFIX = "model.diffusion_model."
# Compared one by one with the recorded configuration; the rest of it has no counterpart here.
FIELDS = [
    "in_channels",
    "out_channels",
    "model_channels",
    "channel_mult",
    "num_res_blocks",
    "transformer_depth_middle",
    "context_dim",
    "adm_in_channels",
    "use_linear_in_transformer",
]


def build(golden: Golden, operations=comfy.ops.disable_weight_init, dtype=torch.float32) -> UNetModel:
    heads = golden.config["unet_config"]["num_head_channels"]
    overrides = {"num_head_channels": heads} if heads > 0 else {}
    config = config_from_state_dict(golden.weights, PREFIX, **overrides)
    net = UNetModel(config, device="meta", operations=operations)
    net.load_state_dict({k: v.to(dtype) for k, v in golden.module_weights(PREFIX).items()}, assign=True)
    return net.eval()


def run(net: UNetModel, golden: Golden, **kwargs) -> torch.Tensor:
    x = golden.inputs["x"]
    if "c_concat" in golden.inputs:
        x = torch.cat([x, golden.inputs["c_concat"]], dim=1)
    return net(x, golden.inputs["timesteps"], golden.inputs["context"], y=golden.inputs.get("y"), **kwargs)


@pytest.mark.parametrize("name", NAMES)
def test_output_matches_recording(name):
    golden = Golden(name)
    assert error(run(build(golden), golden), golden.out["raw"]) < LIMIT


@pytest.mark.parametrize("name", ["eps_unet_sd1", "eps_unet_sdxl"])
def test_norm_epsilons(name):
    golden = Golden(name)
    assert error(run(build(golden), golden), golden.out["raw"]) < EPS_LIMIT


@pytest.mark.parametrize("name", NAMES)
def test_config_is_read_from_shapes(name):
    golden = Golden(name)
    recorded = golden.config["unet_config"]
    config = config_from_state_dict(golden.weights, PREFIX)
    for field in FIELDS:
        value = getattr(config, field)
        assert (list(value) if isinstance(value, tuple) else value) == recorded[field], field
    # The recorded lists hold one entry per level where all are equal; as read there is one per residual block.
    assert len(config.transformer_depth) == sum(config.num_res_blocks)
    assert len(config.transformer_depth_output) == sum(config.num_res_blocks) + len(config.num_res_blocks)
    assert list(config.transformer_depth_output) == recorded["transformer_depth_output"]


def test_config_from_dict_ignores_foreign_keys():
    config = UNetConfig.from_dict({"channel_mult": [1, 2], "image_size": 32, "attn_precision": "torch.float32"})
    assert config.channel_mult == (1, 2)
    assert config.attn_precision == torch.float32


def test_weights_may_rest_in_half_precision():
    golden = Golden("unet_sd1")
    net = build(golden, comfy.ops.manual_cast, torch.float16)
    assert next(net.parameters()).dtype == torch.float16
    # The recorded weights are float16 numbers, so casting them per call loses nothing.
    assert error(run(net, golden), golden.out["raw"]) < LIMIT


def test_missing_vector_is_named():
    golden = Golden("unet_sdxl")
    with pytest.raises(ValueError, match="argument y is missing"):
        build(golden)(golden.inputs["x"], golden.inputs["timesteps"], golden.inputs["context"])


def test_identity_patches_change_nothing_and_see_the_block():
    golden = Golden("unet_sd1")
    net = build(golden)
    seen = []

    def attn_inputs(q, k, v, options):
        seen.append((options["block"], options["block_index"], options["n_heads"], options["dim_head"]))
        return q, k, v

    patches = {
        "attn1_patch": [attn_inputs],
        "attn2_patch": [lambda q, k, v, options: (q, k, v)],
        "attn1_output_patch": [lambda n, options: n],
        "attn2_output_patch": [lambda n, options: n],
        "middle_patch": [lambda x, options: x],
        "input_block_patch": [lambda h, options: h],
        "output_block_patch": [lambda h, skip, options: (h, skip)],
        "emb_patch": [lambda emb, channels, options: emb],
    }
    options = {"patches": patches}
    out = run(net, golden, transformer_options=options)
    assert torch.equal(out, run(net, golden))
    assert options == {"patches": patches}, "the caller's options were written to"
    assert [block for block, *_ in seen] == [
        *(("input", n) for n in (1, 2, 4, 5)),
        ("middle", 0),
        *(("output", n) for n in range(6)),
    ]
    assert seen[0][1:] == (0, 8, 4)


@pytest.mark.parametrize(
    "name", ["attn1_output_patch", "attn2_output_patch", "middle_patch", "input_block_patch", "emb_patch"]
)
def test_patches_take_effect(name):
    golden = Golden("unet_sd1")
    net = build(golden)
    out = run(net, golden, transformer_options={"patches": {name: [lambda h, *rest: h * 1.5]}})
    assert error(out, run(net, golden)) > 0.01


@pytest.mark.parametrize("key", [("middle", 0), ("middle", 0, 0)])
@pytest.mark.parametrize("attention", ["attn1", "attn2"])
def test_attention_can_be_replaced(attention, key):
    golden = Golden("unet_sd1")
    net = build(golden)
    calls = []

    def zero(q, k, v, options):
        calls.append(options["block"])
        return torch.zeros_like(q)

    out = run(net, golden, transformer_options={"patches_replace": {attention: {key: zero}}})
    assert calls == [("middle", 0)]
    block = net.middle_block[1].transformer_blocks[0]
    getattr(block, attention).to_out[0].weight = torch.nn.Parameter(
        torch.zeros_like(getattr(block, attention).to_out[0].weight), requires_grad=False
    )
    assert error(out, run(net, golden)) < 1e-6


def test_control_is_used_from_the_end_and_left_untouched():
    golden = Golden("unet_sd1")
    net = build(golden)
    # Not a constant: the group norm after it would take that out again.
    skip_of_last_output = torch.randn(2, 32, 16, 16, generator=torch.Generator().manual_seed(0))
    control = {"output": [None, skip_of_last_output, None, None, None, None, None], "middle": [None]}
    # Six output blocks take the last six entries; the first one stays unused.
    out = run(net, golden, control=control)
    assert len(control["output"]) == 7

    def add_to_last(h, skip, options):
        return h, skip + skip_of_last_output if options["block"] == ("output", 5) else skip

    patched = run(net, golden, transformer_options={"patches": {"output_block_patch": [add_to_last]}})
    assert error(out, patched) < 1e-6
    assert error(out, run(net, golden)) > 1e-4


def test_can_be_trained():
    config = UNetConfig(
        model_channels=32,
        channel_mult=(1, 2),
        num_res_blocks=(1, 1),
        transformer_depth=(0, 1),
        transformer_depth_output=(0, 0, 1, 1),
        context_dim=16,
        num_heads=4,
    )
    with torch.inference_mode(False):
        net = comfy.ops.init_weights(UNetModel(config, device="meta").to_empty(device="cpu"), seed=0)
        x = torch.randn(2, 4, 8, 8)
        loss = net(x, torch.tensor([3.0, 500.0]), torch.randn(2, 5, 16)).square().mean()
        loss.backward()
        assert torch.isfinite(loss)
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in net.parameters())
