"""Values that flags take: what is no such value is refused with a sentence that shows it."""

from __future__ import annotations

import argparse
import os
import re


class EnumAction(argparse.Action):
    """Stores members of the enum given as `type`, accepting their values on the command line."""

    def __init__(self, **kwargs):
        self._enum = kwargs.pop("type")
        kwargs.setdefault("choices", tuple(e.value for e in self._enum))
        super().__init__(**kwargs)

    def __call__(self, parser, namespace, values, option_string=None):
        if isinstance(values, (list, tuple)):
            value = [self._enum(v) for v in values]
        else:
            value = self._enum(values)
        setattr(namespace, self.dest, value)


class VerboseAction(argparse.Action):
    """`--verbose [LEVEL [FILE]]`: sets the console level, or collects (level, file) pairs."""

    LEVELS = ("DEBUG", "DETAIL", "INFO", "WARNING", "ERROR", "CRITICAL")

    def __call__(self, parser, namespace, values, option_string=None):
        values = list(values) or ["DEBUG"]
        level = values[0].upper()
        if level not in self.LEVELS:
            parser.error(f"--verbose: unknown level {values[0]!r} (choose from {', '.join(self.LEVELS)})")
        if len(values) > 2:
            parser.error("--verbose takes a level and a file at most")
        if len(values) == 1:
            namespace.verbose = level
        else:
            namespace.log_files = [*getattr(namespace, "log_files", []), (level, values[1])]


def directory(path: str) -> str:
    """An existing folder, as an absolute path."""
    if not os.path.isdir(path):
        raise argparse.ArgumentTypeError(f"{path!r} is not an existing folder")
    return os.path.abspath(path)


def cuda_devices(text: str) -> str:
    """Numbers of devices, or "all"."""
    if text.strip().lower() != "all" and not all(p.strip().isdigit() for p in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of device numbers, nor 'all'")
    return text


def port(text: str) -> int:
    """A TCP port; 0 lets the system choose."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 65535")
    return int(text)


def amount(text: str) -> float:
    """A number from 0 on that can be counted with, unlike nan and inf."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e12:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return number


def positive(text: str) -> int:
    """A whole number above 0."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return number


def retention(text: str) -> str:
    """How long, or how many, ended jobs are kept."""
    if not re.fullmatch(r"(\d{1,12}[smhdw]?|all)(,(\d{1,12}[smhdw]?|all))?", text.strip().lower()):
        raise argparse.ArgumentTypeError(f"{text!r} is no age (30d), number of jobs (5000), both (30d,5000), nor all")
    return text.strip().lower()


def file_limits(text: str) -> str:
    """Ages and sizes beyond which files are deleted."""
    for part in text.split(","):
        if not re.fullmatch(r"\s*\d+(\.\d+)?\s*(m|h|d|w|mb|gb|tb)\s*", part, re.IGNORECASE):
            raise argparse.ArgumentTypeError(f"{text!r} is no age (12h, 30d), no size (500MB, 20GB), nor both")
    return text


def base_path(text: str) -> str:
    """A path below which the server answers, with a slash in front; "" for none."""
    path = "/" + text.strip("/") if text.strip("/") else ""
    if not re.fullmatch(r"(/[A-Za-z0-9._~-]+)*", path) or "/." in path:
        raise argparse.ArgumentTypeError(f"{text!r} is not a path such as /comfy or /tools/comfy")
    return path
