"""On a CUDA device: what the simulated one stands for. Run by `make bench-gpu`, or `pytest -m gpu tests/memory`."""

import gc

import pytest
import torch
from torch import nn

import comfy.loaded_models
import comfy.model_management as management
import comfy.ops
from comfy import recovery
from comfy.device_memory import GB, MB, memory_of
from comfy.fast_network import CheckedNetwork
from comfy.ledger import Counters, totals
from comfy.model_patcher import ModelPatcher
from comfy.models.unet import UNetConfig, UNetModel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

HOST = torch.device("cpu")
CONFIG = UNetConfig(
    model_channels=256,
    channel_mult=(1, 2),
    num_res_blocks=(1, 1),
    transformer_depth=(1, 1),
    transformer_depth_output=(1, 1, 1, 1),
    num_heads=8,
)


@pytest.fixture
def gpu():
    device = torch.device("cuda", torch.cuda.current_device())
    management.unload_all_models()
    gc.collect()
    torch.cuda.empty_cache()
    yield device
    management.unload_all_models()


def network(dtype: torch.dtype) -> UNetModel:
    net = UNetModel(CONFIG, dtype=dtype, device="meta", operations=comfy.ops.manual_cast).to_empty(device="cpu")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
    return net.eval().requires_grad_(False)


def patcher(gpu, dtype=torch.float16) -> ModelPatcher:
    return ModelPatcher(network(dtype), gpu, HOST)


def run(model: ModelPatcher, gpu: torch.device, dtype=torch.float16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    latent = torch.randn(2, 4, 32, 32, generator=generator).to(gpu, dtype)
    context = torch.randn(2, 77, 768, generator=generator).to(gpu, dtype)
    with torch.inference_mode():
        return model.model(latent, torch.full((2,), 500.0, device=gpu), context=context).cpu()


def difference(model: ModelPatcher) -> dict:
    generator = torch.Generator().manual_seed(2)
    weights = dict(model.model.named_parameters())
    names = [n for n in weights if "attn" in n and n.endswith("weight")]
    return {n: (torch.randn(weights[n].shape, generator=generator) * 0.01,) for n in names}


def in_part(monkeypatch, share: float) -> None:
    """Let only a share of each model fit."""
    monkeypatch.setattr(
        comfy.loaded_models, "_budget", lambda entry, reserve: max(1, int(entry.model_memory() * share))
    )


def test_the_same_again_moves_nothing(gpu):
    model = patcher(gpu)
    management.load_models_gpu([model])
    assert all(p.device == gpu for p in model.model.parameters())
    first = run(model, gpu)
    before = totals()
    management.load_models_gpu([model])
    assert totals() - before == Counters()
    assert torch.equal(run(model, gpu), first)


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_streaming_gives_the_same_results(gpu, monkeypatch, share, dtype):
    model = patcher(gpu, dtype)
    model.add_patches(difference(model), 0.5)
    management.load_models_gpu([model])
    whole = run(model, gpu, dtype)
    management.unload_all_models()
    assert all(p.device == HOST for p in model.model.parameters())
    in_part(monkeypatch, share)
    management.load_models_gpu([model])
    assert model.loaded_size() <= model.model_size() * share + 4 * MB
    assert model.model.placement.pinned_bytes() > 0
    for _ in range(3):
        assert torch.equal(run(model, gpu, dtype), whole)
    model.cleanup()


def test_a_changed_strength_equals_a_fresh_load(gpu):
    model = patcher(gpu)
    one, two = model.clone(), model.clone()
    changes = difference(model)
    one.add_patches(changes, 1.0)
    two.add_patches(changes, 0.3)
    management.load_models_gpu([one])
    management.load_models_gpu([two])
    changed = {n: p.cpu() for n, p in model.model.named_parameters()}
    management.unload_all_models()
    management.load_models_gpu([two])
    assert all(torch.equal(changed[n], p.cpu()) for n, p in model.model.named_parameters())


def test_unloading_gives_the_memory_back(gpu):
    before = torch.cuda.memory_allocated(gpu)
    model = patcher(gpu)
    management.load_models_gpu([model])
    assert torch.cuda.memory_allocated(gpu) >= before + model.model_size()
    management.unload_all_models()
    assert torch.cuda.memory_allocated(gpu) == before


def test_out_of_memory_and_back(gpu):
    """A node that asks for more than there is: told with figures, and the level of before."""
    import sys
    import types

    import execution
    from tests.engine.engine_kit import BASIC, FakeServer, Runner, n, node

    @node({"share": ("FLOAT", {})}, ["*"])
    class Take:
        calls = []

        def run(self, share):
            Take.calls.append(share)
            keep = torch.empty(64 * MB, dtype=torch.uint8, device=gpu)
            more = torch.empty(int(memory_of(gpu).total() * share), dtype=torch.uint8, device=gpu)
            return (int(keep[0].item() * 0 + more[0].item() * 0),)

    module = types.ModuleType("nodes")
    module.NODE_CLASS_MAPPINGS = {**BASIC, "Take": Take}
    saved = sys.modules.get("nodes")
    sys.modules["nodes"] = module
    try:
        runner = Runner(FakeServer(), execution.CacheType.CLASSIC)
        runner.good({"t": n("Take", share=0.01), "s": n("Show", value=("t", 0))})
        before = torch.cuda.memory_allocated(gpu)
        error = runner.bad({"t": n("Take", share=2.0), "s": n("Show", value=("t", 0))})
        assert error["exception_type"] == "torch.OutOfMemoryError"
        assert "bytes were requested" in error["exception_message"] and "the peak was" in error["exception_message"]
        assert Take.calls == [0.01, 2.0, 2.0]
        assert torch.cuda.memory_allocated(gpu) == before
        runner.good({"t": n("Take", share=0.011), "s": n("Show", value=("t", 0))})
    finally:
        if saved is None:
            del sys.modules["nodes"]
        else:
            sys.modules["nodes"] = saved


def test_the_text_of_the_device_is_understood(gpu):
    try:
        torch.empty(1024 * GB, dtype=torch.uint8, device=gpu)
    except torch.OutOfMemoryError as error:
        asked = recovery.requested_bytes(error)
    assert asked == pytest.approx(1024 * GB, rel=0.01)


@pytest.mark.parametrize("graphs", [False, True])
def test_compiled_networks_agree(gpu, graphs):
    torch._dynamo.reset()
    net = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(256, 256), nn.GELU()))).to(gpu, torch.float16)
    compiled = CheckedNetwork(net, graphs=graphs)
    x = torch.randn(8, 256, device=gpu, dtype=torch.float16)
    with torch.inference_mode():
        results = [compiled(x) for _ in range(4)]
        assert compiled.works and all(torch.allclose(r, net(x), atol=1e-2) for r in results)


def test_a_step_never_waits(gpu):
    model = patcher(gpu)
    management.load_models_gpu([model])
    x = torch.randn(2, 4, 32, 32, device=gpu, dtype=torch.float16)
    context = torch.randn(2, 77, 768, device=gpu, dtype=torch.float16)
    time = torch.full((2,), 500.0, device=gpu)
    with torch.inference_mode():
        model.model(x, time, context=context)
        torch.cuda.set_sync_debug_mode("error")
        try:
            model.model(x, time, context=context)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_a_lost_device_is_recognised():
    """In a process of its own, which can do nothing on the device afterwards."""
    import subprocess
    import sys

    code = (
        "import torch\nfrom comfy_execution import faults\n"
        "try:\n    torch.zeros(4, device='cuda')[torch.tensor([99], device='cuda')].cpu()\n"
        "except Exception as error:\n    print(faults.is_device_lost(error))\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert out.stdout.strip() == "True", out.stderr[-500:]
