"""What costs a recorded run the most time: a rank, the link, the data, or what is done between steps."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

from paceline.records.load import disturbance
from paceline.runtimes.settings import Cadence
from paceline.strategies import is_watched
from paceline.studies.findings.finding import WORTH, Finding, Kind, RemedyPlace
from paceline.studies.findings.observed import ObservedSteps
from paceline.studies.findings.rebuilt import RebuiltRun, rebuild
from paceline.studies.findings.remedies import (
    best,
    for_communication,
    for_data,
    for_one_worker,
    for_slow_rank,
    paying_batch,
    rarer,
)
from paceline.studies.recorded import RecordedRun
from paceline.units import show_bytes, show_rate, show_seconds

MOST = 3
UNEVEN = 1.3
"""How many times as long the slowest rank computes before it is called slow."""
WAITING, EXCHANGING, LOADING = 0.15, 0.25, 0.2
"""The part of a step that waiting, communication or data may take without being worth a word."""
BETWEEN = 0.3
"""The same for evaluations, and for checkpoints, as a part of the whole run."""
LEAST_SECONDS = 2.0
"""A run that took less in all is too short for a word on what it does between its steps."""
ALIKE = 1.2
"""How much the ranks' computing may differ a sample where their batches explain that they differ; batches differ by
more."""


def find(run: RecordedRun) -> tuple[Finding, ...]:
    """At most three, the most costly first; none for a healthy run. A record that cannot be read is an error."""
    seen = ObservedSteps.of(run)
    if seen is None:
        return ()
    diagnosis = Diagnosis(seen)
    rules: tuple[Callable[[], Iterator[Finding]], ...] = (
        diagnosis.slow_rank,
        diagnosis.communication,
        diagnosis.slower_than_one,
        diagnosis.data,
        diagnosis.between_steps,
        diagnosis.oversubscribed,
    )
    found = sorted((one for rule in rules for one in rule()), key=lambda one: -one.share)
    return tuple([_placed(one, run) for one in (*found, *diagnosis.disturbed())][:MOST])


def _placed(finding: Finding, run: RecordedRun) -> Finding:
    """With the place where each remedy is set."""
    placed = (replace(one, place=_place(one.change[0][0], run)) for one in finding.remedies)
    return replace(finding, remedies=tuple(placed))


def _place(name: str, run: RecordedRun) -> RemedyPlace:
    settings = run.config.settings
    watched = is_watched(settings.strategy)
    if name in ("nodes", "workers") and (watched or not _by_paceline(run)):
        return "launcher"
    if name == "loader_workers":
        return "job"
    if name == "batch_size" and settings.job.is_script:
        return "script"
    return "distribute" if watched else "command"


def _by_paceline(run: RecordedRun) -> bool:
    """Whether paceline has started the run's processes, not torchrun or another launcher."""
    return all(worker.get("launcher") != "other" for worker in run.environment.get("workers", ()))


@dataclass(frozen=True)
class Diagnosis:
    seen: ObservedSteps

    @cached_property
    def rebuilt(self) -> RebuiltRun | None:
        return rebuild(self.seen)

    @cached_property
    def has_slow_rank(self) -> bool:
        return self.seen.slowdown >= UNEVEN and self.seen.waited >= WAITING

    def slow_rank(self) -> Iterator[Finding]:
        seen, rank = self.seen, self.seen.slowest
        if not self.has_slow_rank:
            return
        who = "the other rank" if len(seen.workers) == 2 else "the other ranks"
        sentence = (
            f"{100 * seen.waited:.0f} % of each step of {who} is spent waiting for rank {rank}, which computes "
            f"{seen.slowdown:.2g}x as long{self._why_slow(rank)}."
        )
        yield Finding(
            kind="slow-rank", sentence=sentence, share=seen.waited, remedies=for_slow_rank(self.rebuilt)
        )

    def _why_slow(self, rank: int) -> str:
        """Its batch, or the part of its step that takes longer, where it is one; the others are as in the median."""
        seen = self.seen

        def usual(figure: Callable[[int], float]) -> float:
            return median(figure(one) for one in seen.workers if one != rank)

        def computing(one: int) -> float:
            return seen.step(one).compute

        def loading(one: int) -> float:
            return seen.step(one).data

        def a_sample(one: int) -> float:
            return computing(one) / seen.samples(one)

        more = seen.samples(rank) / usual(seen.samples)
        if more >= ALIKE > a_sample(rank) / usual(a_sample):
            return f": its batch has {more:.2g}x as many samples"
        if loading(rank) - usual(loading) > (computing(rank) - usual(computing)) / 2:
            return ", most of it for its data"
        return ", as the setting slow says" if rank in seen.run.config.settings.slow else ""

    def communication(self) -> Iterator[Finding]:
        seen = self.seen
        share = seen.mean.communicate / seen.mean.total
        if share < EXCHANGING or not seen.sent:
            return
        sentence = f"{100 * share:.0f} % of each step is communication {self._where()}: {self.exchange}."
        remedies = for_communication(self.rebuilt)
        yield Finding(kind=self._limit()[0], sentence=sentence, share=share, remedies=remedies)

    @property
    def exchange(self) -> str:
        """What a worker sends in a step, how fast that went, and whether latency or bandwidth is the limit."""
        seen = self.seen
        if not seen.knows_hidden:
            exposed = show_seconds(seen.mean.communicate)
            return f"a worker sends {show_bytes(seen.sent)} a step, of which backward hides all but {exposed}"
        rate = f" ({show_rate(seen.sent / seen.transfer)})" if seen.transfer else ""
        return (
            f"a worker sends {show_bytes(seen.sent)} a step{self._messages()}, which takes "
            f"{show_seconds(seen.transfer)}{rate}{self._limit()[1]}"
        )

    def _limit(self) -> tuple[Kind, str]:
        rebuilt = self.rebuilt
        if rebuilt is None or rebuilt.by_latency is None:
            return "communication", ""
        if rebuilt.by_latency > 0.5:
            each = show_seconds(rebuilt.by_latency * self.seen.transfer / rebuilt.messages)
            return "latency", f"; each message takes {each} whatever its size: latency is the limit"
        return "bandwidth", "; the bandwidth is the limit, not the latency"

    def _where(self) -> str:
        seen = self.seen
        if seen.run.config.placement.servers:
            return "with the servers"
        return f"between {seen.hosts} hosts" if seen.hosts > 1 else "within the host"

    def _messages(self) -> str:
        many = round(self.rebuilt.messages) if self.rebuilt else 0
        return f" in {many} messages one after the other" if many > 1 else ""

    def slower_than_one(self) -> Iterator[Finding]:
        """Against the fastest rank without its exchange; alone on its host it would hardly be slower."""
        seen, settings = self.seen, self.seen.run.config.settings
        step = seen.step(seen.fastest)
        alone = seen.samples(seen.fastest) / (step.compute + step.other)
        if len(seen.workers) < 2 or self.has_slow_rank or alone < WORTH * seen.rate:
            return
        batch = settings.batch_sizes[min(seen.fastest, len(settings.batch_sizes) - 1)]
        sentence = (
            f"{len(seen.workers)} workers train {seen.rate:,.0f} samples/s in typical steps; one alone would train "
            f"about {alone:,.0f} at batch {batch}: what they exchange takes longer than what they save."
        )
        if self.rebuilt and len({*settings.batch_sizes}) == 1 and (times := paying_batch(self.rebuilt)):
            grows = "" if seen.fixed is not None else ", if computing grows with the batch"
            sentence += f" From batch {times * batch} a worker they pay off (predicted{grows})."
        yield Finding(
            kind="slower-than-one",
            sentence=sentence,
            share=1 - seen.rate / alone,
            remedies=for_one_worker(self.rebuilt, batch, alone / seen.rate),
        )

    def data(self) -> Iterator[Finding]:
        seen = self.seen
        share = seen.mean.data / seen.mean.total
        if share < LOADING:
            return
        sentence = (
            f"{100 * share:.0f} % of each step is spent on getting its batch ({show_seconds(seen.mean.data)} of "
            f"{show_seconds(seen.mean.total)}): the data are not ready when a worker needs them{self._loaders()}."
        )
        own = seen.run.config.settings.job.path is not None and seen.run.summary.loader_workers == 0
        remedies = for_data(self.rebuilt) if own and self._can_load_beside() else ()
        yield Finding(kind="data", sentence=sentence, share=share, remedies=remedies)

    def _loaders(self) -> str:
        """What is known of loader processes that prepare batches; nothing is predicted where there are any."""
        if self.seen.run.config.settings.job.is_script:
            return (
                "; how many loader processes the script has (num_workers) is not recorded, and more may help"
            )
        many = self.seen.run.summary.loader_workers
        return f", though it has {many} loader process{'es' if many > 1 else ''}" if many else ""

    def _can_load_beside(self) -> bool:
        """Whether loaders find a core: free ones, or those that workers leave idle while they wait for data."""
        summary = self.seen.run.summary
        free = any(load.cores > load.wanted for load in summary.loads)
        idle = 1 - (summary.cpu_percent or 100.0) / 100
        return free or idle > self.seen.mean.data / self.seen.mean.total / 2

    def between_steps(self) -> Iterator[Finding]:
        settings, summary = self.seen.run.config.settings, self.seen.run.summary
        busiest = max(self.seen.workers.values(), key=lambda one: sum(one.outside.values()))
        whole = busiest.in_steps.total + busiest.in_warm_up.total + sum(busiest.outside.values())
        steps = summary.steps / summary.epochs if summary.epochs else 0.0
        actions: tuple[tuple[Kind, str, str, Cadence], ...] = (
            ("evaluation", "evaluate", "Evaluations take", settings.evaluate),
            ("checkpoints", "checkpoint", "Checkpoints take", settings.checkpoint),
        )
        for kind, span, words, cadence in actions:
            seconds = max(one.outside.get(span, 0.0) for one in self.seen.workers.values())
            done = round(summary.steps / max(1, cadence.in_steps(round(steps)))) if cadence.count else 0
            if whole < LEAST_SECONDS or seconds < BETWEEN * whole or done < 2:
                continue
            each = show_seconds(seconds / done)
            sentence = f"{words} {100 * seconds / whole:.0f} % of the run: {done} of about {each} each."
            remedies = best([rarer(f"{span}_every", cadence.count, cadence.unit, seconds, whole, done)])
            yield Finding(kind=kind, sentence=sentence, share=seconds / whole, remedies=remedies)

    def oversubscribed(self) -> Iterator[Finding]:
        for load in self.seen.run.summary.loads:
            if load.wanted > load.cores:
                sentence = (
                    f"{load.wanted} threads compute on {load.cores} cores of {load.host}, so they take turns: "
                    f"no more than {load.cores} compute at once."
                )
                yield Finding(kind="oversubscribed", sentence=sentence, share=1 - load.cores / load.wanted)

    def disturbed(self) -> Iterator[Finding]:
        if sentence := disturbance(self.seen.run.summary.loads):
            yield Finding(kind="disturbed", sentence=sentence, share=0.0)
