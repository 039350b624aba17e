"""Settings made into the objects that a run needs; what is wrong with them is found before anything starts."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Generic, Protocol, TypeVar

from paceline.codecs import CODECS, build_codec, each_link
from paceline.codecs.base import Codec
from paceline.collectives import NATIVE
from paceline.errors import UsageError
from paceline.jobs.build import build_job
from paceline.jobs.job import Job
from paceline.jobs.partition import Clients, check_labels, labels_of
from paceline.jobs.schedules import SCALINGS, scale_schedule
from paceline.jobs.sharding import Shards
from paceline.records.summary import Started
from paceline.runtimes.replica import check_divisible, check_learners, check_momentum
from paceline.runtimes.settings import Settings, Triggers
from paceline.specs import ObjectSpec, shorten, with_values
from paceline.strategies import RECORDED, STRATEGIES, build_strategy, is_watched
from paceline.strategies.base import LearnerPlan, Strategy, SyncPoint


class JobInfo(Protocol):
    """What a run needs to know of its job: a Job says it, and so does a shape, where only time is simulated."""

    @property
    def name(self) -> str: ...

    @property
    def accumulate(self) -> int: ...

    @property
    def train_samples(self) -> int: ...

    @property
    def metrics(self) -> Collection[str]: ...

    @property
    def step(self) -> str: ...


J = TypeVar("J", bound=JobInfo)
J_co = TypeVar("J_co", bound=JobInfo, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Prepared(Generic[J_co]):
    settings: Settings
    job: J_co
    strategy: Strategy
    codec: Codec
    shards: Shards
    clients: Clients
    triggers: Triggers
    rate_factor: float = 1.0
    """What the learning rate is multiplied by, in the job's schedule, because of the batch."""

    @property
    def compresses(self) -> bool:
        return self.codec.compresses

    @property
    def learners(self) -> int:
        """Models that each worker trains."""
        count = self.strategy.learner_plan.count
        assert count is not None, "found when it was prepared"
        return count

    @property
    def scaled_batch(self) -> float:
        """What the learning rate is scaled for: samples of a step of all workers; of clients, one's mini-batch.

        Clients step alone, and how many workers stand for them changes nothing.
        """
        sizes = self.clients.batch_sizes
        return sum(sizes) / len(sizes) if self.clients.partition.clients else self.shards.global_batch

    @property
    def servers(self) -> int:
        return server_count(self.settings, self.strategy)

    def started(
        self, name: str, parameters: int, transport: str, folder: str | None, rate: float | None = None
    ) -> Started:
        """``rate`` is the optimizer's learning rate, where there is an optimizer."""
        settings, triggers = self.settings, self.triggers
        scheduled = settings.collective != NATIVE and settings.workers > 1
        return Started(
            name=name,
            job=self.job.name,
            parameters=parameters,
            strategy=shorten(settings.strategy, RECORDED),
            batch_sizes=settings.batch_sizes,
            step=_learners(self.learners) + self.job.step,
            transport=f"{transport}, by {settings.collective}" if scheduled else transport,
            codec=self._codec() if self.compresses else "",
            last_step=0 if triggers.endless else triggers.last,
            steps_per_epoch=0 if triggers.endless else triggers.steps_per_epoch,
            target=settings.target_accuracy,
            folder=folder,
            learning_rate="" if rate is None or settings.scale_lr == "none" else self._scaled(rate),
        )

    def _scaled(self, rate: float) -> str:
        batch, rule = self.scaled_batch, self.settings.scale_lr
        return f"{rate:g} x {self.rate_factor:.4g} for a batch of {batch:,.12g} ({rule})"

    def _codec(self) -> str:
        kept = {"error": "with error memory", "none": "without error memory"}[self.codec.memory]
        if self.settings.workers == 1 and not self.servers:
            kept = "unused: one worker sends nothing"
        return f"{short_codec(self.settings.codec)} {kept}"


def _learners(count: int) -> str:
    return f" x {count} learners" if count > 1 else ""


def short_codec(spec: str) -> str:
    """As a user would type it: without the settings that have their defaults."""
    return each_link(spec, lambda link: shorten(link, CODECS))


def prepare(settings: Settings) -> Prepared[Job]:
    check_settings(settings)  # before any data is loaded
    return prepare_built(settings, build_job(settings.job))


def prepare_built(settings: Settings, job: Job) -> Prepared[Job]:
    """The same of a job that is built already, as several runs may share it."""
    strategy = check_settings(settings)
    if settings.target_accuracy is not None and (job.test is None or "accuracy" not in job.metrics):
        raise UsageError(
            f"a target accuracy of {settings.target_accuracy:g} needs test data and a metric named 'accuracy', and "
            f"job {job.name!r} lacks one of them; add test=... and the metric to the job, or leave the target out"
        )
    check_divisible(job, server_count(settings, strategy))
    check_learners(job, strategy.learner_plan)
    prepared = prepare_job(settings, job, strategy)
    if (alpha := prepared.clients.partition.alpha) < inf:
        check_labels(job.train, job.name, alpha)
    if prepared.codec.has_momentum:
        check_momentum(job, settings.codec)
    return scale_rate(prepared)


def scale_rate(prepared: Prepared[Job]) -> Prepared[Job]:
    """Multiply the job's learning rate as the settings say, in its schedule, which workers and servers follow.

    A job that was scaled for other numbers of samples is scaled anew.
    """
    settings, job = prepared.settings, prepared.job
    if settings.scale_lr == "none":
        return prepared
    factor = SCALINGS[settings.scale_lr](prepared.scaled_batch / settings.reference)
    scaled = replace(job, schedule=scale_schedule(job.schedule, factor))
    return replace(prepared, job=scaled, rate_factor=factor)


def prepare_job(
    settings: Settings, job: J, strategy: Strategy, plan: LearnerPlan | None = None
) -> Prepared[J]:
    """Share out the job's data; raise UsageError where there is too little of it for one batch of every worker.

    ``plan`` decides what the strategy leaves open of its learners. Without it, computing is what is stated: k learners
    take k times as long as one, in turn or not, so that one is as good as many. Clients may have less than a batch:
    then progress is counted in steps of as many samples as they have on average.
    """
    asked = strategy.learner_plan
    if asked.is_open:
        in_turn = "in-turn" if asked.compute == "auto" else asked.compute
        strategy = strategy.with_learners(plan or LearnerPlan(count=asked.count or 1, compute=in_turn))
        settings = replace(settings, strategy=with_settings_of(settings.strategy, strategy))
    learners = strategy.learner_plan.count or 1
    sizes = tuple(size * job.accumulate * learners for size in settings.batch_sizes)
    samples, partition = job.train_samples, strategy.partition(settings.workers)
    clients = Clients(partition=partition, samples=samples, batch_sizes=sizes, seed=settings.seed)
    if isinstance(job, Job):
        clients = replace(clients, labels=partial(labels_of, job.train, job.name, partition.alpha))
    most = samples // partition.clients if partition.clients else max(sizes)
    shards = Shards(samples, tuple(min(size, most) for size in sizes), settings.seed)
    triggers = Triggers(settings, shards.steps_per_epoch)
    return Prepared(
        settings=settings,
        job=job,
        strategy=strategy,
        codec=build_codec(settings.codec),
        shards=shards,
        clients=clients,
        triggers=triggers,
    )


def with_settings_of(spec: str, strategy: Strategy) -> str:
    """The spec of this strategy, which differs from what the given spec names in what that leaves open."""
    if isinstance(spec, ObjectSpec):
        return ObjectSpec.of(strategy)
    asked = vars(build_strategy(spec))
    changed = {name: value for name, value in vars(strategy).items() if value != asked[name]}
    return with_values(spec, STRATEGIES, changed)


def check_settings(settings: Settings) -> Strategy:
    """Build the strategy, and refuse what contradicts it or itself; the job is neither imported nor its data loaded."""
    if is_watched(settings.strategy):
        raise UsageError(
            f"strategy {settings.strategy!r} is what a script does by itself, as paceline.watch records it; choose "
            "all-reduce, which averages gradients at every step as DistributedDataParallel does, or another strategy"
        )
    strategy = build_strategy(settings.strategy)
    if settings.target_accuracy is not None and not settings.evaluate.count:
        raise UsageError(
            f"a target accuracy of {settings.target_accuracy:g} and no evaluations contradict each other: "
            "without evaluations a target is never met; leave one of them out"
        )
    if settings.workers < strategy.least_workers:
        raise UsageError(
            f"strategy {settings.strategy!r} needs at least {strategy.least_workers} workers, and this run has "
            f"{settings.workers}; use more workers or change its settings"
        )
    if settings.workers > strategy.most_workers:
        raise UsageError(
            f"strategy {settings.strategy!r} has work for at most {strategy.most_workers} workers, and this run has "
            f"{settings.workers}; use fewer workers or change its settings"
        )
    check_strategy(settings, strategy)
    return strategy


def server_count(settings: Settings, strategy: Strategy) -> int:
    return settings.servers if strategy.served else 0


def check_strategy(settings: Settings, strategy: Strategy) -> None:
    """Refuse settings that the strategy makes no use of, or that it cannot work with."""
    name = f"strategy {settings.strategy!r}"
    if settings.servers > 1 and not strategy.served:
        raise UsageError(
            f"{settings.servers} servers cannot be used with {name}, which keeps no parameters on servers; "
            "leave them out, or choose ps, ssp or async"
        )
    if settings.collective != NATIVE and strategy.served:
        raise UsageError(
            f"collective {settings.collective} cannot be used with {name}, whose workers reduce nothing among "
            "themselves; leave it out, or choose a strategy without servers"
        )
    if settings.buffers == "rank0" and strategy.sync_point is not SyncPoint.EVERY_STEP:
        raise UsageError(
            f"rank 0's buffers are sent at every step, and {name} lets workers differ in steps; "
            "choose the average of the buffers"
        )
    if strategy.learner_plan.count != 1 and strategy.served:
        raise UsageError(
            f"{name} has servers, which keep one model, and several learners a worker; choose one of them"
        )
    check_pairs(settings.codec, settings.strategy, settings.collective)


def check_pairs(codec_spec: str, strategy_spec: str, collective: str) -> None:
    """Refuse a codec that does not go with a strategy or a collective."""
    codec, strategy, name = build_codec(codec_spec), build_strategy(strategy_spec), f"codec {codec_spec!r}"
    if codec.compresses and strategy.learner_plan.count != 1:
        raise UsageError(
            f"{name} cannot be used with several learners a worker: strategy {strategy_spec!r} sums their corrections "
            "exactly, in one vector; leave it out, or choose learners=1"
        )
    if codec.has_momentum and not sends_gradients(strategy):
        raise UsageError(
            f"{name} adds momentum to gradients, and workers of strategy {strategy_spec!r} send differences of "
            f"parameters; choose {_names(CODECS, lambda one: not build_codec(one).has_momentum)}, or one of the "
            f"strategies {_names(STRATEGIES, lambda one: sends_gradients(build_strategy(one)))}"
        )
    if collective != NATIVE and not codec.sums:
        raise UsageError(
            f"collective {collective} cannot be used with {name}, whose messages are gathered and not summed; "
            f"leave it out, or choose {_names(CODECS, lambda one: build_codec(one).sums)}"
        )


def sends_gradients(strategy: Strategy) -> bool:
    """Replicas stay equal by equal gradients, and servers are sent gradients; others average parameters."""
    return strategy.replicated or strategy.served


def _names(table: Iterable[str], fits: Callable[[str], bool]) -> str:
    *most, last = filter(fits, table)
    return f"{', '.join(most)} or {last}"
