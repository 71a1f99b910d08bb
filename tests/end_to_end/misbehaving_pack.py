"""Custom nodes that do to a worker what the worst packs do."""

import os
import sys
import time

import torch


class UnspeakableError(Exception):
    """An exception that cannot even say what it is."""

    def __str__(self):
        raise RuntimeError("no words")


def _recurse():
    return _recurse()


RAISES = {
    "ValueError": lambda: (_ for _ in ()).throw(ValueError("a plain error")),
    "SystemExit": lambda: (_ for _ in ()).throw(SystemExit(3)),
    "KeyboardInterrupt": lambda: (_ for _ in ()).throw(KeyboardInterrupt()),
    "GeneratorExit": GeneratorExit,
    "MemoryError": lambda: (_ for _ in ()).throw(MemoryError("no memory")),
    "OutOfMemoryError": lambda: (_ for _ in ()).throw(torch.OutOfMemoryError("Tried to allocate 20.00 GiB")),
    "RecursionError": _recurse,
    "Unspeakable": lambda: (_ for _ in ()).throw(UnspeakableError()),
    "StopIteration": lambda: (_ for _ in ()).throw(StopAsyncIteration()),
}
RETURNS = {
    "None": None,
    "scalar": 5,
    "ui bytes": {"ui": {"text": [b"\xff"]}},
    "ui tensor": {"ui": {"text": [torch.zeros(2)]}},
    "ui set": {"ui": {"text": [{1, 2}]}},
    "ui object": {"ui": {"text": [object()]}},
    "ui None": {"ui": None},
    "ui not a list": {"ui": {"text": 5}},
}


class Raise:
    OUTPUT_NODE = True
    RETURN_TYPES = ()
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"kind": (list(RAISES),)}}

    def run(self, kind):
        if kind == "GeneratorExit":
            raise GeneratorExit()
        RAISES[kind]()
        return ()


class Return:
    OUTPUT_NODE = True
    RETURN_TYPES = ()
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"kind": (list(RETURNS),)}}

    def run(self, kind):
        return RETURNS[kind]


class NotANumber:
    OUTPUT_NODE = True
    RETURN_TYPES = ()
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    def run(self):
        return {"ui": {"values": [float("nan"), float("inf"), 1.5]}}


class Sleep:
    """Sleeps, deaf to interrupts."""

    OUTPUT_NODE = True
    RETURN_TYPES = ("STRING",)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"seconds": ("FLOAT", {}), "tag": ("STRING", {})}}

    def run(self, seconds, tag):
        time.sleep(seconds)
        return {"ui": {"slept": [seconds]}, "result": (tag,)}


class Busy:
    """Computes in Python, without ever letting go of the interpreter by itself, until a file is gone."""

    OUTPUT_NODE = True
    RETURN_TYPES = ()
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"path": ("STRING", {})}}

    def run(self, path):
        rounds = 0
        while os.path.exists(path):
            rounds += sum(range(100_000)) > 0
        return {"ui": {"rounds": [rounds], "switch_seconds": [sys.getswitchinterval()]}}


NODE_CLASS_MAPPINGS = {
    "MisRaise": Raise,
    "MisReturn": Return,
    "MisNaN": NotANumber,
    "MisSleep": Sleep,
    "MisBusy": Busy,
}
