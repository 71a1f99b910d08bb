"""The same prompt gives the same picture, whatever ran in between: A, B, A, with and without a cache of results."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

import folder_paths
from comfy_execution.caching import CacheType
from tests.engine.engine_kit import FakeServer, Runner, n

CHECKPOINT = Path(__file__).parents[2] / "models" / "checkpoints" / "darkroom-tiny.safetensors"
LAYERS = {
    "lora_unet_middle_block_1_transformer_blocks_0_attn2_to_k":
        "model.diffusion_model.middle_block.1.transformer_blocks.0.attn2.to_k.weight",
    "lora_te_text_model_encoder_layers_0_self_attn_out_proj":
        "cond_stage_model.transformer.text_model.encoder.layers.0.self_attn.out_proj.weight",
}  # fmt: skip
WAYS = [(CacheType.CLASSIC, {}), (CacheType.LRU, {"lru": 100}), (CacheType.NONE, {})]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lora(tmp_path_factory):
    """A folder with a LoRA for the small checkpoint, of one layer of the UNet and one of the text encoder."""
    folder = tmp_path_factory.mktemp("loras")
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    with safe_open(CHECKPOINT, "pt") as file:
        for name, key in LAYERS.items():
            rows, columns = file.get_slice(key).get_shape()[:2]
            tensors[name + ".lora_up.weight"] = torch.randn(rows, 4, generator=generator) / 4
            tensors[name + ".lora_down.weight"] = torch.randn(4, columns, generator=generator) / 4
    save_file(tensors, folder / "change.safetensors")
    return folder


@pytest.fixture
def model_folders(lora, folders, monkeypatch):
    for name, place in (("checkpoints", CHECKPOINT.parent), ("loras", lora)):
        _, extensions = folder_paths.folder_names_and_paths[name]
        monkeypatch.setitem(folder_paths.folder_names_and_paths, name, ([str(place)], extensions))
    return folders


def prompt(strength=1.0, shift=None, sampler="euler"):
    """Text to picture with the small checkpoint; with a shift, the model is sampled as one of flow matching."""
    model = ("lora", 0) if shift is None else ("shifted", 0)
    nodes = {
        "file": n("CheckpointLoaderSimple", ckpt_name=CHECKPOINT.name),
        "lora": n("LoraLoader", model=("file", 0), clip=("file", 1), lora_name="change.safetensors",
                  strength_model=strength, strength_clip=strength),
        "shifted": n("ModelSamplingSD3", model=("lora", 0), shift=shift or 1.0),
        "text": n("CLIPTextEncode", clip=("lora", 1), text="a red box"),
        "none": n("CLIPTextEncode", clip=("lora", 1), text=""),
        "latent": n("EmptyLatentImage", width=64, height=64, batch_size=1),
        "sample": n("KSampler", model=model, positive=("text", 0), negative=("none", 0), latent_image=("latent", 0),
                    seed=5, steps=3, cfg=3.0, sampler_name=sampler, scheduler="normal", denoise=1.0),
        "decode": n("VAEDecode", samples=("sample", 0), vae=("file", 2)),
        "save": n("SaveImage", images=("decode", 0), filename_prefix="repeat"),
    }  # fmt: skip
    return nodes


def picture(runner, folder, nodes):
    """Run a prompt; the bytes of its picture's pixels, and of the file."""
    (item,) = runner.good(nodes)["save"]["images"]
    path = folder / "output" / item["filename"]
    with Image.open(path) as image:
        return image.tobytes(), path.read_bytes()


@pytest.mark.parametrize(
    "first, second",
    [
        ({"strength": 1.0}, {"strength": 0.25}),
        ({"shift": 3.0}, {"shift": 1.0}),
        ({"sampler": "euler_ancestral"}, {"sampler": "dpmpp_2m", "strength": 0.5}),
    ],
    ids=["strength of a LoRA", "shift", "sampler with noise of its own"],
)
def test_what_ran_in_between_changes_nothing(model_folders, first, second):
    seen = set()
    for cache_type, options in WAYS:
        runner = Runner(FakeServer(), cache_type, **options)
        before = picture(runner, model_folders, prompt(**first))
        other = picture(runner, model_folders, prompt(**second))
        after = picture(runner, model_folders, prompt(**first))
        assert after == before, cache_type
        assert other[0] != before[0], cache_type
        seen.add((before[0], other[0]))
    assert len(seen) == 1  # however results are kept


def test_the_cache_was_in_use(model_folders):
    """Of the three runs above the third is a repetition from the cache only where it should be."""
    ran = {}
    for cache_type, options in WAYS:
        runner = Runner(FakeServer(), cache_type, **options)
        for strength in (1.0, 0.25, 1.0):
            runner.good(prompt(strength=strength))
        ran[cache_type] = set(runner.server.order)
    assert ran[CacheType.LRU] == set()
    assert ran[CacheType.CLASSIC] == {"lora", "text", "none", "sample", "decode", "save"}
    assert ran[CacheType.NONE] == ran[CacheType.CLASSIC] | {"file", "latent"}
