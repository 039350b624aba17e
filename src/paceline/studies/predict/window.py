"""Which steps of a simulated run say how long a step takes in the long run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil

from paceline.errors import UsageError
from paceline.records.spans import StepRecord
from paceline.runtimes.virtual.recording import SimulationRecorder
from paceline.strategies.base import Strategy
from paceline.strategies.periods import StepPeriod, TimePeriod
from paceline.studies.predict.parts import Noted, Parts, mean_step

MOST = 1_000_000
"""Steps of all simulated workers together for one answer: some ten seconds."""

DRAWS = 16_384
"""Steps of all workers together from which a mean is taken where they vary."""

AGREE = 0.005
"""Part by which two spans of a run with servers may differ before a longer one is simulated."""

LONG = 1_024
"""Steps of all workers together after which the later span of a run with servers is the answer, as it is."""

VARYING = 4_096
"""Steps of all workers together, over the number of servers, of a run with servers in which workers vary."""

Weighted = Sequence[tuple[Sequence[Noted], int]]
"""Steps of some workers, and how many workers each of them stands for."""


@dataclass
class Notes(SimulationRecorder):
    """Keeps what each step of each worker took; meetings are no steps."""

    detailed: bool = True
    steps: dict[int, list[Noted]] = field(default_factory=dict)

    def stepped(self, rank: int, record: StepRecord) -> None:
        """Keep a step."""
        if record.is_step:
            self.steps.setdefault(rank, []).append(Noted.of(record))


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What decides how many steps it takes to know a strategy's pace."""

    strategy: Strategy
    spec: str
    """Its name, for people."""
    alone: float
    """Seconds of the fastest worker's step without contention."""
    workers: int
    """How many are simulated."""
    jitter: float = 0.0
    servers: int = 1

    def long_run(self, simulated: Callable[[int], Weighted]) -> Parts:
        """The mean step once the run has found its pace; ``simulated`` runs so many steps a worker."""
        if self.strategy.served:
            return self._settled(simulated)
        return mean_step(self.counted(simulated))

    def counted(self, simulated: Callable[[int], Weighted]) -> Weighted:
        """Whole periods after the first one: one where all are alike, as many as a mean needs where they vary."""
        period = self.period
        times = ceil(min(512, max(64, DRAWS // self.workers)) / period) if self.jitter else 1
        last = period * (1 + times)
        self._check(last)
        return [(_whole(steps, period), many) for steps, many in simulated(last)]

    @property
    def period(self) -> int:
        """Steps of a worker from one exchange to the next."""
        period = getattr(self.strategy, "period", None)
        if isinstance(period, StepPeriod):
            return period.count
        if not isinstance(period, TimePeriod):
            return 1
        if not self.alone > 0:
            raise UsageError(f"strategy {self.spec!r} never ends a period where a step takes no time")
        return ceil(period.length / self.alone)

    def _settled(self, simulated: Callable[[int], Weighted]) -> Parts:
        """Twice as long until two spans of the run are equally fast; the way that workers fall into takes its time."""
        # A fast worker comes to the end of its leash only after a while.
        steps = 16 * (1 + min(7, getattr(self.strategy, "staleness", 0)))
        if self.jitter:
            steps = max(steps, VARYING // (self.workers * self.servers))
        while True:
            self._check(steps)
            found = simulated(steps)
            # Whoever comes to the last meeting first leaves the others more room: the run's end does not count.
            end = min(noted[-1].end for noted, _ in found)
            if self.jitter and (mean := _between(found, end * 0.2, end * 0.95)) is not None:
                return mean
            before, later = (_between(found, end * part, end * (part + 0.35)) for part in (0.25, 0.6))
            steps *= 2
            if before is not None and later is not None:
                steady = abs(before.rate / later.rate - 1) <= AGREE
                if steady or steps * self.workers > LONG:
                    return later

    def _check(self, steps: int) -> None:
        """Refuse what would take too long."""
        if steps * self.workers > MOST:
            raise UsageError(
                f"strategy {self.spec!r} cannot be predicted here: {self.workers:,} workers would have to be simulated "
                f"for {steps:,} steps each, and {MOST:,} steps is the limit; ask for fewer workers or a shorter period"
            )


def _whole(steps: Sequence[Noted], period: int) -> Sequence[Noted]:
    """From the first exchange to the last one, where there are any."""
    ends = [place + 1 for place, one in enumerate(steps) if one.sent]
    return steps[ends[0] : ends[-1]] if len(ends) > 1 else steps[period:]


def _between(workers: Weighted, begin: float, end: float) -> Parts | None:
    """The mean of the steps that ended between two times; None where a worker has too few."""
    found = [([one for one in steps if begin < one.end <= end], many) for steps, many in workers]
    return mean_step(found) if min(len(steps) for steps, _ in found) >= 4 else None
