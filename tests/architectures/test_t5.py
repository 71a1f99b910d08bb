"""T5, UMT5 and the first T5 against recorded hidden states, and the key maps of the published files."""

import pytest
import torch

from comfy.text_encoders import t5
from comfy.text_encoders.t5 import T5Encoder, config_from_state_dict, position_buckets
from tests.architectures.recorded import build, build_from_map
from tests.networks.golden import EPS_LIMIT, LIMIT, Golden, error

NAMES = ["t5xxl", "umt5", "t5_old"]


def network(golden: Golden, **kwargs) -> T5Encoder:
    return build(golden, config_from_state_dict(golden.weights), T5Encoder, **kwargs)


def encode(net: T5Encoder, tokens: torch.Tensor, masking: str, end: int = 1) -> torch.Tensor:
    """Recorded three ways: padding seen, padding masked, masked and its rows set to zero."""
    if masking == "nomask":
        return net(tokens)[0]
    first_end = (tokens == end).int().argmax(dim=-1, keepdim=True)
    mask = (torch.arange(tokens.shape[1])[None] <= first_end).long()
    out = net(tokens, attention_mask=mask)[0]
    return out * mask[..., None] if masking == "mask_zero" else out


@pytest.mark.parametrize("masking", ["nomask", "mask", "mask_zero"])
@pytest.mark.parametrize("name", NAMES)
def test_output_matches_recording(name, masking):
    golden = Golden(name)
    net = network(golden)
    for prompt in ("short", "long"):
        out = encode(net, golden.inputs[f"{prompt}.tokens"], masking)
        assert error(out, golden.out[f"{masking}.{prompt}"]) < LIMIT


@pytest.mark.parametrize("masking", ["nomask", "mask", "mask_zero"])
@pytest.mark.parametrize("name", NAMES)
def test_weighted_prompt(name, masking):
    """A weight moves a token's row away from that of an empty prompt."""
    golden = Golden(name)
    net = network(golden)
    tokens, weights = golden.inputs["weighted.tokens"], golden.inputs["weighted.weights"]
    empty = torch.zeros_like(tokens)
    empty[:, 0] = golden.config["special"]["end"]
    z, z_empty = encode(net, tokens, masking), encode(net, empty, masking)
    assert error((z - z_empty) * weights[..., None] + z_empty, golden.out[f"{masking}.weighted"]) < LIMIT


def test_norm_epsilons():
    golden = Golden("eps_t5xxl")
    net = network(golden)
    assert error(encode(net, golden.inputs["long.tokens"], "mask"), golden.out["mask.long"]) < EPS_LIMIT
    assert error(encode(net, golden.inputs["short.tokens"], "nomask"), golden.out["nomask.short"]) < EPS_LIMIT


@pytest.mark.parametrize("name", NAMES)
def test_config_is_read_from_shapes(name):
    golden = Golden(name)
    config, recorded = config_from_state_dict(golden.weights), golden.config["config"]
    for field in ("d_ff", "d_kv", "d_model", "is_gated_act", "num_heads", "num_layers", "vocab_size"):
        assert getattr(config, field) == recorded[field], field
    assert config.shared_bias == (recorded["model_type"] == "t5")


@pytest.mark.parametrize(
    "name, expected",
    [
        ("te_t5xxl", {}),
        ("te_umt5_xxl", {"vocab_size": 256384, "shared_bias": False}),
        (
            "te_t5_xxl_old",
            {"d_model": 1024, "d_kv": 128, "d_ff": 65536, "num_heads": 128, "is_gated_act": False},
        ),
        (
            "te_t5_base",
            {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "is_gated_act": False},
        ),
        ("te_t5_pile_xl", {"d_model": 2048, "d_ff": 5120, "num_heads": 32, "shared_bias": False}),
    ],
)
def test_takes_a_published_file(name, expected):
    config, _ = build_from_map(name, t5, T5Encoder)
    assert config == t5.T5Config(**expected)


def test_buckets_are_exact_nearby_and_wider_far_away():
    buckets = position_buckets(300, 32)
    row = buckets[150]
    assert row[150] == 0
    assert row[143:150].tolist() == [7, 6, 5, 4, 3, 2, 1]
    assert row[151:158].tolist() == [17, 18, 19, 20, 21, 22, 23]
    assert (row[0], row[299]) == (15, 31)
    assert (row[:151].flip(0).diff() >= 0).all()


def test_hidden_layers():
    golden = Golden("t5xxl")
    net = network(golden)
    tokens = golden.inputs["short.tokens"]
    last, hidden = net(tokens, layer=-1)
    assert torch.equal(last, hidden)
    raw = net(tokens, layer=1, normalize_hidden=False)[1]
    assert not torch.equal(raw, net(tokens, layer=2, normalize_hidden=False)[1])
    assert torch.equal(net.encoder.final_layer_norm(raw), net(tokens, layer=-2)[1])


def test_embeddings_in_place_of_tokens():
    golden = Golden("t5xxl")
    net = network(golden)
    tokens = golden.inputs["short.tokens"]
    assert torch.equal(net(embeds=net.embed(tokens))[0], net(tokens)[0])
    with pytest.raises(ValueError, match="tokens or embeds"):
        net()
