"""What moves and what stays, on a simulated device with real weights."""

import copy
import gc

import pytest
import torch
from torch import nn

import comfy.device_memory
import comfy.devices
import comfy.loaded_models
import comfy.model_management
import comfy.ops
import comfy.utils
from comfy.device_memory import MB, SimulatedMemory, memory_of, simulated
from comfy.ledger import Counters, ledger_of, totals
from comfy.model_patcher import ModelPatcher
from comfy.placement import units_of
from comfy.system_memory import SystemMemory
from tests.families.models import family_model
from tests.memory.conftest import HOST, PAPER
from tests.networks.golden import Golden

NOTHING = Counters()


def added(action):
    """The counters that an action adds to."""
    before = totals()
    action()
    return totals() - before


def load(*patchers, **kwargs):
    comfy.model_management.load_models_gpu(list(patchers), **kwargs)


def run(patcher) -> torch.Tensor:
    """One evaluation of the network."""
    golden = Golden("unet_sd1")
    with torch.inference_mode():
        return patcher.model.diffusion_model(
            golden.inputs["x"], golden.inputs["timesteps"], context=golden.inputs["context"]
        )


def difference(patcher, part: str, seed: int) -> dict:
    """A change of every weight whose name contains `part`."""
    generator = torch.Generator().manual_seed(seed)
    names = [n for n, p in patcher.model.named_parameters() if part in n and n.endswith("weight")]
    weights = dict(patcher.model.named_parameters())
    return {n: (torch.randn(weights[n].shape, generator=generator) * 0.01,) for n in names}


def weights_of(patcher) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in patcher.model.state_dict().items()}


def test_the_same_model_again_moves_nothing(device, unet):
    patched = unet.clone()
    patched.add_patches(difference(unet, "attn2", 1), 0.5)
    first = added(lambda: load(patched))
    assert first.copied_bytes == unet.model_size() == device.used and first.patches > 0 and first.loads == 1
    run(patched)
    assert added(lambda: (load(patched), run(patched), load(patched.clone()))) == NOTHING


def test_a_changed_strength_touches_only_its_weights(device, unet):
    one, two = difference(unet, "attn1", 1), difference(unet, "attn2", 2)
    first = unet.clone()
    first.add_patches(one, 1.0)
    second = first.clone()
    first.add_patches(two, 0.5)
    second.add_patches(two, 0.75)
    load(first)
    change = added(lambda: load(second))
    touched = sum(unet.model.get_parameter(name).nelement() * 4 for name in two)
    assert (change.patches, change.copies, change.copied_bytes) == (len(two), len(two), touched)
    by_change = weights_of(second)
    comfy.model_management.unload_all_models()
    load(second)
    fresh = weights_of(second)
    assert all(torch.equal(by_change[name], fresh[name]) for name in fresh)


def test_a_lora_taken_away_leaves_the_files_weights(device, unet):
    before = weights_of(unet)
    patched = unet.clone()
    names = difference(unet, "attn2", 1)
    patched.add_patches(names)
    load(patched)
    change = added(lambda: load(unet))
    assert (change.restores, change.patches, change.copies) == (len(names), 0, len(names))
    after = weights_of(unet)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert device.used == unet.model_size()


def test_unloading_copies_nothing_and_gives_the_hosts_tensors_back(device, unet):
    places = {name: value.data_ptr() for name, value in unet.model.named_parameters()}
    patched = unet.clone()
    patched.add_patches(difference(unet, "attn2", 1))
    load(patched)
    assert all(value.data_ptr() != places[name] for name, value in unet.model.named_parameters())
    change = added(lambda: comfy.model_management.unload_all_models())
    assert change == Counters(evictions=1)
    assert device.used == 0
    assert {name: value.data_ptr() for name, value in unet.model.named_parameters()} == places


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_a_streamed_model_gives_the_same_results(device, unet, share):
    patched = unet.clone()
    patched.add_patches(difference(unet, "attn2", 1), 0.5)
    load(patched)
    whole = run(patched)
    comfy.model_management.unload_all_models()
    size = int(unet.model_size() * share)
    device.size = (
        size
        + unet.model.placement.buffer_bytes(unet.model)
        + sum(u.size for u in units_of(unet.model) if not u.streamable)
    )
    device.reset_peak()
    load(patched)
    assert 0 < patched.loaded_size() < patched.model_size()
    results = []
    change = added(lambda: results.extend([run(patched), run(patched)]))
    assert change.copied_bytes == change.patches == 0
    waiting = patched.model_size() - patched.loaded_size()
    assert 2 * waiting <= change.streamed_bytes <= 2.2 * waiting  # what was fetched ahead after the last layer
    assert all(torch.equal(result, whole) for result in results)
    assert device.peak() <= device.size
    patched.cleanup()
    assert device.used == patched.loaded_size()


def test_a_strength_changed_while_streaming(device, unet):
    changes = difference(unet, "attn", 3)
    one, two = unet.clone(), unet.clone()
    one.add_patches(changes, 1.0)
    two.add_patches(changes, -0.5)
    load(two)
    whole = run(two)
    comfy.model_management.unload_all_models()
    device.size = unet.model_size() // 2
    load(one)
    first = run(one)
    load(two)
    assert torch.equal(run(two), whole) and not torch.equal(first, whole)


def test_a_smaller_need_takes_only_some_layers(device, unet):
    load(unet)
    whole = run(unet)
    device.size = unet.model_size() + MB
    needed = MB + unet.model_size() // 4
    assert comfy.model_management.free_memory(needed, PAPER) == []
    assert device.free() >= needed and 0.5 * unet.model_size() < unet.loaded_size() < unet.model_size()
    assert torch.equal(run(unet), whole)  # what was taken off is streamed
    unet.cleanup()
    missing = unet.model_size() - unet.loaded_size()
    back = added(lambda: load(unet))
    assert back.copied_bytes == missing and unet.loaded_size() == unet.model_size()
    assert added(lambda: run(unet)) == NOTHING


def test_the_largest_of_several_is_streamed(device, unet):
    small = ModelPatcher(nn.Sequential(comfy.ops.manual_cast.Linear(64, 64)), PAPER, HOST)
    device.size = unet.model_size()
    load(unet, small)
    assert small.loaded_size() == small.model_size() and unet.loaded_size() < unet.model_size()
    assert comfy.model_management.loaded_models() == [small, unet]


def test_tied_weights_stay_tied(device):
    net = nn.Sequential(comfy.ops.manual_cast.Linear(8, 8), comfy.ops.manual_cast.Linear(8, 8))
    net[1].weight = net[0].weight
    patcher = ModelPatcher(net, PAPER, HOST)
    change = added(lambda: load(patcher))
    assert change.copied_bytes == (64 + 8 + 8) * 4 == device.used
    assert net[0].weight is net[1].weight
    assert added(lambda: load(patcher)) == NOTHING
    comfy.model_management.unload_all_models()
    assert net[0].weight is net[1].weight and device.used == 0


def test_a_dropped_model_frees_its_memory(device):
    patcher = ModelPatcher(nn.Sequential(comfy.ops.manual_cast.Linear(64, 64)), PAPER, HOST)
    load(patcher)
    assert device.used > 0
    del patcher
    gc.collect()
    assert device.used == 0 and comfy.model_management.loaded_models() == []


def test_a_copied_model_is_a_model_of_its_own(device, unet):
    device.size = unet.model_size() // 2
    load(unet)
    whole = run(unet)
    other = ModelPatcher(copy.deepcopy(unet.model), PAPER, HOST)
    comfy.model_management.unload_all_models()
    load(other)
    assert torch.equal(run(other), whole)


def test_weights_that_a_pack_replaced_are_brought_again(device, unet):
    load(unet)
    name = "diffusion_model.out.2.weight"
    before = run(unet)
    new = nn.Parameter(unet.model.get_parameter(name) * 2, requires_grad=False)
    unet.model.diffusion_model.out[2].weight = new
    unet.patches_uuid = "another"
    change = added(lambda: load(unet))
    assert change.copied_bytes == new.nelement() * 4 and device.used == unet.model_size()
    assert not torch.equal(run(unet), before)


def test_more_than_there_is_raises_as_a_device_does():
    with simulated(SimulatedMemory(100, PAPER)) as memory:
        held = memory.allocate(60)
        with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
            memory.allocate(60)
        del held
        assert memory.used == 0 and memory.peak() == 60
    assert memory_of(PAPER) is not memory


def test_hooks_follow_streamed_weights(device, unet):
    from comfy.hooks import HookGroup, WeightHook

    device.size = unet.model_size() // 2
    load(unet)
    plain = run(unet)
    hook = WeightHook(strength_model=1.0)
    hook.weights, hook.is_diff = difference(unet, "attn2", 5), True
    group = HookGroup()
    group.add(hook)
    unet.register_all_hook_patches(group, {}, {})
    unet.apply_hooks(group)
    hooked = run(unet)
    unet.apply_hooks(None)
    assert torch.equal(run(unet), plain) and not torch.equal(hooked, plain)
    unet.cleanup()
    assert added(lambda: load(unet)) == NOTHING


def test_backups_as_packs_make_them(device, unet):
    """Packs that patch weights themselves keep (weight, inplace_update) in the backup, as the interface has it."""
    from typing import NamedTuple

    class Backup(NamedTuple):
        weight: torch.Tensor
        inplace_update: bool

    class PackPatcher(ModelPatcher):
        def patch_weight_to_device(self, key, device_to=None, inplace_update=False, **kwargs):
            weight = self.model.get_parameter(key)
            self.backup[key] = Backup(weight.to(self.offload_device), inplace_update)
            comfy.utils.set_attr_param(self.model, key, (weight * 2).to(device_to))

    before = weights_of(unet)
    pack = PackPatcher(unet.model, PAPER, HOST)
    changes = difference(unet, "attn2", 1)
    pack.add_patches(changes)
    load(pack)
    assert all(torch.equal(unet.model.get_parameter(name), before[name] * 2) for name in changes)
    comfy.model_management.unload_all_models()
    assert all(torch.equal(value, before[name]) for name, value in unet.model.state_dict().items())
    assert device.used == 0


def test_the_least_recently_used_go_first(device):
    """Three that were used in turn, and a fourth that needs the room of two."""
    kinds = [type(name, (nn.Sequential,), {}) for name in ("First", "Second", "Third", "Fourth")]
    models = [kind(*(comfy.ops.manual_cast.Linear(256, 256, bias=False) for _ in range(4))) for kind in kinds]
    one, two, three, four = (ModelPatcher(model, PAPER, HOST) for model in models)
    size = one.model_size()
    device.size = 3 * size
    load(one)
    load(two)
    load(three)
    load(one)
    load(four, memory_required=int(0.8 * size))
    assert [p.loaded_size() for p in (one, two, three, four)] == [size, 0, 0, size]
    book = ledger_of(PAPER)
    assert [book.record(p.model).evicted_by for p in (one, two, three)] == [None, "Fourth", "Fourth"]
    evicted = [event["model"] for event in book.events if event["event"] == "evict"]
    assert evicted[-2:] == ["Second", "Third"]
    times = [book.record(p.model).last_use for p in (two, three, one, four)]
    assert times == sorted(times)


class Pinning(SimulatedMemory):
    """A device with page-locked memory; notes the address of all that is copied to it."""

    def __init__(self, size: int) -> None:
        super().__init__(size, PAPER)
        self.copied: list[int] = []

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        self.copied.append(tensor.data_ptr())
        return super().put(tensor)


@pytest.fixture
def pinning(device):
    with simulated(Pinning(device.size)) as memory:
        yield memory


def test_waiting_layers_are_page_locked_and_counted(pinning, unet):
    load(unet)
    whole = run(unet)
    record = ledger_of(PAPER).record(unet.model)
    assert record.pinned_bytes == 0
    comfy.loaded_models.current_loaded_models[0].give_way_in_part(unet.model_size() // 2, "a test")
    assert record.pinned_bytes == unet.model_size() - unet.loaded_size() > 0
    assert torch.equal(run(unet), whole)
    unet.cleanup()
    comfy.model_management.unload_all_models()
    assert record.pinned_bytes == 0 and unet.model.placement.pinned_bytes() == 0


def test_the_next_layer_is_on_its_way_before_it_is_called(pinning, unet, monkeypatch):
    monkeypatch.setattr("comfy.devices.vram_state", comfy.model_management.VRAMState.NO_VRAM)
    load(unet)
    streamed = [layer for layer in unet.model.modules() if getattr(layer, "streamer", None) is not None]
    late = []

    def called(layer, _args):
        if layer.weight.data_ptr() not in pinning.copied:
            late.append(layer)

    hooks = [layer.register_forward_pre_hook(called) for layer in streamed]
    run(unet)
    first, late[:] = len(late), []
    pinning.copied.clear()
    run(unet)
    for hook in hooks:
        hook.remove()
    assert first > 0.9 * len(streamed) and len(late) <= 1  # the order is known after one run
    unet.cleanup()


def test_reserved_memory_is_left_free(unet, monkeypatch):
    reserve = unet.model_size() // 2
    monkeypatch.setattr("comfy.loaded_models.minimum_inference_memory", lambda: 0)
    for flag, left in (("reserve_vram", reserve), ("vram_headroom", reserve)):
        monkeypatch.setattr(comfy.devices.args, "reserve_vram", 0)
        monkeypatch.setattr(comfy.devices.args, flag, left / 1024**3)
        with simulated(SimulatedMemory(unet.model_size() + reserve // 2, PAPER)) as memory:
            load(unet)
            assert memory.free() >= left and 0 < unet.loaded_size() < unet.model_size(), flag
            comfy.model_management.unload_all_models()
        monkeypatch.setattr(comfy.devices.args, flag, 0)


@pytest.fixture
def container(monkeypatch):
    """A container that allows 8 MB of RAM, of which 6 are left."""
    monkeypatch.setattr("comfy.device_memory.system_memory", lambda: SystemMemory(8 * MB, 6 * MB))
    comfy.device_memory._available_ram.cache_clear()
    yield
    comfy.device_memory._available_ram.cache_clear()


def test_a_containers_limit_is_the_hosts_memory(container):
    host = memory_of(HOST)
    assert (host.total(), host.free()) == (8 * MB, 6 * MB)


def test_page_locked_memory_is_half_of_it_at_most(container, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor.clone())
    memory = comfy.device_memory.CudaMemory(torch.device("cuda", 0))
    tensors = [torch.zeros(3 * MB // 2, dtype=torch.uint8) for _ in range(4)]
    pinned = [memory.pin(tensor) for tensor in tensors]
    assert [a is not b for a, b in zip(pinned, tensors)] == [True, True, False, False]
    del pinned
    assert memory.pin(tensors[0]) is not tensors[0]  # given back


def test_wan_streams_its_layers(device):
    """Also the convolution that computes in float32; the tables that are no layer's are on the device."""
    golden = Golden("wan21_t2v")
    x, sigma, context = (golden.inputs[name] for name in ("x", "sigma", "context"))
    patcher = ModelPatcher(family_model(golden), PAPER, HOST)
    whole = patcher.model.apply_model(x, sigma, c_crossattn=context)
    load(patcher)
    comfy.model_management.unload_all_models()
    kept = sum(unit.size for unit in units_of(patcher.model) if not unit.streamable)
    device.size = kept + patcher.model.placement.buffer_bytes(patcher.model) + patcher.model_size() // 3
    load(patcher)
    assert 0 < patcher.loaded_size() < patcher.model_size()
    assert torch.equal(patcher.model.apply_model(x, sigma, c_crossattn=context), whole)
