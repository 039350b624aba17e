"""The figures of a recorded run that findings and comparisons rest on."""

from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median

from paceline.records.events import sample_events
from paceline.records.spans import StepBreakdown, StepRecord, Totals, mean_typical_step, sent_a_step
from paceline.strategies import build_strategy, is_watched
from paceline.studies.recorded import RecordedRun

FEWEST = 5
"""Steps after the first one that a worker needs to have a typical one."""
MOSTLY_WHOLE = 0.9
GROWING = ("data", "forward", "backward")
"""What takes longer with a larger batch."""
BYTES, AT_ONCE = 4, 2**20
"""Of a parameter's gradient, and of all that DistributedDataParallel sends at once, when backward has ended."""
ENOUGH, APART = 3, 0.75
"""Steps of one batch size, and how much smaller one size is than another, that tell what a smaller batch would take."""


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
        return mean_typical_step(self.workers.values())

    @cached_property
    def slowest(self) -> int:
        return max(self.workers, key=lambda rank: self.workers[rank].typical.compute)

    @cached_property
    def fastest(self) -> int:
        return min(self.workers, key=lambda rank: self.workers[rank].typical.compute)

    def step(self, rank: int) -> StepBreakdown:
        return self.workers[rank].typical

    def samples(self, rank: int) -> float:
        """Of a typical step: a whole batch, unless many steps have less, as at the ends of short epochs."""
        one, settings = self.workers[rank], self.run.config.settings
        mean = (one.samples - one.warm_up_samples) / (one.steps - one.warm_up_steps)
        learners = build_strategy(settings.strategy).learner_plan.count or 1
        sizes = settings.batch_sizes
        whole = sizes[min(rank, len(sizes) - 1)] * (settings.job.accumulate or 1) * learners
        return float(whole) if MOSTLY_WHOLE * whole <= mean <= whole else mean

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
        """The part of their steps that all but the slowest rank wait for it: at most what it computes longer."""
        longest = self.step(self.slowest).compute
        others = [self.step(rank) for rank in self.workers if rank != self.slowest]
        return fmean(min(one.wait, longest - one.compute) / one.total for one in others) if others else 0.0

    @cached_property
    def sent(self) -> float:
        """Bytes a worker sends in a step."""
        return sent_a_step(self.workers.values())

    @cached_property
    def transfer(self) -> float:
        """Seconds of a step's transfers, also of those behind backward: there a rank that is early waits as well."""
        hidden = min(one.typical.hidden for one in self.workers.values())
        return self.mean.communicate + hidden

    @property
    def knows_hidden(self) -> bool:
        """Whether all that a step transfers is recorded: of DistributedDataParallel, what backward hides is not."""
        spec, whole = self.run.config.settings.strategy, BYTES * self.run.summary.parameters
        return not is_watched(spec) or not build_strategy(spec).replicated or whole <= AT_ONCE

    @property
    def hosts(self) -> int:
        return len(set(self.run.config.placement.workers))

    @cached_property
    def _records(self) -> list[StepRecord]:
        """Of the first rank whose records are here, evenly spaced over the run."""
        files = self.run.folder.event_files()
        return [record for block in sample_events(files[min(files)]) for record in block] if files else []

    @cached_property
    def small_exchange(self) -> float | None:
        """Seconds of a sum of a few numbers over all workers, as evaluations have them; None where none is recorded.

        The shortest: a latency is no longer than that, and whatever else goes on only adds to it.
        """
        found = []
        for record in self._records if len(self.workers) > 1 else ():
            evaluates = any(span.kind == "evaluate" for span in record.spans)
            spans = [span.length for span in record.spans if span.kind == "communicate"]
            if not record.is_step and evaluates and spans:
                found.append(min(spans))
        return min(found, default=None)

    @cached_property
    def fixed(self) -> float | None:
        """The part of computing that does not grow with the batch; None where steps of two sizes do not tell it.

        The last step of an epoch mostly has fewer samples than the others.
        """
        seconds: dict[int, list[float]] = {}
        for record in self._records:
            if record.is_step and not record.warm_up and record.samples:
                computing = sum(span.length for span in record.spans if span.kind in GROWING)
                seconds.setdefault(record.samples, []).append(computing)
        known = {size: median(steps) for size, steps in seconds.items() if len(steps) >= ENOUGH}
        if not known or min(known) > APART * max(known):
            return None
        small, large = min(known), max(known)
        each = (known[large] - known[small]) / (large - small)
        return min(1.0, max(0.0, 1 - each * large / known[large]))
