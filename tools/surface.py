"""Compares the names that custom node packs import from their host with what this program has.

    python tools/surface.py [--packs N]

A list of names (`tests/data/surface/*.json`) says of each: how many of 43 widely used packs use it, what it is, and
its parameters. A name fits if it exists, is of that kind, and can be called the way the list says: the same
parameters under the same names in the same places, optional ones optional, and nothing else required.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
DATA = REPO / "tests" / "data" / "surface"
INSTANCE = "server.PromptServer.instance"
_TYPES = {"int": int, "str": str, "bool": bool, "list": list, "dict": dict, "set": (set, frozenset)}


class NotThere(LookupError):
    """A name does not exist; the message says which part of it."""


@dataclass(frozen=True)
class Name:
    """One name of the list.

    packs: how many packs use it.
    kind: `function`, `class`, a type of values such as `int`, or anything else, which is then not compared.
    parameters: `a` required, `a=` optional, `*a` and `**a` the rest, `kw:a` by name only, `...` more follow; None if
        the list does not say.
    value: what a constant is equal to, or what a list or set contains. `keys`: the keys a dict has.
    """

    name: str
    packs: int
    kind: str = "?"
    parameters: list[str] | None = None
    value: Any = None
    keys: tuple[str, ...] = ()
    patched: int = 0

    def problem(self) -> str | None:
        """What is wrong with our side of the name; None if it fits."""
        try:
            found = resolve(self.name)
        except NotThere as error:
            return str(error)
        return _kind_problem(self, found) or _value_problem(self, found) or _parameter_problem(self, found)


def read_names(file: str = "names.json") -> list[Name]:
    """The names of one list, most used first."""
    rows = json.loads((DATA / file).read_text(encoding="utf-8"))
    return [Name(**{**row, "keys": tuple(row.get("keys", ()))}) for row in rows]


def resolve(name: str) -> Any:
    """The object behind a dotted name: the longest part that is a module, then attributes.

    Raises NotThere. Anything else that an import raises is raised: a broken module is no missing module.
    """
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module_name = ".".join(parts[:length])
        try:
            found: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise
            continue
        for index in range(length, len(parts)):
            try:
                found = getattr(found, parts[index])
            except AttributeError:
                raise NotThere(f"{'.'.join(parts[:index])} has no {parts[index]}") from None
        return found
    raise NotThere(f"no module {parts[0]}")


def _kind_problem(name: Name, found: Any) -> str | None:
    if name.kind == "class":
        return None if isinstance(found, type) else f"is a {type(found).__name__}, expected a class"
    if name.kind == "function":
        return None if callable(found) else f"is a {type(found).__name__}, expected a function"
    expected = _TYPES.get(name.kind)
    if expected is not None and not isinstance(found, expected):
        return f"is a {type(found).__name__}, expected a {name.kind}"
    return None


def _value_problem(name: Name, found: Any) -> str | None:
    missing = [key for key in name.keys if key not in found]
    if missing:
        return f"has no {', '.join(missing)}"
    if name.value is None:
        return None
    if isinstance(name.value, list):
        missing = [repr(item) for item in name.value if item not in found]
        return f"does not contain {', '.join(missing)}" if missing else None
    return None if found == name.value else f"is {found!r}, expected {name.value!r}"


def _parameter_problem(name: Name, found: Any) -> str | None:
    if name.parameters is None:
        return None
    try:
        ours = list(inspect.signature(found).parameters.values())
    except (TypeError, ValueError):
        return "has no signature that can be read"
    if ours and ours[0].name == "self" and not isinstance(found, type):
        ours = ours[1:]  # a method looked up on its class
    return parameter_problem(name.parameters, ours)


def parameter_problem(listed: Iterable[str], ours: list[inspect.Parameter]) -> str | None:
    """Why a call in the listed way could fail with our parameters; None if it cannot."""
    p = inspect.Parameter
    places = [q for q in ours if q.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_name = {q.name: q for q in ours if q.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    any_place = any(q.kind is p.VAR_POSITIONAL for q in ours)
    any_name = any(q.kind is p.VAR_KEYWORD for q in ours)
    named: set[str] = set()
    place, open_end = 0, False
    for item in listed:
        if item == "...":
            open_end = True
        elif item.startswith("**"):
            if not any_name:
                return f"takes no {item}"
        elif item.startswith("*"):
            if not any_place:
                return f"takes no {item}"
        else:
            keyword_only = item.startswith("kw:")
            optional = item.endswith("=")
            wanted = item.removeprefix("kw:").removesuffix("=")
            named.add(wanted)
            if wanted not in by_name and not any_name:
                return f"has no parameter {wanted}"
            if not keyword_only:
                in_place = places[place].name if place < len(places) else None
                if in_place != wanted and not (in_place is None and any_place):
                    return f"takes {in_place or 'nothing'} in place {place + 1}, expected {wanted}"
                place += 1
            if optional and wanted in by_name and by_name[wanted].default is p.empty:
                return f"requires {wanted}"
    required = [
        q.name
        for q in ours
        if q.default is p.empty and q.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and q.name not in named
    ]
    return f"requires {', '.join(required)}" if required and not open_end else None


def make_instance() -> None:
    """Make the server object that `server.PromptServer.instance` names; it does not listen."""
    import execution
    from server import PromptServer

    if not hasattr(PromptServer, "instance"):
        execution.PromptQueue(PromptServer(asyncio.new_event_loop()))


def problems(names: Iterable[Name]) -> dict[str, str]:
    """Name -> what is wrong, for those that do not fit."""
    return {name.name: problem for name in names if (problem := name.problem())}


def main(arguments: list[str] | None = None) -> int:
    """Print the names that do not fit; returns 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packs", type=int, default=3, help="only names that so many packs use (default: %(default)s)")
    options = parser.parse_args(arguments)
    sys.path[:0] = [str(REPO)]
    import nodes  # noqa: F401  (packs are imported when the built-in nodes are there)

    make_instance()
    names = [n for file in ("names.json", "methods.json") for n in read_names(file) if n.packs >= options.packs]
    found = problems(names)
    for name in names:
        if name.name in found:
            print(f"{name.packs:3} packs  {name.name}: {found[name.name]}")
    print(f"{len(names) - len(found)} of {len(names)} names fit")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
