"""On which line of a TOML file a key stands; the parser of the standard library does not say."""

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

_LONGEST = 400
"""Lines of one value that are looked through; behind a longer one, lines stay unknown."""


def find_lines(text: str) -> Mapping[str, int]:
    """The line of every table and key of a valid document, by path: "hosts[0]", "hosts[0].bandwidth"."""
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
                if end == len(lines) or end - start == _LONGEST:
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
