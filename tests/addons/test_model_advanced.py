"""Number format, noise scale, compilation, positions, and steps that are skipped."""

from __future__ import annotations

import pytest
import torch

import nodes
from comfy.compile_wrapper import compile_model
from comfy.models.rope import grid_ids, scaled_ids
from comfy.step_cache import ChangeMeter
from tests.addons.recorded_addons import denoised, host
from tests.addons.transformer_controls import random
from tests.networks.golden import error

NODES = nodes.NODE_CLASS_MAPPINGS


def sampled(model, steps: int = 8, cfg: float = 3.0, seed: int = 1):
    positive, negative = ([[random(side, 1, 13, 24), {}]] for side in ("positive", "negative"))
    latent = {"samples": torch.zeros(1, 4, 8, 8)}
    out = nodes.common_ksampler(model, seed, steps, cfg, "euler", "normal", positive, negative, latent)
    return out[0]["samples"]


class Counter:
    """Counts calls of the network."""

    def __init__(self, model):
        self.calls = 0
        model.add_wrapper_with_key("diffusion_model", "counter", self)

    def __call__(self, executor, *args, **kwargs):
        self.calls += 1
        return executor(*args, **kwargs)


def with_cache(name: str, threshold: float, start: float = 0.0, end: float = 1.0):
    model, _ = host("sd1")
    cached = NODES[name].execute(model, threshold, start, end, False).result[0]
    # Behind the cache, so that only what is computed is counted.
    return cached, Counter(cached)


@pytest.mark.parametrize("name", ["EasyCache", "LazyCache"])
def test_steps_that_change_little_are_skipped(name):
    model, _ = host("sd1")
    plain = sampled(model)
    exact, all_calls = with_cache(name, 0.0)
    assert torch.allclose(sampled(exact), plain, atol=1e-4)
    assert all_calls.calls == 8
    cached, counter = with_cache(name, 0.5)
    out = sampled(cached)
    assert 2 <= counter.calls < 8 and out.isfinite().all() and not torch.equal(out, plain)
    again = counter.calls
    assert torch.equal(sampled(cached), out) and counter.calls == 2 * again
    assert torch.equal(sampled(model), plain)


@pytest.mark.parametrize("name", ["EasyCache", "LazyCache"])
def test_cache_acts_in_its_part_of_sampling_only(name):
    early, counter = with_cache(name, 100.0, 0.0, 0.5)
    sampled(early)
    everywhere, all_of_it = with_cache(name, 100.0)
    sampled(everywhere)
    nowhere, none = with_cache(name, 100.0, 1.0, 1.0)
    sampled(nowhere)
    assert all_of_it.calls < counter.calls < none.calls == 8


def test_easy_cache_keeps_the_sides_apart():
    """Both conditionings are skipped together, each with its own difference, in one batch or two."""
    cached, counter = with_cache("EasyCache", 0.5)
    together = sampled(cached)
    calls = counter.calls
    apart, twice = with_cache("EasyCache", 0.5)
    apart.model_options["transformer_options"] = {**apart.model_options.get("transformer_options", {})}
    positive, negative = ([[random(side, 1, n, 24), {}]] for side, n in (("positive", 13), ("negative", 13)))
    # A mask on one side only cannot be batched with the other.
    negative[0][1]["mask"] = torch.ones(1, 8, 8)
    latent = {"samples": torch.zeros(1, 4, 8, 8)}
    out = nodes.common_ksampler(apart, 1, 8, 3.0, "euler", "normal", positive, negative, latent)[0]["samples"]
    assert twice.calls in (calls, 2 * calls)
    assert error(out, together) < 1e-3


def test_meter_predicts_from_the_last_ratio():
    meter = ChangeMeter(threshold=0.25)
    x = torch.ones(1, 1, 8, 8)
    assert not meter.may_reuse(x)
    meter.computed(x * 10)
    assert not meter.may_reuse(x * 2)  # change 1
    meter.computed(x * 20)  # change 10: ten per one
    assert meter.may_reuse(x * 2.3)  # 10 * 0.3 / 20 = 0.15
    assert not meter.may_reuse(x * 2.6)  # 0.3 in all
    assert meter.sum == 0.0


def test_compiled_network_takes_the_networks_place(monkeypatch):
    made = []

    def compile(function, backend, **options):
        made.append((backend, options))
        return lambda *args, **kwargs: function(*args, **kwargs) * 2

    monkeypatch.setattr(torch, "compile", compile)
    model, golden = host("sd1")
    compiled = model.clone()
    compile_model(compiled, "inductor", dynamic=True)
    counter = Counter(compiled)
    options = {"wrappers": compiled.wrappers}
    wanted = {"c_crossattn": golden.inputs["context"], "transformer_options": options}
    x, sigma = golden.inputs["x"], golden.inputs["sigma"]
    plain = model.model.apply_model(x, sigma, c_crossattn=golden.inputs["context"])
    for _ in range(2):
        doubled = model.model.apply_model(x, sigma, **wanted)
        assert torch.allclose(x - doubled, (x - plain) * 2, atol=1e-3)
    assert made == [("inductor", {"dynamic": True})] and counter.calls == 2


@pytest.mark.slow
def test_compiled_by_torch_is_the_same():
    model, _ = host("sd1")
    plain = sampled(model, steps=2)
    compiled = model.clone()
    compile_model(compiled, "aot_eager")
    with torch.inference_mode(False), torch.no_grad():
        assert error(sampled(compiled, steps=2), plain) < 1e-4
    assert compiled.model_state_dict().keys() == model.model_state_dict().keys()
    torch._dynamo.reset()


def test_compile_node_keeps_one_wrapper():
    model, _ = host("sd1")
    node = NODES["TorchCompileModel"]
    once = node.execute(model, "inductor").result[0]
    twice = node.execute(once, "cudagraphs").result[0]
    (wrapper,) = twice.get_wrappers("diffusion_model", "torch_compile")
    assert wrapper.backend == "cudagraphs"
    (wrapper,) = once.get_wrappers("diffusion_model", "torch_compile")
    assert wrapper.backend == "inductor" and not model.get_wrappers("diffusion_model", "torch_compile")


def test_compute_dtype():
    model, _ = host("sd1")
    (low,) = NODES["ModelComputeDtype"]().patch(model, "bf16")
    (same,) = NODES["ModelComputeDtype"]().patch(model, "default")
    assert low.get_model_object("manual_cast_dtype") == torch.bfloat16
    assert same.object_patches == {} and same is not model
    (backend,) = NODES["ModelAttentionBackend"]().patch(model, "pytorch attention")
    assert backend.is_clone(model) and backend is not model


def test_noise_scale():
    from comfy.model_sampling import ModelType, model_sampling

    model, _ = host("sd1")
    flow = model.clone()
    sampling = model_sampling(model.model.model_config, ModelType.FLOW)
    flow.add_object_patch("model_sampling", sampling)
    (scaled,) = NODES["ModelNoiseScale"]().patch(flow, 2.0)
    noise, latent, sigma = random("n", 1, 4, 2, 2), random("l", 1, 4, 2, 2), torch.tensor([0.75])
    got = scaled.get_model_object("model_sampling").noise_scaling(sigma, noise, latent)
    assert torch.allclose(got, 0.75 * 2 * noise + 0.25 * latent)
    assert torch.allclose(sampling.noise_scaling(sigma, noise, latent), 0.75 * noise + 0.25 * latent)


def test_positions_are_scaled_and_shifted():
    options = {"scale_x": 2.0, "shift_x": 0.5, "scale_y": 0.5, "shift_y": 0.0, "scale_t": 1.0, "shift_t": 3.0}
    ids = grid_ids(1, 2, 3)
    moved = scaled_ids(ids, {"rope_options": options})
    assert moved[0, :, 0].tolist() == [3.0] * 6
    assert moved[0, :, 1].tolist() == [0.0] * 3 + [0.5] * 3
    assert moved[0, :, 2].tolist() == [0.5, 2.5, 4.5] * 2
    assert scaled_ids(ids, {}) is ids and scaled_ids(ids, None) is ids


def test_scale_rope_node():
    model, golden = host("flux")
    values = {f"{kind}_{axis}": 1.0 if kind == "scale" else 0.0 for axis in "xyt" for kind in ("scale", "shift")}
    same = NODES["ScaleROPE"].execute(model, **values).result[0]
    other = NODES["ScaleROPE"].execute(model, **{**values, "scale_y": 3.0}).result[0]

    def out(patcher):
        options = patcher.model_options.get("transformer_options", {})
        return denoised(patcher, golden, transformer_options=options)

    assert error(out(same), golden.out["denoised"]) < 1e-4
    assert error(out(other), golden.out["denoised"]) > 1e-3
    assert "rope_options" not in model.model_options.get("transformer_options", {})
