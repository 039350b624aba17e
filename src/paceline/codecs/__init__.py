"""What goes on a wire. One file a codec; this table is the only other place that knows of it."""

from collections.abc import Mapping
from types import MappingProxyType

CODECS: Mapping[str, str] = MappingProxyType(
    {
        "half": "paceline.codecs.half:Half",
        "identity": "paceline.codecs.identity:Identity",
        "int8": "paceline.codecs.int8:Int8",
        "low-rank": "paceline.codecs.low_rank:LowRank",
        "random-k": "paceline.codecs.sparse:RandomK",
        "sign": "paceline.codecs.sign:Sign",
        "threshold": "paceline.codecs.sparse:Threshold",
        "top-k": "paceline.codecs.sparse:TopK",
    }
)
