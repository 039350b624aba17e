"""What is measured of one network: each operator in its place, whole steps, and what the machine does at best."""

import resource
import socket
import threading
import timeit
from dataclasses import astuple, dataclass
from functools import partial
from itertools import repeat
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch._ops import OpOverload

from paceline.costs.fitted import PAGE, DevicePeaks
from paceline.costs.trace.operator import PHASES, Operator
from paceline.costs.trace.recorder import OperatorRecorder
from paceline.costs.trace.trace import TracedStep
from paceline.jobs.job import Job, Traceable
from paceline.jobs.step import StepHooks, StepPhase
from paceline.records.spans import StepBreakdown
from paceline.runtimes.flat import FlatModel, Zeros, own_memory
from paceline.runtimes.live.wire.channel import RECORD
from paceline.runtimes.live.wire.noise import TAG, Cipher

ENOUGH = 0.04
MOST_STEPS = 12
CIPHER_RECORDS = 256
"""Of 256 KiB: more than a processor's caches hold, as gradients are."""
LONG = 1.0
"""Seconds of a step that is run once only."""
PACE = 0.8
"""How far the time of an operator follows that of the probe, as a power; memory follows it less than computing."""


@dataclass(frozen=True, slots=True)
class TimedOperator:
    operator: Operator
    seconds: float
    faults: float
    """Pages of memory that it was the first to touch; each costs it time that warm memory does not."""


@dataclass(frozen=True, kw_only=True)
class MeasuredNetwork:
    operators: tuple[TimedOperator, ...]
    pace: float
    """Seconds of a fixed small task in between: a shared machine is not as fast at one moment as at the next."""
    step: StepBreakdown | None
    """As it runs when operators are not timed, at this pace; measured for some networks."""


class TrainingStep(StepHooks):
    """A model on flat buffers that is trained on one mini-batch again and again, as the live runtime does it."""

    def __init__(self, subject: Traceable | Job, samples: int, zeros: Zeros = own_memory) -> None:
        self.model = FlatModel(subject, subject.model(), zeros)
        self._batch = subject.batch(samples)
        self._ends: list[float] = []

    def end(self, phase: StepPhase) -> None:  # noqa: ARG002
        self._ends.append(perf_counter())

    def run(self) -> StepBreakdown:
        self._ends = []
        self.model.accumulate(repeat(self._batch), [1.0], self)
        begin, forward, backward = self._ends
        self.model.optimizer.step()
        return StepBreakdown(
            forward=forward - begin, backward=backward - forward, apply=perf_counter() - backward
        )


def measure(subject: Traceable | Job, samples: int, *, whole: bool) -> MeasuredNetwork:
    """Run steps in which each operator is timed and, if ``whole``, steps in which none is.

    Steps of a kind run one after the other, as in a training, and quick ones more often.
    """
    recorder = OperatorRecorder(_run)
    step = TracedStep(subject, samples, recorder)
    begin = perf_counter()
    with recorder:
        step.run()  # kernels are made, memory is allocated
    first = perf_counter() - begin
    repeats = min(MOST_STEPS, max(2 if first < LONG else 1, int(ENOUGH / first)))
    paces, runs = [_pace()], []
    for _ in range(repeats):
        with recorder:
            step.run()
        runs.append([call for phase in PHASES for call in recorder.calls[phase]])
        paces.append(_pace())
    operators = tuple(
        TimedOperator(calls[0][0], *(median(timed[part] for _, timed in calls) for part in (0, 1)))
        for calls in zip(*runs, strict=True)
    )
    del step, runs
    pace = median(paces)
    steps = _whole_step(subject, samples, repeats, pace) if whole else None
    return MeasuredNetwork(operators=operators, pace=pace, step=steps)


def _whole_step(subject: Traceable | Job, samples: int, repeats: int, pace: float) -> StepBreakdown:
    step = TrainingStep(subject, samples)
    step.run()
    before = _pace()
    steps = [astuple(step.run()) for _ in range(repeats)]
    here = (before + _pace()) / 2
    typical = StepBreakdown(*(median(part) for part in zip(*steps, strict=True)))
    return typical * float((pace / here) ** PACE)


def _pace() -> float:
    """Seconds of a fixed task that takes about a millisecond."""
    matrix = torch.ones(256, 256)
    return median(timeit.repeat(lambda: torch.mm(matrix, matrix), number=1))


def _run(
    function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[float, int]]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    begin = perf_counter()
    result = function(*args, **kwargs)
    seconds = perf_counter() - begin
    return result, (seconds, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)


def measure_limits() -> DevicePeaks:
    matrix, source = torch.randn(768, 768), torch.randn(8 * 2**20)
    images, weights = torch.randn(4, 128, 28, 28), torch.randn(128, 128, 3, 3)
    target = torch.empty_like(source)
    products = [
        (2.0 * 768**3, lambda: torch.mm(matrix, matrix)),
        (2.0 * 4 * 28 * 28 * 9 * 128**2, lambda: torch.conv2d(images, weights, padding=1)),
    ]
    flops = max(work / min(timeit.repeat(run, number=1, repeat=12)) for work, run in products)
    copy = min(timeit.repeat(lambda: target.copy_(source), number=1, repeat=12))
    return DevicePeaks(flops=flops, bandwidth=2 * source.nbytes / copy)


def measure_page() -> float:
    """Seconds that the first touch of a page costs beyond the writing."""
    size = 64 * 2**20
    fresh, warm = [], []
    for _ in range(3):
        memory = torch.empty(size, dtype=torch.uint8)
        fill = partial(memory.fill_, 1)
        fresh.append(timeit.timeit(fill, number=1))
        warm.append(timeit.timeit(fill, number=1))
    return max(0.0, median(fresh) - median(warm)) / (size / PAGE)


def measure_cipher() -> float:
    """Bytes a second that one process seals and sends while another receives and opens them, here as two threads."""
    return max(_cipher_rate() for _ in range(3))


def _cipher_rate() -> float:
    sealing, opening = Cipher(bytes(32)), Cipher(bytes(32))
    source, target = (memoryview(bytearray(CIPHER_RECORDS * RECORD)) for _ in range(2))
    sent, got = (memoryview(bytearray(RECORD + TAG)) for _ in range(2))
    places = range(0, CIPHER_RECORDS * RECORD, RECORD)
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as sender,
        listening.accept()[0] as receiver,
    ):

        def send() -> None:
            for at in places:
                sealing.seal_into(sent, source[at : at + RECORD])
                sender.sendall(sent)

        begun = perf_counter()
        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        for at in places:
            receiver.recv_into(got, RECORD + TAG, socket.MSG_WAITALL)
            opening.open_into(target[at : at + RECORD], got)
        thread.join()
        return CIPHER_RECORDS * RECORD / (perf_counter() - begun)
