"""Short specs with named settings, such as ``local-sgd:period=16``, made into the object they name.

A table maps each name to an import string ("package.module:Class"); a user's own class is named by its import path,
``my_file.py:Baton:period=4`` or ``my_package.module:Baton:period=4``. The class is a keyword-only dataclass whose
fields are the settings; a type with a classmethod ``parse`` reads itself from text, and a ``Range`` or a ``Literal``
says what is allowed. Nothing is imported until it is built.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, Literal, get_args, get_origin, get_type_hints

from paceline.errors import ParseError, UsageError, raised, unknown
from paceline.specs.objects import ObjectSpec as ObjectSpec
from paceline.specs.objects import importable as importable
from paceline.specs.objects import path_of
from paceline.specs.ranges import out_of_range, union_members
from paceline.specs.source import describe as describe
from paceline.specs.source import load as load

Table = Mapping[str, str]

MEMBERS: Mapping[str, tuple[str, ...]] = {
    "strategy": ("served", "sync_point", "worker", "central"),
    "codec": ("encode", "decode", "reduce"),
    "data": ("load",),
    "optimizer": ("__call__",),
    "schedule": ("__call__",),
}
"""What a class of each kind must have; a model may be any class or function that makes an ``nn.Module``."""

_IMPORT_PATH = re.compile(r"((?:[^:]+\.py|[A-Za-z_][\w.]*):[A-Za-z_]\w*)(?::(.*))?", re.DOTALL)


def split(text: str, table: Table) -> tuple[str, dict[str, str]]:
    """Take "name:key=value,key=value" apart; the name is one of the table or an import path."""
    if isinstance(text, ObjectSpec):
        return text, {}
    name, colon, rest = text.strip().partition(":")
    if name not in table and (found := _IMPORT_PATH.fullmatch(text.strip())):
        name, rest = found[1], found[2] or ""
        colon = rest
    settings: dict[str, str] = {}
    for part in (piece.strip() for piece in rest.split(",") if colon):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key:
            raise UsageError(f"{part!r} in {text!r} is not a setting: write {name}:key=value,key=value")
        if key in settings:
            raise UsageError(f"{key!r} is set twice in {text!r}; set it once")
        settings[key] = value
    return name, settings


def short_name(text: str, table: Table) -> str:
    """The name without settings; of an import path, the class's."""
    if isinstance(text, ObjectSpec):
        return text.partition("(")[0]
    return split(text, table)[0].rpartition(":")[2]


def import_path(text: str, table: Table) -> str | None:
    """The import path in a spec; None where its name is in the table."""
    name = split(text, table)[0]
    return name if ":" in name and not isinstance(name, ObjectSpec) else None


def with_setting(text: str, table: Table, key: str, value: str) -> str:
    name, settings = split(text, table)
    if key in settings:
        raise UsageError(f"{text!r} sets {key} already, so {key}={value} has no place; leave one out")
    return _join(name, settings | {key: value})


def with_values(text: str, table: Table, values: Mapping[str, Any]) -> str:
    """The spec with these settings, in place of what it says of them."""
    name, settings = split(text, table)
    return _join(name, {key.replace("-", "_"): value for key, value in settings.items()} | dict(values))


def find(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def check(text: str, table: Table, kind: str) -> None:
    """Refuse an unknown name, or an unknown setting of what ships, without importing it."""
    if isinstance(text, ObjectSpec):
        _checked_object(text, kind)
        return
    name, settings = _look_up(text, table, kind)
    if name in table and settings:
        _check_settings(settings, [setting.name for setting in describe(table[name])[1]], name, kind)


def build(text: str, table: Table, kind: str) -> Any:
    make = factory(text, table, kind)
    try:
        return make()
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"{kind} {text!r}: {error}") from error
    except Exception as error:
        if import_path(text, table) is None:
            raise
        raise UsageError(f"{kind} {text!r} raised {raised(error)}") from error


def factory(text: str, table: Table, kind: str) -> Callable[[], Any]:
    """What makes the object that a spec names, with its settings filled in."""
    if isinstance(text, ObjectSpec):
        made = _checked_object(text, kind)
        return lambda: made
    name, settings = _look_up(text, table, kind)
    target = find(table[name]) if name in table else _checked(load(name, kind), name, kind)
    if not settings:
        return target if callable(target) else lambda: target
    known = _parameters(target)
    _check_settings(settings, known, name, kind)
    values = {}
    for key, value in settings.items():
        field = key.replace("-", "_")
        try:
            values[field] = _convert(value, known[field], f"{key} of {name!r}")
        except UsageError as mistake:
            if repr(name) in str(mistake):
                raise
            raise UsageError(f"{kind} {text!r}: {mistake}") from mistake
        if wrong := out_of_range(values[field], known[field]):
            raise UsageError(f"{kind} {text!r}: {key}={value} is {wrong}")
    return partial(target, **values)


def spec_of(thing: Any, table: Table, kind: str) -> str:
    """What names ``thing`` where a spec goes: text stays, an object becomes the spec that makes it again.

    Where no text does, because its class is in no file that can be imported or a setting is not to be written as
    text, it becomes an ``ObjectSpec``, which only this process understands.
    """
    if isinstance(thing, str):
        return thing
    if kind == "model" and isinstance(
        getattr(thing, "name", None), str
    ):  # a job, or a step that can be traced
        return ObjectSpec.of(thing, thing.name)
    settled = dataclasses.is_dataclass(thing) and not isinstance(thing, type)
    path = path_of(type(thing) if settled else thing)
    if path is not None and settled:
        text = show(next((name for name, target in table.items() if target == path), path), thing)
        with suppress(UsageError):
            if build(text, table, kind) == thing:
                return shorten(text, table)
    elif path is not None and kind not in MEMBERS:
        return path
    spec = ObjectSpec.of(thing)
    check(spec, table, kind)
    return spec


def _look_up(text: str, table: Table, kind: str) -> tuple[str, dict[str, str]]:
    name, settings = split(text, table)
    if name.endswith(".py"):
        raise UsageError(f"{kind} {text!r} names a file and no class in it; write {name}:Class")
    if name not in table and ":" not in name:
        raise unknown(kind, name, table, see=f"paceline {list_command(kind)}")
    return name, settings


def _check_settings(
    settings: Mapping[str, str], known: Mapping[str, Any] | list[str], name: str, kind: str
) -> None:
    for key in settings:
        if key.replace("-", "_") not in known:
            raise unknown("setting", key, known, of=f" of {kind} {name!r}")


def _checked(target: Any, name: str, kind: str) -> Any:
    if kind not in MEMBERS:
        return target
    if not (isinstance(target, type) and dataclasses.is_dataclass(target)):
        raise UsageError(
            f"{kind} {name} is not a dataclass; write @dataclass(frozen=True, kw_only=True) above its class"
        )
    return _check_members(target, name, kind)


def _checked_object(spec: ObjectSpec, kind: str) -> Any:
    called = MEMBERS.get(kind) == ("__call__",) and callable(spec.made)  # a class is called, too
    return spec.made if called else _check_members(spec.made, spec, kind)


def _check_members(target: Any, name: str, kind: str) -> Any:
    missing = [member for member in MEMBERS.get(kind, ()) if member not in dir(target)]
    missing = [*missing, *sorted(getattr(target, "__abstractmethods__", ()))]
    if missing:
        base = "; define it"
        if kind in ("strategy", "codec"):
            base = f": inherit from paceline.{kind.title()} and define the rest"
        raise UsageError(f"{kind} {name} has no {' and no '.join(missing)}{base}")
    return target


def list_command(kind: str) -> str:
    return {"strategy": "strategies", "data": "data"}.get(kind, f"{kind}s")


def show(name: str, thing: Any) -> str:
    """The spec that would make ``thing`` again, every setting named but those that have no value."""
    settings = {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)}
    return _join(name, {key: value for key, value in settings.items() if value is not None})


def shorten(text: str, table: Table) -> str:
    """The spec without the settings that have their defaults."""
    name, settings = split(text, table)
    if name not in table:
        return text
    defaults = {setting.name: setting.default for setting in describe(table[name])[1]}
    return _join(name, {key: value for key, value in settings.items() if defaults.get(key) != value})


def _join(name: str, settings: Mapping[str, Any]) -> str:
    return f"{name}:{','.join(f'{key}={value}' for key, value in settings.items())}" if settings else name


def _parameters(target: Any) -> dict[str, Any]:
    if not callable(target):
        return {}
    hints = get_type_hints(target, include_extras=True)
    if dataclasses.is_dataclass(target):
        return {field.name: hints[field.name] for field in dataclasses.fields(target) if field.init}
    if isinstance(target, type):
        hints = get_type_hints(inspect.getattr_static(target, "__init__"), include_extras=True)
    named = (one for one in inspect.signature(target).parameters.values() if one.kind not in (2, 4))
    usual = {one.name: str if one.default in (one.empty, None) else type(one.default) for one in named}
    return {name: hints.get(name, kind) for name, kind in usual.items()}


_BOOLEANS = {"true": True, "yes": True, "false": False, "no": False}
_WORDS = {int: "a whole number", float: "a number", bool: "true or false"}


def _without_range(hint: Any) -> Any:
    return hint.__origin__ if hasattr(hint, "__metadata__") else hint


def _convert(text: str, hint: Any, where: str) -> Any:
    kinds = [_without_range(one) for one in union_members(_without_range(hint))]
    choices = {str(one): one for kind in kinds if get_origin(kind) is Literal for one in get_args(kind)}
    others = [kind for kind in kinds if get_origin(kind) is not Literal]
    if text in choices or not others:
        return choices.get(text, text)  # an unknown one is out of range
    mistakes = []
    for one in others:
        try:
            if one is bool:
                return _BOOLEANS[text.lower()]
            return one.parse(text) if hasattr(one, "parse") else one(text)
        except ParseError as mistake:
            mistakes.append(str(mistake))
        except UsageError:
            raise
        except (ValueError, TypeError, KeyError):
            needed = _WORDS.get(one, f"a {getattr(one, '__name__', one)}")
            mistakes.append(f"{text!r} is not a value for {where}: it must be {needed}")
    raise UsageError("; or ".join([*mistakes, *choices]))
