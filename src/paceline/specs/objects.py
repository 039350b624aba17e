"""Objects where a spec goes: a strategy, codec, model or optimizer that was made in Python already."""

import dataclasses
import sys
from functools import partial
from typing import Any, Self

from paceline.errors import UsageError


class ObjectSpec(str):
    """A spec that no other process can read: its text is for people, and what it names is the object itself."""

    made: Any

    @classmethod
    def of(cls, thing: Any, text: str = "") -> Self:
        """``text`` is for people; without it, the class with its settings."""
        spec = cls(text or _shown(thing))
        spec.made = thing
        return spec

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


def _shown(thing: Any) -> str:
    """The class with its settings, "Baton(period=4)"; of a function or a class, its name."""
    if isinstance(thing, partial):
        return _shown(thing.func)
    if isinstance(thing, type) or not dataclasses.is_dataclass(thing):
        return str(getattr(thing, "__qualname__", type(thing).__name__))
    settings = ", ".join(f"{field.name}={getattr(thing, field.name)}" for field in dataclasses.fields(thing))
    return f"{type(thing).__name__}({settings})"


def path_of(thing: Any) -> str | None:
    """The import path of a class or function; None where another process would not find it."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if module in (None, "__main__", "__mp_main__") or name is None or "." in name:
        return None
    return f"{module}:{name}" if getattr(sys.modules.get(module), name, None) is thing else None


def importable(spec: str, kind: str) -> str:
    """The spec, for another process; an object that only this one has is refused."""
    if isinstance(spec, ObjectSpec):
        raise UsageError(
            f"{kind} {spec} is an object of this process, and worker processes import what they run by its name: put "
            "its class, or the function that makes it, at the top of a file that can be imported (a notebook and "
            "__main__ cannot) and give that; predict and simulate take it as it is"
        )
    return spec
