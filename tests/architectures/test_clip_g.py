"""CLIP bigG from a file in open_clip's layout, against recorded hidden states; and the key maps of real files."""

import pytest
import torch

from comfy.text_encoders import clip
from comfy.text_encoders.clip import CLIPTextModel, config_from_state_dict
from comfy.text_encoders.open_clip import is_open_clip, to_text_model
from tests.architectures.recorded import build_from_map
from tests.networks.golden import LIMIT, Golden, error

PREFIX = "conditioner.embedders.1.model."


@pytest.fixture(scope="module")
def golden() -> Golden:
    return Golden("clip_g")


@pytest.fixture(scope="module")
def net(golden) -> CLIPTextModel:
    assert is_open_clip(golden.weights, PREFIX)
    weights = to_text_model(golden.weights, PREFIX)
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


@pytest.mark.parametrize("prompt", ["plain", "empty", "two_chunks", "weighted"])
def test_output_matches_recording(golden, net, prompt):
    tokens, weights = golden.inputs[f"{prompt}.tokens"], golden.inputs[f"{prompt}.weights"]
    empty = torch.full_like(tokens[:1], golden.config["pad"])
    empty[:, :2] = torch.tensor([golden.config["start"], golden.config["end"]])

    def weighted(**options) -> torch.Tensor:
        name = "last" if not options else "hidden"
        z, z_empty = (getattr(net(t, **options), name) for t in (tokens, empty))
        return joined((z - z_empty) * weights[..., None] + z_empty)

    out = {k.removeprefix(f"{prompt}."): v for k, v in golden.out.items() if k.startswith(f"{prompt}.")}
    assert error(weighted(), out["last"]) < LIMIT
    assert error(weighted(layer=-2), out["skip2_ln"]) < LIMIT
    assert error(weighted(layer=-2, normalize_hidden=False), out["skip2_raw"]) < LIMIT
    assert error(weighted(layer=-3, normalize_hidden=False), out["skip3_raw"]) < LIMIT
    result = net(tokens)
    assert error(result.pooled[:1], out["pooled_unprojected"]) < LIMIT
    assert error(result.projected[:1], out["pooled"]) < LIMIT


def test_vectors_in_place_of_tokens(golden, net):
    tokens = golden.inputs["embedding_tokens"]
    embeds = net.embed(tokens.clamp(min=0))
    embeds[tokens == -1] = golden.inputs["embedding"]
    end = (tokens == golden.config["end"]).int().argmax(dim=-1)
    result = net(embeds=embeds, end_index=end)
    assert error(result.last, golden.out["embedding.last"]) < LIMIT
    assert error(result.projected, golden.out["embedding.pooled"]) < LIMIT


def test_conversion_copies_nothing_but_the_projection(golden):
    converted = to_text_model(golden.weights, PREFIX)
    packed = golden.weights[PREFIX + "transformer.resblocks.0.attn.in_proj_weight"]
    key = converted["text_model.encoder.layers.0.self_attn.k_proj.weight"]
    assert key.untyped_storage().data_ptr() == packed.untyped_storage().data_ptr()
    assert torch.equal(key, packed[40:80])
    assert not any("logit_scale" in k for k in converted)


def test_other_layout_passes_through(net):
    weights = dict(net.state_dict())
    assert not is_open_clip(weights)
    assert to_text_model(weights).keys() == weights.keys()


def test_takes_a_published_file():
    config, _ = build_from_map("te_clip_g", clip, CLIPTextModel)
    assert (config.num_hidden_layers, config.num_attention_heads, config.projection_dim) == (32, 20, 1280)
    assert config.hidden_act == "gelu"
