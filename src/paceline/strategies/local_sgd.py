from dataclasses import dataclass

from paceline.strategies.base import Strategy, SyncPoint, Worker
from paceline.strategies.effects import AllReduce, Apply, Gradient, Program
from paceline.units import Period


@dataclass(frozen=True, kw_only=True)
class LocalSGD(Strategy):
    """Each worker trains alone; their models are averaged once a period (Stich, 2019)."""

    period: Period = Period(steps=16)
    """Steps between averages (16) or time (0.5s); 1 is synchronous SGD, more means less traffic and more drift."""

    @property
    def sync_point(self) -> SyncPoint:
        """By steps, all workers count alike; by seconds, a fast worker takes more steps in a round than a slow one."""
        return SyncPoint.EVERY_STEP if self.period.steps else SyncPoint.AFTER_ROUND

    def worker(self, me: Worker) -> Program:
        begun = me.now
        while True:
            yield Gradient()
            yield Apply()
            if self.period.is_over(me.clock, me.now - begun):
                yield AllReduce(me.params, weight=me.samples_since_sync)
                begun = me.now

    def central(self, me: Worker) -> Program:
        """The average of the replicas, whether or not a round has just ended."""
        average = me.params.clone()
        yield AllReduce(average, weight=max(1, me.samples_since_sync))
        return average
