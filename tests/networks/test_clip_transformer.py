"""CLIP's text transformer against recorded hidden states."""

import pytest
import torch

import comfy.ops
from comfy.text_encoders.clip import CLIPTextConfig, CLIPTextModel, config_from_state_dict
from tests.networks.golden import LIMIT, Golden, error

PREFIX = "cond_stage_model.transformer."


@pytest.fixture(scope="module")
def golden() -> Golden:
    return Golden("clip_l")


@pytest.fixture(scope="module")
def net(golden) -> CLIPTextModel:
    weights = golden.module_weights(PREFIX)
    projection = golden.weights.get("text_projection.weight")
    if projection is not None:
        weights["text_projection.weight"] = projection
    recorded = golden.config["config"]
    config = config_from_state_dict(
        weights, num_attention_heads=recorded["num_attention_heads"], hidden_act=recorded["hidden_act"]
    )
    net = CLIPTextModel(config, device="meta")
    net.load_state_dict(weights, assign=True)
    return net.eval()


def joined(hidden: torch.Tensor) -> torch.Tensor:
    """Chunks one after the other, as recorded."""
    return hidden.flatten(0, 1).unsqueeze(0)


@pytest.mark.parametrize("prompt", ["plain", "empty"])
def test_output_matches_recording(golden, net, prompt):
    tokens = golden.inputs[f"{prompt}.tokens"]
    out = {k.removeprefix(f"{prompt}."): v for k, v in golden.out.items() if k.startswith(f"{prompt}.")}
    result = net(tokens)
    assert error(joined(result.last), out["last"]) < LIMIT
    assert error(result.pooled[:1], out["pooled_unprojected"]) < LIMIT
    assert error(result.projected[:1], out["pooled"]) < LIMIT
    assert error(joined(net(tokens, layer=-2).hidden), out["skip2_ln"]) < LIMIT
    assert error(joined(net(tokens, layer=-2, normalize_hidden=False).hidden), out["skip2_raw"]) < LIMIT
    assert error(joined(net(tokens, layer=-3, normalize_hidden=False).hidden), out["skip3_raw"]) < LIMIT


def test_vectors_in_place_of_tokens(golden, net):
    tokens = golden.inputs["embedding_tokens"]
    embeds = net.embed(tokens.clamp(min=0))
    embeds[tokens == -1] = golden.inputs["embedding"]
    end = (tokens == golden.config["end"]).int().argmax(dim=-1)
    result = net(embeds=embeds, end_index=end)
    assert error(result.last, golden.out["embedding.last"]) < LIMIT
    assert error(result.projected, golden.out["embedding.pooled"]) < LIMIT


def test_layer_beyond_the_first_means_the_last(golden, net):
    tokens = golden.inputs["plain.tokens"]
    assert torch.equal(net(tokens, layer=-9).hidden, net(tokens).last)


def test_heads_follow_from_the_width(golden):
    weights = golden.module_weights(PREFIX)
    assert config_from_state_dict(weights).num_attention_heads == 1
    assert CLIPTextConfig(hidden_size=768).num_attention_heads == 12


def test_can_be_trained():
    config = CLIPTextConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        eos_token_id=99,
    )
    with torch.inference_mode(False):
        net = comfy.ops.init_weights(CLIPTextModel(config), seed=0)
        net(torch.tensor([[1, 5, 99, 99]])).last.square().mean().backward()
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in net.parameters())
