"""Paceline's cost model: traced compute on a device, and the strategy's program on the links."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from math import exp
from typing import Any

import torch

from paceline.clusters.catalogue import DeviceSheet, find_device
from paceline.clusters.cluster import CIPHER, Device
from paceline.clusters.profile import Profile, read_profile
from paceline.codecs import build_codec
from paceline.codecs.context import Layout
from paceline.costs.coding import UNCODED, CodecCosts
from paceline.costs.device import StepCost
from paceline.costs.trace.trace import trace
from paceline.errors import UsageError
from paceline.jobs.job import Job, Traceable
from paceline.jobs.sharding import Shards
from paceline.runtimes.prepare import with_settings_of
from paceline.runtimes.replica import check_momentum
from paceline.runtimes.virtual.shape import JobShape
from paceline.strategies import build_strategy
from paceline.studies.predict.compute import (
    BatchTraces,
    ComputeTimes,
    find_compute,
    find_subject,
    is_mixed,
    narrower_format,
    precision_words,
    roofline,
)
from paceline.studies.predict.deployment import Deployment, find_deployment
from paceline.studies.predict.interval import interval, longest, seconds_by_parts
from paceline.studies.predict.memory import find_memory, predict_memory
from paceline.studies.predict.observe import observe
from paceline.studies.predict.prediction import (
    Basis,
    Memory,
    ModuleCost,
    PredictedStep,
    PredictionRow,
    SettingValue,
    StepBounds,
)
from paceline.studies.predict.request import MOST_BATCH, MOST_WORKERS, USUAL_BATCH, PredictRequest
from paceline.studies.predict.script import ScriptStep
from paceline.studies.predict.search import holds_up_to
from paceline.studies.predict.setup import Setup, with_slower
from paceline.studies.predict.step import find_bounds, predict_step

ONE_WORKER = "all-reduce"
"""The strategy of one worker alone, which exchanges nothing."""
MILLION = 1_000_000
HOUR = 3600

ShowProgress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class PacelineModel:
    """Compute times, hosts and links of one request: prices strategies at numbers of workers, each once."""

    request: PredictRequest
    subject: Traceable | Job
    profile: Profile | None
    sheet: DeviceSheet | None
    compute: ComputeTimes
    deployment: Deployment
    device: Device
    """Of workers whose hosts do not say what memory they have."""
    progress: ShowProgress = lambda _: None

    def __post_init__(self) -> None:
        # Whose answers are kept.
        for name in ("setup", "step", "bounds", "memory", "at_its_speed", "coding_by"):
            object.__setattr__(self, name, cache(getattr(self, name)))

    @property
    def strategies(self) -> tuple[str, ...]:
        return self.request.strategies

    @property
    def batch(self) -> int:
        """As measured, or mini-batches as 'paceline train' has them."""
        if self.request.batch_size is None and self.compute.typical is not None:
            return self.compute.typical.samples
        return (self.request.batch_size or USUAL_BATCH) * self.compute.accumulate

    @property
    def epoch_samples(self) -> int | None:
        return self.subject.train_samples if self.request.samples is None else self.request.samples

    @property
    def strong(self) -> bool:
        return self.request.scaling == "strong"

    @property
    def most(self) -> int:
        samples = self.epoch_samples
        data = MOST_WORKERS if samples is None else max(1, samples // self.batch)
        useful = min((strategy.most_workers for strategy in self.request.built), default=MOST_WORKERS)
        return min(self.batch if self.strong else data, self.deployment.most, int(min(useful, MOST_WORKERS)))

    @cached_property
    def workers(self) -> tuple[int, ...]:
        return self.request.counts(self.most)

    @cached_property
    def alone(self) -> float:
        """Samples a second of one worker, which exchanges nothing."""
        return self.rate(self.setup(ONE_WORKER, 1))

    @property
    def basis(self) -> Basis:
        times, faster, traced = self.compute.accumulate, None, self.compute.trace(self.batch)
        if narrow := narrower_format(self.request, self.sheet, traced):
            computing, other = self.cost(self.batch).step.compute, self.changed([("precision", narrow)])
            faster = narrow, computing / other.cost(self.batch).step.compute
        assumed = self.subject.assumed() if isinstance(self.subject, Traceable) else ""
        return Basis(
            level=self.compute.level,
            compute=self.compute.words
            + (f"; {times} mini-batches a step" if times > 1 else "")
            + (f"; {assumed}" if assumed else ""),
            links=self.deployment.words,
            interval=f"computing is off by a typical factor of {exp(self.compute.spread):.3g}, transfers by "
            f"{exp(self.deployment.spread):.3g}",
            precision=precision_words(self.request, self.sheet, self.subject, traced),
            faster_precision=faster,
        )

    def check(self) -> None:
        if self.request.epochs is not None and self.epoch_samples is None:
            raise UsageError(f"epochs {self.request.epochs} of how many samples? give samples")
        if not 1 <= self.batch <= MOST_BATCH:
            raise UsageError(f"batch size {self.batch} is out of range: it must be 1 to {MOST_BATCH:,}")
        largest = max(self.workers)
        if self.strong and largest > self.batch:
            raise UsageError(
                f"{largest} workers on a batch of {self.batch}: some are without a sample; ask for fewer"
            )
        if largest > self.deployment.most:
            raise UsageError(
                f"{largest} workers do not fit the cluster, which has {self.deployment.most}; ask for no more"
            )
        if self.epoch_samples is not None:
            self._shards(largest)

    def changed(self, settings: Iterable[SettingValue]) -> "PacelineModel":
        model = find_model(self.request.changed(settings), like=self)
        model.check()
        return model

    def samples(self, workers: int) -> int:
        """Of a step of all workers together."""
        return self.batch if self.strong else self.batch * workers

    def largest_share(self, workers: int) -> int:
        return -(-self.batch // workers) if self.strong else self.batch

    def step(self, setup: Setup) -> PredictedStep:
        workers = setup.cluster.workers
        if workers in self.workers:  # others are tried to find where something changes
            self.progress(f"{setup.strategy}, {workers:,} worker{'s' if workers > 1 else ''}")
        return predict_step(setup)

    def bounds(self, setup: Setup) -> StepBounds:
        return find_bounds(setup)

    def memory(self, setup: Setup) -> Memory:
        """By the trace; where it does not fit, also the largest batch that does."""
        batch = setup.cost.samples // setup.learners
        found = self.memory_with(setup, batch)
        if found.fits:
            return found
        smaller = holds_up_to(lambda few: few == 0 or self.memory_with(setup, few).fits, batch - 1).workers
        largest = smaller - smaller % self.compute.accumulate
        return replace(found, largest=largest, least=None if largest else self.memory_with(setup, 1).needed)

    def memory_with(self, setup: Setup, batch: int) -> Memory:
        traced = self.compute.trace(batch)
        mixed = is_mixed(self.request) and torch.float32 in traced.dtypes
        return predict_memory(setup, traced, self.device, mixed=mixed)

    def cost(self, batch: int) -> StepCost:
        return self.compute.cost(batch)

    def modules(self) -> tuple[ModuleCost, ...]:
        return self.compute.modules(self.batch)

    def rate(self, setup: Setup) -> float:
        """Samples a second of all workers; where shares differ, not all have as many as the largest."""
        workers = setup.cluster.workers
        return self.step(setup).rate * self.samples(workers) / (workers * self.largest_share(workers))

    def row(self, strategy: str, workers: int) -> PredictionRow:
        setup = self.setup(strategy, workers)
        low, high = self.interval(setup)
        memory = None if isinstance(self.subject, ScriptStep) else self.memory(setup)
        known = {"bound": self.bounds(setup).bound, "memory": memory}
        row = self._row(workers, self.step(setup), self.alone, low=low, high=high, **known)
        return replace(row, samples=row.samples * setup.learners)

    def interval(self, setup: Setup) -> tuple[float, float]:
        """The 10th and the 90th percentile of a step's seconds, of steps that are worked out anew."""
        step = self.step(setup)
        if step.path == "events":  # simulating every worker again takes long
            return self.interval_by_parts(setup)

        def seconds(compute: float, links: float) -> float:
            return self.step(with_slower(setup, compute=compute, transfers=links)).seconds

        return interval(step.seconds, seconds, *self._doubts(setup))

    def interval_by_parts(self, setup: Setup) -> tuple[float, float]:
        """The same from the step's breakdown alone, which takes no time: what is hidden stays hidden."""
        step = self.step(setup)
        return interval(step.seconds, partial(seconds_by_parts, step.breakdown), *self._doubts(setup))

    def _doubts(self, setup: Setup) -> tuple[float, float, float]:
        return setup.cost.spread, self.deployment.spread, longest(setup.cost.unmeasured)

    def hourly(self, workers: int) -> float:
        """What they cost an hour; a host that is partly used is paid whole."""
        if self.request.host_price:
            return self.deployment.hosts(workers) * self.request.host_price
        return workers * self.request.price

    def finish(self, workers: int, rate: float) -> float | None:
        """Seconds of the whole training at so many samples a second; None where no epochs are asked for."""
        if self.request.epochs is None:
            return None
        steps = self.request.epochs * self._shards(workers).steps_per_epoch
        return steps * self.samples(workers) / rate

    def _row(self, workers: int, step: PredictedStep, alone: float, **known: Any) -> PredictionRow:
        """``alone``: samples a second of one worker."""
        samples, share, hourly = self.samples(workers), self.largest_share(workers), self.hourly(workers)
        rate = step.rate * samples / (workers * share)
        finish = self.finish(workers, rate)
        return PredictionRow(
            workers=workers,
            batch=share,
            samples=samples,
            breakdown=step.breakdown,
            step=step.seconds,
            sent=step.sent,
            rate=rate,
            speed_up=rate / alone,
            efficiency=rate / alone / workers,
            path=step.path,
            cost_million=hourly / HOUR / rate * MILLION if hourly else None,
            finish=finish,
            cost=hourly / HOUR * finish if hourly and finish is not None else None,
            **known,
        )

    def _shards(self, workers: int) -> Shards:
        assert self.epoch_samples is not None, "an epoch without a number of samples is refused"
        share, samples = self.largest_share(workers), self.samples(workers)
        sizes = (share,) * workers if samples == share * workers else (samples,)
        return Shards(samples=self.epoch_samples, batch_sizes=sizes, seed=0)

    def setup(self, strategy: str, workers: int, jitter: float | None = None) -> Setup:
        """``jitter`` is as requested or described, unless it is given."""
        program, share = build_strategy(strategy), self.largest_share(workers)
        plan = program.learner_plan
        cost = self.cost(share) if plan.count == 1 else self.compute.cost_with(plan, share)
        apart = cost.step.compute
        repeats = not program.served and not program.partition(workers).clients
        if self.profile is not None and repeats:  # only a measured machine depends on it
            apart *= observe(program, 2, apart, strategy).cycle
        cluster = self.deployment.layout(workers, program.served, apart)
        cluster = cluster.map_hosts(lambda host: replace(host, device=self.at_its_speed(host.device)))
        if program.served:
            cluster = replace(cluster, cipher=(self.profile and self.profile.cipher) or CIPHER)
        if jitter is None:
            jitter = self.deployment.jitter if self.request.jitter is None else self.request.jitter
        # Without the recorded jitter, workers that do not wait for all others would stay in step. For workers that
        # wait for all, the wait is part of the measured contention.
        drifts = program.served and program.staleness_bound != 0
        return Setup(
            strategy=strategy,
            cluster=cluster,
            cost=cost,
            shape=self.shape,
            coding=self.coding_by(self.request.codecs[0]),
            collective=self.request.collective,
            servers=self.request.servers if program.served else 1,
            jitter=jitter or (self.compute.jitter if drifts else 0.0),
            slow=tuple((rank, factor) for rank, factor in self.request.slow or () if rank < workers > 1),
            samples=self.epoch_samples,
        )

    def decided(self) -> "PacelineModel":
        """With what strategies leave open of their learners decided as in a run, by modelled times."""
        workers, specs = self.workers[0], []
        most = MOST_BATCH if self.epoch_samples is None else self.epoch_samples // self.samples(workers)
        for spec in self.strategies:
            strategy = build_strategy(spec)
            if strategy.learner_plan.is_open:
                plan = self.compute.decide(strategy.learner_plan, self.largest_share(workers), most)
                spec = with_settings_of(spec, strategy.with_learners(plan))
            specs.append(spec)
        return replace(self, request=replace(self.request, strategies=tuple(specs)))

    def at_its_speed(self, device: Device) -> Device:
        """One of the catalogue is as fast as its sheet says; a stated speed multiplies."""
        if device.sheet is None:
            return device
        there = replace(self.compute, device=roofline(self.request, device.sheet)).cost(self.batch)
        speed = device.speed * self.cost(self.batch).step.compute / there.step.compute
        return replace(device, speed=speed)

    @cached_property
    def shape(self) -> JobShape:
        traced = self.compute.trace(self.batch)
        named = [(parameter.name, parameter.shape) for parameter in traced.parameters]
        return JobShape(
            name=traced.name,
            layout=Layout(*map(tuple, zip(*named, strict=True))),
            dtype=traced.dtype,
            buffers=traced.buffers,
        )

    def coding_by(self, spec: str) -> CodecCosts:
        codec = build_codec(spec)
        if not codec.compresses:
            return UNCODED
        return CodecCosts(codec=codec, timed=self.compute.timed(self.compute.trace(self.batch)))


def find_model(
    request: PredictRequest,
    like: PacelineModel | None = None,
    progress: ShowProgress = lambda _: None,
    *,
    subject: Traceable | Job | None = None,
) -> PacelineModel:
    """Look everything up; ``like`` has traced the same subject, and computes alike where its device is the same.

    ``subject`` is what the request names, where it has been built already.
    """
    same = like is not None and like.request.profile == request.profile
    profile = like.profile if like and same else None
    if not same and request.profile is not None:
        profile = read_profile(request.profile, str(torch.__version__))
    deployment = find_deployment(request, profile)
    subject = like.subject if like else subject or find_subject(request)
    if request.times is None:  # a run says itself how it was trained
        narrow = subject.precision != "fp32" and request.precision is None and request.device is not None
        request = replace(
            request,
            accumulate=request.accumulate or subject.accumulate,
            precision=subject.precision if narrow else request.precision,
        )
    for spec in request.codecs:
        if build_codec(spec).has_momentum:
            check_momentum(subject, spec)
    sheet = _find_sheet(request, deployment)
    if like and same and (sheet, request.precision) == (like.sheet, like.request.precision):
        compute = like.compute
    else:
        traces = like.compute.traces if like else BatchTraces(lambda samples: trace(subject, samples))
        compute = find_compute(request, subject, profile, sheet, traces)
    model = PacelineModel(
        request=request,
        subject=subject,
        profile=profile,
        sheet=sheet,
        compute=compute,
        deployment=deployment,
        device=find_memory(request, profile, sheet, of_script=isinstance(subject, ScriptStep)),
        progress=progress,
    )
    return model.decided() if any(one.learner_plan.is_open for one in request.built) else model


def _find_sheet(request: PredictRequest, deployment: Deployment) -> DeviceSheet | None:
    if request.device is not None:
        return find_device(request.device)
    if deployment.described is None or request.profile or request.times:
        return None
    return next(group.host for group in deployment.described.groups if group.workers).device.sheet
