"""A step of sampling never waits for the device: nothing in it reads a value."""

import pytest
import torch

import comfy.sample
import comfy.samplers
from comfy.model_patcher import ModelPatcher
from tests.families.models import family_model
from tests.memory.conftest import HOST
from tests.memory.host_reads import HostReads, reads_of
from tests.networks.golden import Golden


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def test_the_counter_counts():
    x = torch.ones(3)
    assert reads_of(lambda: float(x[0])) and reads_of(lambda: x[x > 0]) and reads_of(lambda: x.any() and x.tolist())
    assert not reads_of(lambda: (x * 2).sum())


@pytest.mark.parametrize("name", ["unet_sd1", "unet_sdxl", "flux_dev", "mmdit_sd3"])
def test_networks(name):
    golden = Golden(name)
    model = family_model(golden)
    inputs = golden.inputs
    x, time = inputs["x"], inputs.get("timesteps", inputs.get("timestep", inputs.get("t")))
    rest = {key: inputs[key] for key in ("context", "y", "guidance") if key in inputs}
    model.diffusion_model(x, time, **rest)
    assert reads_of(lambda: model.diffusion_model(x, time, **rest)) == []


@pytest.mark.parametrize("sampler", ["euler", "dpmpp_2m"])
def test_steps_of_sampling(sampler):
    """Reads do not grow with the number of steps."""
    golden = Golden("unet_sd1")
    model = ModelPatcher(family_model(golden), HOST, HOST)
    context = golden.inputs["context"][:1]
    conds = [[context, {}]], [[context * 0.5, {}]]
    latent = torch.zeros(1, 4, 8, 8)

    def count(steps: int) -> int:
        noise = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
        sigmas = torch.cat([torch.linspace(14.0, 0.1, steps), torch.zeros(1)])  # schedules are made on the host
        with HostReads() as reads:
            solver = comfy.samplers.sampler_object(sampler)
            comfy.sample.sample_custom(model, noise, 5.0, solver, sigmas, *conds, latent, seed=1, disable_pbar=True)
        return reads.count

    count(2)
    assert count(12) == count(4)
