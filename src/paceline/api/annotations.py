"""What a function's annotations say of its arguments: which values they take, and what a value becomes."""

import collections.abc
import math
import numbers
import reprlib
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ForwardRef, Literal, Union, get_args, get_origin

from paceline.errors import ArgumentError

LONGEST = 160
"""Characters of a value that a sentence shows."""
WORDS: Mapping[Any, str] = {
    str: "text",
    Path: "a path",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
}
EXAMPLES: Mapping[str, str] = {
    "checkpoint_every": "'500 steps'",
    "cluster": "'hosts=4,bandwidth=1 Gbit/s,latency=50 us'",
    "evaluate_every": "'500 steps'",
    "hardware": "'a100:price=2.5,most=32'",
    "hosts": "[2, 2]",
    "input": "(3, 224, 224)",
    "loss": "nn.MSELoss()",
    "network": "'25gbit'",
    "slow": "{1: 2.5}",
    "times": "'latest'",
    "values": "[[5, 2], [3, 8]]",
}
"""Of arguments whose rule alone would not say how they are written."""
_SIMPLE = (str, bytes, bytearray, numbers.Number, list, tuple, set, frozenset, range)
_LISTS = (collections.abc.Sequence, collections.abc.Iterable)


class Unfit(Exception):
    """A value is none of those that an annotation takes."""


class _Unresolved(type):
    """Stands for a type that is imported for type checkers only: some object."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Unresolved(name, (), {})

    def __getitem__(cls, _: object) -> Any:
        return cls


class _Names(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        return _Unresolved(name, (), {})


class ShownValue:
    """A value as a sentence shows it: never a whole tensor or a long text."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __repr__(self) -> str:
        return shown(self._value)

    def __str__(self) -> str:
        return shown(self._value, str)


class _Short(reprlib.Repr):
    def repr_instance(self, x: Any, level: int) -> str:
        shape = getattr(x, "shape", ())
        if isinstance(shape, tuple) and shape:
            return f"<{type(x).__name__} of shape {tuple(shape)}>"
        text = super().repr_instance(x, level)
        return text if len(text) < LONGEST and "\n" not in text else f"<{type(x).__name__}>"


_SHORT = _Short()
_SHORT.maxstring = _SHORT.maxother = LONGEST
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 8


def shown(value: object, write: Callable[[object], str] = repr) -> str:
    try:
        text = write(value) if isinstance(value, str | Path) else _SHORT.repr(value)
    except ValueError:  # a whole number of thousands of digits
        text = f"<{type(value).__name__}>"
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}..."


def resolved(annotation: Any, names: Mapping[str, Any]) -> Any:
    """The annotation without text: names that cannot be found here stand for some object."""
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        here = {"Callable": Callable, "Iterable": Iterable, "Mapping": Mapping, "Sequence": Sequence}
        builtins = {"str": str, "int": int, "float": float, "bool": bool, "tuple": tuple, "list": list}
        annotation = eval(annotation, {"__builtins__": {}}, _Names({**builtins, **here, **names}))  # noqa: S307
    if get_origin(annotation) in (Union, types.UnionType):
        return Union[tuple(resolved(one, names) for one in get_args(annotation))]  # noqa: UP007
    return annotation


def converted(value: Any, annotation: Any) -> Any:
    """The value as the annotation has it: 1e6 is a whole number, 1 a number; else ``Unfit``."""
    kinds = _members(annotation)
    # A tensor is not looked into where an object may stand; and 8 is a whole number where that is allowed.
    for kind in sorted(kinds, key=lambda one: (not _is_object(one), one is float)):
        try:
            return _as(kind, value)
        except Unfit:
            continue
    raise Unfit


def check_value(name: str, value: Any, annotation: Any) -> Any:
    """The same, or an ``ArgumentError``."""
    try:
        return converted(value, annotation)
    except Unfit:
        raise ArgumentError(_sentence(name, value, annotation), **{name: ShownValue(value)}) from None


def needed(annotation: Any) -> str:
    """What an annotation takes, in words: "text or a list of whole numbers"."""
    words = list(dict.fromkeys(_words(one) for one in _members(annotation)))
    return " or ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def _sentence(name: str, value: Any, annotation: Any) -> str:
    kinds = _members(annotation)
    if isinstance(value, list | tuple | set | frozenset) and not value and any(map(_is_list, kinds)):
        return f"{{{name}}} is empty: name at least one"
    choices = [one for kind in kinds if get_origin(kind) is Literal for one in get_args(kind)]
    near = get_close_matches(value.lower(), choices, n=1, cutoff=0.5) if isinstance(value, str) else []
    more = f"; did you mean {near[0]!r}?" if near else ""
    if not near and name in EXAMPLES:
        more = f", such as {EXAMPLES[name]}"
    elif isinstance(value, str) and _is_number(value) and {int, float} & {*kinds}:
        more = "; leave out the quotes"
    return f"{{{name}}} must be {_escaped(needed(annotation) + more)}"


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _members(annotation: Any) -> list[Any]:
    kinds = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return [kind for kind in kinds if kind is not type(None)]


def _is_list(kind: Any) -> bool:
    return get_origin(kind) in _LISTS


def _is_object(kind: Any) -> bool:
    return isinstance(kind, type) and kind not in WORDS and get_origin(kind) is None


def _as(kind: Any, value: Any) -> Any:
    origin = get_origin(kind)
    if kind is Any:
        return value
    if kind is int or kind is float:
        return _number(kind, value)
    if origin is Literal:
        return _if(
            any(value is one or (isinstance(value, str) and value == one) for one in get_args(kind)), value
        )
    if _is_list(kind):
        return _list(value, get_args(kind)[0])
    if origin is collections.abc.Mapping:
        return _dict(value, *get_args(kind))
    if origin is collections.abc.Callable:
        return _if(callable(value), value)
    if origin is tuple:  # a batch, whose elements may be anything
        return _if(isinstance(value, tuple | list), value)
    if kind in WORDS:
        return _if(isinstance(value, kind), value)
    return _if(value is not None and not isinstance(value, _SIMPLE), value)  # some object


def _if(fits: bool, value: Any) -> Any:
    if not fits:
        raise Unfit
    return value


def _number(kind: type, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise Unfit
    try:
        number = float(value)
    except OverflowError:
        raise Unfit from None
    if kind is float:
        return _if(not math.isnan(number), number)
    if isinstance(value, numbers.Integral):
        return int(value)
    return int(_if(number.is_integer(), number))


def _list(value: Any, element: Any) -> list[Any]:
    if isinstance(value, str | bytes | bytearray | Mapping) or not isinstance(value, Iterable):
        raise Unfit
    try:
        values = value.tolist() if hasattr(value, "tolist") else value
        found = [converted(one, element) for one in values]
    except TypeError:  # a tensor of no dimension
        raise Unfit from None
    if not found:
        raise Unfit
    return found


def _dict(value: Any, key: Any, inner: Any) -> Any:
    if not isinstance(value, Mapping):
        raise Unfit
    if _is_object(inner):  # a batch by its keywords
        return value
    return {converted(one, key): converted(other, inner) for one, other in value.items()}


def _words(kind: Any) -> str:
    if kind in WORDS:
        return WORDS[kind]
    if get_origin(kind) is Literal:
        choices = [*map(repr, get_args(kind))]
        return " or ".join([", ".join(choices[:-1]), choices[-1]] if choices[1:] else choices)
    if _is_list(kind):
        return f"a list of {_several(get_args(kind)[0])}"
    if get_origin(kind) is collections.abc.Mapping:
        key, inner = get_args(kind)
        return "a dict" if _is_object(inner) else f"a dict of {_several(key)} to {_several(inner)}"
    if get_origin(kind) is collections.abc.Callable:
        return "a function"
    name = getattr(get_origin(kind) or kind, "__name__", str(kind))
    return {"tuple": "a batch", "StudyResult": "what load_run returned"}.get(name, f"an object ({name})")


def _several(annotation: Any) -> str:
    kinds = _members(annotation)
    plural = {int: "whole numbers", float: "numbers", str: "texts"}
    if len(kinds) == 1 and _is_list(kinds[0]):
        return f"lists of {_several(get_args(kinds[0])[0])}"
    return plural.get(kinds[0], "them") if len(kinds) == 1 else "them"
