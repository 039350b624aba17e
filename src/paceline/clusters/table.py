"""Reading one table of a description, key by key, with errors that say where."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.clusters.lines import find_lines, line_of
from paceline.errors import UsageError, unknown
from paceline.units import parse_bytes, parse_flops, parse_rate, parse_seconds

MOST = 10**15
"""The largest whole number that a description may state: no more is exact in what is computed of it."""


class Reader:
    """Hands out the values of one table; ``finish`` refuses the keys that nobody asked for.

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
        """The error for a value that breaks a rule."""
        return UsageError(f"{self.place(key)} = {value!r}: {rule}")

    def seconds(self, key: str, default: float) -> float:
        """A time with its unit."""
        return self._quantity(key, default, parse_seconds, "50 us")

    def rate(self, key: str, default: float) -> float:
        """A bandwidth with its unit, as bytes a second."""
        return self._quantity(key, default, parse_rate, "1 Gbit/s")

    def size(self, key: str, default: float) -> float:
        """A size with its unit, in bytes."""
        return self._quantity(key, default, parse_bytes, "25 MiB")

    def flops(self, key: str, default: float) -> float:
        """Operations a second with their unit."""
        return self._quantity(key, default, parse_flops, "1.87 TFLOP/s")

    def need(self, *examples: str) -> None:
        """Refuse a table without one of these keys; an example shows how each is written: ``batch = 32``."""
        for example in examples:
            key = example.partition(" ")[0]
            if key not in self.values:
                raise UsageError(f"{self.place(key)} is missing; add it, for example {example}")

    def whole(self, key: str, default: int, least: int = 0, most: int = MOST) -> int:
        """A whole number."""
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
        """A plain number."""
        value = self._take(key, default)
        try:
            if isinstance(value, bool):
                raise TypeError
            return float(value)
        except (TypeError, ValueError, OverflowError):
            raise self.wrong(key, value, "it must be a number, for example 1.5") from None

    def positive(self, key: str, default: float) -> float:
        """A plain number above 0."""
        number = self.number(key, default)
        if not 0 < number < float("inf"):
            raise self.wrong(key, self.values[key], "it must be more than 0, for example 1.5")
        return number

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of plain numbers; in an inline description they stand between slashes: 1/1.4/2."""
        value = self._take(key, [])
        pieces = value.split("/") if isinstance(value, str) else value
        try:
            if not isinstance(pieces, list) or any(isinstance(piece, bool) for piece in pieces):
                raise TypeError
            return tuple(float(piece) for piece in pieces)
        except (TypeError, ValueError, OverflowError):
            raise self.wrong(key, value, "it must be a list of numbers, for example [1, 1.4, 2]") from None

    def word(self, key: str, default: str) -> str:
        """A name."""
        value = self._take(key, default)
        if not isinstance(value, str) or not value:
            raise self.wrong(key, value, "it must be a name in quotes")
        return value

    def words(self, key: str, default: Sequence[str]) -> Sequence[str]:
        """A list of names."""
        value = self._take(key, default)
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise self.wrong(key, value, 'it must be a list of names, for example ["a", "b"]')
        return value

    def table(self, key: str) -> "Reader":
        """A table below this one; an empty one where it is not there."""
        value = self._take(key, {})
        if not isinstance(value, Mapping):
            raise self.wrong(key, value, f"it must be a table; write [{key}] and its keys below")
        return Reader(self.where, f"{self.path}{key}.", value, self.text)

    def tables(self, key: str) -> list["Reader"]:
        """A list of tables below this one."""
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
        """Refuse a key that nobody asked for, with the nearest that there is."""
        for key in self.values:
            if key not in self._known:
                mistake = unknown(
                    "key", f"{self.path}{key}", [f"{self.path}{known}" for known in self._known]
                )
                raise UsageError(f"{self.spot(key)}: {mistake}")

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
        except UsageError as mistake:
            raise UsageError(f"{self.place(key)}: {mistake}") from mistake
