"""What is sent in place of a whole gradient, by name; this table is the only other place that knows of a codec."""

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from paceline import specs
from paceline.errors import UsageError, unknown

if TYPE_CHECKING:
    from paceline.codecs.base import Codec

CODECS: Mapping[str, str] = {
    "dgc": "paceline.codecs.sparse:DGC",
    "half": "paceline.codecs.quantised:Half",
    "identity": "paceline.codecs.base:Identity",
    "int8": "paceline.codecs.quantised:Int8",
    "powersgd": "paceline.codecs.powersgd:PowerSGD",
    "random-k": "paceline.codecs.sparse:RandomK",
    "sign": "paceline.codecs.quantised:Sign",
    "threshold": "paceline.codecs.sparse:Threshold",
    "top-k": "paceline.codecs.sparse:TopK",
}

NO_CODEC = "identity"


def build_codec(spec: str) -> "Codec":
    check_codec(spec)
    first, *rest = (cast("Codec", specs.build(link, CODECS, "codec")) for link in links(spec))
    if not rest:
        return first
    from paceline.codecs.chain import chain

    if not (first.goes_first and rest[0].goes_second):
        raise _cannot_be_chained(spec)
    return chain(spec, first, rest[0])


def links(spec: str) -> list[str]:
    """The codecs of a chain; of any other spec, itself."""
    if isinstance(spec, specs.ObjectSpec):
        return [spec]
    return re.split(r"\s*\+\s*(?=[A-Za-z])", spec)


def each_link(spec: str, change: Callable[[str], str]) -> str:
    first, *rest = map(change, links(spec))
    return "+".join([first, *rest]) if rest else first


def check_codec(spec: str) -> None:
    """Refuse an unknown name, or an unknown setting of what ships, without importing it.

    Whether its links go together only ``build_codec`` finds.
    """
    chain = links(spec)
    for link in chain:
        if specs.split(link, CODECS)[0] == "low-rank":  # what powersgd was called
            raise unknown("codec", "low-rank", CODECS, see="paceline codecs", meant="powersgd")
        specs.check(link, CODECS, "codec")
    if len(chain) > 2:
        raise _cannot_be_chained(spec)
    if len(chain) > 1 and specs.split(chain[1], CODECS)[1].get("memory", "none") != "none":
        raise UsageError(
            f"codec {spec!r} sets memory of its second part; set it of the first, which keeps all errors"
        )


def _cannot_be_chained(spec: str) -> UsageError:
    shipped: dict[str, Codec] = {name: specs.find(path) for name, path in CODECS.items()}
    first = ", ".join(name for name, codec in shipped.items() if codec.goes_first)
    second = " or ".join(name for name, codec in shipped.items() if codec.goes_second)
    return UsageError(
        f"codec {spec!r} cannot be chained: the first must be {first} or a codec of your own, and the second {second}"
    )
