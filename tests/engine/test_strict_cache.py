"""Nodes that change their input in place: what happens by default, and with `--strict-cache`."""

import pytest
import torch
from engine_kit import n, node

from comfy.cli_args import args
from execution import CacheType

CACHES = [CacheType.CLASSIC, CacheType.LRU, CacheType.NONE, CacheType.RAM_PRESSURE]


@node({"start": ("FLOAT", {})}, ["IMAGE", "LATENT"])
class Source:
    def run(self, start):
        return torch.full((2, 2), start), {"samples": torch.full((1, 3), start), "more": [(torch.zeros(1), {})]}


@node({"image": ("IMAGE", {})}, ["IMAGE"])
class AddInPlace:
    def run(self, image):
        image += 1
        return (image,)


@node({"image": ("IMAGE", {})}, ["IMAGE"])
class NumPyInPlace:
    def run(self, image):
        image.numpy()[0, 0] = 9
        return (image,)


@node({"latent": ("LATENT", {})}, ["LATENT"])
class LatentInPlace:
    def run(self, latent):
        latent["more"][0][0].add_(5)
        latent["added"] = True
        return (latent,)


@node({"image": ("IMAGE", {})}, ["IMAGE"])
class View:
    def run(self, image):
        image[:1].mul_(2)
        return (image * 1,)


@node({"image": ("IMAGE", {})}, ["IMAGE"])
class Clean:
    def run(self, image):
        return (image + 1,)


@node({"image": ("IMAGE", {})}, ["IMAGE"])
class Later:
    async def run(self, image):
        image.zero_()
        return (image,)


@node({"value": ("*", {}), "after": ("*", {})}, OUTPUT_NODE=True)
class Total:
    def run(self, value, after):
        value = value if isinstance(value, torch.Tensor) else value["more"][0][0]
        return {"ui": {"total": [float(value.sum())]}}


@pytest.fixture(autouse=True)
def own_classes(classes):
    classes.update(
        (c.__name__, c) for c in (Source, AddInPlace, NumPyInPlace, LatentInPlace, View, Clean, Later, Total)
    )


@pytest.fixture
def strict(monkeypatch):
    monkeypatch.setattr(args, "strict_cache", True)


def prompt(changes, slot=0, start=1.0):
    """The source, a node that changes it, and the sum of the source once that has run."""
    argument = "latent" if changes == "LatentInPlace" else "image"
    return {
        "s": n("Source", start=start),
        "c": n(changes, **{argument: ("s", slot)}),
        "o": n("Total", value=("s", slot), after=("c", 0)),
    }


def changes(executor):
    return [data for event, data in executor.status_messages if event == "input_changed"]


def test_default_a_change_is_seen_by_all(runner):
    """As in the reference: results are shared, and what one node writes the others read."""
    assert runner.good(prompt("AddInPlace"))["o"]["total"] == [8.0]
    assert not changes(runner.executor)
    again = {**prompt("AddInPlace"), "p": n("Total", value=("s", 0), after=("s", 0))}
    assert runner.good(again)["p"]["total"] == [8.0]


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize(
    ("class_type", "slot", "total", "argument"),
    [
        ("AddInPlace", 0, 4.0, "image"),
        ("NumPyInPlace", 0, 4.0, "image"),
        ("View", 0, 4.0, "image"),
        ("Later", 0, 4.0, "image"),
        ("LatentInPlace", 1, 0.0, "latent"),
    ],
)
def test_strict_a_change_stays_with_the_node(strict, make_runner, caplog, cache, class_type, slot, total, argument):
    runner = make_runner(cache, lru=10)
    assert runner.good(prompt(class_type, slot))["o"]["total"] == [total]
    (report,) = changes(runner.executor)
    assert report | {"timestamp": 0} == {
        "prompt_id": "p1", "node_id": "c", "node_type": class_type, "inputs": [argument], "timestamp": 0,
    }  # fmt: skip
    assert runner.server.of("input_changed") == [report]
    assert f"node c ({class_type}) changes its input in place: {argument}" in caplog.text
    # The source comes from the cache, if there is one, for a node that has not seen it.
    fresh = {**prompt(class_type, slot), "p": n("Total", value=("s", slot), after=("s", 0))}
    assert runner.good(fresh)["p"]["total"] == [total]


def test_strict_results_are_the_same_with_and_without_a_cache(strict, make_runner):
    chain = {
        "s": n("Source", start=1.0),
        "a": n("AddInPlace", image=("s", 0)),
        "b": n("AddInPlace", image=("a", 0)),
        "c": n("View", image=("s", 0)),
        "o": n("Total", value=("b", 0), after=("c", 0)),
        "p": n("Total", value=("a", 0), after=("b", 0)),
        "q": n("Total", value=("c", 0), after=("b", 0)),
    }
    expected = {"o": [12.0], "p": [8.0], "q": [6.0]}
    for cache in CACHES:
        runner = make_runner(cache, lru=10)
        for _ in range(2):
            outputs = runner.good(chain)
            assert {k: outputs[k]["total"] for k in expected} == expected, cache


def test_strict_a_node_that_only_reads_is_not_named(strict, runner):
    assert runner.good(prompt("Clean"))["o"]["total"] == [4.0]
    assert not changes(runner.executor)


def test_strict_not_a_number_is_no_change(strict, runner):
    runner.good(prompt("Clean", start=float("nan")))
    assert not changes(runner.executor)


def test_strict_two_arguments_may_be_one_tensor(strict, runner, classes):
    @node({"a": ("IMAGE", {}), "b": ("IMAGE", {})}, ["IMAGE"], OUTPUT_NODE=True)
    class Two:
        def run(self, a, b):
            assert a is b
            b += 1
            return {"ui": {"total": [float(a.sum())]}}

    classes["Two"] = Two
    assert runner.good({"s": n("Source", start=1.0), "t": n("Two", a=("s", 0), b=("s", 0))})["t"]["total"] == [8.0]
    assert changes(runner.executor)[0]["inputs"] == ["a", "b"]


def test_strict_other_objects_are_handed_on_as_they_are(strict, runner, classes):
    made = []

    @node({}, ["*"])
    class Make:
        def run(self):
            made.append(object())
            return (made[0],)

    @node({"value": ("*", {})}, OUTPUT_NODE=True)
    class Same:
        def run(self, value):
            return {"ui": {"same": [value is made[0]]}}

    classes.update(Make=Make, Same=Same)
    assert runner.good({"m": n("Make"), "s": n("Same", value=("m", 0))})["s"]["same"] == [True]


def test_strict_tensors_of_inference_mode(strict, runner, classes):
    @node({}, ["IMAGE"])
    class Inference:
        def run(self):
            with torch.inference_mode():
                return (torch.ones(2, 2),)

    classes["Inference"] = Inference
    graph = prompt("AddInPlace") | {"s": n("Inference")}
    assert runner.good(graph)["o"]["total"] == [4.0]
    assert changes(runner.executor)[0]["node_id"] == "c"
