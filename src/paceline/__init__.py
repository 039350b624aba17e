"""How should I spread this training over several workers, and how fast will it go?

The names that a user's own strategies and jobs need; each is imported when it is first used.
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.codecs.base import Codec
    from paceline.errors import UsageError
    from paceline.jobs.data import TensorData
    from paceline.jobs.job import Data, Job, Traceable
    from paceline.strategies.base import Server, Strategy, SyncPoint, Worker
    from paceline.strategies.effects import (
        AllReduce,
        Apply,
        Broadcast,
        BucketedMean,
        Clock,
        Gradient,
        Peer,
        Program,
        Receive,
        Send,
    )
    from paceline.strategies.parameter_server import ParameterServer

__version__ = "0.1.0"

__all__ = [
    "AllReduce",
    "Apply",
    "Broadcast",
    "BucketedMean",
    "Clock",
    "Codec",
    "Data",
    "Gradient",
    "Job",
    "ParameterServer",
    "Peer",
    "Program",
    "Receive",
    "Send",
    "Server",
    "Strategy",
    "SyncPoint",
    "TensorData",
    "Traceable",
    "UsageError",
    "Worker",
]

_EFFECTS = "AllReduce Apply Broadcast BucketedMean Clock Gradient Peer Program Receive Send"

EXPORTS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(_EFFECTS.split(), "paceline.strategies.effects"),
        **dict.fromkeys(("Server", "Strategy", "SyncPoint", "Worker"), "paceline.strategies.base"),
        "Codec": "paceline.codecs.base",
        "Data": "paceline.jobs.job",
        "Job": "paceline.jobs.job",
        "ParameterServer": "paceline.strategies.parameter_server",
        "TensorData": "paceline.jobs.data",
        "Traceable": "paceline.jobs.job",
        "UsageError": "paceline.errors",
    }
)
"""The module that defines each public name."""


def __getattr__(name: str) -> Any:
    if name not in EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(EXPORTS[name]), name)
