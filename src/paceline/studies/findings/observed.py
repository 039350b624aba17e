"""The figures of a recorded run that findings and comparisons rest on."""

from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median

from paceline.records.events import sample_events
from paceline.records.spans import StepBreakdown, Totals
from paceline.studies.recorded import RecordedRun

FEWEST = 5
"""Steps after the first one that a worker needs to have a typical one."""


@dataclass(frozen=True)
class ObservedSteps:
    """The typical step of each worker that trained, by rank."""

    run: RecordedRun
    workers: dict[int, Totals]

    @classmethod
    def of(cls, run: RecordedRun) -> "ObservedSteps | None":
        """None where a run is too short to have a typical step."""
        workers = {
            rank: one
            for rank, one in enumerate(run.summary.totals)
            if one.steps - one.warm_up_steps >= FEWEST and one.typical.compute > 0
        }
        return cls(run, workers) if workers else None

    @cached_property
    def mean(self) -> StepBreakdown:
        steps = [one.typical for one in self.workers.values()]
        return sum(steps, StepBreakdown()) * (1 / len(steps))

    @cached_property
    def slowest(self) -> int:
        return max(self.workers, key=lambda rank: self.workers[rank].typical.compute)

    @cached_property
    def fastest(self) -> int:
        return min(self.workers, key=lambda rank: self.workers[rank].typical.compute)

    def step(self, rank: int) -> StepBreakdown:
        return self.workers[rank].typical

    def samples(self, rank: int) -> float:
        """Of one step."""
        one = self.workers[rank]
        return (one.samples - one.warm_up_samples) / (one.steps - one.warm_up_steps)

    @cached_property
    def rate(self) -> float:
        """Samples a second of all workers in typical steps."""
        return sum(self.samples(rank) / self.step(rank).total for rank in self.workers)

    @cached_property
    def slowdown(self) -> float:
        """How many times as long the slowest rank computes as the others, in the median."""
        others = [self.step(rank).compute for rank in self.workers if rank != self.slowest]
        return self.step(self.slowest).compute / median(others) if others else 1.0

    @cached_property
    def waited(self) -> float:
        """The part of their steps that all but the slowest rank wait."""
        others = [self.step(rank) for rank in self.workers if rank != self.slowest]
        return fmean(one.wait / one.total for one in others) if others else 0.0

    @cached_property
    def sent(self) -> float:
        """Bytes a worker sends in a step."""
        return sum(one.step_sent for one in self.workers.values()) / sum(
            one.steps for one in self.workers.values()
        )

    @cached_property
    def transfer(self) -> float:
        """Seconds of a step's transfers, also of those behind backward: there a rank that is early waits as well."""
        hidden = min(one.typical.hidden for one in self.workers.values())
        return self.mean.communicate + hidden

    @property
    def hosts(self) -> int:
        return len(set(self.run.config.placement.workers))

    @cached_property
    def small_exchange(self) -> float | None:
        """Seconds of a sum of a few numbers over all workers, as evaluations have them; None where none is recorded."""
        files = self.run.folder.event_files()
        if not files or len(self.workers) < 2:
            return None
        found = []
        for record in (record for block in sample_events(files[min(files)]) for record in block):
            evaluates = any(span.kind == "evaluate" for span in record.spans)
            spans = [span.length for span in record.spans if span.kind == "communicate"]
            if not record.is_step and evaluates and spans:
                found.append(min(spans))
        return median(found) if found else None
