"""How workers agree. Each strategy is a class; this table gives the ones that ship their short names."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from paceline import specs

if TYPE_CHECKING:
    from paceline.strategies.base import Strategy

STRATEGIES: Mapping[str, str] = {
    "all-reduce": "paceline.strategies.all_reduce:AllReduceSGD",
    "async": "paceline.strategies.parameter_server:Asynchronous",
    "diloco": "paceline.strategies.local_sgd:DiLoCo",
    "easgd": "paceline.strategies.model_averaging:ElasticAveraging",
    "fedavg": "paceline.strategies.federated:FederatedAveraging",
    "local-sgd": "paceline.strategies.local_sgd:LocalSGD",
    "post-local": "paceline.strategies.local_sgd:PostLocalSGD",
    "ps": "paceline.strategies.parameter_server:Synchronous",
    "sma": "paceline.strategies.model_averaging:SynchronousModelAveraging",
    "ssp": "paceline.strategies.parameter_server:StaleSynchronous",
}

WATCHED: Mapping[str, str] = {
    "ddp": "paceline.strategies.watched:WatchedDDP",
    "none": "paceline.strategies.watched:WatchedAlone",
    "own": "paceline.strategies.watched:WatchedOwn",
}
"""What records of ``paceline.watch`` name: what scripts do by themselves. It can be predicted, and not be chosen."""

RECORDED: Mapping[str, str] = {**STRATEGIES, **WATCHED}
"""All that a record may name."""


def is_watched(spec: str) -> bool:
    return specs.split(spec, RECORDED)[0] in WATCHED


def build_strategy(spec: str) -> "Strategy":
    """Make the strategy that a spec names, such as "local-sgd:period=16"; it imports torch."""
    strategy: Strategy = specs.build(spec, RECORDED if is_watched(spec) else STRATEGIES, "strategy")
    return strategy
