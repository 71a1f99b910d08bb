"""The names that packs import from their host: there, of the right kind, callable the way packs call them."""

from __future__ import annotations

import inspect
import types

import pytest

from tools import surface

MANY_PACKS = 3

NAMES = [
    name for file in ("names.json", "methods.json") for name in surface.read_names(file) if name.packs >= MANY_PACKS
]


def test_the_list_is_the_whole_list():
    assert len(surface.read_names()) == 299
    assert sum(name.packs >= MANY_PACKS for name in surface.read_names()) == 190


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.name)
def test_name(name):
    problem = name.problem()
    assert problem is None, f"{name.name}: {problem}"


# --- the comparison itself


def parameters(text: str) -> list[inspect.Parameter]:
    scope: dict = {}
    exec(f"def f{text}: pass", scope)
    return list(inspect.signature(scope["f"]).parameters.values())


@pytest.mark.parametrize(
    ("listed", "ours"),
    [
        ([], "()"),
        (["a", "b="], "(a, b=1)"),
        (["a", "b="], "(a, b=1, c=2)"),
        (["a", "b="], "(a=0, b=1)"),
        (["a"], "(*args, **kwargs)"),
        (["kw:a="], "(*, a=1)"),
        (["a", "..."], "(a, b)"),
        (["*args"], "(*other)"),
        (["**options"], "(**kwargs)"),
        (["a="], "(a=1, **kwargs)"),
    ],
)
def test_parameters_that_fit(listed, ours):
    assert surface.parameter_problem(listed, parameters(ours)) is None


@pytest.mark.parametrize(
    ("listed", "ours", "problem"),
    [
        (["a"], "()", "has no parameter a"),
        (["a", "b"], "(b, a)", "takes b in place 1, expected a"),
        (["a="], "(a)", "requires a"),
        (["a"], "(a, b)", "requires b"),
        (["a"], "(a, *, b)", "requires b"),
        (["a"], "(*, a)", "takes nothing in place 1, expected a"),
        (["**options"], "(a=1)", "takes no **options"),
        (["*args"], "(a=1)", "takes no *args"),
        (["a"], "(x, **kwargs)", "takes x in place 1, expected a"),
    ],
)
def test_parameters_that_do_not_fit(listed, ours, problem):
    assert surface.parameter_problem(listed, parameters(ours)) == problem


@pytest.fixture
def module(monkeypatch):
    made = types.ModuleType("surface_probe")
    made.number, made.items, made.function, made.table = 3, ["a"], len, {"k": 1}
    monkeypatch.setitem(surface.sys.modules, "surface_probe", made)
    return made


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (surface.Name("surface_probe.number", 1, "int", value=3), None),
        (surface.Name("surface_probe.number", 1, "int", value=4), "is 3, expected 4"),
        (surface.Name("surface_probe.number", 1, "str"), "is a int, expected a str"),
        (surface.Name("surface_probe.items", 1, "list", value=["a", "b"]), "does not contain 'b'"),
        (surface.Name("surface_probe.table", 1, "dict", keys=("k", "m")), "has no m"),
        (surface.Name("surface_probe.function", 1, "class"), "is a builtin_function_or_method, expected a class"),
        (surface.Name("surface_probe.nothing", 1), "surface_probe has no nothing"),
        (surface.Name("no_such_host.thing", 1), "no module no_such_host"),
    ],
)
def test_problems(module, name, problem):
    assert name.problem() == problem


def test_a_module_that_cannot_be_imported_is_not_taken_for_missing(tmp_path, monkeypatch):
    (tmp_path / "surface_broken.py").write_text("import no_such_library")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        surface.resolve("surface_broken.thing")
