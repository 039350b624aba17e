"""Reading a TOML file, or one line of settings, key by key, with errors that name the file, the line and the key."""

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.errors import UsageError, unknown
from paceline.units import parse_bytes, parse_flops, parse_rate, parse_seconds

MOST = 10**15
"""The largest whole number that a description may state: larger ones are not exact in what is computed of them."""

LONGEST = 400
"""Lines of one value that are looked through; behind a longer one, lines stay unknown."""


def read_toml(path: Path, what: str) -> "Reader":
    """The whole of a TOML file; a UsageError where it cannot be read."""
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
        """The file and, where there is one, the line of a key or of the table itself."""
        line = line_of(f"{self.path}{key}".rstrip("."), find_lines(self.text))
        return f"{self.where}, line {line}" if line else self.where

    def place(self, key: str) -> str:
        """The file, the line and the key."""
        return f"{self.spot(key)}: {self.path}{key}"

    def wrong(self, key: str, value: object, rule: str) -> UsageError:
        return UsageError(f"{self.place(key)} = {value!r}: {rule}")

    def seconds(self, key: str, default: float) -> float:
        return self._quantity(key, default, parse_seconds, "50 us")

    def rate(self, key: str, default: float) -> float:
        """A bandwidth, as bytes a second."""
        return self._quantity(key, default, parse_rate, "1 Gbit/s")

    def size(self, key: str, default: float) -> float:
        return self._quantity(key, default, parse_bytes, "25 MiB")

    def flops(self, key: str, default: float) -> float:
        return self._quantity(key, default, parse_flops, "1.87 TFLOP/s")

    def need(self, *examples: str) -> None:
        """Refuse a table without one of these keys; an example shows how each is written: ``batch = 32``."""
        for example in examples:
            key = example.partition(" ")[0]
            if key not in self.values:
                raise UsageError(f"{self.place(key)} is missing; add it, for example {example}")

    def whole(self, key: str, default: int, least: int = 0, most: int = MOST) -> int:
        value = self._take(key, default)
        try:
            number = int(value) if isinstance(value, str) else value
        except ValueError:
            number = None
        if type(number) is not int or number < least:
            raise self.wrong(key, value, f"it must be a whole number, {least} or more")
        if number > most:
            raise UsageError(f"{self.place(key)} is too large: it must be at most {most:,}")
        return number

    def number(self, key: str, default: float) -> float:
        value = self._take(key, default)
        try:
            if isinstance(value, bool):
                raise TypeError
            return float(value)
        except (TypeError, ValueError, OverflowError):
            raise self.wrong(key, value, "it must be a number, for example 1.5") from None

    def positive(self, key: str, default: float) -> float:
        number = self.number(key, default)
        if not 0 < number < float("inf"):
            raise self.wrong(key, self.values[key], "it must be more than 0, for example 1.5")
        return number

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of numbers; in an inline description they stand between slashes: 1/1.4/2."""
        value = self._take(key, [])
        pieces = value.split("/") if isinstance(value, str) else value
        try:
            if not isinstance(pieces, list) or any(isinstance(piece, bool) for piece in pieces):
                raise TypeError
            return tuple(float(piece) for piece in pieces)
        except (TypeError, ValueError, OverflowError):
            raise self.wrong(key, value, "it must be a list of numbers, for example [1, 1.4, 2]") from None

    def word(self, key: str, default: str) -> str:
        value = self._take(key, default)
        if not isinstance(value, str) or not value:
            raise self.wrong(key, value, "it must be a name in quotes")
        return value

    def words(self, key: str, default: Sequence[str]) -> Sequence[str]:
        value = self._take(key, default)
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise self.wrong(key, value, 'it must be a list of names, for example ["a", "b"]')
        return value

    def table(self, key: str) -> "Reader":
        """A table below this one; an empty one where it is missing."""
        value = self._take(key, {})
        if not isinstance(value, Mapping):
            raise self.wrong(key, value, f"it must be a table; write [{key}] and its keys below")
        return Reader(self.where, f"{self.path}{key}.", value, self.text)

    def tables(self, key: str) -> list["Reader"]:
        value = self._take(key, [])
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
            raise self.wrong(key, value, f"it must be a list of tables; write [[{key}]] and its keys below")
        return [
            Reader(self.where, f"{self.path}{key}[{index}].", item, self.text)
            for index, item in enumerate(value)
        ]

    def items(self, key: str) -> list[tuple["Reader", str]]:
        """The items of a list, each as the only key of a table of its own."""
        value = self._take(key, [])
        if not isinstance(value, list):
            raise self.wrong(key, value, "it must be a list, in square brackets")
        place = f"{self.path}{key}["
        return [
            (Reader(self.where, place, {f"{index}]": item}, self.text), f"{index}]")
            for index, item in enumerate(value)
        ]

    def finish(self) -> None:
        """Refuse a key that was not asked for, with the nearest that there is."""
        for key in self.values:
            if key not in self._known:
                error = unknown("key", f"{self.path}{key}", [f"{self.path}{known}" for known in self._known])
                raise UsageError(f"{self.spot(key)}: {error}")

    def _take(self, key: str, default: Any) -> Any:
        self._known[key] = None
        return self.values.get(key, default)

    def _quantity(self, key: str, default: float, parse: Callable[[str], float], example: str) -> float:
        value = self._take(key, None)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(key, value, f"write the unit, in quotes, for example {example!r}")
        try:
            return parse(value)
        except UsageError as error:
            raise UsageError(f"{self.place(key)}: {error}") from error


def find_lines(text: str) -> Mapping[str, int]:
    """The line of every table and key of a valid document, by path: "hosts[0]", "hosts[0].bandwidth".

    The parser of the standard library does not say them.
    """
    found: dict[str, int] = {}
    tables: dict[str, int] = {}
    here = ""
    for number, statement, parsed in _statements(text):
        if statement.startswith("["):
            here = _enter(parsed, tables, many=statement.startswith("[["))
            found.setdefault(here, number)
        else:
            for path in _paths(here, parsed):
                found.setdefault(path, number)
    return found


def line_of(path: str, lines: Mapping[str, int]) -> int | None:
    """The line of a path, or of the nearest table around it."""
    while path and path not in lines:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return lines.get(path)


def _statements(text: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Each statement with the number of its first line; a value over several lines ends where it can be read."""
    lines = text.split("\n")  # other line breaks may stand in comments and strings
    start = 0
    while start < len(lines):
        statement, end = lines[start].strip(), start + 1
        if statement and not statement.startswith("#"):
            parsed = _read(statement)
            while parsed is None:
                if end == len(lines) or end - start == LONGEST:
                    return
                statement, end = f"{statement}\n{lines[end]}", end + 1
                parsed = _read(statement)
            yield start + 1, statement, parsed
        start = end


def _read(statement: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(statement)
    except tomllib.TOMLDecodeError:
        return None


def _enter(header: Any, tables: dict[str, int], many: bool) -> str:
    """The path of a [table], or of the next of [[tables]]; ``tables`` counts those, and the last one is meant."""
    path = ""
    while header:
        (key,), (header,) = header, header.values()
        path = f"{path}.{key}" if path else key
        last = not header or isinstance(header, list)
        header = [] if last else header
        if last and many:
            tables[path] = tables.get(path, 0) + 1
        if path in tables:
            path = f"{path}[{tables[path] - 1}]"
    return path


def _paths(around: str, value: Any) -> Iterator[str]:
    """Every key of a value, those of inline tables too."""
    if isinstance(value, dict):
        for key, inner in value.items():
            path = f"{around}.{key}" if around else key
            yield path
            yield from _paths(path, inner)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _paths(f"{around}[{index}]", inner)
