"""Every sampler and schedule on a CUDA device: the results of the host, and a step never waits for the device."""

import pytest
import torch

import comfy.sample
import comfy.samplers
from comfy.loaded_models import unload_all_models
from comfy.model_base import BaseModel
from comfy.model_patcher import ModelPatcher
from tests.cuda.simulation import DEVICE
from tests.families.models import family_model
from tests.networks.golden import Golden

HOST = torch.device("cpu")
ADAPTIVE = "dpm_adaptive"  # its steps depend on what they find
# Noise of these is drawn on the device, by a generator of its own.
OWN_NOISE = ("ancestral", "lcm", "ddpm", "seeds", "sde", "sa_solver")
FROM_THE_HOST = ("dpmpp_sde", "dpmpp_2m_sde", "dpmpp_3m_sde", "dpmpp_2m_sde_heun")


@pytest.fixture(scope="module")
def network() -> tuple[BaseModel, torch.Tensor]:
    """A small model, and a conditioning for it."""
    golden = Golden("unet_sd1")
    return family_model(golden), golden.inputs["context"][:1]


def sample(network, device: torch.device, sampler: str, scheduler: str, steps: int) -> torch.Tensor:
    model, context = network
    noise = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    return comfy.sample.sample(
        *(ModelPatcher(model, device, HOST), noise, steps, 3.0, sampler, scheduler),
        *([[context, {}]], [[context * 0.5, {}]]),
        torch.zeros(1, 4, 8, 8),
        disable_pbar=True,
        seed=1,
    )


@pytest.mark.parametrize("sampler", comfy.samplers.KSAMPLER_NAMES)
def test_samplers(cuda, network, sampler):
    reads, made = [], []
    sample(network, DEVICE, "euler", "karras", 1)  # loads the model
    for steps in (3,) if sampler == ADAPTIVE else (3, 5):
        before = len(cuda.reads)
        made.append(sample(network, DEVICE, sampler, "karras", steps))
        reads.append(len(cuda.reads) - before)
    assert made[0].device == HOST and torch.isfinite(made[0]).all()
    assert len(set(reads)) == 1
    unload_all_models()
    drawn = any(part in sampler for part in OWN_NOISE) and sampler not in FROM_THE_HOST
    if not drawn and sampler != ADAPTIVE:
        assert torch.allclose(made[0], sample(network, HOST, sampler, "karras", 3), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("scheduler", comfy.samplers.SCHEDULER_NAMES)
def test_schedulers(cuda, network, scheduler):
    made = sample(network, DEVICE, "euler", scheduler, 3)
    unload_all_models()
    assert torch.allclose(made, sample(network, HOST, "euler", scheduler, 3), rtol=1e-3, atol=1e-3)
