"""When the memory of a CUDA device ends: tiles, layers that visit, and a failure that leaves nothing behind."""

import gc
import shutil

import pytest
import torch

import comfy.sd
import execution
import folder_paths
from comfy import device_memory, devices
from comfy.cli_args import args
from comfy.ledger import ledger_of
from comfy.loaded_models import unload_all_models
from tests.cuda.simulation import DEVICE, SimulatedCuda
from tests.cuda.test_pictures import CHECKPOINT, Take, prompt, take  # noqa: F401
from tests.engine.engine_kit import FakeServer, Runner, n

MB = 1 << 20
TABLES = 100_000  # bytes of tables that networks keep on the device


@pytest.fixture(autouse=True)
def small_reserves(monkeypatch):
    """What is kept free for others is made for real cards."""
    monkeypatch.setattr(devices, "minimum_inference_memory", lambda: MB)
    monkeypatch.setattr(devices, "extra_reserved_memory", lambda: 0)
    monkeypatch.setattr("comfy.loaded_models.minimum_inference_memory", lambda: MB)


def runner() -> Runner:
    return Runner(FakeServer(), execution.CacheType.CLASSIC)


@pytest.mark.parametrize(("room", "failed"), [(26, 1), (10, 2), (1.5, 3)])
def test_pictures_that_do_not_fit_are_done_in_tiles(cuda, monkeypatch, caplog, room, failed):
    """Of half the size, or a quarter, where the usual ones do not fit."""
    monkeypatch.setattr(args, "fp32_vae", True)
    for name, tile in (("DECODE_TILE", 16), ("DECODE_OVERLAP", 4), ("ENCODE_TILE", 128), ("ENCODE_OVERLAP", 32)):
        monkeypatch.setattr(f"comfy.vae.vae.{name}", tile)
    vae = comfy.sd.load_checkpoint_guess_config(folder_paths.get_full_path("checkpoints", CHECKPOINT))[2]
    latent = torch.randn(1, 4, 24, 16, generator=torch.Generator().manual_seed(0))
    vae.decode(latent[..., :8, :8])
    gc.collect()
    weights = cuda.used
    cuda.capacity = weights + int(room * MB)
    cuda.reset_peak()
    picture = vae.decode(latent)
    assert picture.shape == (1, 192, 128, 3) and torch.isfinite(picture).all()
    assert caplog.text.count("decoding") == failed
    assert vae.encode(picture).shape == latent.shape
    assert cuda.peak <= cuda.capacity
    gc.collect()
    cuda.capacity = cuda.used + MB // 2
    with pytest.raises(torch.OutOfMemoryError):
        vae.decode(latent)
    gc.collect()
    assert cuda.used <= weights


def test_a_failed_prompt_leaves_nothing_behind(cuda):
    run = runner()
    small = prompt()
    run.good(small)
    first = Take.picture
    gc.collect()
    before = cuda.used
    cuda.capacity = before + 30 * MB
    large = prompt(seed=4)
    large["latent"] = n("EmptyLatentImage", width=4096, height=4096, batch_size=4)
    for _ in range(2):
        told = run.bad(large)
        assert told["exception_type"] == "torch.OutOfMemoryError" and told["node_type"] == "KSampler"
        assert "bytes were requested" in told["exception_message"]
        gc.collect()
        assert cuda.used <= before
    run.good(prompt(seed=5))
    run.good(small)
    assert torch.equal(Take.picture, first)


def test_two_checkpoints_take_turns(cuda, tmp_path, monkeypatch):
    """Both networks do not fit: the other one leaves, least recently used first, and peaks stay below the limit."""
    source = folder_paths.get_full_path("checkpoints", CHECKPOINT)
    for name in "ab":
        shutil.copy(source, tmp_path / f"{name}.safetensors")
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "checkpoints", ([str(tmp_path)], {".safetensors"}))
    # Estimates are made for networks of full size, of which one has much more to hold than its weights.
    monkeypatch.setattr("comfy.model_base.BaseModel.memory_required", lambda *args, **kwargs: 2 * MB)
    run, pictures = runner(), []
    for turn in range(3):
        for name in "ab":
            graph = prompt(seed=turn)
            graph["file"]["inputs"]["ckpt_name"] = f"{name}.safetensors"
            run.good(graph)
            pictures.append(Take.picture)
            if (turn, name) == (0, "a"):
                gc.collect()
                cuda.capacity = cuda.used + 9 * MB
                cuda.reset_peak()
    assert torch.equal(pictures[-2], pictures[-1]), "the same file, the same seed"
    assert cuda.peak <= cuda.capacity
    assert sum(record.evictions for record in ledger_of(DEVICE).models()) > 0


def test_a_card_for_half_a_model(cuda, monkeypatch):
    """Every part is streamed, the picture is the same, and the peak stays below the limit."""
    monkeypatch.setattr("comfy.model_base.BaseModel.memory_required", lambda *args, **kwargs: 2 * MB)
    run = runner()
    run.good(prompt())
    whole = Take.picture
    unload_all_models()
    gc.collect()
    cuda.capacity = cuda.used + 5 * MB
    cuda.reset_peak()
    streamed = ledger_of(DEVICE).counters.streamed
    again = runner()
    again.good(prompt())
    assert (Take.picture - whole).abs().mean() < 0.02, "the CPU rounds bfloat16 as its weights lie in memory"
    assert cuda.peak <= cuda.capacity
    assert ledger_of(DEVICE).counters.streamed > streamed
    unload_all_models()
    gc.collect()
    assert cuda.used <= TABLES


def test_the_level_stays_flat(cuda):
    """No tensor is left on the device by a prompt, whichever it was."""
    run = runner()
    run.good(prompt())
    levels = []
    for seed in range(12):
        run.good(prompt(seed=seed, steps=1 + seed % 3, sampler_name=("euler", "dpmpp_2m", "heun")[seed % 3]))
        gc.collect()
        levels.append(cuda.used)
    assert len(set(levels)) == 1


def test_the_class_for_cuda_is_in_use(cuda):
    assert isinstance(device_memory.memory_of(DEVICE), device_memory.CudaMemory)
    assert isinstance(cuda, SimulatedCuda) and devices.get_free_memory(DEVICE) == cuda.capacity - cuda.used
