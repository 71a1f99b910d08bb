"""A recorded session on a device that exists on paper: real networks of real size, without values.

Every weight is on the meta device and knows its shape and format only; what moves, and when, is decided by the same
code that decides on a graphics card. The session: SDXL with two LoRAs and a ControlNet, its picture enlarged, and
between these Flux, as somebody works who tries both. Shared by the tests and `bench/memory.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import comfy.model_management
import comfy.ops
import comfy.sd
from comfy.device_memory import GB, MB, SimulatedMemory, simulated
from comfy.ledger import Counters, totals
from comfy.model_patcher import ModelPatcher
from comfy.models.control_unet import ControlNetUNet
from comfy.models.rrdbnet import RRDBNet, RRDBNetConfig
from comfy.models.unet import config_from_state_dict
from comfy.weight_adapter.lora import LoRAAdapter
from tests.networks.checkpoints import key_map

HOST = torch.device("cpu")
HALF = torch.float16
RANK = 16
STEPS = 3
LATENT = 128  # cells along a side: 1024 pixels


@dataclass
class Step:
    """What one node of the session did: the models it needed, the memory it computed in, and how often it ran them."""

    name: str
    patchers: Sequence[ModelPatcher]
    working: int
    runs: int
    run: Callable[[], None]


@dataclass
class Measured:
    """One prompt of the session. peak: bytes of the device at most; the counters are what it added."""

    name: str
    peak: int
    counters: Counters


class Session:
    """The models of the session, on one simulated device.

    Args:
        memory: the device; it has to be in force (`simulated`) while the session runs.
    """

    def __init__(self, memory: SimulatedMemory) -> None:
        self.memory = memory
        sdxl = key_map("sdxl_base")
        options = {"load_device": memory.device, "offload_device": HOST, "dtype": HALF}
        network = {k.removeprefix(UNET): v for k, v in sdxl.items() if k.startswith(UNET)}
        config = config_from_state_dict(network)
        self.sdxl = comfy.sd.load_diffusion_model_state_dict(dict(sdxl), model_options=options)
        self.flux = comfy.sd.load_diffusion_model_state_dict(key_map("flux_dev"), model_options=options)
        self.sdxl_text = self._alone({k: v for k, v in sdxl.items() if k.startswith("conditioner.")})
        self.sdxl_vae = self._alone({k: v for k, v in sdxl.items() if k.startswith("first_stage_model.")})
        self.flux_text = self._alone({**key_map("te_t5xxl"), **key_map("te_clip_l")})
        self.flux_vae = self._alone(key_map("vae_sd3_flux"))
        control = ControlNetUNet(config, dtype=HALF, device="meta", operations=comfy.ops.manual_cast)
        self.control = ModelPatcher(control, memory.device, HOST)
        upscaler = RRDBNet(RRDBNetConfig(), dtype=HALF, device="meta")
        self.upscaler = ModelPatcher(upscaler, memory.device, HOST)
        self.loras = [self._lora(".attn1."), self._lora(".attn2.")]

    def _alone(self, weights: dict[str, Tensor]) -> ModelPatcher:
        return ModelPatcher(Layers(weights), self.memory.device, HOST)

    def _lora(self, part: str) -> dict[str, LoRAAdapter]:
        """A LoRA for every projection of one kind of attention."""
        adapters = {}
        for name, weight in self.sdxl.model.named_parameters():
            if part in name and name.endswith(".weight") and weight.ndim == 2:
                up, down = weight.new_empty(weight.shape[0], RANK), weight.new_empty(RANK, weight.shape[1])
                adapters[name] = LoRAAdapter({"up": up, "down": down})
        return adapters

    # --- what the prompts do

    def with_loras(self, *strengths: float) -> ModelPatcher:
        """SDXL with the two LoRAs."""
        model = self.sdxl.clone()
        for lora, strength in zip(self.loras, strengths):
            model.add_patches(lora, strength)
        return model

    def draw_sdxl(self, model: ModelPatcher) -> Measured:
        """Text, sampling with the ControlNet, decoding, enlarging."""
        return self._prompt(
            "SDXL",
            Step("text", [self.sdxl_text], 200 * MB, 1, self._call(self.sdxl_text)),
            Step("sample", [model, self.control], self._sampling(model, 2), STEPS, self._call(model, self.control)),
            Step("decode", [self.sdxl_vae], int(2.4 * GB), 1, self._call(self.sdxl_vae)),
            Step("enlarge", [self.upscaler], int(1.2 * GB), 1, self._call(self.upscaler)),
        )

    def draw_flux(self) -> Measured:
        """Text, sampling, decoding."""
        return self._prompt(
            "Flux",
            Step("text", [self.flux_text], 300 * MB, 1, self._call(self.flux_text)),
            Step("sample", [self.flux], self._sampling(self.flux, 1), STEPS, self._call(self.flux)),
            Step("decode", [self.flux_vae], int(2.4 * GB), 1, self._call(self.flux_vae)),
        )

    @staticmethod
    def _sampling(model: ModelPatcher, rows: int) -> int:
        """Bytes for a step. The estimate is for float32, as on a host; a graphics card computes in half of it."""
        channels = model.model.latent_format.latent_channels
        return int(model.memory_required([rows, channels, LATENT, LATENT])) // 2

    @staticmethod
    def _call(*patchers: ModelPatcher) -> Callable[[], None]:
        """As a run does: each layer that is streamed is fetched once."""

        def run() -> None:
            for layer in [layer for patcher in patchers for layer in patcher.model.modules()]:
                if getattr(layer, "streamer", None) is not None:
                    layer.streamer.fetch(layer)

        return run

    def _prompt(self, name: str, *steps: Step) -> Measured:
        before = totals()
        self.memory.reset_peak()
        peak = 0
        for step in steps:
            comfy.model_management.load_models_gpu(list(step.patchers), memory_required=step.working)
            held = self.memory.allocate(step.working)
            for _ in range(step.runs):
                step.run()
            for patcher in step.patchers:
                patcher.cleanup()
            del held
            peak = max(peak, self.memory.peak())
        return Measured(name, peak, totals() - before)


class Layers(nn.Module):
    """Tensors as layers that can be streamed, whatever network they belong to."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for shape in (tuple(v.shape) for k, v in weights.items() if v.ndim >= 2):
            layer = comfy.ops.manual_cast.Linear(1, 1, bias=False, device="meta")
            layer.weight = nn.Parameter(torch.empty(shape, dtype=HALF, device="meta"), requires_grad=False)
            self.layers.append(layer)


UNET = "model.diffusion_model."


def run_session(size: int) -> list[Measured]:
    """The whole session on a device of `size` bytes, prompt by prompt."""
    comfy.model_management.unload_all_models()
    with simulated(SimulatedMemory(size)) as memory, torch.inference_mode():
        session = Session(memory)
        measured = [
            session.draw_sdxl(first := session.with_loras(1.0, 0.5)),
            session.draw_sdxl(first),
            session.draw_sdxl(second := session.with_loras(1.0, 0.8)),
            session.draw_flux(),
            session.draw_flux(),
            session.draw_sdxl(second),
            session.draw_flux(),
            session.draw_sdxl(second),
        ]
        comfy.model_management.unload_all_models("the end of the session")
        del session, first, second
    assert memory.used == 0, f"{memory.used} bytes were never released"
    return measured
