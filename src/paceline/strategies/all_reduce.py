from dataclasses import dataclass

from paceline.strategies.base import Strategy, SyncPoint, Worker
from paceline.strategies.effects import Apply, BucketedMean, Gradient, Program
from paceline.units import Size


@dataclass(frozen=True, kw_only=True)
class AllReduceSGD(Strategy):
    """Average the gradients of all workers at every step (synchronous SGD)."""

    bucket: Size = Size(25 * 2**20)
    """Bytes sent at once; smaller hides more of the traffic behind backward, larger sends fewer messages."""
    first_bucket: Size = Size(2**20)
    """Bytes of the first bucket; smaller starts the traffic earlier."""
    replicated = True
    sync_point = SyncPoint.EVERY_STEP

    def worker(self, me: Worker) -> Program:  # noqa: ARG002
        averaged = Gradient(reduce=BucketedMean(first_bucket=int(self.first_bucket), bucket=int(self.bucket)))
        while True:
            yield averaged
            yield Apply()

    def central(self, me: Worker) -> Program:
        yield from ()
        return me.params  # all replicas are the same
