"""How should I spread this PyTorch training over several workers, and how fast will it go?

The functions behind the commands, and the types that a user's own strategies, codecs, jobs and readers of records need
(docs/api.md); each is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.api.bench import bench_batch as bench_batch
    from paceline.api.bench import bench_checkpoint as bench_checkpoint
    from paceline.api.bench import bench_collectives as bench_collectives
    from paceline.api.bench import bench_convergence as bench_convergence
    from paceline.api.bench import bench_processes as bench_processes
    from paceline.api.bench import bench_scaling as bench_scaling
    from paceline.api.bench import load_sweep as load_sweep
    from paceline.api.calibrate import calibrate as calibrate
    from paceline.api.collectives import price_all_reduce as price_all_reduce
    from paceline.api.compare import compare as compare
    from paceline.api.explain import explain as explain
    from paceline.api.plan import plan as plan
    from paceline.api.predict import predict as predict
    from paceline.api.report import report as report
    from paceline.api.result import StudyResult as StudyResult
    from paceline.api.runs import load_run as load_run
    from paceline.api.simulate import simulate as simulate
    from paceline.api.train import train as train
    from paceline.clusters.cluster import Cluster as Cluster
    from paceline.clusters.description import read_cluster as read_cluster
    from paceline.codecs.base import Codec as Codec
    from paceline.codecs.context import Context as Context
    from paceline.codecs.exchanges import AllGather as AllGather
    from paceline.codecs.exchanges import AllToAll as AllToAll
    from paceline.codecs.exchanges import Reduction as Reduction
    from paceline.codecs.exchanges import Sum as Sum
    from paceline.codecs.messages import CorruptMessage as CorruptMessage
    from paceline.codecs.messages import Message as Message
    from paceline.collectives import build_schedule as build_schedule
    from paceline.collectives.execute import Reducer as Reducer
    from paceline.collectives.execute import TorchTransport as TorchTransport
    from paceline.collectives.execute import all_reduce as all_reduce
    from paceline.collectives.schedule import Ranks as Ranks
    from paceline.collectives.schedule import Schedule as Schedule
    from paceline.collectives.schedule import reducing as reducing
    from paceline.collectives.schedule import replacing as replacing
    from paceline.errors import RunFailed as RunFailed
    from paceline.errors import UsageError as UsageError
    from paceline.jobs.data import TensorData as TensorData
    from paceline.jobs.datasets import Digits as Digits
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
    from paceline.shm.operations import OPERATIONS as OPERATIONS
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
    "api.bench": "bench_batch bench_checkpoint bench_collectives bench_convergence bench_processes bench_scaling "
    "load_sweep",
    "api.calibrate": "calibrate",
    "api.collectives": "price_all_reduce",
    "api.compare": "compare",
    "api.explain": "explain",
    "api.plan": "plan",
    "api.predict": "predict",
    "api.report": "report",
    "api.result": "StudyResult",
    "api.runs": "load_run",
    "api.simulate": "simulate",
    "api.train": "train",
    "clusters.cluster": "Cluster",
    "clusters.description": "read_cluster",
    "codecs.base": "Codec",
    "codecs.context": "Context",
    "codecs.exchanges": "AllGather AllToAll Reduction Sum",
    "codecs.messages": "CorruptMessage Message",
    "collectives": "build_schedule",
    "collectives.execute": "Reducer TorchTransport all_reduce",
    "collectives.schedule": "Ranks Schedule reducing replacing",
    "errors": "RunFailed UsageError",
    "jobs.data": "TensorData",
    "jobs.datasets": "Digits Images",
    "jobs.job": "Data Job Traceable",
    "jobs.partition": "ClientBatch Partition",
    "loop.distribute": "LoopWorker distribute",
    "loop.watch": "Watch watch",
    "records.events": "read_metrics",
    "records.folder": "RunFolder",
    "shm.operations": "OPERATIONS",
    "specs.ranges": "at_least",
    "strategies.base": "Server Strategy SyncPoint Worker",
    "strategies.effects": "AllReduce Apply Broadcast BucketedMean Clock Gradient Peer Program Receive Send "
    "StartAllReduce Wait",
    "strategies.parameter_server": "ParameterServer",
}


_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

if not TYPE_CHECKING:  # a type checker knows the names above, and no others
    __all__ = sorted(["__version__", *_MODULES])

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import random

        stream = random.getstate()  # of which some libraries take a number when they are imported
        try:
            return globals().setdefault(name, getattr(import_module(f"paceline.{_MODULES[name]}"), name))
        finally:
            random.setstate(stream)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
