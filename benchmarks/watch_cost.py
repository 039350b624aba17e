"""What `paceline.watch` costs a script: its step watched, against the same without; exit code 1: a limit missed.

One process, and two under DistributedDataParallel over Gloo, train on, and a few steps are watched and a few are not in
turn, so that both sides are the same processes at the same time. What watching does at every step is the difference of
the median steps. Two workers wait for each other in ways that vary more than that: there it is the difference of the
time that their thread computed, against the median step. What is done about once a second, comparing and writing
records and sampling the system, is in few steps: that is timed by itself, and added. What is done once, at the begin
and the end, is not counted.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import paceline
from _ports import free_ports
from paceline.jobs.build import build_job
from paceline.jobs.spec import JobSpec

MODEL, BATCH, SHAPE = "cnn", 16, "1x28x28"
MOST = 0.02
STRETCHES = 10
IN_TURN, UNTIMED = 12, 2
"""Steps of a side before it is the other's turn, and how many of them are not timed."""


class Script:
    """A training loop that is stretched as far as needed."""

    def __init__(self, workers: int) -> None:
        torch.manual_seed(1)
        job = build_job(JobSpec(data=f"synthetic:shape={SHAPE},train=16000", model=MODEL))
        self.model: torch.nn.Module = job.model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        if workers > 1:
            dist.init_process_group("gloo")
            self.model = DistributedDataParallel(self.model)
        inputs, targets = job.train.take(torch.arange(64 * BATCH))
        self._batches = [*zip(inputs.split(BATCH), targets.split(BATCH), strict=True)]
        self._criterion, self._done = torch.nn.CrossEntropyLoss(), 0

    def train(self, steps: int) -> list[tuple[float, float]]:
        """Seconds of each of so many steps, and those in which its thread computed."""
        stamps = [(time.perf_counter(), time.thread_time())]
        for _ in range(steps):
            inputs, targets = self._batches[self._done % len(self._batches)]
            self._done += 1
            self.optimizer.zero_grad()
            loss = self._criterion(self.model(inputs), targets)
            loss.backward()
            self.optimizer.step()
            stamps.append((time.perf_counter(), time.thread_time()))
        return [(late - early, done - before) for (early, before), (late, done) in pairwise(stamps)]


class Timed:
    """Adds up what calls of a method take; a call from another thread counts with the time of its core."""

    def __init__(self, owner: Any, name: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds, self._method, self._clock = 0.0, getattr(owner, name), clock
        setattr(owner, name, self._call)

    def _call(self, *words: Any, **named: Any) -> Any:
        begun = self._clock()
        try:
            return self._method(*words, **named)
        finally:
            self.seconds += self._clock() - begun


def work(workers: int, turns: int) -> None:
    """One process; rank 0 prints the seconds of steps without and with, and of what is done once a second."""
    torch.set_num_threads(1)
    script = Script(workers)
    script.train(200)
    watching = paceline.watch(script.model, script.optimizer)
    steps = watching._steps
    script.train(50)
    recording = Timed(steps.recorder, "record_noted")
    sampling = Timed(steps._sampler, "_sample", time.thread_time) if steps._sampler else None
    found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    begun = time.perf_counter()
    for turn in range(2 * turns):
        watched = turn % 2 == 0
        if watched and turn:
            steps.begin_watching(script.model)
        found[watched] += script.train(IN_TURN)[UNTIMED:]
        if watched:
            steps.end_watching()
    whole = time.perf_counter() - begun
    # Records are of half of the steps only; the system is sampled all the time.
    share = (2 * recording.seconds + (sampling.seconds if sampling else 0.0)) / whole
    if workers == 1 or dist.get_rank() == 0:
        print(json.dumps({"plain": found[False], "watched": found[True], "periodic": share}), flush=True)
    watching.stop()
    if workers > 1:
        dist.barrier()
        dist.destroy_process_group()


def measure(workers: int, turns: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--work", str(workers), "--turns", str(turns)]
    variables = {"WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    variables["MASTER_PORT"] = str(free_ports(1)[0])
    with tempfile.TemporaryDirectory(prefix="watch-cost-") as home, ExitStack() as stack:
        ranks = []
        for rank in range(workers):
            launched = {**variables, "RANK": str(rank)} if workers > 1 else {"OMP_NUM_THREADS": "1"}
            pipe = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
            popen = subprocess.Popen(
                command,
                cwd=home,
                env={**os.environ, **launched},
                stdout=pipe,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            ranks.append(stack.enter_context(popen))
        out = ranks[0].communicate()[0]
        assert all(one.wait() == 0 for one in ranks), "a worker has failed"
    found = json.loads(next(line for line in out.splitlines() if line.startswith("{")))
    plain, watched = (
        [[*column] for column in zip(*found[side], strict=True)] for side in ("plain", "watched")
    )
    step, counted = statistics.median(plain[0]), 0 if workers == 1 else 1
    each = (statistics.median(watched[counted]) - statistics.median(plain[counted])) / step
    periodic = float(found["periodic"])
    return {
        "workers": workers,
        "steps": len(plain[0]),
        "step_seconds": step,
        "quartiles": [*statistics.quantiles(plain[0], n=4)][::2],
        "watched_step_seconds": statistics.median(watched[0]),
        "each_step": each,
        "standard_error": each_error(plain[counted], watched[counted]) / step,
        "once_a_second": periodic,
        "cost": each + periodic,
        "met": each + periodic < MOST,
    }


def each_error(plain: list[float], watched: list[float]) -> float:
    """Of the difference of the medians, in seconds, by stretches that follow each other."""
    many = max(1, len(plain) // STRETCHES)
    starts = range(0, len(plain) - many + 1, many)
    found = [
        statistics.median(watched[at : at + many]) - statistics.median(plain[at : at + many]) for at in starts
    ]
    return statistics.stdev(found) / len(found) ** 0.5 if len(found) > 1 else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=400, help="of each side")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.turns)
        return 0
    results = [measure(workers, options.turns) for workers in (1, 2)]
    if options.json:
        document = {"schema": 1, "model": MODEL, "input": SHAPE, "batch": BATCH, "results": results}
        print(json.dumps({**document, "torch": torch.__version__}, indent=2))
    else:
        print(f"{MODEL} on {SHAPE}, batch {BATCH}, one thread; {IN_TURN} steps of each side in turn")
        for one in results:
            low, high = (1e3 * part for part in one["quartiles"])
            how = "one process" if one["workers"] == 1 else "2 workers under DDP"
            print(
                f"  {how:<20}{1e3 * one['step_seconds']:6.3f} ms a step ({low:.2f} .. {high:.2f}), watched "
                f"{1e3 * one['watched_step_seconds']:.3f}: {100 * one['each_step']:+.2f} % "
                f"(± {100 * one['standard_error']:.2f}), and {100 * one['once_a_second']:.2f} % once a second: "
                f"{100 * one['cost']:+.2f} %, limit {100 * MOST:g} %: {'met' if one['met'] else 'MISSED'}"
            )
    return 0 if all(one["met"] for one in results) else 1


if __name__ == "__main__":
    sys.exit(main())
