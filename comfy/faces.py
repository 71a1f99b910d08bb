"""How a class or module of ours appears under the name and constructor that node packs know.

Packs construct, subclass, `isinstance` and patch classes of their host. Where our constructor differs (a
configuration object instead of twenty numbers), a face adds the known one and is otherwise the class itself.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class Face(type):
    """Metaclass of a subclass that only adds another constructor to its base. Mark it with `face = True`.

    Instances of the base count as instances of the face, subclasses of the base as subclasses, and what is assigned
    to the face goes to the base: a pack that replaces `forward` replaces it for all.
    """

    def _base(cls) -> type | None:
        return cls.__bases__[0] if cls.__dict__.get("face") else None

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls._base() or ()) or super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        base = cls._base()
        return (base is not None and issubclass(subclass, base)) or super().__subclasscheck__(subclass)

    def __setattr__(cls, name: str, value: Any) -> None:
        base = cls._base()
        if base is not None and name not in cls.__dict__ and not name.startswith("__"):
            setattr(base, name, value)
        else:
            super().__setattr__(name, value)


def mirror(module_name: str, target: ModuleType) -> None:
    """Make a module show what `target` has, beside what it defines itself.

    Names are looked up in `target` when they are used, and what a pack assigns to the module under a name that
    `target` has is assigned to `target`, where our own code looks it up; deleting the name takes that back.
    """
    originals: dict[str, Any] = {}

    class Mirror(ModuleType):
        def __getattr__(self, name: str) -> Any:
            try:
                return getattr(target, name)
            except AttributeError:
                raise AttributeError(f"module {module_name!r} has no attribute {name!r}") from None

        def __setattr__(self, name: str, value: Any) -> None:
            if name not in self.__dict__ and not name.startswith("__") and hasattr(target, name):
                originals.setdefault(name, getattr(target, name))
                setattr(target, name, value)
            else:
                super().__setattr__(name, value)

        def __delattr__(self, name: str) -> None:
            if name in originals:
                setattr(target, name, originals.pop(name))
            else:
                super().__delattr__(name)

        def __dir__(self) -> list[str]:
            return sorted({*super().__dir__(), *(n for n in dir(target) if not n.startswith("__"))})

    sys.modules[module_name].__class__ = Mirror
