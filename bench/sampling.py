"""What a solver costs beside the model: microseconds per step of every sampler with a model that does nothing.

    python bench/sampling.py [--steps N] [--repeat N] [sampler ...]

A 4x64x64 float32 latent on the CPU, one thread, its CPU time (so that other programs do not count). The time for
noise is listed apart: a Brownian path's is set by the algorithm that makes it reproducible, not by the solver.
Medians of several runs; limits are those of docs/sampling.md.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import statistics
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor

import comfy.conds
import comfy.latent_formats
import comfy.model_patcher
import comfy.samplers
from comfy.k_diffusion.sampling import BrownianTreeNoiseSampler
from comfy.model_sampling import ModelType, model_sampling
from comfy.sampling.schedules import calculate_sigmas
from comfy.sampling.solvers import SAMPLERS

LIMIT_EULER_US = 150.0
LIMIT_US = 400.0


class NoModel:
    """Denoises to a fixed latent at no cost; keeps the time spent in it."""

    def __init__(self, latent: Tensor) -> None:
        self.latent, self.seconds, self.calls = latent, 0.0, 0
        self.inner_model = self
        self.model_patcher = self
        self.model_sampling = model_sampling(None, ModelType.EPS)

    def get_model_object(self, name: str) -> object:
        return getattr(self, name)

    def __call__(self, x: Tensor, sigma: Tensor, model_options: dict | None = None, **kwargs: object) -> Tensor:
        start = time.thread_time()
        self.calls += 1
        for function in (model_options or {}).get("sampler_post_cfg_function", []):
            function({"uncond_denoised": self.latent, "denoised": self.latent})
        self.seconds += time.thread_time() - start
        return self.latent


def measure(name: str, steps: int, repeat: int) -> tuple[float, float]:
    """(microseconds per step, evaluations per step) of one sampler; noise is a constant tensor."""
    latent = torch.randn(1, 4, 64, 64)
    model = NoModel(torch.randn(1, 4, 64, 64) * 0.1)
    sigmas = calculate_sigmas(model.model_sampling, "karras", steps)
    noise = torch.randn_like(latent)
    takes_noise = "noise_sampler" in inspect.signature(SAMPLERS[name].function).parameters
    options = {"noise_sampler": lambda s, n: noise} if takes_noise else {}
    sampler = comfy.samplers.ksampler(name, options)
    times = []
    for _ in range(repeat + 1):
        model.seconds, model.calls = 0.0, 0
        start = time.thread_time()
        sampler.sampler_function(
            model, latent * sigmas[0], sigmas.clone(), extra_args={"seed": 0}, **sampler.extra_options
        )
        times.append((time.thread_time() - start - model.seconds) / steps * 1e6)
    return statistics.median(times[1:]), model.calls / steps


def measure_noise(steps: int) -> tuple[float, float]:
    """Microseconds of one draw of plain and of Brownian noise."""
    x = torch.zeros(1, 4, 64, 64)
    draw = comfy.samplers.k_diffusion_sampling.default_noise_sampler(x, seed=0)
    start = time.thread_time()
    for _ in range(100):
        draw(None, None)
    plain = (time.thread_time() - start) / 100 * 1e6
    sigmas = calculate_sigmas(model_sampling(None, ModelType.EPS), "karras", steps)[:-1]
    path = BrownianTreeNoiseSampler(x, sigmas[-1], sigmas[0], seed=0, cpu=True)
    start = time.thread_time()
    for s, n in itertools.pairwise(sigmas):
        path(s, n)
    return plain, (time.thread_time() - start) / (steps - 1) * 1e6


class NoNetwork(torch.nn.Module):
    """A model in a patcher that predicts zeros at no cost."""

    def __init__(self) -> None:
        super().__init__()
        self.model_sampling = model_sampling(None, ModelType.EPS)
        self.latent_format = comfy.latent_formats.LatentFormat()
        self.anchor = torch.nn.Parameter(torch.zeros(1), requires_grad=False)
        self.current_patcher = None
        self.out = torch.zeros(2, 4, 64, 64)

    def apply_model(self, x: Tensor, t: Tensor, **kwargs: object) -> Tensor:
        return self.out[: x.shape[0]]

    def extra_conds(self, cross_attn: Tensor, **kwargs: object) -> dict:
        return {"c_crossattn": comfy.conds.CONDCrossAttn(cross_attn)}

    def process_latent_in(self, latent: Tensor) -> Tensor:
        return latent

    process_latent_out = process_latent_in

    def memory_required(self, input_shape: list, cond_shapes: object = None) -> float:
        return 1.0

    def get_dtype(self) -> torch.dtype:
        return torch.float32


def measure_guidance(repeat: int) -> float:
    """Microseconds of one guided evaluation, positive and negative in a batch: euler's cost in a whole run of many
    steps, less that of few, so that what is done once a run does not count."""
    cpu = torch.device("cpu")
    patcher = comfy.model_patcher.ModelPatcher(NoNetwork(), cpu, cpu)
    conds = [[[torch.zeros(1, 77, 768), {}]] for _ in range(2)]
    latent = torch.zeros(1, 4, 64, 64)
    noise = torch.randn(1, 4, 64, 64)
    sampler = comfy.samplers.sampler_object("euler")

    def seconds(steps: int) -> float:
        sigmas = calculate_sigmas(patcher.model.model_sampling, "karras", steps)
        start = time.thread_time()
        comfy.samplers.sample(patcher, noise, *conds, 5.0, cpu, sampler, sigmas, latent_image=latent, seed=0)
        return time.thread_time() - start

    seconds(5)
    return statistics.median((seconds(105) - seconds(5)) / 100 * 1e6 for _ in range(repeat))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("samplers", nargs="*", default=list(SAMPLERS), help="names; default all")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    over = []
    print(f"{'sampler':32} {'us/step':>8} {'evals/step':>10}")
    for name in arguments.samplers:
        cost, evaluations = measure(name, arguments.steps, arguments.repeat)
        limit = LIMIT_EULER_US if name == "euler" else LIMIT_US
        over += [name] if cost > limit else []
        print(f"{name:32} {cost:8.0f} {evaluations:10.2f}{'  over ' + str(int(limit)) if cost > limit else ''}")
    plain, brownian = measure_noise(arguments.steps)
    print(f"noise of a step: plain {plain:.0f} us, Brownian {brownian:.0f} us")
    print(f"guidance of a step (positive and negative in one batch): {measure_guidance(arguments.repeat):.0f} us")
    verdict = f"missed by {', '.join(over)}" if over else "met by all"
    print(f"goals: at most {LIMIT_EULER_US:.0f} us for euler, {LIMIT_US:.0f} us for any other: {verdict}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
