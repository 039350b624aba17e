"""Short specs with named settings, such as ``local-sgd:period=16``, made into the object they name.

A table maps each name to an import string ("package.module:Class"); the class is a keyword-only dataclass
whose fields are the settings; a type with a classmethod ``parse`` reads itself from text. Nothing is imported until
it is asked for.
"""

import ast
import dataclasses
import inspect
import types
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Union, get_args, get_origin, get_type_hints

from paceline.errors import Mistake, Unreadable, unknown

Table = Mapping[str, str]


def split(text: str) -> tuple[str, dict[str, str]]:
    """Take "name:key=value,key=value" apart."""
    name, colon, rest = text.strip().partition(":")
    settings: dict[str, str] = {}
    for part in (piece.strip() for piece in rest.split(",") if colon):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise Mistake(f"{part!r} in {text!r} is not a setting: write {name}:key=value,key=value")
        if key.strip() in settings:
            raise Mistake(f"{key.strip()!r} is set twice in {text!r}; set it once")
        settings[key.strip()] = value.strip()
    return name, settings


def find(path: str) -> Any:
    """The object behind an import string of ours."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def build(text: str, table: Table, kind: str, **context: Any) -> Any:
    """Make the object that a spec names; ``context`` are arguments that no user sets."""
    name, settings = split(text)
    if name not in table:
        raise unknown(kind, name, table, see=f"paceline {list_command(kind)}")
    cls = find(table[name])
    hints = get_type_hints(cls)
    fields = {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.name not in context}
    values = dict(context)
    for key, value in settings.items():
        field = key.replace("-", "_")
        if field not in fields:
            raise unknown(f"setting of {kind} {name!r}", key, fields)
        values[field] = _convert(value, fields[field], f"{key} of {name!r}")
    try:
        return cls(**values)
    except Mistake:
        raise
    except ValueError as error:
        raise Mistake(f"{kind} {text!r}: {error}") from error


def list_command(kind: str) -> str:
    """The command that lists what there is of a kind."""
    return {"strategy": "strategies", "data": "data"}.get(kind, f"{kind}s")


def show(name: str, thing: Any) -> str:
    """The spec that would make ``thing`` again, every setting named."""
    settings = ",".join(f"{field.name}={getattr(thing, field.name)}" for field in dataclasses.fields(thing))
    return f"{name}:{settings}" if settings else name


def shorten(text: str, table: Table) -> str:
    """The spec without the settings that are as usual."""
    name, settings = split(text)
    if name not in table:
        return text
    usual = {field.name: _default(field) for field in dataclasses.fields(find(table[name]))}
    rest = ",".join(f"{key}={value}" for key, value in settings.items() if usual.get(key) != value)
    return f"{name}:{rest}" if rest else name


def _convert(text: str, kind: Any, where: str) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        return _convert_any(text, get_args(kind), where)
    if hasattr(kind, "parse"):
        return kind.parse(text)
    if kind is bool:
        if text.lower() not in ("true", "false", "yes", "no"):
            raise Unreadable(f"{text!r} is not a value for {where}: write true or false")
        return text.lower() in ("true", "yes")
    if kind is str:
        return text
    try:
        return kind(text)
    except ValueError:
        article = {"int": "a whole number", "float": "a number"}.get(kind.__name__, f"a {kind.__name__}")
        raise Unreadable(f"{text!r} is not a value for {where}: it must be {article}") from None


def _convert_any(text: str, kinds: tuple[Any, ...], where: str) -> Any:
    mistakes = []
    for kind in kinds:
        if kind is type(None):
            continue
        try:
            return _convert(text, kind, where)
        except Unreadable as mistake:
            mistakes.append(str(mistake))
    raise Mistake("; or ".join(mistakes))


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting as a list of plug-ins shows it."""

    name: str
    default: str
    help: str


def describe(path: str) -> tuple[str, list[Setting]]:
    """The first line of a plug-in's docstring, and its settings with their own docstrings."""
    cls = find(path)
    helps = _field_docstrings(cls)
    settings = [
        Setting(field.name, _default(field), helps.get(field.name, ""))
        for field in dataclasses.fields(cls)
        if field.init
    ]
    return (inspect.getdoc(cls) or "").partition("\n")[0], settings


def _default(field: "dataclasses.Field[Any]") -> str:
    if field.default is not dataclasses.MISSING:
        return str(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return str(field.default_factory())
    return ""


def _field_docstrings(cls: type) -> dict[str, str]:
    found = {}
    for base in reversed([base for base in cls.__mro__ if dataclasses.is_dataclass(base)]):
        (body,) = ast.parse(inspect.cleandoc("\n" + inspect.getsource(base))).body
        assert isinstance(body, ast.ClassDef)
        for line, following in zip(body.body, body.body[1:], strict=False):
            match line, following:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=text)):
                    found[name] = inspect.cleandoc(str(text))
    return found
