"""What is wrong with a big prompt is told in bounds, and finding it out stalls nobody."""

import asyncio
import json
import random
import time

import pytest

from comfy_execution import validation
from tests.server.conftest import TextNode

SIZE = 3000


class Join(TextNode):
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"text": ("STRING", {})}, "optional": {name: ("STRING", {}) for name in "abc"}}

    def run(self, **texts):
        raise AssertionError("not run")


def node(class_type="Join", **links):
    return {"class_type": class_type, "inputs": {name: [str(source), 0] for name, source in links.items()}}


PROMPTS = {
    "ring": {str(i): node(text=(i + 1) % SIZE) for i in range(SIZE)},
    "links back": {str(i): node(text=(i + 1) % SIZE, a=i // 2, b=0) for i in range(SIZE)},
    "chain": {str(i): node(text=i + 1) for i in range(SIZE * 4)},
    "chain of errors": {str(i): node(a=i + 1) for i in range(SIZE)} | {str(SIZE): node()},
}


@pytest.fixture
async def joining(running):
    import nodes

    nodes.NODE_CLASS_MAPPINGS["Join"] = Join
    return running


@pytest.mark.parametrize("kind", PROMPTS)
async def test_size_and_time_are_in_bounds(joining, kind):
    waits = []

    async def others() -> None:
        while True:
            began = time.perf_counter()
            try:
                await joining.get("/prompt")
            finally:  # also when it still waits at the end
                waits.append(time.perf_counter() - began)

    body = json.dumps({"prompt": PROMPTS[kind]})
    task = asyncio.create_task(others())
    async with joining.session.post(joining.url + "/prompt", data=body) as answer:
        told = await answer.read()
    task.cancel()
    assert answer.status == 400 and len(told) < 10e6
    errors = json.loads(told)["node_errors"]
    assert errors and all(entry["errors"] and entry["dependent_outputs"] for entry in errors.values())
    assert max(waits) < 1.5


def dependents(prompt, errors):
    """By going from each output to its sources; a node whose own check failed leads no further by bad links."""
    found = {node_id: [] for node_id in errors}
    for output in prompt:
        seen, stack = {output}, [output]
        while stack:
            at = stack.pop()
            if at in found:
                found[at].append(output)
            for source, _ in prompt[at]["inputs"].values():
                if source not in seen:
                    seen.add(source)
                    stack.append(source)
    return found


@pytest.mark.parametrize("seed", range(30))
async def test_outputs_that_cannot_run_are_all_named(joining, monkeypatch, seed):
    monkeypatch.setattr(validation, "_OUTPUTS_AT_ONCE", 4)
    chance = random.Random(seed)
    size = 14
    # Up to seed 20 also with cycles.
    prompt = {}
    for i in range(size):
        low = 0 if seed < 20 else i + 1
        names = chance.sample("abc", chance.randint(0, 2)) + (["text"] if chance.random() < 0.8 else [])
        prompt[str(i)] = node(**{name: chance.randrange(low, size) for name in names if low < size})
    _, answer, _ = await joining.post("/prompt", json={"prompt": prompt})
    errors = answer["node_errors"]
    assert {key: entry["dependent_outputs"] for key, entry in errors.items()} == dependents(prompt, errors)


async def test_a_cycle_is_told_whole_where_there_is_room(joining, monkeypatch):
    prompt = {str(i): node(text=(i + 1) % 9) for i in range(9)}
    errors = (await joining.post("/prompt", json={"prompt": prompt}))[1]["node_errors"]
    assert len(errors) == 9
    for node_id, entry in errors.items():
        (error,) = entry["errors"]
        turn = [str((int(node_id) + step) % 9) for step in range(9)]
        assert error["extra_info"] == {"node_id": node_id, "cycle_nodes": turn}
        assert error["details"] == " -> ".join(f"{member} (Join)" for member in [*turn, node_id])
    monkeypatch.setattr(validation, "MOST_LISTED", 9)
    errors = (await joining.post("/prompt", json={"prompt": prompt}))[1]["node_errors"]
    shown = sorted(len(entry["errors"][0]["extra_info"]["cycle_nodes"]) for entry in errors.values())
    assert shown == [4] * 8 + [9]
    short = next(e["errors"][0] for e in errors.values() if "cycle_length" in e["errors"][0]["extra_info"])
    assert short["extra_info"]["cycle_length"] == 9 and "-> 5 more ->" in short["details"]
