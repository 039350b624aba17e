"""What is sent in place of a whole gradient, by name; this table is the only other place that knows of a codec."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from paceline import specs
from paceline.errors import unknown

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


def build_codec(spec: str) -> "Codec":
    check_codec(spec)
    return cast("Codec", specs.build(spec, CODECS, "codec"))


def check_codec(spec: str) -> None:
    """Refuse an unknown name, or an unknown setting of what ships, without importing it."""
    name = specs.split(spec, CODECS)[0]
    if name == "low-rank":  # what powersgd was called
        raise unknown("codec", name, CODECS, see="paceline codecs", meant="powersgd")
    specs.check(spec, CODECS, "codec")
