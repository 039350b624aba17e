"""Whether a JSON document is of the types that a dataclass or a hint asks for."""

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


class WrongType(ValueError):
    """A value that is not of its type: the message says where it is."""


def check_type(value: Any, hint: Any, where: str) -> None:
    """Raise WrongType unless ``value``, read from JSON, is of the type ``hint``.

    A dataclass is a document of its fields. A whole number is a float as well; a bool is no number.
    """
    if is_dataclass(hint) and isinstance(hint, type):
        _check_fields(value, hint, where)
    elif not _matches(value, hint, where):
        raise WrongType(f"{where} is {value!r}")


def _check_fields(value: Any, kind: type, where: str) -> None:
    hints = get_type_hints(kind)
    names = {field.name for field in fields(kind)}
    if not isinstance(value, dict) or set(value) != names:
        raise WrongType(f"{where} does not hold {', '.join(sorted(names))}")
    for name in names:
        check_type(value[name], hints[name], f"{where}.{name}")


def _matches(value: Any, hint: Any, where: str) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is None or hint is type(None):
        return value is None
    if hint is float:
        return type(value) in (int, float)
    if hint in (int, str, bool, dict, list):
        return type(value) is hint
    if hint is Any:
        return True
    if origin is Literal:
        return value in inner and not isinstance(value, bool)
    if origin in (Union, types.UnionType):
        return any(_is(value, one, where) for one in inner)
    if origin in (tuple, list):
        return isinstance(value, list) and all(_is(one, inner[0], where) for one in value)
    assert origin in (dict, Mapping), f"{hint} is not known here"
    return isinstance(value, dict) and all(
        _is(key, inner[0], where) and _is(one, inner[1], where) for key, one in value.items()
    )


def _is(value: Any, hint: Any, where: str) -> bool:
    try:
        check_type(value, hint, where)
    except WrongType:
        return False
    return True
