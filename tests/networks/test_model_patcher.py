"""Patches: put in, taken out, shared between clones; and what stays loaded."""

import gc

import pytest
import torch
from torch import nn

import comfy.loaded_models
import comfy.lora
import comfy.model_management
import comfy.ops
from comfy.model_patcher import ModelPatcher
from comfy.patcher_extension import CallbacksMP, PatcherInjection, WrappersMP

CPU = torch.device("cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = comfy.ops.manual_cast.Linear(4, 3)
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("table", torch.zeros(2))
        self.kind = "plain"
        with torch.no_grad():
            self.layer.weight.fill_(1.0)
            self.layer.bias.zero_()


@pytest.fixture(autouse=True)
def no_models_left():
    yield
    comfy.model_management.unload_all_models()


def patcher(**kwargs) -> ModelPatcher:
    return ModelPatcher(Net(), CPU, CPU, **kwargs)


def load(p: ModelPatcher) -> torch.Tensor:
    comfy.model_management.load_models_gpu([p])
    return p.model.layer.weight


W = "layer.weight"
ONES = torch.ones(3, 4)


def test_patches_are_the_same_if_their_tensors_are():
    p = patcher()
    halves = torch.ones(2, 3, 4)
    for patch, result in (((ONES,), 2.0), ((ONES.clone() * 2,), 3.0), ((halves[1] * 3,), 4.0), ((halves[0],), 2.0)):
        clone = p.clone()
        clone.add_patches({W: ("diff", patch)})
        weight = load(clone)
        assert (weight == result).all()
        again = p.clone()
        again.add_patches({W: ("diff", (patch[0].view(3, 4),))})  # another object, the same numbers in memory
        assert load(again) is weight


def test_patch_and_restore():
    p = patcher()
    original = p.model.layer.weight
    storage = original.data_ptr()
    clone = p.clone()
    assert clone.add_patches({W: (ONES,), "nothing.weight": (ONES,)}, 0.5) == [W]
    assert (load(clone) == 1.5).all()
    assert (load(p) == 1.0).all()
    assert (load(clone) == 1.5).all()
    clone.detach()
    assert (p.model.layer.weight == 1.0).all()
    # The very memory of before: for a mapped file that means no copy stays behind.
    assert p.model.layer.weight.data_ptr() == storage
    assert not p.backup


def test_in_place_update():
    p = patcher(weight_inplace_update=True)
    storage = p.model.layer.weight.data_ptr()
    p.add_patches({W: (ONES,)})
    assert (load(p) == 2.0).all()
    assert p.model.layer.weight.data_ptr() == storage
    p.detach()
    assert (p.model.layer.weight == 1.0).all()


def test_same_patches_are_not_applied_twice(monkeypatch):
    calls = []
    real = comfy.lora.calculate_weight

    def counting(*args, **kwargs):
        calls.append(args[2])
        return real(*args, **kwargs)

    monkeypatch.setattr(comfy.lora, "calculate_weight", counting)
    p = patcher()
    p.add_patches({W: (ONES,)})
    load(p)
    load(p)
    load(p.clone())
    assert calls == [W]
    assert p.clone().clone_has_same_weights(p)


@pytest.mark.parametrize(
    ("patch", "strength", "strength_model", "expected"),
    [
        ((ONES,), 2.0, 1.0, 3.0),
        ((ONES,), -1.0, 1.0, 0.0),
        ((ONES,), 0.0, 0.25, 0.25),
        (("diff", (ONES,)), 0.5, 2.0, 2.5),
        (("set", (ONES * 7,)), 0.1, 1.0, 7.0),
        (("unheard_of", (ONES,)), 1.0, 1.0, 1.0),
        ((torch.ones(2, 2),), 1.0, 1.0, 1.0),
        ([(ONES * 3, lambda weight: weight * 2)], 1.0, 0.0, 6.0),
        ([(ONES * 3, lambda weight: weight), (1.0, (ONES,), 0.5, None, None)], 2.0, 1.0, 6.0),
    ],
)
def test_kinds_of_patches(patch, strength, strength_model, expected):
    p = patcher()
    p.add_patches({W: patch}, strength, strength_model)
    assert torch.allclose(load(p), torch.tensor(expected))


def test_slices_functions_and_adapters():
    p = patcher()
    p.add_patches(
        {(W, (0, 1, 2)): (torch.ones(2, 4),), ("layer.bias", None, lambda change: change * 10): (torch.ones(3),)}
    )
    weight = load(p)
    assert weight[:, 0].tolist() == [1.0, 2.0, 2.0]
    assert p.model.layer.bias.tolist() == [10.0] * 3

    class Adapter:
        def calculate_weight(self, weight, key, strength, strength_model, offset, function, dtype, original):
            assert dtype == torch.float32
            return weight + function(torch.full_like(weight, 4.0)) * strength

    q = patcher()
    q.add_patches({W: Adapter()}, 0.25)
    assert (load(q) == 2.0).all()


def test_growing_weight():
    p = patcher()
    p.add_patches({W: ("diff", (torch.ones(5, 4), {"pad_weight": True}))})
    assert load(p)[:, 0].tolist() == [2.0, 2.0, 2.0, 1.0, 1.0]


def test_patches_keep_the_weights_format():
    p = patcher()
    p.model.layer.half()
    p.add_patches({W: (torch.full((3, 4), 0.5),)})
    assert load(p).dtype == torch.float16
    assert p.get_key_patches()[W][0][0].dtype == torch.float16


def test_buffers_can_be_patched():
    p = patcher()
    p.add_patches({"table": (torch.ones(2),)})
    load(p)
    assert p.model.table.tolist() == [1, 1]
    p.detach()
    assert p.model.table.tolist() == [0, 0]


def test_key_patches_hold_the_original():
    p = patcher()
    p.add_patches({W: (ONES,)}, 0.5)
    load(p)
    entry = p.get_key_patches("layer.")
    assert set(entry) == {"layer.weight", "layer.bias"}
    assert (entry[W][0][0] == 1.0).all()
    assert entry[W][1][0] == 0.5
    assert p.patch_weight_to_device(W, return_weight=True).flatten()[0] == 1.5


def test_objects_follow_the_patcher():
    p = patcher()
    clone = p.clone()
    clone.add_object_patch("kind", "patched")
    other = comfy.ops.manual_cast.Linear(4, 3)
    clone.add_object_patch("layer", other)
    assert clone.get_model_object("kind") == "patched"
    assert clone.get_model_object("layer.weight") is other.weight
    assert p.get_model_object("kind") == "plain"
    load_objects = clone.patch_model()
    assert load_objects.kind == "patched"
    # While the clone is in force the original still sees its own.
    assert p.get_model_object("kind") == "plain"
    comfy.model_management.load_models_gpu([p])
    assert p.model.kind == "plain"
    comfy.model_management.load_models_gpu([clone])
    assert p.model.kind == "patched"
    clone.unpatch_model()
    assert p.model.kind == "plain"
    assert not p.object_patches_backup


def test_options_of_a_clone_are_its_own():
    p = patcher()
    p.set_model_attn1_patch("a")
    clone = p.clone()
    clone.set_model_attn1_patch("b")
    clone.set_model_patch_replace("r", "attn2", "middle", 0, 1)
    clone.set_model_sampler_post_cfg_function("f", disable_cfg1_optimization=True)
    assert p.model_options == {"transformer_options": {"patches": {"attn1_patch": ["a"]}}}
    options = clone.model_options["transformer_options"]
    assert options["patches"]["attn1_patch"] == ["a", "b"]
    assert options["patches_replace"] == {"attn2": {("middle", 0, 1): "r"}}
    assert clone.model_options["disable_cfg1_optimization"]


def test_old_and_new_guidance_functions():
    p = patcher()
    p.set_model_sampler_cfg_function(lambda cond, uncond, scale: (cond, uncond, scale))
    assert p.model_options["sampler_cfg_function"]({"cond": 1, "uncond": 2, "cond_scale": 3}) == (1, 2, 3)
    p.set_model_sampler_cfg_function(lambda args: args["cond"])
    assert p.model_options["sampler_cfg_function"]({"cond": 1}) == 1


def test_what_packs_hang_on():
    p = patcher()
    events = []
    p.add_callback_with_key(CallbacksMP.ON_CLONE, "k", lambda old, new: events.append("clone"))
    p.add_callback(CallbacksMP.ON_PRE_RUN, lambda patcher: events.append("pre_run"))
    p.add_callback(CallbacksMP.ON_CLEANUP, lambda patcher: events.append("cleanup"))
    p.add_wrapper_with_key(WrappersMP.APPLY_MODEL, "k", "wrapper")
    p.set_attachments("k", "thing")
    p.set_injections(
        "k",
        [PatcherInjection(lambda patcher: events.append("inject"), lambda patcher: events.append("eject"))],
    )
    extra = patcher()
    p.set_additional_models("k", [extra])
    clone = p.clone()
    assert clone.get_attachment("k") == "thing"
    assert clone.get_wrappers(WrappersMP.APPLY_MODEL, "k") == ["wrapper"]
    assert clone.model_options["transformer_options"]["wrappers"] == {WrappersMP.APPLY_MODEL: {"k": ["wrapper"]}}
    assert clone.get_nested_additional_models()[0].model is extra.model
    comfy.model_management.load_models_gpu([clone])
    assert extra.model in [m.model for m in comfy.model_management.loaded_models()]
    clone.pre_run()
    assert clone.model.current_patcher is clone
    clone.cleanup()
    with clone.use_ejected():
        assert events[-1] == "eject"
    clone.detach()
    assert events == ["clone", "inject", "pre_run", "cleanup", "eject", "inject", "eject"]
    clone.remove_wrappers_with_key(WrappersMP.APPLY_MODEL, "k")
    assert clone.get_all_wrappers(WrappersMP.APPLY_MODEL) == []
    assert p.get_all_wrappers(WrappersMP.APPLY_MODEL) == ["wrapper"]


def test_injections_of_one_clone_do_not_reach_another():
    p = patcher()
    clone = p.clone()
    inside = []
    clone.set_injections("k", [PatcherInjection(lambda _: inside.append(1), lambda _: inside.pop())])
    load(clone)
    assert inside == [1]
    load(p)
    assert inside == []
    load(clone)
    del clone
    gc.collect()
    load(p)
    assert inside == []


# What is loaded


def test_models_stay_loaded_most_recent_first():
    a, b = patcher(), patcher()
    comfy.model_management.load_models_gpu([a])
    comfy.model_management.load_models_gpu([b])
    comfy.model_management.load_models_gpu([a])
    assert comfy.model_management.loaded_models() == [a, b]
    clone = a.clone()
    comfy.model_management.load_models_gpu([clone])
    assert comfy.model_management.loaded_models() == [clone, b]


def test_entries_do_not_keep_models_alive():
    p = patcher()
    comfy.model_management.load_models_gpu([p])
    assert comfy.model_management.loaded_models() == [p]
    del p
    gc.collect()
    comfy.model_management.cleanup_models()
    assert comfy.model_management.current_loaded_models == []


def test_patches_of_a_dropped_clone_are_undone():
    p = patcher()
    clone = p.clone()
    clone.add_patches({W: (ONES,)})
    clone.add_object_patch("kind", "patched")
    load(clone)
    del clone
    gc.collect()
    assert (p.model.layer.weight == 2.0).all()
    comfy.model_management.unload_all_models()
    assert (p.model.layer.weight == 1.0).all()
    assert p.model.kind == "plain"


def test_least_recently_used_gives_way(monkeypatch):
    models = [patcher() for _ in range(3)]
    for p in models:
        p.add_patches({W: (ONES,)})
        comfy.model_management.load_models_gpu([p])
    # Each unload frees 100 bytes.
    monkeypatch.setattr(
        comfy.loaded_models,
        "get_free_memory",
        lambda device: 300 - 100 * len(comfy.model_management.current_loaded_models),
    )
    freed = comfy.model_management.free_memory(150, CPU)
    assert [entry.model for entry in freed] == [models[0], models[1]]
    assert comfy.model_management.loaded_models() == [models[2]]
    assert (models[0].model.layer.weight == 1.0).all()
    assert (models[2].model.layer.weight == 2.0).all()
    kept = comfy.model_management.current_loaded_models[:]
    assert comfy.model_management.free_memory(1e30, CPU, keep_loaded=kept) == []
    assert comfy.model_management.free_memory(1e30, torch.device("cuda", 0)) == []


def test_unloading_one_model():
    a, b = patcher(), patcher()
    comfy.model_management.load_models_gpu([a, b])
    comfy.model_management.unload_model_and_clones(a.clone())
    assert comfy.model_management.loaded_models() == [b]


def test_part_of_a_model():
    """With a budget the small layers that fit go to the device and the rest cast themselves there."""
    p = patcher()
    p.model.second = comfy.ops.disable_weight_init.Linear(3, 1)
    nn.init.ones_(p.model.second.weight)
    nn.init.zeros_(p.model.second.bias)
    p.patch_model(CPU, lowvram_model_memory=60)
    assert not hasattr(p.model.second, "cast_weights_before")
    assert p.model.layer.comfy_cast_weights and hasattr(p.model.layer, "cast_weights_before")
    assert 0 < p.loaded_size() <= 60
    p.unpatch_model(CPU)
    assert not hasattr(p.model.layer, "cast_weights_before")
    assert p.loaded_size() == 0


def test_size():
    p = patcher()
    assert p.model_size() == (12 + 3 + 3 + 2) * 4
    load(p)
    assert p.loaded_size() == p.model_size()
