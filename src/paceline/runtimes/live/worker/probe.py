"""A short measurement before the first step: what a prediction needs to know. It leaves no trace in the training.

Gradients are those of a copy of the model, messages those of a codec's state that is thrown away, and sums those of
zeros. Random streams are put back; the data are taken beside the training's own loader.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import TypeVar

import torch
from torch import Tensor

from paceline.codecs.base import Codec
from paceline.codecs.context import STEADY, Layout
from paceline.codecs.exchanges import exchange_with_copies, run_programs
from paceline.codecs.reduction import reduce
from paceline.codecs.state import CodecState
from paceline.jobs.batches import Batch, to_device
from paceline.jobs.job import Job
from paceline.jobs.step import StepHooks, StepPhase
from paceline.records.files import from_document, to_document
from paceline.records.spans import StepBreakdown
from paceline.records.summary import Probe
from paceline.runtimes.compression import layout_of
from paceline.runtimes.flat import FlatModel
from paceline.runtimes.live.heartbeat import Heartbeat
from paceline.runtimes.live.worker.comm import SoloComm
from paceline.runtimes.live.worker.overlap import Slowdown
from paceline.runtimes.loading import load
from paceline.runtimes.prepare import Prepared
from paceline.runtimes.randomness import AllStreams, undisturbed
from paceline.runtimes.replica import Replica

T = TypeVar("T")
REPEATS = 3
LONG, ENOUGH = 1.5, 0.5
"""Seconds: what takes long at first, when memory is allocated and code is loaded, is measured no second time; else it
is repeated until that took enough."""
SMALL, LARGE = 2**16, 2**22
"""Bytes of the tensors that are summed: what is between tells the bandwidth, what is left the latency."""
SUMS = 5


class NotMeasured(Exception):
    """The same on all workers; the message says why."""


@dataclass(frozen=True)
class _Times:
    step: StepBreakdown
    ready: tuple[float, ...]
    coding: float


def measure(
    prepared: Prepared[Job],
    replica: Replica,
    comm: SoloComm,
    step: int,
    slowdown: Slowdown,
    heartbeat: Heartbeat,
    nodes: tuple[int, ...],
) -> Probe:
    """All workers call this, before the first gradient. It takes as long as a step or two, or a second."""
    coders = 2 if prepared.servers else comm.workers
    with undisturbed(AllStreams()), _same_device_stream(replica.device):
        rehearsal, why = _attempt(lambda: _Rehearsal(replica, step, slowdown, heartbeat))
        heartbeat.enter("exchange")
        comm.barrier()  # all compute at the same time, as they do in a step
        times = None
        if rehearsal is not None:
            times, why = _attempt(partial(rehearsal.times, prepared.codec, comm.rank % coders, coders))
            del rehearsal
    heartbeat.enter("exchange")
    found = comm.exchange({"times": to_document(times), "why": why})
    if reasons := [one["why"] for one in found if one["why"]]:
        raise NotMeasured(reasons[0])
    everyone = [from_document(one["times"], _Times) for one in found]
    flat = replica.flat
    return Probe(
        steps=tuple(one.step for one in everyone),
        ready=everyone[0].ready,
        shapes=tuple(tuple(one.shape) for one in flat.parameters),
        dtype=str(flat.params.dtype).removeprefix("torch."),
        buffers=replica.buffers.numel(),
        nodes=nodes,
        sums=_time_sums(comm, flat.grad_storage),
        coding=max(one.coding for one in everyone),
        coders=coders,
    )


def _attempt(task: Callable[[], T]) -> tuple[T | None, str]:
    """What a task returned, or why it failed: whatever a user's model, data or codec raises, the training goes on."""
    try:
        return task(), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


@contextmanager
def _same_device_stream(device: torch.device) -> Iterator[None]:
    before = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    yield
    if before is not None:
        torch.cuda.set_rng_state(before, device)


class _PhaseTimer(StepHooks):
    """Computing takes as much longer as it does in a step of a worker that is slowed down."""

    def __init__(self, twin: FlatModel, step: int, slowdown: Slowdown, heartbeat: Heartbeat) -> None:
        self._step, self._slowdown, self._heartbeat = step, slowdown, heartbeat
        self._ends = [0.0] * len(twin.flat.parameters)
        for place, parameter in enumerate(twin.flat.parameters):
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda _, place=place: self._filled(place)
            )
        self.reset()

    def reset(self) -> None:
        self.seconds = dict.fromkeys(("data", "forward", "backward"), 0.0)
        self._begun = self._last = 0.0

    def begin(self, phase: StepPhase) -> None:
        if phase == "forward":
            self._slowdown.begin(self._step)
        self._heartbeat.enter(phase)
        self._last = perf_counter()

    def last_backward(self) -> None:
        self._begun = perf_counter()

    def end(self, phase: StepPhase) -> None:
        if phase != "data":
            self._slowdown.stretch()
        now = perf_counter()
        self.seconds[phase] += now - self._last
        self._last = now

    def _filled(self, place: int) -> None:
        self._ends[place] = perf_counter()

    @property
    def ready(self) -> tuple[float, ...]:
        """Of the last backward; a slowdown after it is no part of it."""
        whole = max(self._ends) - self._begun
        return tuple(
            min(1.0, max(0.0, (end - self._begun) / whole)) if whole > 0 else 1.0 for end in self._ends
        )


class _Rehearsal:
    """A copy of a replica that computes the gradients of one step."""

    def __init__(self, replica: Replica, step: int, slowdown: Slowdown, heartbeat: Heartbeat) -> None:
        self._job, self._device = replica.job, replica.device
        self._layout = layout_of(replica.model)
        self._twin = FlatModel(replica.job, deepcopy(replica.model))
        self._requests = replica.requests(step)
        counts = [len(request.indices) for request in self._requests]
        self._shares = [count / sum(counts) for count in counts]
        # Loader processes prepare batches while the worker computes.
        self._loaded = list(self._load()) if replica.job.loader_workers else None
        self._timer = _PhaseTimer(self._twin, step, slowdown, heartbeat)
        self._first = self._gradient()

    def _load(self) -> Iterator[Batch]:
        batches = load(self._job.train, self._requests, 0)
        return (to_device(batch, self._device) for batch in batches)

    def _gradient(self) -> StepBreakdown:
        self._timer.reset()
        batches = self._load() if self._loaded is None else iter(self._loaded)
        self._twin.accumulate(batches, self._shares, self._timer)
        return StepBreakdown(**self._timer.seconds)

    def times(self, codec: Codec, rank: int, ranks: int) -> _Times:
        found = _repeated(self._gradient, lambda step: step.total, self._first)
        ready = self._timer.ready
        coding = _coding(codec, self._layout, self._twin.flat.grad, rank, ranks)
        apply = _repeated(self._apply, float, self._apply())
        return _Times(StepBreakdown(found.data, found.forward, found.backward, apply=apply), ready, coding)

    def _apply(self) -> float:
        return _timed(lambda: self._twin.optimizer.step(0.0), self._device)


def _repeated(again: Callable[[], T], seconds: Callable[[T], float], first: T) -> T:
    """The median of some repetitions, of which ``first`` is none, unless it took long."""
    if seconds(first) >= LONG:
        return first
    found: list[T] = []
    while len(found) < REPEATS and sum(map(seconds, found)) < ENOUGH:
        found.append(again())
    return sorted(found, key=seconds)[len(found) // 2]


def _timed(task: Callable[[], object], device: torch.device) -> float:
    begun = perf_counter()
    task()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter() - begun


def _coding(codec: Codec, layout: Layout, grad: Tensor, rank: int, ranks: int) -> float:
    """Seconds of one rank's reduction program, whose answers are its own messages, so that nothing is sent."""
    length = grad.numel() // ranks * ranks  # chunks are equally long, and so are their messages
    state = CodecState(
        codec, layout, {}, dtype=grad.dtype, device=grad.device, rank=rank, workers=ranks, seed=1
    )

    def code() -> float:
        vector = grad[:length].clone()
        context = state.context(0, length, STEADY, share=1 / ranks)
        codec.program(vector, context)  # finds lengths of messages, which are kept
        program = reduce(codec, vector, context)
        return _timed(
            lambda: run_programs([program], partial(exchange_with_copies, ranks=ranks)), grad.device
        )

    return _repeated(code, float, code())


def _time_sums(comm: SoloComm, storage: Tensor) -> tuple[tuple[int, float], ...]:
    """Of parts of the gradient's own memory, which is zero before the first step and stays so, unless that is short."""
    if storage.nbytes < LARGE:
        storage = torch.zeros(LARGE // storage.itemsize, dtype=storage.dtype, device=storage.device)
    comm.sum(_part(storage, SMALL))
    quick = _sum_seconds(comm, _part(storage, SMALL), SUMS)
    affordable = int(SMALL * ENOUGH / quick)
    large = min(LARGE, max(affordable, 2 * SMALL))
    slow = _sum_seconds(comm, _part(storage, large), max(1, min(SUMS, affordable // large)))
    return (SMALL, quick), (large, slow)


def _part(storage: Tensor, size: int) -> Tensor:
    return storage[: size // storage.itemsize]


def _sum_seconds(comm: SoloComm, tensor: Tensor, times: int) -> float:
    """The median, of sums that all workers begin together, until the last one has the result."""
    taken = []
    for _ in range(times):
        comm.barrier()
        taken.append(_timed(lambda: comm.sum(tensor), tensor.device))
    everyone = comm.exchange(taken)
    return float(median(map(max, zip(*everyone, strict=True))))
