"""Short specs with named settings, such as ``local-sgd:period=16``, made into the object they name.

A table maps each name to an import string ("package.module:Class"); the class is a keyword-only dataclass
whose fields are the settings; a type with a classmethod ``parse`` reads itself from text. Nothing is imported until
it is asked for.
"""

import ast
import dataclasses
import inspect
import types
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from paceline.errors import ParseError, UsageError, unknown

Table = Mapping[str, str]


def split(text: str) -> tuple[str, dict[str, str]]:
    """Take "name:key=value,key=value" apart."""
    name, colon, rest = text.strip().partition(":")
    settings: dict[str, str] = {}
    for part in (piece.strip() for piece in rest.split(",") if colon):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{part!r} in {text!r} is not a setting: write {name}:key=value,key=value")
        if key.strip() in settings:
            raise UsageError(f"{key.strip()!r} is set twice in {text!r}; set it once")
        settings[key.strip()] = value.strip()
    return name, settings


def find(path: str) -> Any:
    """The object behind an import string of ours."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def check(text: str, table: Table, kind: str) -> None:
    """Refuse a spec whose name or settings there are not, without importing what it names."""
    name, settings = _look_up(text, table, kind)
    if settings:
        known = [setting.name for setting in describe(table[name])[1]]
        for key in settings:
            if key.replace("-", "_") not in known:
                raise unknown(f"setting of {kind} {name!r}", key, known)


def build(text: str, table: Table, kind: str, **context: Any) -> Any:
    """Make the object that a spec names; ``context`` are arguments that no user sets."""
    name, settings = _look_up(text, table, kind)
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
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"{kind} {text!r}: {error}") from error


def _look_up(text: str, table: Table, kind: str) -> tuple[str, dict[str, str]]:
    """Take a spec apart whose name is in the table."""
    name, settings = split(text)
    if name not in table:
        raise unknown(kind, name, table, see=f"paceline {list_command(kind)}")
    return name, settings


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
    usual = {setting.name: setting.default for setting in describe(table[name])[1]}
    rest = ",".join(f"{key}={value}" for key, value in settings.items() if usual.get(key) != value)
    return f"{name}:{rest}" if rest else name


def _convert(text: str, kind: Any, where: str) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        return _convert_any(text, get_args(kind), where)
    if hasattr(kind, "parse"):
        return kind.parse(text)
    if kind is bool:
        if text.lower() not in ("true", "false", "yes", "no"):
            raise ParseError(f"{text!r} is not a value for {where}: write true or false")
        return text.lower() in ("true", "yes")
    if kind is str:
        return text
    try:
        return kind(text)
    except ValueError:
        article = {"int": "a whole number", "float": "a number"}.get(kind.__name__, f"a {kind.__name__}")
        raise ParseError(f"{text!r} is not a value for {where}: it must be {article}") from None


def _convert_any(text: str, kinds: tuple[Any, ...], where: str) -> Any:
    mistakes = []
    for kind in kinds:
        if kind is type(None):
            continue
        try:
            return _convert(text, kind, where)
        except ParseError as mistake:
            mistakes.append(str(mistake))
    raise UsageError("; or ".join(mistakes))


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting as a list of plug-ins shows it."""

    name: str
    default: str
    help: str


def describe(path: str) -> tuple[str, list[Setting]]:
    """The first line of a plug-in's docstring, and its settings with their own docstrings.

    They are read from its source, because importing it may import torch.
    """
    line: str = ""
    settings: dict[str, Setting] = {}
    for node, names in _lineage(path):
        line = (ast.get_docstring(node) or line).partition("\n")[0]
        for field, following in pairwise([*node.body, ast.Pass()]):
            match field:
                case ast.AnnAssign(target=ast.Name(id=name)) if "ClassVar" not in ast.unparse(
                    field.annotation
                ):
                    told = _docstring(following) or (settings[name].help if name in settings else "")
                    settings[name] = Setting(name, _default(field.value, names), told)
    return line, list(settings.values())


def _lineage(path: str) -> Iterator[tuple[ast.ClassDef, Table]]:
    """A class after the classes of ours that it inherits from, each with where the names of its module come from."""
    module, _, name = path.partition(":")
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    names = {defined: f"{module}:{defined}" for defined in classes} | {
        alias.name: f"{node.module}:{alias.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("paceline.")
        for alias in node.names
    }
    for base in map(ast.unparse, classes[name].bases):
        if base in names:
            yield from _lineage(names[base])
    yield classes[name], names


def _default(value: ast.expr | None, names: Table) -> str:
    """A default as a spec has it: a literal, or a value of a type of ours."""
    if value is None:
        return ""
    used = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    return str(eval(ast.unparse(value), {name: find(names[name]) for name in used}))  # noqa: S307  our own source


def _docstring(node: ast.stmt) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return inspect.cleandoc(text)
    return ""
