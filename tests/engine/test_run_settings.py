"""What a node leaves switched does not reach the next prompt."""

import locale
import logging
import os
import sys

import pytest
import torch
from engine_kit import n, node


def seen() -> dict:
    """What prompts compute with, as a node finds it."""
    a = torch.ones(2, 2)
    return {
        "dtype": a.dtype,
        "device": a.device.type,
        "product": (a @ a).dtype,
        "modes": torch._C._len_torch_function_stack(),
        "autocast": [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")],
        "autocast dtype": torch.get_autocast_dtype("cpu"),
        "nesting": (torch.autocast_increment_nesting(), torch.autocast_decrement_nesting()),
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "deterministic": torch.get_deterministic_debug_mode(),
        "folder": os.getcwd(),
        "locale": locale.setlocale(locale.LC_ALL),
        "recursion": sys.getrecursionlimit() >= 1000,
        "output": (sys.stdout, sys.stderr),
        "log": logging.root.manager.disable,
    }


def replace_output():
    sys.stdout = None


def raise_it():
    torch.set_default_dtype(torch.float64)
    torch.autocast("cpu").__enter__()
    raise SystemExit(3)


LEFT = {
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "default device": lambda: torch.set_default_device("meta"),
    "device context": lambda: torch.device("meta").__enter__(),
    "both devices": lambda: (torch.device("meta").__enter__(), torch.set_default_device("meta")),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16).__enter__(),
    "autocast twice": lambda: [torch.autocast("cpu").__enter__() for _ in range(2)],
    "autocast dtype": lambda: torch.set_autocast_dtype("cpu", torch.float16),
    "grad": lambda: torch.set_grad_enabled(True),
    "inference mode": lambda: torch.inference_mode(False).__enter__(),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "folder": lambda: os.chdir("/"),
    "locale": lambda: locale.setlocale(locale.LC_ALL, "C"),
    "recursion": lambda: sys.setrecursionlimit(sys.getrecursionlimit() - 100),
    "output": replace_output,
    "log": lambda: logging.disable(logging.CRITICAL),
    "several, and an error": raise_it,
}


@pytest.mark.parametrize("kind", LEFT)
def test_the_next_prompt_finds_everything_as_it_was(runner, classes, caplog, kind):
    found = []

    @node({"value": ("INT", {})}, OUTPUT_NODE=True)
    class Look:
        def run(self, value):
            found.append(seen())
            return ()

    @node({}, OUTPUT_NODE=True)
    class Leave:
        def run(self):
            LEFT[kind]()
            return ()

    classes.update(Look=Look, Leave=Leave)
    outside = seen()
    runner.good({"l": n("Look", value=1)})
    runner.run({"x": n("Leave")})
    assert seen() == outside
    runner.good({"l": n("Look", value=2)})
    assert found[1] == found[0]
    told = [record for record in caplog.records if "which is undone" in record.getMessage()]
    unseen = ("grad", "inference mode")  # the engine's own inference mode ends these
    assert len(told) == (kind not in unseen and not (kind == "locale" and found[0]["locale"] == "C"))


def test_what_nodes_switch_for_their_own_prompt_stays_until_its_end(runner, classes):
    found = []

    @node({}, ["INT"])
    class Switch:
        def run(self):
            torch.set_default_dtype(torch.float64)
            return (1,)

    @node({"value": ("INT", {})}, OUTPUT_NODE=True)
    class Look:
        def run(self, value):
            found.append(torch.ones(1).dtype)
            return ()

    classes.update(Switch=Switch, Look=Look)
    runner.good({"s": n("Switch"), "l": n("Look", value=("s", 0))})
    assert found == [torch.float64] and torch.get_default_dtype() is torch.float32
