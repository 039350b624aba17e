"""How workers agree. One file a strategy; this table is the only other place that knows of it."""

from collections.abc import Mapping
from types import MappingProxyType

STRATEGIES: Mapping[str, str] = MappingProxyType(
    {
        "all-reduce": "paceline.strategies.all_reduce:AllReduceSGD",
        "local-sgd": "paceline.strategies.local_sgd:LocalSGD",
    }
)
