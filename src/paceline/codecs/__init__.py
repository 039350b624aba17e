"""What is sent in place of a whole gradient, by name; this table is the only other place that knows of a codec."""

import re
from collections.abc import Callable, Mapping, Sequence
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


FIRST, SECOND = ("dgc", "powersgd", "random-k", "threshold", "top-k"), ("half",)
"""What can be a link of a chain, such as ``top-k+half``; a user's own codec can be the first."""


def build_codec(spec: str) -> "Codec":
    check_codec(spec)
    first, *rest = (cast("Codec", specs.build(link, CODECS, "codec")) for link in links(spec))
    if not rest:
        return first
    from paceline.codecs.chain import Chain

    return Chain(first=first, second=rest[0], memory=first.memory)


def links(spec: str) -> list[str]:
    """The codecs of a chain; of any other spec, itself."""
    return re.split(r"\s*\+\s*(?=[A-Za-z])", spec)


def each_link(spec: str, change: Callable[[str], str]) -> str:
    return "+".join(map(change, links(spec)))


def check_codec(spec: str) -> None:
    """Refuse an unknown name, or an unknown setting of what ships, without importing it."""
    chain = links(spec)
    for link in chain:
        if specs.split(link, CODECS)[0] == "low-rank":  # what powersgd was called
            raise unknown("codec", "low-rank", CODECS, see="paceline codecs", meant="powersgd")
        specs.check(link, CODECS, "codec")
    if len(chain) > 1:
        _check_chain(spec, chain)


def _check_chain(spec: str, chain: Sequence[str]) -> None:
    first, second, *more = (specs.split(link, CODECS)[0] for link in chain)
    if more or second not in SECOND or (first in CODECS and first not in FIRST):
        raise UsageError(
            f"codec {spec!r} is a chain that makes no sense: the first must be {', '.join(FIRST)} or a codec of your "
            f"own, and the second {' or '.join(SECOND)}"
        )
    if specs.split(chain[1], CODECS)[1].get("memory", "none") != "none":
        raise UsageError(
            f"codec {spec!r} sets memory of its second part; set it of the first, which keeps all errors"
        )
