"""What other processes have told, checked for type, range and size before it is used or shown."""

import json
import math
from dataclasses import replace
from typing import Any, get_args

from paceline.errors import RunFailed
from paceline.runtimes.live.failures import Failure, Kind
from paceline.runtimes.live.process_info import Role

_LONGEST = {"host": 255, "message": 4096, "where": 1024, "traceback": 65_536, "run": 4096}
_LARGEST = 2**53


def shown(text: str, longest: int, *, lines: bool = False) -> str:
    """A text that a terminal takes for nothing but text: no control characters, no more than so many."""
    kept = "\n\t" if lines else ""
    return "".join(each if each.isprintable() or each in kept else " " for each in text[:longest])


def port_number(value: bytes) -> int:
    """A port, as decimal text."""
    if not value.isdigit() or len(value) > 5 or not 0 < int(value) < 65536:
        raise RunFailed("the store that the launcher keeps has no port of the run's own store; start again")
    return int(value)


def whole_number(value: Any, most: int = _LARGEST) -> int:
    """A number from 0 on; RunFailed for whatever else it is."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise RunFailed(f"another process told {shown(repr(value), 100)} where a number was expected")
    return value


def failure_text(failure: Failure) -> str:
    """As ``read_failure`` reads it; a long traceback keeps its end."""
    return replace(failure, traceback=failure.traceback[-_LONGEST["traceback"] :]).to_json()


def read_failure(text: bytes) -> Failure | None:
    """What ``Failure.to_json`` wrote, fit to be shown; None for whatever else it is."""
    try:
        told = json.loads(text)
        return Failure(
            rank=whole_number(told["rank"]),
            role=_one_of(Role, told["role"]),
            kind=_one_of(Kind, told["kind"]),
            step=whole_number(told["step"]),
            at=_seconds(told["at"]),
            run=None if told["run"] is None else _text(told, "run"),
            host=_text(told, "host"),
            message=_text(told, "message"),
            where=_text(told, "where"),
            traceback=_text(told, "traceback"),
        )
    except (ValueError, TypeError, KeyError, RecursionError, RunFailed):
        return None


def read_document(text: bytes) -> dict[str, Any]:
    """A JSON object; an empty one for whatever else it is."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def read_notice(text: bytes) -> tuple[int, str]:
    """A launcher's count of its notices and the newest one, fit to be shown; (0, "") for whatever else it is."""
    try:
        number, sentence = json.loads(text)
        return whole_number(number), shown(str(sentence), _LONGEST["message"])
    except (ValueError, TypeError, RecursionError, RunFailed):
        return 0, ""


def _text(told: Any, field: str) -> str:
    if not isinstance(told[field], str):
        raise TypeError(field)
    return shown(told[field], _LONGEST[field], lines=field in ("message", "traceback"))


def _one_of(choices: Any, value: Any) -> Any:
    if value not in get_args(choices):
        raise ValueError("an unknown word")
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("not a time")
    return float(value)
