"""How many become one. One file a schedule; this table is the only other place that knows of it."""

from collections.abc import Mapping
from types import MappingProxyType

SCHEDULES: Mapping[str, str] = MappingProxyType(
    {
        "ring": "paceline.collectives.algorithms.ring:ring",
        "tree": "paceline.collectives.algorithms.tree:tree",
        "butterfly": "paceline.collectives.algorithms.butterfly:butterfly",
        "halving-doubling": "paceline.collectives.algorithms.halving_doubling:halving_doubling",
        "one-to-all": "paceline.collectives.algorithms.one_to_all:one_to_all",
        "hierarchical": "paceline.collectives.algorithms.hierarchical:hierarchical",
    }
)
"""Each name leads to a function from the hosts of all ranks to a ``Schedule``."""
