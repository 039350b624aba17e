"""Arguments as people give them, in words with units or as plain numbers in SI, made into what a study takes."""

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, ParamSpec, TypeVar, Unpack, get_args, get_origin

from paceline import jobs
from paceline.codecs import CODECS, check_codec
from paceline.errors import ArgumentError, NamedMistake, UsageError
from paceline.specs import check, spec_of
from paceline.strategies import STRATEGIES

Taken = ParamSpec("Taken")
Given = TypeVar("Given")

TABLES: Mapping[str, Mapping[str, str]] = {
    "strategy": STRATEGIES,
    "codec": CODECS,
    "data": jobs.DATA,
    "model": jobs.MODELS,
    "optimizer": jobs.OPTIMIZERS,
    "schedule": jobs.SCHEDULES,
}
"""The arguments that take a spec or an object, by the kind of spec."""

SPECS_OF_ALL = (("strategy", "strategies"), ("codec", "codecs"))
"""Arguments that may be several, and what a request calls them."""


def naming_arguments(function: Callable[Taken, Given]) -> Callable[Taken, Given]:
    """Let the mistakes that a function raises name its arguments as Python writes them: ``batch_size``.

    What lies below speaks of "batch size". The sentence as it was is kept for the command line. A name that is none of
    those that ``**settings`` takes is refused.
    """
    parameters = inspect.signature(function).parameters.values()
    known = [
        name
        for parameter in parameters
        for name in getattr(_unpacked(parameter.annotation), "__annotations__", {parameter.name: None})
    ]
    names = [name for name in known if "_" in name]
    takes_settings = any(_unpacked(parameter.annotation) for parameter in parameters)
    words = re.compile(
        "|".join(rf"\b{name.replace('_', ' ')}\b" for name in sorted(names, key=len, reverse=True))
    )

    @functools.wraps(function)
    def called(*args: Taken.args, **kwargs: Taken.kwargs) -> Given:
        if takes_settings:
            _check_names(function.__name__, kwargs, known)
        try:
            return function(*args, **kwargs)
        except ArgumentError:
            raise
        except UsageError as mistake:
            if not names:
                raise
            said = words.sub(lambda found: found[0].replace(" ", "_"), str(mistake))
            raise NamedMistake(said, mistake) from mistake.__cause__

    return called


def _check_names(function: str, given: Iterable[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            guess = f"; did you mean {near[0]!r}?" if near else ""
            raise UsageError(f"unknown option {name!r}{guess} (see help(paceline.{function}))")


def _unpacked(annotation: Any) -> Any:
    """The TypedDict of ``**settings: Unpack[...]``; None of anything else."""
    return get_args(annotation)[0] if get_origin(annotation) is Unpack else None


def spec_with(kind: str, given: Any) -> str:
    """A strategy, codec, model, ... by name or as an object; what is unknown is refused before anything is imported."""
    if isinstance(given, str) and kind == "codec":
        check_codec(given)
    elif isinstance(given, str):
        check(given, TABLES[kind], kind)
    return spec_of(given, TABLES[kind], kind)


def specs_of(given: Any, kind: str) -> tuple[str, ...]:
    """One or several of them."""
    several = isinstance(given, Sequence) and not isinstance(given, str)
    return tuple(spec_with(kind, one) for one in (given if several else [given]))


def shape_of(given: "str | Sequence[int]") -> tuple[int, ...]:
    """The shape of one sample: "3x224x224" or (3, 224, 224)."""
    text = given if isinstance(given, str) else "x".join(map(str, given))
    if not re.fullmatch(r"0*[1-9]\d{0,8}(x0*[1-9]\d{0,8})*", text.lower()):
        raise ArgumentError(
            "{input} is not a shape: write sizes of at most 9 digits, such as 3x224x224", input=given
        )
    return tuple(map(int, text.lower().split("x")))


def counts_of(given: "str | int | Iterable[int]") -> tuple[int, ...]:
    """Numbers of workers: "1,2,4", "1-8", 4 or [1, 2, 4]."""
    from paceline.studies.predict.request import parse_counts

    text = given if isinstance(given, str | int) else ",".join(map(str, given))
    return parse_counts(str(text))


def rate_text(given: "str | float") -> str:
    """A bandwidth in words; a number is bytes a second."""
    return given if isinstance(given, str) else f"{8 * given!r} bit/s"


def bytes_text(given: "str | float") -> str:
    return given if isinstance(given, str) else f"{given!r} B"
