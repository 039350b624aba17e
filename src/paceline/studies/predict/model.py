"""Paceline's cost model: traced compute on a device, and the strategy's program on the links."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import exp

import torch

from paceline.clusters.catalogue import DeviceSheet, find_device
from paceline.clusters.cluster import CIPHER
from paceline.clusters.profile import Profile, read_profile
from paceline.codecs import build_codec
from paceline.codecs.base import Identity
from paceline.costs.compression import UNCOMPRESSED, Compression, compression_of
from paceline.costs.device import StepCost
from paceline.costs.trace.trace import trace
from paceline.jobs.job import Job, Traceable
from paceline.runtimes.virtual.shape import JobShape
from paceline.strategies import build_strategy
from paceline.strategies.base import Strategy
from paceline.studies.predict.compute import (
    BatchTraces,
    ComputeTimes,
    faster_precision,
    find_compute,
    find_subject,
    is_mixed,
    module_costs,
    precision_words,
)
from paceline.studies.predict.deployment import (
    Deployment,
    SyncPattern,
    at_their_speeds,
    find_deployment,
    first_device,
)
from paceline.studies.predict.memory import MemorySize, find_memory, predict_memory
from paceline.studies.predict.observe import observe
from paceline.studies.predict.prediction import Basis, Memory, ModuleCost, PredictedStep, Where, Wire
from paceline.studies.predict.request import USUAL_BATCH, PredictRequest
from paceline.studies.predict.search import holds_up_to
from paceline.studies.predict.setup import AS_DESCRIBED, Change, Setup, apply_change
from paceline.studies.predict.step import explain_step, predict_step


@dataclass(frozen=True, kw_only=True)
class Case:
    """One strategy with one number of workers, and how the world differs from what is described."""

    strategy: str
    workers: int
    batch: int
    """Samples of the worker that has most of them."""
    samples: int
    """Samples of all workers in one step."""
    servers: int = 1
    jitter: float = 0.0
    change: Change = AS_DESCRIBED

    def with_link(self, where: Where, *, bandwidth: float = 1.0, latency: float = 1.0) -> "Case":
        """The same with so many times the bandwidth and the latency of one link."""
        return replace(self, change=Change(link=where, bandwidth=bandwidth, latency=latency))


@dataclass(frozen=True, kw_only=True)
class PacelineModel:
    """Compute times, hosts and links of one request."""

    request: PredictRequest
    subject: Traceable | Job
    profile: Profile | None
    sheet: DeviceSheet | None
    compute: ComputeTimes
    deployment: Deployment
    memory_size: MemorySize
    """The memory of a worker whose host does not say what memory it has."""
    costs: dict[int, StepCost] = field(default_factory=dict)
    """Of ``compute``, by batch: shared by models that have the same."""
    name: str = "paceline"
    explains: bool = True
    """Whether it knows what bounds a step, so that findings follow."""
    _memories: dict[Case, Memory] = field(default_factory=dict, init=False)

    @property
    def title(self) -> str:
        return self.subject.name

    @property
    def strategies(self) -> tuple[str, ...]:
        return self.request.strategies

    @property
    def batch(self) -> int:
        """As measured, or mini-batches as 'paceline train' has them."""
        if self.request.batch_size is None and self.compute.typical is not None:
            return self.compute.typical.samples
        return (self.request.batch_size or USUAL_BATCH) * self.accumulate

    @property
    def accumulate(self) -> int:
        return self.compute.accumulate

    @property
    def epoch_samples(self) -> int | None:
        """None where it is not known."""
        return self.subject.train_samples if self.request.samples is None else self.request.samples

    @property
    def most(self) -> int:
        return self.deployment.most

    @property
    def jitter(self) -> float:
        return self.deployment.jitter if self.request.jitter is None else self.request.jitter

    @property
    def links_spread(self) -> float:
        return self.deployment.spread

    @cached_property
    def basis(self) -> Basis:
        times = self.accumulate
        return Basis(
            level=self.compute.level,
            compute=self.compute.words + (f"; {times} mini-batches a step" if times > 1 else ""),
            links=self.deployment.words,
            interval=f"{self.compute.doubt}; transfers likewise {exp(self.links_spread):.3g}",
            precision=precision_words(self.request, self.sheet, self.subject),
            faster_precision=faster_precision(self.request, self.sheet, self.compute, self.batch),
        )

    def step(self, case: Case) -> PredictedStep:
        """Without what bounds it; ``rate`` counts ``workers`` times ``batch`` samples."""
        return predict_step(self.setup(case))

    def explain(self, case: Case) -> PredictedStep:
        return explain_step(self.setup(case))

    def cost(self, batch: int) -> StepCost:
        if batch not in self.costs:
            self.costs[batch] = self.compute.cost(batch)
        return self.costs[batch]

    def parameters(self) -> int:
        return self.compute.trace(next(iter(self.costs))).size

    def modules(self, batch: int) -> tuple[ModuleCost, ...]:
        traced = self.compute.trace(batch)
        return module_costs(traced, self.compute.timed(traced), self.accumulate)

    def memory(self, case: Case) -> Memory:
        """By the trace; where it does not fit, also the largest batch that does."""
        if case not in self._memories:
            self._memories[case] = self._memory(case)
        return self._memories[case]

    def _memory(self, case: Case) -> Memory:
        setup = self.setup(replace(case, change=AS_DESCRIBED))
        needed = predict_memory(setup, self.memory_size, mixed=is_mixed(self.request))

        def needs(batch: int) -> Memory:
            return needed(self.compute.trace(batch))

        found = needs(case.batch)
        if found.fits:
            return found
        smaller = case.batch - 1
        largest = holds_up_to(lambda batch: needs(batch).fits, smaller).workers if smaller else 0
        largest -= largest % self.accumulate
        return replace(found, largest=largest, least=None if largest else needs(1).needed)

    def hosts(self, workers: int) -> int:
        return self.deployment.hosts(workers)

    def wire(self, case: Case, where: Where) -> Wire:
        return self.deployment.wire(self.setup(case).cluster, where)

    def changed(self, request: PredictRequest) -> "PacelineModel":
        return find_model(request, like=self)

    def setup(self, case: Case) -> Setup:
        strategy = build_strategy(case.strategy)
        cost = self.cost(case.batch)
        pattern = SyncPattern(strategy.served, self._apart(strategy, cost))
        cluster = self.deployment.cluster(case.workers, pattern)
        if strategy.served:
            measured = self.profile.cipher if self.profile else None
            cluster = replace(cluster, cipher=measured or CIPHER)
        setup = Setup(
            strategy=case.strategy,
            cluster=cluster,
            cost=cost,
            shape=self._shape(case.batch),
            collective=self.request.collective,
            servers=case.servers,
            jitter=case.jitter or self._drift(strategy),
        )
        return apply_change(setup, case.change)

    def _drift(self, strategy: Strategy) -> float:
        """The recorded jitter, for workers that do not wait for all others: without it they would stay in step.

        For workers that wait for all, the wait is part of the measured contention.
        """
        return self.compute.jitter if strategy.served and strategy.staleness_bound != 0 else 0.0

    def _apart(self, strategy: Strategy, cost: StepCost) -> float:
        """Seconds that a worker computes between two exchanges."""
        alone = cost.step.compute
        if strategy.served or self.profile is None:  # only a measured machine depends on it
            return alone
        return observe(strategy, 2, alone).cycle * alone

    def _shape(self, batch: int) -> JobShape:
        traced = self.compute.trace(batch)
        return JobShape(
            name=traced.name,
            parameters=tuple(parameter.elements for parameter in traced.parameters),
            dtype=traced.dtype,
            buffers=traced.buffers,
            train_samples=1,
            test_samples=1,
            compression=self._compression,
        )

    @cached_property
    def _compression(self) -> Compression:
        codec = build_codec(self.request.codec)
        if isinstance(codec, Identity):
            return UNCOMPRESSED
        traced = self.compute.trace(next(iter(self.costs)))
        shapes = [parameter.shape for parameter in traced.parameters]
        return compression_of(codec, shapes, traced.dtype, self.compute.timed(traced))


def find_model(request: PredictRequest, like: PacelineModel | None = None) -> PacelineModel:
    """Look everything up; ``like`` has traced the same subject, and computes alike where its device is the same."""
    profile = _find_profile(request) if like is None else like.profile
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
        compute, costs = like.compute, like.costs
    else:
        traces = BatchTraces(lambda samples: trace(subject, samples)) if like is None else like.compute.traces
        compute, costs = find_compute(request, subject, profile, sheet, traces), {}
    model = PacelineModel(
        request=request,
        subject=subject,
        profile=profile,
        sheet=sheet,
        compute=compute,
        deployment=deployment,
        memory_size=find_memory(request, profile, sheet),
        costs=costs,
    )
    placed = at_their_speeds(request, deployment, compute, model.batch)
    return model if placed is deployment else replace(model, deployment=placed)


def _find_profile(request: PredictRequest) -> Profile | None:
    return None if request.profile is None else read_profile(request.profile, str(torch.__version__))


def _find_sheet(request: PredictRequest, deployment: Deployment) -> DeviceSheet | None:
    """The device that times are for: the named one, or that of the cluster's first worker."""
    if request.device is not None:
        return find_device(request.device)
    measured = request.profile is not None or request.times is not None
    return None if deployment.described is None or measured else first_device(deployment.described)
