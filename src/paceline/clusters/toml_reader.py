"""Reading a TOML file, or one line of settings, by the types of what it becomes; errors name file, line and key."""

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from paceline.errors import UsageError, unknown
from paceline.specs.ranges import at_least
from paceline.units import parse_bytes, parse_flops, parse_rate, parse_seconds

T = TypeVar("T")


class TextParser(NamedTuple):
    """How text becomes a value, and what is said where there is no text."""

    parse: Callable[[str], Any]
    otherwise: str


Seconds = Annotated[
    float, TextParser(parse_seconds, "write the unit, in quotes, for example '50 us'"), at_least(0)
]
Rate = Annotated[float, TextParser(parse_rate, "write the unit, in quotes, for example '1 Gbit/s'")]
Bytes = Annotated[float, TextParser(parse_bytes, "write the unit, in quotes, for example '25 MiB'")]
Flops = Annotated[float, TextParser(parse_flops, "write the unit, in quotes, for example '1.87 TFLOP/s'")]

MOST = 10**15
"""The largest whole number that a description may state: larger ones are not exact in what is computed of them."""
WholeNumber = Annotated[int, Meta(ge=0, le=MOST)]
Count = Annotated[int, Meta(ge=1, le=MOST), at_least(1)]
Number = Annotated[float, Meta(description="a number, for example 1.5")]
PositiveNumber = Annotated[float, Meta(gt=0, le=1e300, description="a number, more than 0, for example 1.5")]
Factor = Annotated[
    float,
    Meta(ge=1, le=1e300, description="a number, 1 or more: workers that share a host never compute faster"),
]
Name = Annotated[str, Meta(min_length=1, description="a name in quotes")]


def read_toml(path: Path, what: str) -> "Reader":
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"cannot read the {what} {str(path)!r}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # a bad byte or word, a number too long, brackets too deep
        raise UsageError(f"{path} is not TOML: {error}") from error
    return Reader(str(path), "", document, text)


class Reader:
    """Hands out the values of one table; ``finish`` refuses the keys that were not asked for.

    Numbers may be text, as they are in an inline description. ``text`` is the file's, for the lines of errors.
    """

    def __init__(self, where: str, path: str, values: Mapping[str, Any], text: str = "") -> None:
        self.where, self.path, self.values, self.text = where, path, values, text
        self._known: dict[str, None] = {}

    def spot(self, key: str = "") -> str:
        line = find_line(self.text, f"{self.path}{key}".rstrip("."))
        return f"{self.where}, line {line}" if line else self.where

    def place(self, key: str) -> str:
        return f"{self.spot(key)}: {self.path}{key}"

    def wrong(self, key: str, value: object, rule: str) -> UsageError:
        return UsageError(f"{self.place(key)} = {value!r}: {rule}")

    def need(self, *examples: str) -> None:
        """Refuse a table without one of these keys; an example shows how each is written: ``batch = 32``."""
        for example in examples:
            key = example.partition(" ")[0]
            if key not in self.values:
                raise UsageError(f"{self.place(key)} is missing; add it, for example {example}")

    def get(self, key: str, kind: Any, default: T) -> T:
        """The key's value as a ``kind``, one of the types above, a tuple or a choice of them."""
        return self._read(key, self.values[key], kind) if self._holds(key) else default

    def fill(self, kind: type[T], **given: Any) -> T:
        """The dataclass ``kind``: the fields that are not ``given`` are keys of this table, by their types."""
        for name, hint in get_type_hints(kind, include_extras=True).items():
            key = name.replace("_", "-")
            if name not in given and self._holds(key):
                given[name] = self._read(key, self.values[key], hint)
        try:
            return kind(**given)
        except UsageError as error:
            raise UsageError(f"{self.spot()}: {error}") from error

    def table(self, key: str) -> "Reader":
        kind = Annotated[dict[str, Any], Meta(description=f"a table; write [{key}] and its keys below")]
        return Reader(self.where, f"{self.path}{key}.", self.get(key, kind, {}), self.text)

    def tables(self, key: str) -> list["Reader"]:
        rule = f"a list of tables; write [[{key}]] and its keys below"
        kind = Annotated[list[dict[str, Any]], Meta(description=rule)]
        found: list[dict[str, Any]] = self.get(key, kind, [])
        places = (f"{self.path}{key}[{index}]." for index in range(len(found)))
        return [Reader(self.where, place, one, self.text) for place, one in zip(places, found, strict=True)]

    def only(self, kind: type[Any]) -> None:
        """Refuse every key that is no field of ``kind``, before its own rules miss the one that was meant."""
        for name in get_type_hints(kind):
            self._known[name.replace("_", "-")] = None
        self.finish()

    def finish(self) -> None:
        for key in self.values:
            if key not in self._known:
                error = unknown("key", f"{self.path}{key}", [f"{self.path}{known}" for known in self._known])
                raise UsageError(f"{self.spot(key)}: {error}")

    def _holds(self, key: str) -> bool:
        self._known[key] = None
        return key in self.values

    def _read(self, key: str, value: Any, kind: Any) -> Any:
        if get_origin(kind) is Union:  # with None, where the key is not there
            kind = get_args(kind)[0]
        if get_origin(kind) is tuple:
            return self._read_list(key, value, get_args(kind)[0])
        if get_origin(kind) is Literal:
            kind = Annotated[kind, Meta(description=" or ".join(get_args(kind)))]
        rule = get_args(kind)[1]
        if isinstance(rule, TextParser):
            return self._parse(key, value, rule)
        try:
            return msgspec.convert(value, kind, strict=False)
        except msgspec.ValidationError as error:
            if "<=" in str(error) and not rule.description:
                largest = f"{self.place(key)} is too large: it must be at most {rule.le:,}"
                raise UsageError(largest) from None
            words = rule.description or f"a whole number, {rule.ge} or more"
            raise self.wrong(key, value, f"it must be {words}") from None

    def _read_list(self, key: str, value: Any, kind: Any) -> tuple[Any, ...]:
        """In an inline description, numbers stand between slashes: 1/1.4/2."""
        found = value.split("/") if isinstance(value, str) and get_args(kind)[0] is float else value
        if not isinstance(found, list):
            raise self.wrong(key, value, "it must be a list, in square brackets")
        return tuple(self._read(f"{key}[{place}]", one, kind) for place, one in enumerate(found))

    def _parse(self, key: str, value: Any, rule: TextParser) -> Any:
        if not isinstance(value, str):
            raise self.wrong(key, value, rule.otherwise)
        try:
            return rule.parse(value)
        except UsageError as error:
            raise UsageError(f"{self.place(key)}: {error}") from error


def find_line(text: str, path: str) -> int | None:
    """The line of a key, "hosts[0].bandwidth", or of the nearest table around it; the parser does not say it.

    Found where every key and every header is on a line of its own.
    """
    lines: dict[str, int] = {}
    seen: Counter[str] = Counter()
    table = ""
    for number, line in enumerate(text.split("\n"), start=1):
        if header := re.match(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]", line):
            table = f"{header[2]}[{seen[header[2]]}]" if header[1] == "[[" else header[2]
            seen[header[2]] += 1
            lines.setdefault(table, number)
        elif key := re.match(r"\s*([\w.-]+)\s*=", line):
            lines.setdefault(f"{table}.{key[1]}".lstrip("."), number)
    while path and path not in lines:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return lines.get(path)
