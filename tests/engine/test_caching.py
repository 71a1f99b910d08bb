"""Keys of nodes, and what each cache keeps."""

import gc

import pytest
from engine_kit import n, node

from comfy_execution import results
from comfy_execution.caching import CacheEntry, LRUCache, RamPressureCache
from comfy_execution.graph import DynamicPrompt
from comfy_execution.links import ConstantList, links_of
from comfy_execution.signatures import Signatures
from execution import CacheType


def keys(prompt, own_id=lambda class_type: class_type == "Own"):
    signatures = Signatures(DynamicPrompt(prompt), own_id)
    signatures.compute(prompt)
    return signatures


def key(node_, **others):
    return keys({"x": node_, **others})["x"]


# --- keys


def test_ids_and_order_do_not_matter():
    one = keys({"a": n("Int", value=1), "b": n("Add", a=("a", 0), b=2)})
    two = keys({"y": n("Add", b=2, a=("x", 0)), "x": n("Int", value=1)})
    assert one["b"] == two["y"] and one["a"] == two["x"] and len(one["a"]) == 32


@pytest.mark.parametrize(
    "other",
    [
        n("Int", value=2),
        n("Int", value=1.0),
        n("Int", value=True),
        n("Int", value="1"),
        n("Int", value=None),
        n("Int", value=[1]),
        n("Int", value=1, more=1),
        n("Int", other=1),
        n("Pass", value=1),
        {**n("Int", value=1), "is_changed": [1]},
        {**n("Int", value=1), "is_changed": [None]},
    ],
)
def test_what_matters(other):
    assert key(n("Int", value=1)) != key(other)


def test_other_keys_of_a_node_do_not_matter():
    assert key(n("Int", value=1)) == key({**n("Int", value=1), "_meta": {"title": "t"}})


def test_the_node_itself_may_matter():
    both = keys(
        {"a": n("Own", value=1), "b": n("Own", value=1), "c": n("Pass", value=("a", 0)), "d": n("Pass", value=("b", 0))}
    )
    assert both["a"] != both["b"] and both["c"] != both["d"]


def test_slot_and_wrapped_lists():
    source = {"s": n("Int", value=1)}
    assert key(n("Pass", value=("s", 0)), **source) != key(n("Pass", value=("s", 1)), **source)
    wrapped = n("Pass")
    wrapped["inputs"]["value"] = ConstantList(["s", 0])
    assert key(wrapped, **source) != key(n("Pass", value=("s", 0)), **source)
    assert key(wrapped) == key(wrapped)


def test_nested_constants():
    assert key(n("Int", value={"b": [1], "a": {}})) == key(n("Int", value={"a": {}, "b": [1]}))
    deep = []
    for _ in range(5000):
        deep = [deep]
    assert key(n("Int", value={"v": deep})) != key(n("Int", value={"v": deep}))


def test_what_never_matches():
    for value in (float("nan"), {"x": float("nan")}, {1: 2}):
        prompt = n("Int", value=value)
        assert key(prompt) != key(prompt)
    missing = n("Pass", value=("gone", 0))
    assert key(missing) != key(missing)
    cycle = {"x": n("Pass", value=("y", 0)), "y": n("Pass", value=("x", 0))}
    assert keys(cycle)["x"] != keys(cycle)["x"]


def test_nan_makes_all_below_unstable():
    signatures = keys({"a": n("Int", value=float("nan")), "b": n("Pass", value=("a", 0)), "c": n("Int", value=1)})
    assert [signatures.is_stable(i) for i in "abc"] == [False, False, True]


def test_objects_are_equal_to_themselves():
    class Thing:
        pass

    thing = Thing()
    assert key(n("Pass", value=thing)) == key(n("Pass", value=thing))
    before = key(n("Pass", value=thing))
    assert key(n("Pass", value=Thing())) != before
    del thing
    gc.collect()
    assert all(key(n("Pass", value=Thing())) != before for _ in range(5))


def test_keys_of_a_long_chain():
    prompt = {"0": n("Int", value=1)}
    for index in range(1, 20_000):
        prompt[str(index)] = n("Pass", value=(str(index - 1), 0))
    assert len({keys(dict(reversed(prompt.items())))[i] for i in ("0", "19999")}) == 2


# --- modes


def small(value):
    return {"out": n("Show", value=value)}


def chain(value, tail=1):
    return {"src": n("Int", value=value), "add": n("Add", a=("src", 0), b=tail), "out": n("Show", value=("add", 0))}


def test_classic_keeps_the_newest_prompt_only(runner):
    runner.good(chain(1))
    assert runner.cached == []
    runner.good(chain(1))
    assert runner.cached == ["src", "add", "out"] and runner.server.order == []
    runner.good(chain(1, 5))
    assert runner.cached == ["src"]
    runner.good(chain(1))
    assert runner.cached == ["src"] and runner.server.order == ["add", "out"]


def test_lru_drops_whole_generations(make_runner):
    runner = make_runner(CacheType.LRU, lru=4)
    for value in (10, 11):
        runner.good(chain(value))
    runner.good(chain(10))
    assert runner.cached == ["src", "add", "out"]
    runner.good(chain(11))
    assert runner.cached == []


def test_lru_never_drops_what_the_prompt_needs():
    cache = LRUCache(1)
    for name in (b"a", b"b", b"c"):
        cache.put(None, name, CacheEntry([]))
    cache.begin({b"a", b"b"}, set())
    assert set(cache.entries) == {b"a", b"b"}


def test_none_keeps_nothing(make_runner, classes):
    @node({"value": ("INT", {})}, ["INT"])
    class Changing:
        asked = 0

        def __init__(self):
            self.count = 0

        @classmethod
        def IS_CHANGED(cls, value):
            Changing.asked += 1
            return 0

        def run(self, value):
            self.count += 1
            return (self.count,)

    classes["Changing"] = Changing
    runner = make_runner(CacheType.NONE)
    prompt = {
        "c": n("Changing", value=1),
        "s": n("Show", value=("c", 0)),
        "p": n("Pass", value=("c", 0)),
        "t": n("Show", value=("p", 0)),
    }
    for _ in range(2):
        assert runner.good(prompt) == {"s": {"value": ["1"]}, "t": {"value": ["1"]}}
        assert runner.cached == [] and runner.server.order.count("c") == 1
    assert Changing.asked == 0
    assert runner.bad({"s": n("Show", value=1, x=("gone", 0))})["current_outputs"] == []


def entry(bytes_, generation=0, seconds=0.0):
    torch = pytest.importorskip("torch")
    return CacheEntry([[torch.zeros(bytes_, dtype=torch.uint8)]], None, seconds, generation)


class Memory:
    """Free memory that grows by what the cache lets go."""

    def __init__(self, free, cache_entries):
        self.free, self.count, self.entries = free, len(cache_entries), cache_entries

    def __call__(self):
        return self.free + 1000 * (self.count - len(self.entries))


def ram_cache(free, active, inactive, old, new):
    cache = RamPressureCache(active, inactive)
    cache.generation = 2
    cache.root.entries = {**{k: entry(1000, 1) for k in old}, **{k: entry(1000, 2) for k in new}}
    cache._free_memory = Memory(free, cache.root.entries)
    cache._may_hold_old = True
    return cache


def test_ram_old_results_go_until_there_is_room():
    cache = ram_cache(0, active=0, inactive=2000, old=b"abc", new=b"x")
    cache.relieve(lambda: None)
    assert len(cache) == 2 and ord("x") in cache.root.entries and cache.counts.evictions == 2


def test_ram_plenty_of_memory():
    cache = ram_cache(10_000, active=1000, inactive=5000, old=b"abc", new=b"x")
    cache.relieve(lambda: pytest.fail("nothing has to go"))
    assert len(cache) == 4


def test_ram_old_results_go_unasked_where_there_can_never_be_enough():
    def free_memory():
        looks.append(1)
        return 9_000

    looks = []
    cache = RamPressureCache(active=1000, inactive=10_000, free_memory=free_memory, total=10_000)
    cache.root.entries = {b"a": entry(1000, 0), b"x": entry(1000, 0)}
    for _ in range(3):
        cache.begin({b"x"}, set())
        cache.relieve(lambda: pytest.fail("nothing else has to go"))
    assert list(cache.root.entries) == [b"x"] and cache.counts.evictions == 1 and len(looks) == 1


def test_ram_results_of_the_running_prompt_go_last():
    dropped = []
    cache = ram_cache(0, active=3000, inactive=3000, old=b"a", new=b"xyz")
    cache.relieve(lambda: dropped.append(True))
    assert dropped and len(cache) == 1


def test_ram_cheap_results_go_first():
    cache = RamPressureCache(0, 1000, lambda: 0)
    cache.generation = 2
    slow, old, quick = entry(1000, 2, seconds=60), entry(1000, 1), entry(1000, 2)
    assert cache._score(slow) < cache._score(quick) < cache._score(old)


def test_ram_pressure_never_takes_an_input_of_the_run(make_runner):
    runner = make_runner(CacheType.RAM_PRESSURE)
    cache = runner.executor.caches.outputs
    cache._free_memory = lambda: 0.0
    cache.relieve = lambda drop: (setattr(cache, "_last_look", 0.0), RamPressureCache.relieve(cache, drop))
    assert runner.good(chain(5)) == {"out": {"value": ["6"]}}
    assert len(cache) == 0


def test_ram_pressure_costs_the_same_at_each_node(make_runner, monkeypatch):
    """Where memory stays short, looking for what may go must not look at all that is still to run."""
    looks = []
    monkeypatch.setattr(results, "links_of", lambda node: looks.append(1) or links_of(node))
    runner = make_runner(CacheType.RAM_PRESSURE)
    cache = runner.executor.caches.outputs
    cache._free_memory = lambda: 0.0
    cache.relieve = lambda drop: (setattr(cache, "_last_look", 0.0), RamPressureCache.relieve(cache, drop))
    prompt = {"0": n("Int", value=7)} | {str(i): n("Pass", value=(str(i - 1), 0)) for i in range(1, 500)}
    assert runner.good({**prompt, "out": n("Show", value=("499", 0))}) == {"out": {"value": ["7"]}}
    assert len(cache) == 0 and len(looks) < 5 * 500


# --- within and between prompts


def test_twins_run_once(runner, classes):
    prompt = {
        "a": n("Int", value=1),
        "b": n("Int", value=1),
        "s": n("Add", a=("a", 0), b=("b", 0)),
        "o": n("Show", value=("s", 0)),
    }
    assert runner.good(prompt) == {"o": {"value": ["2"]}}
    assert classes["Int"].calls == [1]


def test_failed_prompts_keep_what_they_finished(runner, classes):
    @node({"value": ("*", {})}, ["*"])
    class Bad:
        def run(self, value):
            raise ValueError

    classes["Bad"] = Bad
    prompt = {"i": n("Int", value=7), "b": n("Bad", value=("i", 0)), "o": n("Show", value=("b", 0))}
    runner.bad(prompt)
    runner.bad(prompt)
    assert runner.cached == ["i"] and classes["Int"].calls == [7]


def test_fingerprints(runner, classes):
    @node(
        {"value": ("INT", {}), "mode": ("STRING", {})},
        ["INT"],
        optional={"link": ("*", {})},
        hidden={"uid": "UNIQUE_ID"},
    )
    class Changing:
        seen: list = []

        @classmethod
        async def IS_CHANGED(cls, value, mode, link="absent"):
            Changing.seen.append((value, link))
            return {"nan": float("nan"), "none": None}[mode]

        def run(self, value, mode, link=None, uid=None):
            return (value,)

    classes["Changing"] = Changing
    prompt = {
        "i": n("Int", value=1),
        "c": n("Changing", value=1, mode="nan", link=("i", 0)),
        "o": n("Show", value=("c", 0)),
    }
    runner.good(prompt)
    runner.good(prompt)
    assert runner.cached == ["i"] and Changing.seen == [(1, None)] * 2
    prompt["c"]["inputs"]["mode"] = "none"
    runner.good(prompt)
    runner.good(prompt)
    assert runner.cached == ["i", "c", "o"]
    prompt["c"]["inputs"]["mode"] = "raises KeyError"
    runner.good(prompt)
    runner.good(prompt)
    assert "c" not in runner.cached
    prompt["c"]["is_changed"] = ["mine"]
    Changing.seen.clear()
    runner.good(prompt)
    runner.good(prompt)
    assert runner.cached == ["i", "c", "o"] and Changing.seen == []
    assert prompt["c"]["is_changed"] == ["mine"]


def test_node_objects(runner, classes):
    @node({"value": ("INT", {})}, ["INT"])
    class Counting:
        def __init__(self):
            self.count = 0

        def run(self, value):
            self.count += 1
            return (self.count,)

    classes["Counting"] = Counting

    def count(value, node_id="c"):
        return runner.good({node_id: n("Counting", value=value), "o": n("Show", value=(node_id, 0))})["o"]["value"]

    assert count(1) == ["1"] and count(2) == ["2"] and count(3, "other") == ["1"] and count(4) == ["1"]


def test_reset_forgets_everything(runner, classes):
    runner.good(chain(3))
    runner.executor.reset()
    runner.good(chain(3))
    assert runner.cached == []


def test_intermediate_outputs_are_shown_again(runner, classes):
    @node({"value": ("*", {})}, ["*"], HAS_INTERMEDIATE_OUTPUT=True)
    class Middle:
        def run(self, value):
            return {"ui": {"mid": [value]}, "result": (value,)}

    classes["Middle"] = Middle
    prompt = {"m": n("Middle", value=1), "o": n("Show", value=("m", 0))}
    first = runner.good(prompt)
    assert runner.good(prompt) == first == {"m": {"mid": [1]}, "o": {"value": ["1"]}}
    assert [data["node"] for data in runner.server.of("executed")] == ["o", "m"]


def test_external_store(runner, classes):
    from comfy_execution import external_cache

    class Store(external_cache.CacheProvider):
        def __init__(self):
            self.kept = {}

        async def on_lookup(self, context):
            return self.kept.get(context.cache_key_hash)

        async def on_store(self, context, value):
            self.kept[context.cache_key_hash] = value

    store = Store()
    external_cache.register_cache_provider(store)
    try:
        runner.good(chain(8))
        assert len(store.kept) == 3 and all(len(k) == 64 for k in store.kept)
        runner.executor.reset()
        assert runner.good(chain(8)) == {"out": {"value": ["9"]}}
        assert runner.cached == ["src", "add", "out"] and classes["Int"].calls == [8]
    finally:
        external_cache.unregister_cache_provider(store)


# --- counting


@pytest.mark.parametrize(
    "cache_type, options, second, evictions",
    [
        (CacheType.CLASSIC, {}, (3, 0), 0),
        (CacheType.LRU, {"lru": 100}, (3, 0), 0),
        (CacheType.NONE, {}, (0, 3), 0),
    ],
)
def test_hits_and_misses_are_counted(make_runner, cache_type, options, second, evictions):
    runner = make_runner(cache_type, **options)
    prompt = chain(2)
    runner.good(prompt)
    counts = runner.executor.cache_report()
    assert (counts["hits"], counts["misses"]) == (0, 3) and counts["mode"] == cache_type.name.lower()
    assert counts["entries"] == (0 if cache_type is CacheType.NONE else 3)
    runner.good(prompt)
    counts = runner.executor.cache_report()
    assert (counts["hits"], counts["misses"] - 3) == second and counts["evictions"] == evictions
    runner.executor.reset()
    assert runner.executor.cache_report() == {**counts, "entries": 0, "bytes": 0}


def test_bytes_of_what_is_kept_count_once(make_runner):
    torch = pytest.importorskip("torch")
    cache = make_runner(CacheType.CLASSIC).executor.caches.outputs
    shared = torch.zeros(1000, dtype=torch.uint8)
    cache.put(cache.scope(), b"a", CacheEntry([[{"samples": shared}]]))
    cache.put(cache.scope(), b"b", CacheEntry([[shared], [torch.zeros(24, dtype=torch.uint8)]]))
    assert cache.report() == {"entries": 2, "bytes": 1024, "hits": 0, "misses": 0, "evictions": 0}


def test_memory_pressure_shows_in_the_report(make_runner):
    runner = make_runner(CacheType.RAM_PRESSURE, ram=0.0, ram_inactive=1.0)
    cache = runner.executor.caches.outputs
    cache._free_memory, cache._never_enough = (lambda: float(2**40)), False
    runner.good(chain(2))
    runner.good(chain(3))
    assert runner.executor.cache_report()["evictions"] == 0
    kept = len(cache)
    cache._free_memory = lambda: 0.0
    runner.good({"i": n("Int", value=99), "o": n("Show", value=("i", 0))})
    report = runner.executor.cache_report()
    assert report["evictions"] == kept and report["entries"] == 2


def test_old_generations_show_in_the_report(make_runner):
    runner = make_runner(CacheType.LRU, lru=1)
    for value in range(3):
        runner.good({"i": n("Int", value=value), "o": n("Show", value=("i", 0))})
    assert runner.executor.cache_report()["evictions"] == 4
