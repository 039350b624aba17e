"""Paceline's cost model: traced compute on a device, and the strategy's program on the links."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import exp
from typing import ClassVar

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
from paceline.studies.predict.memory import MemorySize, find_memory, predict_memory
from paceline.studies.predict.observe import observe
from paceline.studies.predict.prediction import (
    Basis,
    Memory,
    ModuleCost,
    PredictedStep,
    StepBounds,
    Where,
    Wire,
)
from paceline.studies.predict.request import USUAL_BATCH, PredictRequest
from paceline.studies.predict.search import holds_up_to
from paceline.studies.predict.setup import AS_DESCRIBED, Change, Setup, apply_change
from paceline.studies.predict.step import find_bounds, predict_step


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
    request: PredictRequest
    subject: Traceable | Job
    profile: Profile | None
    sheet: DeviceSheet | None
    compute: ComputeTimes
    deployment: Deployment
    memory_size: MemorySize
    """The memory of a worker whose host does not say what memory it has."""
    name: ClassVar[str] = "paceline"
    explains: ClassVar[bool] = True
    """Whether it knows what bounds a step, so that findings follow."""

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
        return self.subject.train_samples if self.request.samples is None else self.request.samples

    @property
    def basis(self) -> Basis:
        times = self.accumulate
        return Basis(
            level=self.compute.level,
            compute=self.compute.words + (f"; {times} mini-batches a step" if times > 1 else ""),
            links=self.deployment.words,
            interval=f"computing is off by a typical factor of {exp(self.compute.spread):.3g}, transfers by "
            f"{exp(self.deployment.spread):.3g}",
            precision=precision_words(self.request, self.sheet, self.subject),
            faster_precision=faster_precision(self.request, self.sheet, self.compute, self.batch),
        )

    def step(self, case: Case) -> PredictedStep:
        return predict_step(self.setup(case))

    def bounds(self, case: Case) -> StepBounds:
        return find_bounds(self.setup(case))

    def cost(self, batch: int) -> StepCost:
        return self.compute.cost(batch)

    @property
    def parameters(self) -> int:
        return self.compute.trace(self.batch).size

    def modules(self) -> tuple[ModuleCost, ...]:
        return self.compute.modules(self.batch)

    def memory(self, case: Case) -> Memory | None:
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
        largest -= largest % self.accumulate
        return replace(found, largest=largest, least=None if largest else needs(1).needed)

    def wire(self, case: Case, where: Where) -> Wire:
        return self.deployment.wire(self.setup(case).cluster, where)

    def changed(self, request: PredictRequest) -> "PacelineModel":
        return find_model(request, like=self)

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


def find_model(request: PredictRequest, like: PacelineModel | None = None) -> PacelineModel:
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
    )
    return replace(model, deployment=at_their_speeds(request, deployment, compute, model.batch))


def _find_sheet(request: PredictRequest, deployment: Deployment) -> DeviceSheet | None:
    """The device that times are for: the named one, or that of the cluster's first worker."""
    if request.device is not None:
        return find_device(request.device)
    if deployment.described is None or request.profile or request.times:
        return None
    return next(group.host for group in deployment.described.groups if group.workers).device.sheet
