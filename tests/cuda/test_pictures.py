"""Whole prompts on a CUDA device, through the engine and the nodes, in every way of using the device's memory."""

import gc

import pytest
import torch

import comfy.loaded_models
import comfy.model_management
import execution
import nodes
from comfy import devices
from comfy.cli_args import args
from tests.cuda.simulation import DEVICE
from tests.engine.engine_kit import FakeServer, Runner, n, node

CHECKPOINT = "darkroom-tiny.safetensors"


@node({"images": ("IMAGE",)}, OUTPUT_NODE=True)
class Take:
    """Keeps the picture it gets."""

    picture: torch.Tensor

    def run(self, images):
        Take.picture = images
        return {}


@pytest.fixture(autouse=True)
def take(monkeypatch):
    monkeypatch.setitem(nodes.NODE_CLASS_MAPPINGS, "Take", Take)


def sampled(**options) -> dict:
    settings = {"seed": 3, "steps": 3, "cfg": 4.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
    links = {"model": ("file", 0), "positive": ("text", 0), "negative": ("empty", 0), "latent_image": ("latent", 0)}
    return n("KSampler", **{**settings, **links, **options})


def prompt(**options) -> dict:
    """Text to picture."""
    return {
        "file": n("CheckpointLoaderSimple", ckpt_name=CHECKPOINT),
        "text": n("CLIPTextEncode", clip=("file", 1), text="a (red:1.2) square"),
        "empty": n("CLIPTextEncode", clip=("file", 1), text=""),
        "latent": n("EmptyLatentImage", width=64, height=64, batch_size=1),
        "sample": sampled(**options),
        "decode": n("VAEDecode", samples=("sample", 0), vae=("file", 2)),
        "take": n("Take", images=("decode", 0)),
    }


TILES = {"tile_size": 64, "overlap": 32, "temporal_size": 64, "temporal_overlap": 8}


def further() -> dict:
    """Two areas; a second pass on the enlarged latent; a part of the picture made anew, through pixels and tiles."""
    large = {"upscale_method": "bislerp", "width": 96, "height": 64, "crop": "center"}
    return {
        **prompt(),
        "left": n("ConditioningSetArea", conditioning=("text", 0), width=32, height=64, x=0, y=0, strength=1.0),
        "both": n("ConditioningCombine", conditioning_1=("left", 0), conditioning_2=("empty", 0)),
        "large": n("LatentUpscale", samples=("sample", 0), **large),
        "second": sampled(latent_image=("large", 0), denoise=0.5, positive=("both", 0), sampler_name="dpmpp_2m_sde"),
        "pixels": n("VAEDecodeTiled", samples=("second", 0), vae=("file", 2), **TILES),
        "mask": n("SolidMask", value=1.0, width=96, height=64),
        "inpaint": n("VAEEncodeForInpaint", pixels=("pixels", 0), vae=("file", 2), mask=("mask", 0), grow_mask_by=6),
        "third": sampled(latent_image=("inpaint", 0), sampler_name="heun", scheduler="sgm_uniform"),
        "decode": n("VAEDecode", samples=("third", 0), vae=("file", 2)),
    }


def picture(graph: dict) -> torch.Tensor:
    Runner(FakeServer(), execution.CacheType.CLASSIC).good(graph)
    return Take.picture


@pytest.fixture(scope="module")
def on_host() -> dict:
    """What the CPU makes."""
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setitem(nodes.NODE_CLASS_MAPPINGS, "Take", Take)
        return {"prompt": picture(prompt()), "further": picture(further())}


def in_part(monkeypatch, share: float) -> None:
    monkeypatch.setattr(
        comfy.loaded_models, "_budget", lambda entry, reserve: int(entry.model_memory() * share) if share < 1 else None
    )


@pytest.mark.parametrize(
    ("state", "share"), [("NORMAL_VRAM", 1), ("NORMAL_VRAM", 0.5), ("HIGH_VRAM", 1), ("LOW_VRAM", 0.3), ("NO_VRAM", 0)]
)
def test_every_use_of_memory_gives_the_same(cuda, monkeypatch, on_host, state, share):
    monkeypatch.setattr(args, "force_fp32", True)
    monkeypatch.setattr(devices, "vram_state", devices.VRAMState[state])
    in_part(monkeypatch, share)
    for name, graph in (("prompt", prompt()), ("further", further())):
        made = picture(graph)
        assert made.device.type == "cpu"
        assert (made - on_host[name]).abs().max() < 1e-3
    comfy.model_management.unload_all_models()
    gc.collect()
    assert cuda.used < 100_000, "tables that networks keep"


FLAGS = ["no_flag", "gpu_only", "cpu_vae", "bf16_vae", "fp16_vae", "fp16_unet", "bf16_unet", "fp8_e4m3fn_unet"]


@pytest.mark.parametrize("flag", [*FLAGS, "fp8_e4m3fn_text_enc", "fp16_intermediates", "disable_smart_memory"])
def test_flags(cuda, monkeypatch, on_host, flag):
    if flag != "no_flag":
        monkeypatch.setattr(args, flag, True)
    if flag == "gpu_only":
        monkeypatch.setattr(devices, "vram_state", devices.VRAMState.HIGH_VRAM)
    for name, graph in (("prompt", prompt()), ("further", further())):
        made = picture(graph)
        assert made.device == (DEVICE if flag == "gpu_only" else torch.device("cpu"))
        assert torch.isfinite(made).all()
        if name == "prompt" or "fp8" not in flag:  # three passes make much of little
            assert (made.cpu().float() - on_host[name]).abs().mean() < 0.05
