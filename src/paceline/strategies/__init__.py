"""How workers agree. One file a strategy; this table is the only other place that knows of it."""

from collections.abc import Mapping
from types import MappingProxyType

STRATEGIES: Mapping[str, str] = MappingProxyType(
    {
        "all-reduce": "paceline.strategies.all_reduce:AllReduceSGD",
        "async": "paceline.strategies.parameter_server:Asynchronous",
        "local-sgd": "paceline.strategies.local_sgd:LocalSGD",
        "ps": "paceline.strategies.parameter_server:Synchronous",
        "ssp": "paceline.strategies.parameter_server:StaleSynchronous",
    }
)
