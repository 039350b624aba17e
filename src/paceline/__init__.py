"""How should I spread this training over several workers, and how fast will it go?

The names that a user's own strategies, codecs, jobs and readers of records need; each is imported when it is first
used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.codecs.base import Codec as Codec
    from paceline.codecs.context import Context as Context
    from paceline.codecs.exchanges import AllGather as AllGather
    from paceline.codecs.exchanges import AllToAll as AllToAll
    from paceline.codecs.exchanges import Reduction as Reduction
    from paceline.codecs.exchanges import Sum as Sum
    from paceline.codecs.messages import CorruptMessage as CorruptMessage
    from paceline.codecs.messages import Message as Message
    from paceline.errors import UsageError as UsageError
    from paceline.jobs.data import TensorData as TensorData
    from paceline.jobs.datasets import Images as Images
    from paceline.jobs.job import Data as Data
    from paceline.jobs.job import Job as Job
    from paceline.jobs.job import Traceable as Traceable
    from paceline.jobs.partition import ClientBatch as ClientBatch
    from paceline.jobs.partition import Partition as Partition
    from paceline.loop.distribute import LoopWorker as LoopWorker
    from paceline.loop.distribute import distribute as distribute
    from paceline.loop.watch import Watch as Watch
    from paceline.loop.watch import watch as watch
    from paceline.records.events import read_metrics as read_metrics
    from paceline.records.folder import RunFolder as RunFolder
    from paceline.specs.ranges import at_least as at_least
    from paceline.strategies.base import Server as Server
    from paceline.strategies.base import Strategy as Strategy
    from paceline.strategies.base import SyncPoint as SyncPoint
    from paceline.strategies.base import Worker as Worker
    from paceline.strategies.effects import AllReduce as AllReduce
    from paceline.strategies.effects import Apply as Apply
    from paceline.strategies.effects import Broadcast as Broadcast
    from paceline.strategies.effects import BucketedMean as BucketedMean
    from paceline.strategies.effects import Clock as Clock
    from paceline.strategies.effects import Gradient as Gradient
    from paceline.strategies.effects import Peer as Peer
    from paceline.strategies.effects import Program as Program
    from paceline.strategies.effects import Receive as Receive
    from paceline.strategies.effects import Send as Send
    from paceline.strategies.effects import StartAllReduce as StartAllReduce
    from paceline.strategies.effects import Wait as Wait
    from paceline.strategies.parameter_server import ParameterServer as ParameterServer

__version__ = "0.1.0"

_NAMES = {
    "codecs.base": "Codec",
    "codecs.context": "Context",
    "codecs.exchanges": "AllGather AllToAll Reduction Sum",
    "codecs.messages": "CorruptMessage Message",
    "errors": "UsageError",
    "jobs.data": "TensorData",
    "jobs.datasets": "Images",
    "jobs.job": "Data Job Traceable",
    "jobs.partition": "ClientBatch Partition",
    "loop.distribute": "LoopWorker distribute",
    "loop.watch": "Watch watch",
    "records.events": "read_metrics",
    "records.folder": "RunFolder",
    "specs.ranges": "at_least",
    "strategies.base": "Server Strategy SyncPoint Worker",
    "strategies.effects": "AllReduce Apply Broadcast BucketedMean Clock Gradient Peer Program Receive Send "
    "StartAllReduce Wait",
    "strategies.parameter_server": "ParameterServer",
}


def __getattr__(name: str) -> Any:
    for module, names in _NAMES.items():
        if name in names.split():
            return getattr(import_module(f"paceline.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
