"""Reading a TOML file, or one line of settings, key by key, with errors that name the file, the line and the key."""

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from paceline.errors import UsageError, unknown
from paceline.units import parse_bytes, parse_flops, parse_rate, parse_seconds

MOST = 10**15
"""The largest whole number that a description may state: larger ones are not exact in what is computed of them."""


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

    def seconds(self, key: str, default: float) -> float:
        return self._quantity(key, default, parse_seconds, "50 us")

    def rate(self, key: str, default: float) -> float:
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
        rule = f"it must be a whole number, {least} or more"
        number: int = self._convert(key, default, int, rule)
        if number < least:
            raise self.wrong(key, self.values.get(key), rule)
        if number > most:
            raise UsageError(f"{self.place(key)} is too large: it must be at most {most:,}")
        return number

    def number(self, key: str, default: float) -> float:
        number: float = self._convert(key, default, float, "it must be a number, for example 1.5")
        return number

    def positive(self, key: str, default: float) -> float:
        number = self.number(key, default)
        if not 0 < number < float("inf"):
            raise self.wrong(key, self.values[key], "it must be more than 0, for example 1.5")
        return number

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of numbers; in an inline description they stand between slashes: 1/1.4/2."""
        rule = "it must be a list of numbers, for example [1, 1.4, 2]"
        value = self.values.get(key, [])
        pieces = value.split("/") if isinstance(value, str) else value
        numbers: tuple[float, ...] = self._convert(key, pieces, tuple[float, ...], rule, pieces)
        return numbers

    def word(self, key: str, default: str) -> str:
        word: str = self._convert(key, default, str, "it must be a name in quotes")
        if not word and key in self.values:
            raise self.wrong(key, word, "it must be a name in quotes")
        return word

    def words(self, key: str, default: Sequence[str]) -> Sequence[str]:
        rule = 'it must be a list of names, for example ["a", "b"]'
        words: list[str] = self._convert(key, default, list[str], rule)
        if not all(words):
            raise self.wrong(key, words, rule)
        return words

    def table(self, key: str) -> "Reader":
        rule = f"it must be a table; write [{key}] and its keys below"
        value = self._convert(key, {}, dict[str, Any], rule)
        return Reader(self.where, f"{self.path}{key}.", value, self.text)

    def tables(self, key: str) -> list["Reader"]:
        rule = f"it must be a list of tables; write [[{key}]] and its keys below"
        tables = enumerate(self._convert(key, [], list[dict[str, Any]], rule))
        return [Reader(self.where, f"{self.path}{key}[{index}].", item, self.text) for index, item in tables]

    def items(self, key: str) -> list[tuple["Reader", str]]:
        """The items of a list, each as the only key of a table of its own."""
        place, found = f"{self.path}{key}[", []
        for index, item in enumerate(
            self._convert(key, [], list[Any], "it must be a list, in square brackets")
        ):
            found.append((Reader(self.where, place, {f"{index}]": item}, self.text), f"{index}]"))
        return found

    def finish(self) -> None:
        for key in self.values:
            if key not in self._known:
                error = unknown("key", f"{self.path}{key}", [f"{self.path}{known}" for known in self._known])
                raise UsageError(f"{self.spot(key)}: {error}")

    def _convert(self, key: str, default: Any, kind: Any, rule: str, value: Any = None) -> Any:
        self._known[key] = None
        found = self.values.get(key, default)
        try:
            return msgspec.convert(found if value is None else value, kind, strict=False)
        except msgspec.ValidationError:
            raise self.wrong(key, found, rule) from None

    def _quantity(self, key: str, default: float, parse: Callable[[str], float], example: str) -> float:
        self._known[key] = None
        if key not in self.values:
            return default
        value = self.values[key]
        if not isinstance(value, str):
            raise self.wrong(key, value, f"write the unit, in quotes, for example {example!r}")
        try:
            return parse(value)
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
