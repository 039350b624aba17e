"""What is sent in place of a whole gradient, by name; this table is the only other place that knows of a codec."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from paceline import specs
from paceline.errors import unknown

if TYPE_CHECKING:
    from paceline.codecs.base import Codec

CODECS: Mapping[str, str] = {
    "half": "paceline.codecs.lossy:Half",
    "identity": "paceline.codecs.base:Identity",
    "int8": "paceline.codecs.lossy:Int8",
    "powersgd": "paceline.codecs.lossy:PowerSGD",
    "random-k": "paceline.codecs.lossy:RandomK",
    "sign": "paceline.codecs.lossy:Sign",
    "threshold": "paceline.codecs.lossy:Threshold",
    "top-k": "paceline.codecs.lossy:TopK",
}


def build_codec(spec: str) -> "Codec":
    name = specs.split(spec, CODECS)[0]
    if name == "low-rank":  # what powersgd was called
        raise unknown("codec", name, CODECS, see="paceline codecs", meant="powersgd")
    return cast("Codec", specs.build(spec, CODECS, "codec"))
