"""Arguments as people give them, in words with units or as plain numbers in SI, made into what a study takes."""

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, ParamSpec, TypeVar, Unpack, get_args, get_origin

from paceline import jobs
from paceline.api.annotations import ShownValue, check_value, resolved
from paceline.codecs import CODECS, check_codec
from paceline.errors import ArgumentError, NamedMistake, UsageError
from paceline.records.files import DamagedFile
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

LARGEST = 1e18
"""Bytes, or bytes a second, that anything has."""

SPECS_OF_ALL = (("strategy", "strategies"), ("codec", "codecs"))
"""Arguments that may be several, and what a request calls them."""


def naming_arguments(function: Callable[Taken, Given]) -> Callable[Taken, Given]:
    """Check and convert a function's arguments by its annotations, and let its mistakes name them as Python does.

    A whole number may be 1e6 or a number of numpy's, a number may be 1, and None is the default of any argument. A name
    that is none of those that ``**settings`` takes is refused. What lies below speaks of "batch size" and not of
    ``batch_size``; the sentence as it was is kept for the command line.
    """
    parameters = [*inspect.signature(function).parameters.values()]
    annotations = _annotations(parameters)
    known = [*annotations]
    names = [name for name in known if "_" in name]
    by_name = [name for name in known if name not in _positional_only(parameters)]

    @functools.cache
    def kinds() -> Mapping[str, Any]:
        return {name: resolved(one, function.__globals__) for name, one in annotations.items()}

    takes_settings = any(_unpacked(parameter.annotation) for parameter in parameters)
    words = re.compile(
        "|".join(rf"\b{name.replace('_', ' ')}\b" for name in sorted(names, key=len, reverse=True))
    )

    @functools.wraps(function)
    def called(*args: Taken.args, **kwargs: Taken.kwargs) -> Given:
        if takes_settings:
            _check_names(function.__name__, kwargs, by_name)
        try:
            values, named = _positional(args, parameters, kinds()), _keywords(kwargs, parameters, kinds())
            return function(*values, **named)
        except ArgumentError as mistake:
            shown = {name: one if one is None else ShownValue(one) for name, one in mistake.arguments.items()}
            raise ArgumentError(mistake.sentence, **shown) from mistake.__cause__
        except DamagedFile as damage:
            raise UsageError(damage.told) from damage
        except UsageError as mistake:
            if not names:
                raise
            said = words.sub(lambda found: found[0].replace(" ", "_"), str(mistake))
            raise NamedMistake(said, mistake) from mistake.__cause__

    return called


def _annotations(parameters: Iterable[inspect.Parameter]) -> dict[str, Any]:
    """Of all arguments by name, those of ``**settings`` too."""
    found: dict[str, Any] = {}
    for one in parameters:
        found |= getattr(_unpacked(one.annotation), "__annotations__", {one.name: one.annotation})
    return found


def _positional_only(parameters: Iterable[inspect.Parameter]) -> list[str]:
    return [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.VAR_POSITIONAL)]


def _positional(
    given: Sequence[Any], parameters: Sequence[inspect.Parameter], kinds: Mapping[str, Any]
) -> list[Any]:
    """The function itself looks at those of ``*runs``."""
    kept = list(given)
    named = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    for place, (value, one) in enumerate(zip(given, named, strict=False)):
        is_default = value is None and one.default is not one.empty
        kept[place] = one.default if is_default else check_value(one.name, value, kinds[one.name])
    return kept


def _keywords(
    given: Mapping[str, Any], parameters: Iterable[inspect.Parameter], kinds: Mapping[str, Any]
) -> dict[str, Any]:
    needed = [one.name for one in parameters if one.default is one.empty]
    return {
        name: check_value(name, value, kinds.get(name, Any))
        for name, value in given.items()
        if value is not None or name in needed
    }


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
    if not isinstance(given, str | Sequence) or any(hasattr(one, "shape") for one in given):
        raise ArgumentError(
            "{input} is not the shape of one sample, which all but a module takes: give it, such as (3, 224, 224)",
            input=given,
        )
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


def rate_text(given: "str | float", name: str) -> str:
    """A bandwidth in words; a number is bytes a second."""
    return given if isinstance(given, str) else f"{8 * _in_si(given, name, 'bytes a second')!r} bit/s"


def bytes_text(given: "str | float", name: str) -> str:
    return given if isinstance(given, str) else f"{_in_si(given, name, 'bytes')!r} B"


def _in_si(given: float, name: str, unit: str) -> float:
    if not 0 < given <= LARGEST:
        raise ArgumentError(
            f"{{{name}}} is out of range: {unit} must be more than 0 and at most {LARGEST:g}", **{name: given}
        )
    return given
