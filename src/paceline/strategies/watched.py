"""What a script does by itself and ``paceline.watch`` records: no runtime of ours runs these."""

from dataclasses import dataclass

from paceline.errors import UsageError
from paceline.strategies.all_reduce import AllReduceSGD
from paceline.strategies.base import Strategy, SyncPoint, Worker
from paceline.strategies.effects import Apply, Gradient, Program


@dataclass(frozen=True, kw_only=True)
class WatchedDDP(AllReduceSGD):
    """torch's DistributedDataParallel: gradients are averaged at every step, in buckets."""


@dataclass(frozen=True, kw_only=True)
class WatchedAlone(Strategy):
    """Nothing is exchanged: one worker."""

    sync_point = SyncPoint.EVERY_STEP

    def worker(self, me: Worker) -> Program:  # noqa: ARG002
        while True:
            yield Gradient()
            yield Apply()

    def central(self, me: Worker) -> Program:
        yield from ()
        return me.params


@dataclass(frozen=True, kw_only=True)
class WatchedOwn(WatchedAlone):
    """The script's workers agree in a way that is not seen, so nothing is predicted of it."""

    def worker(self, me: Worker) -> Program:  # noqa: ARG002
        raise UsageError(
            "how the workers of this script agree is not known: they use no DistributedDataParallel; have them call "
            "paceline.distribute() with a strategy"
        )
