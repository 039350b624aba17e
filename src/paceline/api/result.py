"""What every function of the API returns: a value that prints, converts and shows itself as the command does."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import import_module
from typing import Any, Generic, TypeVar

from paceline.errors import UsageError
from paceline.records.files import json_text

V_co = TypeVar("V_co", covariant=True)
MOST_COLUMNS, MOST_ROWS = 10, 50
"""Of the table that a notebook shows; ``rows`` has all."""
HEAD = 3
"""Lines of the text above that table, at most: the answer comes first."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StudyResult(Generic[V_co]):
    """An answer: ``print`` shows it as the command does, and a notebook as a table."""

    value: V_co
    """What was found, as a typed value."""
    rows: Sequence[Mapping[str, Any]]
    """The table behind the answer: a flat dictionary a row, in seconds, bytes, bytes a second."""
    document: Callable[[], Mapping[str, Any]] = field(repr=False)
    text: Callable[[], str] = field(repr=False)
    shown: Sequence[str] = ()
    """The columns that a notebook shows; none: the first ones that hold a number or a text."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of the command."""
        return dict(json.loads(self.to_json()))

    def to_json(self) -> str:
        """The same as text; numbers that are not finite become null."""
        return json_text(self.document())

    def to_pandas(self) -> Any:
        """The rows as a ``pandas.DataFrame``; pandas must be installed."""
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise UsageError(
                "to_pandas() needs pandas, which is not installed: pip install pandas, or use rows"
            ) from None
        return pandas.DataFrame(list(self.rows))

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        count = f"{len(self.rows)} row{'s' * (len(self.rows) != 1)}"
        return f"<paceline {type(self.value).__name__}, {count}; print() shows it>"

    def _repr_html_(self) -> str:
        head = self.text().partition("\n\n")[0].splitlines()[:HEAD]
        return f"<p>{'<br>'.join(map(escape, head))}</p>{self._table()}"

    def _table(self) -> str:
        names = list(self.shown) or [name for name in self._columns() if not self._is_empty(name)]
        names = names[:MOST_COLUMNS]
        if not self.rows or not names:
            return ""
        titles = "".join(f"<th>{escape(name)}</th>" for name in names)
        lines = "".join(
            f"<tr>{''.join(f'<td>{escape(cell_text(row.get(name)))}</td>' for name in names)}</tr>"
            for row in self.rows[:MOST_ROWS]
        )
        left = len(self.rows) - MOST_ROWS
        more = f"<p>and {left} rows more</p>" if left > 0 else ""
        return f"<table><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table>{more}"

    def _columns(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def _is_empty(self, name: str) -> bool:
        return all(row.get(name) is None or isinstance(row.get(name), list | dict) for row in self.rows)


def is_table(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def cell_text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def flat(document: Mapping[str, Any], bare: Sequence[str] = ()) -> dict[str, Any]:
    """One level of names: what is nested goes by "outer_inner", or by "inner" where its outer name is in ``bare``.

    A table within, such as a curve, has no place in a row: it is in the document.
    """
    found: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, Mapping):
            prefix = "" if name in bare else f"{name}_"
            found |= {f"{prefix}{inner}": one for inner, one in flat(value, bare).items()}
        elif not is_table(value):
            found[name] = value
    return found
