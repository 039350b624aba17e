"""Paceline's cost model: traced compute on a device, and the strategy's program on the links."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import exp
from typing import Any, ClassVar

import torch

from paceline.clusters.catalogue import DeviceSheet, find_device
from paceline.clusters.cluster import CIPHER
from paceline.clusters.profile import Profile, read_profile
from paceline.codecs import build_codec
from paceline.codecs.base import Identity
from paceline.costs.device import UNCOMPRESSED, Compression, StepCost, compression_of
from paceline.costs.trace.trace import trace
from paceline.errors import UsageError
from paceline.jobs.job import Job, Traceable
from paceline.jobs.sharding import Shards
from paceline.runtimes.virtual.shape import JobShape
from paceline.strategies import build_strategy
from paceline.studies.predict.compute import (
    BatchTraces,
    ComputeTimes,
    faster_precision,
    find_compute,
    find_subject,
    is_mixed,
    precision_words,
)
from paceline.studies.predict.deployment import Deployment, at_their_speeds, find_deployment
from paceline.studies.predict.interval import interval, longest, seconds_by_parts
from paceline.studies.predict.memory import MemorySize, find_memory, predict_memory
from paceline.studies.predict.observe import observe
from paceline.studies.predict.prediction import (
    Basis,
    Memory,
    ModuleCost,
    PredictedStep,
    PredictionRow,
    Setting,
    StepBounds,
    Where,
    Wire,
)
from paceline.studies.predict.request import MOST_BATCH, MOST_WORKERS, USUAL_BATCH, PredictRequest
from paceline.studies.predict.search import holds_up_to
from paceline.studies.predict.setup import AS_DESCRIBED, Change, Setup, apply_change
from paceline.studies.predict.step import find_bounds, predict_step

ONE_WORKER = "all-reduce"
"""The strategy of one worker alone, which exchanges nothing."""
MILLION = 1_000_000
HOUR = 3600

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One strategy with one number of workers, and how the world differs from what is described."""

    strategy: str
    workers: int
    batch: int
    samples: int
    servers: int = 1
    jitter: float = 0.0
    change: Change = AS_DESCRIBED

    def with_link(self, where: Where, *, bandwidth: float = 1.0, latency: float = 1.0) -> "Case":
        return replace(self, change=Change(link=where, bandwidth=bandwidth, latency=latency))


@dataclass(frozen=True, kw_only=True)
class PacelineModel:
    """Compute times, hosts and links of one request: prices its cases, each once."""

    request: PredictRequest
    subject: Traceable | Job
    profile: Profile | None
    sheet: DeviceSheet | None
    compute: ComputeTimes
    deployment: Deployment
    memory_size: MemorySize
    """The memory of a worker whose host does not say what memory it has."""
    progress: Progress = lambda _: None
    name: ClassVar[str] = "paceline"
    explains: ClassVar[bool] = True
    """Whether it knows what bounds a step, so that findings follow."""

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
        return min(self.batch if self.strong else data, self.deployment.most)

    @cached_property
    def workers(self) -> tuple[int, ...]:
        return self.request.counts(self.most)

    @cached_property
    def alone(self) -> float:
        return self.rate(replace(self.case(ONE_WORKER, 1), servers=1))

    @property
    def basis(self) -> Basis:
        times = self.compute.accumulate
        return Basis(
            level=self.compute.level,
            compute=self.compute.words + (f"; {times} mini-batches a step" if times > 1 else ""),
            links=self.deployment.words,
            interval=f"computing is off by a typical factor of {exp(self.compute.spread):.3g}, transfers by "
            f"{exp(self.deployment.spread):.3g}",
            precision=precision_words(self.request, self.sheet, self.subject),
            faster_precision=faster_precision(self.request, self.sheet, self.compute, self.batch),
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
            self._shards(self.case("", largest))

    def changed(self, settings: Iterable[Setting]) -> "PacelineModel":
        request = self.request
        for setting, value in settings:
            request = request.changed(setting, value)
        model = self.with_request(request)
        model.check()
        return model

    def with_request(self, request: PredictRequest) -> "PacelineModel":
        return find_model(request, like=self)

    def case(self, strategy: str, workers: int) -> Case:
        jitter = self.request.jitter
        return Case(
            strategy=strategy,
            workers=workers,
            batch=-(-self.batch // workers) if self.strong else self.batch,
            samples=self.batch if self.strong else self.batch * workers,
            servers=self.request.servers,
            jitter=self.deployment.jitter if jitter is None else jitter,
        )

    @cached_property
    def step(self) -> Callable[[Case], PredictedStep]:
        return cache(self.find_step)

    @cached_property
    def bounds(self) -> Callable[[Case], StepBounds]:
        return cache(self.find_bounds)

    @cached_property
    def memory(self) -> Callable[[Case], Memory | None]:
        return cache(self.find_memory)

    def find_step(self, case: Case) -> PredictedStep:
        if case.workers in self.workers:  # others are tried to find where something changes
            self.progress(f"{case.strategy}, {case.workers:,} worker{'s' if case.workers > 1 else ''}")
        return predict_step(self.setup(case))

    def find_bounds(self, case: Case) -> StepBounds:
        return find_bounds(self.setup(case))

    def find_memory(self, case: Case) -> Memory | None:
        """By the trace; where it does not fit, also the largest batch that does."""
        setup = self.setup(replace(case, change=AS_DESCRIBED))

        def needs(batch: int) -> Memory:
            traced = self.compute.trace(batch)
            return predict_memory(setup, traced, self.memory_size, mixed=is_mixed(self.request))

        found = needs(case.batch)
        if found.fits:
            return found
        smaller = case.batch - 1
        largest = holds_up_to(lambda batch: needs(batch).fits, smaller).workers if smaller else 0
        largest -= largest % self.compute.accumulate
        return replace(found, largest=largest, least=None if largest else needs(1).needed)

    def cost(self, batch: int) -> StepCost:
        return self.compute.cost(batch)

    @property
    def parameters(self) -> int:
        return self.compute.trace(self.batch).size

    def modules(self) -> tuple[ModuleCost, ...]:
        return self.compute.modules(self.batch)

    def wire(self, case: Case, where: Where) -> Wire:
        return self.deployment.wire(self.setup(case).cluster, where)

    def rate(self, case: Case) -> float:
        """Samples a second of all workers; where shares differ, not all have as many as the largest."""
        return self.step(case).rate * case.samples / (case.workers * case.batch)

    def row(self, strategy: str, workers: int) -> PredictionRow:
        case = self.case(strategy, workers)
        cost, step, rate = self.cost(case.batch), self.step(case), self.rate(case)

        def seconds(compute: float, links: float) -> float:
            if step.path == "events":  # simulating every worker again takes long
                return seconds_by_parts(step.breakdown, compute, links)
            return self.step(replace(case, change=Change(compute=compute, transfers=links))).seconds

        doubts = (cost.spread, self.deployment.spread, longest(cost.unmeasured))
        low, high = interval(step.seconds, seconds, *doubts)
        return PredictionRow(
            workers=workers,
            batch=case.batch,
            samples=case.samples,
            breakdown=step.breakdown,
            step=step.seconds,
            low=low,
            high=high,
            sent=step.sent,
            rate=rate,
            speed_up=rate / self.alone,
            efficiency=rate / self.alone / workers,
            bound=self.bounds(case).bound,
            path=step.path,
            memory=self.memory(case),
            **self._paid(case, rate),
        )

    def _paid(self, case: Case, rate: float) -> dict[str, Any]:
        """Time and cost at so many samples a second; a host that is partly used is paid whole."""
        request, finish = self.request, None
        hourly = case.workers * request.price
        if request.host_price:
            hourly = self.deployment.hosts(case.workers) * request.host_price
        if request.epochs is not None:
            finish = request.epochs * self._shards(case).steps_per_epoch * case.samples / rate
        return {
            "cost_million": hourly / HOUR / rate * MILLION if hourly else None,
            "finish": finish,
            "cost": hourly / HOUR * finish if hourly and finish is not None else None,
        }

    def _shards(self, case: Case) -> Shards:
        assert self.epoch_samples is not None, "an epoch without a number of samples is refused"
        whole = case.samples == case.batch * case.workers
        sizes = (case.batch,) * case.workers if whole else (case.samples,)
        return Shards(samples=self.epoch_samples, batch_sizes=sizes, seed=0)

    def setup(self, case: Case) -> Setup:
        strategy, cost = build_strategy(case.strategy), self.cost(case.batch)
        apart, traced = cost.step.compute, self.compute.trace(case.batch)
        if self.profile is not None and not strategy.served:  # only a measured machine depends on it
            apart *= observe(strategy, 2, apart).cycle
        cluster = self.deployment.layout(case.workers, strategy.served, apart)
        if strategy.served:
            cluster = replace(cluster, cipher=(self.profile and self.profile.cipher) or CIPHER)
        # Without the recorded jitter, workers that do not wait for all others would stay in step. For workers that
        # wait for all, the wait is part of the measured contention.
        drifts = strategy.served and strategy.staleness_bound != 0
        setup = Setup(
            strategy=case.strategy,
            cluster=cluster,
            cost=cost,
            shape=JobShape(
                name=traced.name,
                parameters=tuple(parameter.elements for parameter in traced.parameters),
                dtype=traced.dtype,
                buffers=traced.buffers,
                train_samples=1,
                test_samples=1,
                compression=self._compression,
            ),
            collective=self.request.collective,
            servers=case.servers,
            jitter=case.jitter or (self.compute.jitter if drifts else 0.0),
        )
        return apply_change(setup, case.change)

    @cached_property
    def _compression(self) -> Compression:
        codec = build_codec(self.request.codec)
        if isinstance(codec, Identity):
            return UNCOMPRESSED
        traced = self.compute.trace(self.batch)
        shapes = [parameter.shape for parameter in traced.parameters]
        return compression_of(codec, shapes, traced.dtype, self.compute.timed(traced))


def find_model(
    request: PredictRequest, like: PacelineModel | None = None, progress: Progress = lambda _: None
) -> PacelineModel:
    """Look everything up; ``like`` has traced the same subject, and computes alike where its device is the same."""
    if like is None:
        path = request.profile
        profile = None if path is None else read_profile(path, str(torch.__version__))
    else:
        profile = like.profile
    deployment = find_deployment(request, profile)
    subject = find_subject(request) if like is None else like.subject
    if request.times is None:  # a run says itself how it was trained
        narrow = subject.precision != "fp32" and request.precision is None and request.device is not None
        request = replace(
            request,
            accumulate=request.accumulate or subject.accumulate,
            precision=subject.precision if narrow else request.precision,
        )
    sheet = _find_sheet(request, deployment)
    if like is not None and (sheet, request.precision) == (like.sheet, like.request.precision):
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
        memory_size=find_memory(request, profile, sheet),
        progress=progress,
    )
    return replace(model, deployment=at_their_speeds(request, deployment, compute, model.batch))


def _find_sheet(request: PredictRequest, deployment: Deployment) -> DeviceSheet | None:
    if request.device is not None:
        return find_device(request.device)
    if deployment.described is None or request.profile or request.times:
        return None
    return next(group.host for group in deployment.described.groups if group.workers).device.sheet
