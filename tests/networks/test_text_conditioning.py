"""Stable Diffusion 1's text side against recorded conditioning: weights, chunks, layers, textual inversions."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import comfy.sd
from comfy.supported_models import SD15
from comfy.supported_models_base import ClipTarget
from comfy.text_encoders import sd1
from comfy.text_encoders.checkpoint_layouts import take_encoders
from comfy.text_encoders.clip import CLIPTextConfig, config_from_state_dict
from comfy.text_encoders.clip_encoder import SDClipModel, encode_weighted
from tests.networks.golden import LIMIT, Golden, error

DATA = Path(__file__).resolve().parent.parent / "data" / "text"
CASES = json.loads((DATA / "clip_l_cases.json").read_text(encoding="utf-8"))
OUTPUTS = load_file(DATA / "clip_l_outputs.safetensors")
# Of the recorded conditioning every so many tokens are kept.
EVERY = 3


def token_table() -> torch.Tensor:
    """Too large to store; made from a seed, and checked."""
    facts = CASES["embedding_table"]
    rows = np.random.RandomState(facts["seed"]).standard_normal((facts["rows"], facts["dim"])) * 0.5
    table = rows.astype("<f4")
    assert hashlib.sha256(table.tobytes()).hexdigest() == facts["sha256_f32le"]
    return torch.from_numpy(table)


@pytest.fixture(scope="module")
def clip() -> comfy.sd.CLIP:
    sd = {k: v.float() for k, v in load_file(DATA / "tiny_clip_l.safetensors").items()}
    sd["text_model.embeddings.token_embedding.weight"] = token_table()
    sd = sd1.encoder_file_to_model(sd)

    def build(sd, device, dtype, operations):
        config = config_from_state_dict(
            sd, "clip_l.transformer.", num_attention_heads=CASES["config"]["num_attention_heads"]
        )
        return sd1.SD1ClipModel(config, device=device, dtype=dtype, operations=operations)

    return comfy.sd.CLIP(
        ClipTarget(sd1.SD1Tokenizer, build), embedding_directory=str(DATA / "embeddings"), state_dict=sd
    )


@pytest.mark.parametrize("name", CASES["cases"])
def test_conditioning(clip, name):
    case = CASES["cases"][name]
    clip = clip.clone()
    if case["clip_layer"] is not None:
        clip.clip_layer(case["clip_layer"])
    tokens = clip.tokenize(case["prompt"])
    cond, pooled = clip.encode_from_tokens(tokens, return_pooled="unprojected" if case["unprojected"] else True)
    assert error(cond[:, ::EVERY], OUTPUTS[f"{name}/cond"]) < LIMIT
    assert error(pooled, OUTPUTS[f"{name}/pooled"]) < LIMIT


def test_scheduled_and_dict_forms_agree(clip):
    tokens = clip.tokenize("a (red:1.4) cat")
    cond, pooled = clip.encode_from_tokens(tokens, return_pooled=True)
    as_dict = clip.encode_from_tokens(tokens, return_dict=True)
    ((scheduled, options),) = clip.encode_from_tokens_scheduled(tokens, add_dict={"width": 64})
    assert torch.equal(cond, as_dict["cond"]) and torch.equal(cond, scheduled)
    assert torch.equal(pooled, as_dict["pooled_output"]) and torch.equal(pooled, options["pooled_output"])
    assert options["width"] == 64
    assert torch.equal(clip.encode("a (red:1.4) cat"), cond)


def test_layer_of_a_clone_does_not_stick(clip):
    tokens = clip.tokenize("a cat")
    before = clip.encode_from_tokens(tokens)
    other = clip.clone()
    other.clip_layer(-2)
    assert not torch.equal(other.encode_from_tokens(tokens), before)
    assert torch.equal(clip.encode_from_tokens(tokens), before)


def test_no_chunks_is_the_empty_prompt(clip):
    model = clip.cond_stage_model.clip_l
    cond, _ = encode_weighted(model, [])
    assert cond.shape[0] == 1


# The second set of recordings, with a small vocabulary and given tokens.


@pytest.fixture(scope="module")
def golden() -> Golden:
    return Golden("clip_l")


@pytest.fixture(scope="module")
def model(golden) -> SDClipModel:
    weights = golden.module_weights("cond_stage_model.transformer.")
    weights["text_projection.weight"] = golden.weights["text_projection.weight"]
    config = config_from_state_dict(weights, num_attention_heads=golden.config["config"]["num_attention_heads"])
    model = SDClipModel(
        config,
        device="meta",
        special_tokens={name: golden.config[name] for name in ("start", "end", "pad")},
    )
    model.transformer.load_state_dict(weights, assign=True)
    return model


@pytest.mark.parametrize("prompt", ["plain", "weighted", "two_chunks", "empty"])
def test_weighting_and_layers(golden, model, prompt):
    out = {k.removeprefix(f"{prompt}."): v for k, v in golden.out.items() if k.startswith(f"{prompt}.")}
    rows = golden.inputs[f"{prompt}.tokens"].tolist()
    weights = golden.inputs[f"{prompt}.weights"].tolist()
    chunks = [list(zip(tokens, row_weights)) for tokens, row_weights in zip(rows, weights)]

    def encoded(layer, projected=True):
        model.reset_clip_options()
        model.layer_norm_hidden_state = layer[1]
        model.set_clip_options({"layer": layer[0], "projected_pooled": projected})
        return model.encode_token_weights(chunks)

    cond, pooled = encoded((None, True))
    assert error(cond, out["last"]) < LIMIT
    assert error(pooled, out["pooled"]) < LIMIT
    assert error(encoded((None, True), projected=False)[1], out["pooled_unprojected"]) < LIMIT
    assert error(encoded((-2, True))[0], out["skip2_ln"]) < LIMIT
    assert error(encoded((-2, False))[0], out["skip2_raw"]) < LIMIT
    assert error(encoded((-3, False))[0], out["skip3_raw"]) < LIMIT


def test_oldest_checkpoints_lack_a_level():
    sd = take_encoders(
        {
            "cond_stage_model.transformer.embeddings.position_ids": torch.arange(77),
            "cond_stage_model.transformer.encoder.layers.0.layer_norm1.weight": torch.ones(2),
            "cond_stage_model.transformer.text_model.final_layer_norm.bias": torch.ones(2),
        },
        SD15.encoders,
    )
    assert sorted(sd) == [
        "clip_l.transformer.text_model.encoder.layers.0.layer_norm1.weight",
        "clip_l.transformer.text_model.final_layer_norm.bias",
    ]


def test_unknown_layer_name():
    with pytest.raises(ValueError, match="'middle'"):
        SDClipModel(CLIPTextConfig(num_hidden_layers=1), device="meta", layer="middle")
