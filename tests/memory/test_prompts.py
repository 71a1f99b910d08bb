"""Whole prompts with the built-in model, through the engine: what the second one reads, moves and computes."""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import comfy.devices
import comfy.model_management
import execution
import folder_paths
import nodes
from comfy.ledger import Counters, ledger_of, totals
from tests.engine.engine_kit import FakeServer, Runner, n, node
from tests.memory.conftest import PAPER

CHECKPOINT = "darkroom-tiny.safetensors"
UNET = "model.diffusion_model."
NOTHING = Counters()


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The checkpoint, and two LoRAs: one for each kind of attention."""
    source = folder_paths.get_full_path_or_raise("checkpoints", CHECKPOINT)
    for folder in ("checkpoints", "loras"):
        (tmp_path / folder).mkdir()
        entry = ([str(tmp_path / folder)], {".safetensors"})
        monkeypatch.setitem(folder_paths.folder_names_and_paths, folder, entry)
    shutil.copy(source, tmp_path / "checkpoints" / CHECKPOINT)
    generator = torch.Generator().manual_seed(0)
    counts = {}
    with safe_open(source, "pt") as f:
        for part in ("attn1", "attn2"):
            names = [k.removesuffix(".weight") for k in f.keys() if UNET in k and f"{part}.to_q.weight" in k]  # noqa: SIM118
            sd = {}
            for name in names:
                rows, columns = f.get_slice(f"{name}.weight").get_shape()
                own = "lora_unet_" + name.removeprefix(UNET).replace(".", "_")
                sd[f"{own}.lora_up.weight"] = torch.randn(rows, 2, generator=generator)
                sd[f"{own}.lora_down.weight"] = torch.randn(2, columns, generator=generator)
            save_file(sd, tmp_path / "loras" / f"{part}.safetensors")
            counts[part] = len(names)
    assert all(counts.values())
    return counts


@node({"images": ("IMAGE",)}, OUTPUT_NODE=True)
class Take:
    """Keeps the pictures it gets."""

    pictures: list[torch.Tensor] = []

    def run(self, images):
        Take.pictures.append(images)
        return {}


@pytest.fixture
def runner(files, device, monkeypatch):
    """Prompts run on the simulated device."""
    for module in (comfy.model_management, comfy.devices):
        for name in ("get_torch_device", "text_encoder_device", "vae_device"):
            monkeypatch.setattr(module, name, lambda: PAPER)
    monkeypatch.setitem(nodes.NODE_CLASS_MAPPINGS, "Take", Take)
    return Runner(FakeServer(), execution.CacheType.CLASSIC)


def prompt(first: float = 0.5, second: float = 0.5, seed: int = 1) -> dict:
    """Two LoRAs of these strengths, one step, decoded."""
    return {
        "file": n("CheckpointLoaderSimple", ckpt_name=CHECKPOINT),
        "one": n("LoraLoaderModelOnly", model=("file", 0), lora_name="attn1.safetensors", strength_model=first),
        "two": n("LoraLoaderModelOnly", model=("one", 0), lora_name="attn2.safetensors", strength_model=second),
        "text": n("CLIPTextEncode", clip=("file", 1), text="a red square"),
        "empty": n("EmptyLatentImage", width=64, height=64, batch_size=1),
        "sample": n(
            "KSampler",
            model=("two", 0),
            positive=("text", 0),
            negative=("text", 0),
            latent_image=("empty", 0),
            **{"seed": seed, "steps": 1, "cfg": 1.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0},
        ),
        "decode": n("VAEDecode", samples=("sample", 0), vae=("file", 2)),
    }


def added(runner: Runner, graph: dict) -> tuple[Counters, torch.Tensor]:
    """What a prompt added to the counters, and its picture."""
    before = totals()
    runner.good({**graph, "take": n("Take", images=("decode", 0))})
    return totals() - before, Take.pictures[-1]


def test_another_seed_reads_moves_and_patches_nothing(runner, files):
    first, picture = added(runner, prompt())
    assert first.disk_reads == 3 and first.loads == 3 and first.patches == sum(files.values())
    again, other = added(runner, prompt(seed=2))
    assert again == NOTHING and not torch.equal(other, picture)


@pytest.mark.parametrize(
    ("changed", "part"), [({"first": 0.8}, "attn1"), ({"second": 0.8}, "attn2"), ({"second": -0.8}, "attn2")]
)
def test_a_strength_touches_its_own_loras_weights_only(runner, files, changed, part):
    """Also of the first of two, although the loader of the second runs again."""
    added(runner, prompt())
    change, picture = added(runner, prompt(**changed))
    assert (change.patches, change.copies, change.disk_reads) == (files[part], files[part], 0)
    comfy.model_management.unload_all_models()
    fresh, same = added(Runner(FakeServer(), execution.CacheType.CLASSIC), prompt(**changed))
    assert fresh.disk_reads == 3 and torch.equal(same, picture)


def test_half_precision_between_nodes(runner, monkeypatch):
    _, whole = added(runner, prompt())
    monkeypatch.setattr(comfy.devices.args, "fp16_intermediates", True)
    _, half = added(Runner(FakeServer(), execution.CacheType.CLASSIC), prompt())
    assert (whole.dtype, half.dtype) == (torch.float32, torch.float16)
    assert 0 < (half.float() - whole).abs().max() < 0.05


def test_what_free_took_off_is_not_read_again(runner):
    _, picture = added(runner, prompt())
    comfy.model_management.unload_all_models("POST /free")
    assert all(record.loaded_bytes == 0 for record in ledger_of(PAPER).models())
    back, same = added(runner, prompt(seed=1))
    assert back == NOTHING and torch.equal(same, picture)  # the results were kept
    moved, _ = added(runner, prompt(seed=3))
    assert moved.disk_reads == 0 and moved.loads == 2 and moved.copied_bytes > 0
