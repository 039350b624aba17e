"""Throughput of several learners computed together, against the same learners computed in turn.

``cnn``, batch 4 a learner, one worker with one thread. Both sides take whole steps of ``sma`` in one process: data,
forward, backward, the optimizer and the corrections. They take turns whose order changes, on the same data; a side's
time in a round is the median of its steps. ``--ladder`` also shows the throughput of 1, 2, 4, 8 and 16 learners.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

from paceline.jobs.build import build_job
from paceline.jobs.job import Job
from paceline.jobs.sharding import Shards
from paceline.jobs.spec import JobSpec
from paceline.runtimes.replica import Replica
from paceline.strategies import build_strategy
from paceline.strategies.base import Worker
from paceline.strategies.effects import Apply, Gradient

CASES = {"28x28": "synthetic:shape=1x28x28,train=16000", "8x8": "digits"}
LEAST = 1.5
"""Times the throughput in turn."""
WARM_UP = 10


def steps(job: Job, learners: int, way: str, batch: int) -> Iterator[None]:
    """Take one step at a time: the strategy's program on a replica, as a worker that is alone runs it."""
    strategy = build_strategy(f"sma:learners={learners},compute={way}")
    shards = Shards(len(job.train), (batch * learners,), 1)
    replica = Replica(job, shards, 0, 1, torch.device("cpu"), plan=strategy.learner_plan)
    me = Worker(0, 1, replica.flat.params, replica.flat.grad, replica.buffers)
    for effect in strategy.worker(me):
        if isinstance(effect, Gradient):
            yield
            replica.gradient(me.clock, 1.0)
        elif isinstance(effect, Apply):
            me.rate_factor = replica.apply(0.0)
            me.clock += 1


def rates(job: Job, sides: list[tuple[int, str]], batch: int, rounds: int, many: int) -> list[dict[str, Any]]:
    """Samples a second of each side in each round."""
    programs = [steps(job, learners, way, batch) for learners, way in sides]
    found: list[list[float]] = [[] for _ in sides]
    for program in programs:
        for _ in range(WARM_UP):
            next(program)
    for number in range(rounds):
        for place in sorted(range(len(sides)), reverse=number % 2 == 1):
            taken = []
            for _ in range(many):
                begun = time.perf_counter()
                next(programs[place])
                taken.append(time.perf_counter() - begun)
            found[place].append(sides[place][0] * batch / statistics.median(taken))
    return [
        {"learners": learners, "compute": way, "rates": one, "rate": statistics.median(one)}
        for (learners, way), one in zip(sides, found, strict=True)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--learners", type=int, default=4)
    parser.add_argument("--batch", type=int, default=4, help="samples of a learner's mini-batch")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=60, help="of each side in a round")
    parser.add_argument("--ladder", action="store_true", help="also show 1, 2, 4, 8 and 16 learners")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    answer: dict[str, Any] = {"batch": options.batch, "least": LEAST, "cases": {}}
    met = True
    for name, data in CASES.items():
        job = build_job(JobSpec(data=data, model="cnn"))
        sides = [(options.learners, "in-turn"), (options.learners, "together")]
        if options.ladder:
            sides += [(1, "in-turn"), *((many, "together") for many in (2, 8, 16))]
        found = rates(job, sides, options.batch, options.rounds, options.steps)
        pairs = zip(found[0]["rates"], found[1]["rates"], strict=True)
        ratios = sorted(together / in_turn for in_turn, together in pairs)
        times = statistics.median(ratios)
        met = met and times >= LEAST
        answer["cases"][name] = {"sides": found, "times": times, "low": ratios[0], "high": ratios[-1]}
        if not options.json:
            for side in found:
                print(
                    f"{name:>6}  {side['learners']:2} learners {side['compute']:9} {side['rate']:9,.0f} samples/s"
                )
            print(
                f"{name:>6}  together is {times:.2f} times in turn ({ratios[0]:.2f} to {ratios[-1]:.2f} over "
                f"{options.rounds} rounds); at least {LEAST}{'' if times >= LEAST else '  MISSED'}"
            )
    if options.json:
        print(json.dumps(answer | {"met": met}))
    return 0 if met else 3


if __name__ == "__main__":
    sys.exit(main())
