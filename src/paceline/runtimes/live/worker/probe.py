"""A short measurement before the first step: what a prediction needs to know. It leaves no trace in the training.

Gradients are those of a copy of the model, messages those of a codec's state that is thrown away, and sums those of
zeros. Random streams are put back; the data are taken beside the training's own loader.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import TypeVar

import torch
from torch import Tensor

from paceline.codecs.base import Codec
from paceline.codecs.context import STEADY, Context, Layout
from paceline.codecs.exchanges import exchange_with_copies, run_programs
from paceline.codecs.reduction import reduce, take_memory
from paceline.codecs.state import CodecState
from paceline.errors import reason
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
from paceline.runtimes.prepare import Prepared, sends_gradients
from paceline.runtimes.randomness import AllStreams, undisturbed
from paceline.runtimes.replica import Replica

T = TypeVar("T")
REPEATS = 3
LONG, ENOUGH = 1.5, 0.5
"""Seconds: what takes long at first, when memory is allocated and code is loaded, is measured no second time; else it
is repeated until that took enough."""
SMALL, LARGE = 2**16, 2**22
"""Bytes of the tensors that are summed: what is between tells the bandwidth, what is left the latency."""
SUMS = 9


class NotMeasured(Exception):
    """The same on all workers; the message says why."""


@dataclass(frozen=True)
class _Times:
    step: StepBreakdown
    ready: tuple[float, ...]
    coding: float
    lengths: tuple[int, ...]


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
            times, why = _attempt(partial(rehearsal.times, prepared, comm.rank % coders, coders))
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
        lengths=tuple(map(max, zip(*(one.lengths for one in everyone), strict=True))),
        samples=prepared.job.train_samples,
    )


def _attempt(task: Callable[[], T]) -> tuple[T | None, str]:
    """What a task returned, or why it failed: whatever a user's model, data or codec raises, the training goes on."""
    try:
        return task(), ""
    except Exception as error:
        return None, reason(error)


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

    def times(self, prepared: Prepared[Job], rank: int, ranks: int) -> _Times:
        found = _repeated(self._gradient, lambda step: step.total, self._first)
        ready = self._timer.ready
        coder = _Coder(prepared.codec, self._layout, self._twin.flat.grad, rank, ranks)
        coding = _repeated(coder.seconds, float, coder.seconds())
        told = prepared.codec.varies and sends_gradients(prepared.strategy)
        lengths = coder.lengths() if told else ()
        apply = _repeated(self._apply, float, self._apply())
        step = StepBreakdown(found.data, found.forward, found.backward, apply=apply)
        return _Times(step, ready, coding, lengths)

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


class _Coder:
    """One rank's part in reductions of one gradient; the error memory goes from one to the next, as in a run."""

    def __init__(self, codec: Codec, layout: Layout, grad: Tensor, rank: int, ranks: int) -> None:
        self._codec, self._grad, self._ranks = codec.at(STEADY), grad, ranks
        self._state = CodecState(
            codec, layout, {}, dtype=grad.dtype, device=grad.device, rank=rank, workers=ranks, seed=1
        )

    def seconds(self) -> float:
        """Of a reduction program whose answers are its own messages, so that nothing is sent."""
        length = self._grad.numel() // self._ranks * self._ranks  # chunks are equally long
        program = reduce(self._codec, *self._part(0, length))
        return _timed(
            lambda: run_programs([program], partial(exchange_with_copies, ranks=self._ranks)),
            self._grad.device,
        )

    def lengths(self) -> tuple[int, ...]:
        """How many elements a message has of each parameter, where only data can tell."""
        return tuple(self._length(*self._part(*ends)) for ends in pairwise(self._state.layout.offsets))

    def _length(self, vector: Tensor, context: Context) -> int:
        take_memory(self._codec, vector, context)
        return max(one.numel() for one in self._codec.encode(vector, context))

    def _part(self, start: int, stop: int) -> tuple[Tensor, Context]:
        share = 1 / self._ranks
        return self._grad[start:stop] * share, self._state.context(start, stop, STEADY, share)


def _time_sums(comm: SoloComm, storage: Tensor) -> tuple[tuple[int, float], ...]:
    """Of parts of the gradient's own memory, which is zero before the first step and stays so, unless that is short.

    Small and large ones take turns, so that what else the machine does meanwhile delays both.
    """
    if storage.nbytes < LARGE:
        storage = torch.zeros(LARGE // storage.itemsize, dtype=storage.dtype, device=storage.device)
    small = _part(storage, SMALL)
    comm.sum(small)
    (quick,) = _sum_seconds(comm, [small], SUMS)
    size = min(LARGE, max(int(SMALL * ENOUGH / quick), 2 * SMALL))
    large = _part(storage, size)
    (slow,) = _sum_seconds(comm, [large], 1)
    if (times := min(SUMS, int(ENOUGH / (quick + slow)))) > 1:
        quick, slow = _sum_seconds(comm, [small, large], times)
    return (SMALL, quick), (size, slow)


def _part(storage: Tensor, size: int) -> Tensor:
    return storage[: size // storage.itemsize]


def _sum_seconds(comm: SoloComm, tensors: Sequence[Tensor], times: int) -> list[float]:
    """The median of each, of sums that all workers begin together, until the last one has the result."""
    taken = []
    for tensor in [*tensors] * times:
        comm.barrier()
        taken.append(_timed(partial(comm.sum, tensor), tensor.device))
    longest = [max(one) for one in zip(*comm.exchange(taken), strict=True)]
    return [float(median(longest[place :: len(tensors)])) for place in range(len(tensors))]
