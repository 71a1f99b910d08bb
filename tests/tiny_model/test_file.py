"""The checkpoint that comes with the project: layout, size, and that a loader can tell what it is."""

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

FILE = Path(__file__).parents[2] / "models" / "checkpoints" / "darkroom-tiny.safetensors"
UNET, VAE, CLIP = "model.diffusion_model.", "first_stage_model.", "cond_stage_model.transformer.text_model."


@pytest.fixture(scope="module")
def header() -> dict:
    with open(FILE, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(length))


@pytest.fixture(scope="module")
def tensors(header) -> dict:
    return {name: entry for name, entry in header.items() if name != "__metadata__"}


def test_it_is_small():
    assert FILE.stat().st_size <= 12_000_000


def test_every_tensor_is_half_precision_except_the_positions(tensors):
    odd = {name: entry["dtype"] for name, entry in tensors.items() if entry["dtype"] != "F16"}
    assert odd == {CLIP + "embeddings.position_ids": "I64"}


def test_names_are_those_of_an_sd1_file(tensors):
    assert {name.split(".")[0] for name in tensors} == {"model", "first_stage_model", "cond_stage_model"}
    for name in (
        UNET + "time_embed.0.weight",
        UNET + "input_blocks.0.0.weight",
        UNET + "middle_block.1.transformer_blocks.0.attn2.to_k.weight",
        UNET + "out.2.bias",
        VAE + "encoder.conv_in.weight",
        VAE + "quant_conv.weight",
        VAE + "post_quant_conv.weight",
        VAE + "decoder.mid.attn_1.proj_out.weight",
        CLIP + "embeddings.position_embedding.weight",
        CLIP + "encoder.layers.0.self_attn.out_proj.bias",
        CLIP + "final_layer_norm.weight",
    ):
        assert name in tensors, name


def test_the_vocabulary_is_whole_and_the_projections_are_convolutions(tensors):
    width = tensors[CLIP + "final_layer_norm.weight"]["shape"][0]
    assert tensors[CLIP + "embeddings.token_embedding.weight"]["shape"] == [49408, width]
    assert tensors[CLIP + "embeddings.position_embedding.weight"]["shape"] == [77, width]
    assert tensors[UNET + "middle_block.1.transformer_blocks.0.attn2.to_k.weight"]["shape"][1] == width
    assert len(tensors[UNET + "middle_block.1.proj_in.weight"]["shape"]) == 4
    assert tensors[UNET + "input_blocks.0.0.weight"]["shape"][1] == 4


def test_the_header_says_where_it_comes_from(header):
    facts = header["__metadata__"]
    assert facts["modelspec.title"] == "Darkroom tiny"
    assert facts["modelspec.license"] == "Apache-2.0"
    assert int(json.loads(facts["darkroom.training"])["steps"]) > 0


def test_weights_are_finite_and_the_words_it_knows_are_trained():
    with safe_open(FILE, "pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            tensor = file.get_tensor(name)
            if tensor.is_floating_point():
                assert torch.isfinite(tensor).all(), name
        table = file.get_tensor(CLIP + "embeddings.token_embedding.weight").float()
    from comfy.text_encoders.tokenizer import encode_clip

    spread = table.std(dim=1)
    known = spread[torch.tensor(encode_clip("red green blue circle square star small large"))]
    assert known.min() > 1.5 * spread.median()


def test_the_decoder_inverts_the_encoder():
    import random

    import numpy as np

    import comfy.sd
    from tools.tiny_model.classify import classify
    from tools.tiny_model.data import draw, sample_scene

    _, _, vae, _ = comfy.sd.load_checkpoint_guess_config(str(FILE))
    rng = random.Random(8)
    scenes = [sample_scene(rng) for _ in range(8)]
    pixels = torch.from_numpy(np.stack([np.array(draw(scene, rng)) for scene in scenes])).float() / 255
    latents = vae.encode(pixels)
    assert latents.shape == (8, 4, 16, 16)
    assert 0.6 < float(latents.std() * 0.18215) < 1.5
    again = vae.decode(latents).cpu()
    assert float(-10 * (again - pixels).square().mean().log10()) > 25
    for scene, picture in zip(scenes, (again * 255).round().to(torch.uint8).numpy()):
        assert all(classify(picture).agrees(scene).values()), scene
