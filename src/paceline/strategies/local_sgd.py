from dataclasses import dataclass

from paceline.strategies.base import SyncPoint, Worker
from paceline.strategies.effects import AllReduce, Apply, Gradient, Program
from paceline.strategies.periods import Seconds, Steps


@dataclass(frozen=True, kw_only=True)
class LocalSGD:
    """Train apart, average the models now and then (Stich, 2019)."""

    period: Steps | Seconds = Steps(16)
    """Steps between averages (16) or time (0.5s); 1 is synchronous SGD, more means less traffic and more drift."""

    @property
    def sync_point(self) -> SyncPoint:
        """By steps, all workers count alike; by seconds, a fast worker takes more steps in a round than a slow one."""
        return SyncPoint.EVERY_STEP if isinstance(self.period, Steps) else SyncPoint.AFTER_ROUND

    def worker(self, me: Worker) -> Program:
        """Step alone; when the period is over, become the average."""
        begun = me.now
        while True:
            yield Gradient()
            yield Apply()
            if self.period.is_over(me.clock, me.now - begun):
                yield AllReduce(me.params, weight=me.samples_apart)
                begun = me.now

    def central(self, me: Worker) -> Program:
        """The average of the replicas, whether or not a round has just ended."""
        average = me.params.clone()
        yield AllReduce(average, weight=max(1, me.samples_apart))
        return average
