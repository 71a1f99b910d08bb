"""Milliseconds of one evaluation of a diffusion network, for three sizes of blocks.

    python bench/step.py [--device cpu|cuda] [--dtype float32|float16|bfloat16] [--size sd15 sdxl flux] [--full]
                         [--compile] [--repeat N]

Networks have the widths of the published ones and random weights. On a CPU the depth is reduced (`--full`: as
published), on CUDA it is not. Positive and negative go in one batch, as sampling sends them; Flux, which is guided
otherwise, alone. Printed for each: the time (median), the floating-point operations (counted by torch), what share of
the device's matrix peak that is (the peak is measured with one large product), the same in channels-last layout where
there are convolutions, and how often an evaluation waits for the device (the goal is never).
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import comfy.ops
from comfy.fast_network import CheckedNetwork
from comfy.models.flux import Flux, FluxConfig
from comfy.models.unet import UNetConfig, UNetModel
from tests.memory.host_reads import HostReads

# One residual block and one transformer per level: enough to see every kind of layer at its width.
SHALLOW_SD15 = UNetConfig(
    num_res_blocks=(1, 1, 1, 1),
    transformer_depth=(1, 1, 1, 0),
    transformer_depth_output=(1, 1, 1, 1, 1, 1, 0, 0),
    num_heads=8,
)
SD15 = UNetConfig(num_heads=8)
SDXL = UNetConfig(
    channel_mult=(1, 2, 4),
    num_res_blocks=(2, 2, 2),
    transformer_depth=(0, 0, 2, 2, 10, 10),
    transformer_depth_middle=10,
    transformer_depth_output=(0, 0, 0, 2, 2, 2, 10, 10, 10),
    context_dim=2048,
    adm_in_channels=2816,
    use_linear_in_transformer=True,
    num_head_channels=64,
)
SHALLOW_SDXL = dataclasses.replace(
    SDXL,
    num_res_blocks=(1, 1, 1),
    transformer_depth=(0, 1, 2),
    transformer_depth_middle=1,
    transformer_depth_output=(0, 0, 1, 1, 2, 2),
)
SHALLOW_FLUX = FluxConfig(depth=1, depth_single_blocks=2)
BIG_PRODUCT = {"cpu": 2048, "cuda": 8192}


@dataclasses.dataclass
class Case:
    """One network and its inputs; cells: side of the latent."""

    network: nn.Module
    tensors: tuple[Tensor, ...]
    keywords: dict[str, Tensor]
    note: str


def random_network(make: Callable[..., nn.Module], device: torch.device, dtype: torch.dtype) -> nn.Module:
    """With small random weights: no step overflows."""
    network = make(dtype=dtype, device="meta", operations=comfy.ops.disable_weight_init).to_empty(device=device)
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0, 0.02, generator=generator)
    return network.eval().requires_grad_(False)


def case(size: str, full: bool, cells: int, device: torch.device, dtype: torch.dtype) -> Case:
    """A network of that size."""

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, dtype=dtype)

    time_ = torch.full((2,), 500.0, device=device)
    if size == "flux":
        config = FluxConfig() if full else SHALLOW_FLUX
        network = random_network(lambda **kw: Flux(config, **kw), device, dtype)
        keywords = {"context": noise(1, 256, 4096), "y": noise(1, 768), "guidance": time_[:1] / 500}
        depth = f"{config.depth} + {config.depth_single_blocks} blocks"
        return Case(network, (noise(1, 16, cells, cells), time_[:1] / 1000), keywords, depth)
    configs = {"sd15": (SD15, SHALLOW_SD15), "sdxl": (SDXL, SHALLOW_SDXL)}
    config = configs[size][0 if full else 1]
    network = random_network(lambda **kw: UNetModel(config, **kw), device, dtype)
    keywords = {"context": noise(2, 77, config.context_dim)}
    if config.adm_in_channels:
        keywords["y"] = noise(2, config.adm_in_channels)
    blocks = sum(config.transformer_depth) + sum(config.transformer_depth_output)
    return Case(network, (noise(2, 4, cells, cells), time_), keywords, f"{blocks} transformer blocks")


def milliseconds(run: Callable[[], Any], device: torch.device, repeat: int) -> float:
    """Median time of a call, after one that does not count; with one thread the CPU's time, so that other programs do
    not count either."""
    clock = time.process_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    times = []
    for _ in range(repeat + 1):
        start = clock()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append((clock() - start) * 1e3)
    return statistics.median(times[1:])


def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of one large product of matrices."""
    n = BIG_PRODUCT[device.type]
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    return 2 * n**3 / (milliseconds(lambda: a @ b, device, 5) / 1e3)


def waits(run: Callable[[], Any], device: torch.device) -> int:
    """How often a call waits for a value of the device."""
    with HostReads() as reads:
        run()
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
        try:
            run()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return reads.count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default=None)
    parser.add_argument("--size", nargs="+", choices=("sd15", "sdxl", "flux"), default=["sd15", "sdxl", "flux"])
    parser.add_argument("--cells", type=int, default=None, help="side of the latent (CPU: 16, CUDA: 128; SD1.5: 64)")
    parser.add_argument("--full", action="store_true", help="as many blocks as published, on a CPU too")
    parser.add_argument("--compile", action="store_true", help="also compiled, with CUDA graphs")
    parser.add_argument("--repeat", type=int, default=None)
    given = parser.parse_args()
    device = torch.device(given.device)
    on_gpu = device.type == "cuda"
    dtype = getattr(torch, given.dtype or ("bfloat16" if on_gpu else "float32"))
    repeat = given.repeat or (20 if on_gpu else 3)
    good = True
    with torch.inference_mode():
        peak = peak_flops(device, dtype)
        print(f"{device}, {dtype}, {torch.get_num_threads()} threads; matrix peak {peak / 1e12:.2f} TFLOP/s\n")
        print(f"{'':6}{'cells':>6}{'ms':>10}{'TFLOP':>8}{'of peak':>9}{'ch.last':>10}{'compiled':>10}{'waits':>7}")
        for size in given.size:
            cells = given.cells or ((64 if size == "sd15" else 128) if on_gpu else 16)
            made = case(size, given.full or on_gpu, cells, device, dtype)

            def run(made: Case = made) -> Tensor:
                return made.network(*made.tensors, **made.keywords)

            with FlopCounterMode(display=False) as counter:
                run()
            plain = milliseconds(run, device, repeat)
            waited = waits(run, device)
            good &= waited == 0
            last = compiled = float("nan")
            if given.compile:
                network = CheckedNetwork(made.network)
                compiled = milliseconds(lambda n=network, m=made: n(*m.tensors, **m.keywords), device, repeat)
                good &= network.works
            if size != "flux":
                made.network.to(memory_format=torch.channels_last)
                latent = made.tensors[0].to(memory_format=torch.channels_last)
                made.tensors = (latent, *made.tensors[1:])
                last = milliseconds(run, device, repeat)
            flops = counter.get_total_flops()
            share = flops / (plain / 1e3) / peak
            print(
                f"{size:6}{cells:6}{plain:10.1f}{flops / 1e12:8.2f}{share:9.0%}{last:10.1f}{compiled:10.1f}{waited:7}"
                f"  ({made.note})"
            )
            del made, run
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
