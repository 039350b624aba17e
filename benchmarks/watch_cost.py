"""What `paceline.watch` costs a script: its step rate watched, against the same without; exit code 1: a limit missed.

One process, and two under DistributedDataParallel over Gloo, train on. Watching is turned on and off in turn, so that
both sides are the same processes at nearly the same time; each stretch is longer than a second, and so holds all that
watching does once a second. What is done once, at its begin and its end, is not timed.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
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
SECONDS = 1.2
"""Of a stretch, about."""
UNTIMED = 25
"""Steps of a stretch before it is timed: the record begins in the first."""


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

    def train(self, steps: int) -> float:
        """Seconds of so many steps."""
        begun = time.perf_counter()
        for _ in range(steps):
            inputs, targets = self._batches[self._done % len(self._batches)]
            self._done += 1
            self.optimizer.zero_grad()
            loss = self._criterion(self.model(inputs), targets)
            loss.backward()
            self.optimizer.step()
        return time.perf_counter() - begun

    def stretch(self, steps: int, *, watched: bool) -> float:
        """Seconds a step."""
        watching = paceline.watch(self.model, self.optimizer) if watched else None
        self.train(UNTIMED)
        seconds = self.train(steps)
        if watching:
            watching.stop()
        return seconds / steps


def work(workers: int, pairs: int) -> None:
    """One process: all stretches; rank 0 prints the seconds a step of each pair, without and with."""
    torch.set_num_threads(1)
    script = Script(workers)
    script.train(200)
    steps = torch.tensor(int(SECONDS * 200 / script.train(200)))
    if workers > 1:
        dist.broadcast(steps, 0)
    many = int(steps)
    for pair in range(pairs):
        found = {
            side: script.stretch(many, watched=side) for side in ((False, True), (True, False))[pair % 2]
        }
        if not workers > 1 or dist.get_rank() == 0:
            print(json.dumps([found[False], found[True]]), flush=True)
    if workers > 1:
        dist.barrier()
        dist.destroy_process_group()


def measure(workers: int, pairs: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--work", str(workers), "--pairs", str(pairs)]
    variables = {"WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    variables["MASTER_PORT"] = str(free_ports(1)[0])
    with tempfile.TemporaryDirectory(prefix="watch-cost-") as home, contextlib.ExitStack() as stack:
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
    found = [json.loads(line) for line in out.splitlines()]
    costs = [watched / plain - 1 for plain, watched in found]
    low, _, high = statistics.quantiles(costs, n=4)
    return {
        "workers": workers,
        "pairs": pairs,
        "step_seconds": statistics.median(plain for plain, _ in found),
        "watched_step_seconds": statistics.median(watched for _, watched in found),
        "cost": statistics.median(costs),
        "quartiles": [low, high],
        "met": statistics.median(costs) < MOST,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=30, help="stretches of each side")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.pairs)
        return 0
    results = [measure(workers, options.pairs) for workers in (1, 2)]
    if options.json:
        document = {"schema": 1, "model": MODEL, "input": SHAPE, "batch": BATCH, "results": results}
        print(json.dumps({**document, "torch": torch.__version__}, indent=2))
    else:
        print(f"{MODEL} on {SHAPE}, batch {BATCH}, one thread; stretches of about {SECONDS:g} s")
        for one in results:
            low, high = (100 * part for part in one["quartiles"])
            how = "one process" if one["workers"] == 1 else "2 workers under DDP"
            print(
                f"  {how:<20}{1e3 * one['step_seconds']:6.2f} ms a step, "
                f"watched {1e3 * one['watched_step_seconds']:.2f}: "
                f"{100 * one['cost']:+.2f} % (middle half of {one['pairs']} pairs {low:+.2f} .. {high:+.2f}), limit "
                f"{100 * MOST:g} %: {'met' if one['met'] else 'MISSED'}"
            )
    return 0 if all(one["met"] for one in results) else 1


if __name__ == "__main__":
    sys.exit(main())
