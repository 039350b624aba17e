"""The benchmark as one worker takes part in it: probe, predict, then all backends in turn, size by size."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace

import numpy as np
import torch

from paceline.collectives.execute import find_operation
from paceline.collectives.traffic import busbw
from paceline.records.load import LoadMeter, disturbance
from paceline.runtimes.live.process_info import ProcessInfo, job_roots
from paceline.runtimes.live.run_store import check_equal
from paceline.runtimes.threads import usual_threads
from paceline.studies.collectives.group import (
    TURNS,
    BenchBackend,
    BenchGroup,
    BenchInterrupted,
    Pattern,
    build_backends,
    calls_within,
    worth_measuring,
)
from paceline.studies.collectives.probe import Prober, predict
from paceline.studies.collectives.request import (
    BenchEvent,
    BenchMeasurement,
    BenchProgress,
    BenchRequest,
    BenchResult,
    BenchSettings,
    check_workers,
)


def run_bench(
    asked: BenchRequest,
    info: ProcessInfo,
    *,
    show: Callable[[BenchEvent], None],
    beat: Callable[[int], None],
    stopping: Callable[[], bool],
) -> BenchResult:
    """Measure with all other workers, which must be asked for the same.

    On rank 0 ``show`` gets what is known, as soon as it is. ``beat`` gets the number of turns so far, and ``stopping``
    says at each of them whether to end.
    """
    check_workers(info.workers)
    with BenchGroup(info, stopping) as group:
        check_equal(group.exchange(asdict(asked)))
        torch.set_num_threads(usual_threads())
        only = worth_measuring(asked.only, group.shm.comm.team_sizes)
        result = BenchResult(
            settings=BenchSettings(
                request=replace(asked, only=only),
                hosts=tuple(Counter(group.hosts).values()),
                threads=torch.get_num_threads(),
                torch=str(torch.__version__),
                workers=info.workers,
            )
        )
        meter = LoadMeter(job_roots(info), info.local_workers * torch.get_num_threads())
        with suppress(BenchInterrupted):
            _measure(result, group, show if info.rank == 0 else lambda _: None, beat)
        if disturbed := disturbance([meter.load()], "the benchmark"):
            result.notes.append(disturbed)
    return result


def _measure(
    result: BenchResult, group: BenchGroup, show: Callable[[BenchEvent], None], beat: Callable[[int], None]
) -> None:
    asked = result.settings.request
    dtype: torch.dtype = getattr(torch, asked.dtype)
    operation = find_operation(asked.op, dtype)
    turns = 0

    def tick(words: str) -> None:
        nonlocal turns
        beat(turns)
        show(BenchProgress(turns / (len(asked.sizes) * len(asked.only) * TURNS), words))
        turns += 1

    show(result.settings)
    tick("probes")
    backends = build_backends(asked, group, operation, dtype)
    found = Prober(group, asked.cell_seconds / 2).probe(backends, operation, dtype)
    result.prediction = predict(found, group.hosts, asked.only, asked.sizes, dtype.itemsize)
    show(result.prediction)
    pattern = Pattern(operation, dtype, group.rank, group.workers)
    for size in asked.sizes:
        predicted = {name: times[size] for name, times in result.prediction.seconds.items()}
        cells = measure_size(asked, group, pattern, backends, size, predicted, tick)
        show(cells)
        result.cells += cells
    result.ending = "done" if all(cell.right for cell in result.cells) else "wrong"


def measure_size(
    asked: BenchRequest,
    group: BenchGroup,
    pattern: Pattern,
    backends: Mapping[str, BenchBackend],
    size: int,
    predicted: Mapping[str, float],
    tick: Callable[[str], None],
) -> list[BenchMeasurement]:
    """The cells of one size, in the order of the backends: checked first and last, timed in between.

    ``predicted`` are seconds by backend; ``tick`` is called after every turn of a backend.
    """
    works = {name: backend.work(size) for name, backend in backends.items()}
    right, calls, begun = {}, {}, {}
    for name, work in works.items():
        begun[name] = time.time()
        right[name] = _reduces_right(backends[name], size, pattern, group)
        (once,) = group.timed(work, 1)  # a warm-up too
        calls[name] = asked.repeats or calls_within(asked.cell_seconds, once)
    times = group.timed_in_turn(works, calls, tick)
    return [
        _measurement(
            times[name],
            group.workers,
            what=name,
            size=size,
            right=_reduces_right(backend, size, pattern, group) and right[name],
            predicted=predicted[name],
            measured_at=begun[name],
        )
        for name, backend in backends.items()
    ]


def _reduces_right(backend: BenchBackend, size: int, pattern: Pattern, group: BenchGroup) -> bool:
    """Reduce known values, and compare. Zeros afterwards: sums of sums would leave the numbers' range."""
    part = backend.part(size)
    pattern.fill(part)
    backend.reduce(part)
    right = group.agree(pattern.holds(part))
    part.zero_()
    return right


def _measurement(
    times: Sequence[float],
    workers: int,
    *,
    what: str,
    size: int,
    right: bool,
    predicted: float,
    measured_at: float,
) -> BenchMeasurement:
    low, middle, high = np.quantile(times, (0.25, 0.5, 0.75)).tolist()
    return BenchMeasurement(
        what=what,
        size=size,
        median=middle,
        low=low,
        high=high,
        repeats=len(times),
        algbw=size / middle,
        busbw=busbw(size, middle, workers),
        right=right,
        predicted=predicted,
        error=predicted / middle - 1,
        measured_at=measured_at,
    )
