"""Sixteen virtual workers of which four are slow, true gradients: which strategy has learned the digits first?

The time is virtual and the mathematics is true, so the same seed gives the same table on any machine. Every strategy is
tried with the same few learning rates, and the one that is best for it counts. The slow ones are four times as slow,
always or for four steps in turn, two and two. Links are fast, so that uneven computing is what shows and not the crowd
at the server's link.
"""

import argparse
import json
import statistics
import sys
from math import inf
from typing import Any, NamedTuple

import torch

from paceline.clusters.description import read_cluster
from paceline.costs.stated import stated_costs
from paceline.jobs.spec import JobSpec
from paceline.runtimes.prepare import prepare
from paceline.runtimes.settings import Cadence, Settings
from paceline.runtimes.virtual.simulate import simulate
from paceline.runtimes.virtual.simulation import Simulation

WORKERS, BATCH, TARGET = 16, 8, 0.9
STRATEGIES = ("all-reduce", "ps", "ssp:staleness=2", "ssp:staleness=4", "ssp:staleness=8", "async")
CASES = {"always": 0, "in turns": 4}
"""Name to the steps for which the slow ones are slow at a time."""
RATES = (0.4, 0.2, 0.1)
CLUSTER = (
    f"hosts={WORKERS},bandwidth=10 Gbit/s,latency=50 us,"
    "forward=0.7 ms,backward=1.1 ms,apply=50 us,serve=20 us,jitter=0.1"
)


class Tried(NamedTuple):
    """One strategy at one learning rate, over all seeds."""

    rate: float
    seconds: list[float]
    """Virtual seconds to the target; infinite where it was not reached."""
    samples: list[float]
    """Samples a virtual second."""


def attempt(strategy: str, turns: int, rate: float, seed: int, epochs: int) -> tuple[float, float]:
    settings = Settings(
        job=JobSpec(optimizer=f"sgd:lr={rate:g},momentum=0"),
        strategy=strategy,
        batch_sizes=(BATCH,) * WORKERS,
        epochs=epochs,
        target_accuracy=TARGET,
        seed=seed,
        slow=dict.fromkeys(range(WORKERS - 4, WORKERS), 4.0),
        slow_turns=turns,
        evaluate=Cadence(6, "steps"),
        checkpoint=Cadence(0),
    )
    cluster = read_cluster(CLUSTER)
    costs = stated_costs(cluster, settings.batch_sizes, settings.slow, seed, turns)
    summary = simulate(Simulation(prepare(settings), cluster, costs))
    reached = inf if summary.target_seconds is None else summary.target_seconds
    return reached, summary.samples / summary.seconds


def try_out(strategy: str, turns: int, options: argparse.Namespace) -> Tried:
    """The strategy at its best learning rate."""
    tried = []
    for rate in RATES:
        found = [attempt(strategy, turns, rate, seed, options.epochs) for seed in range(1, options.seeds + 1)]
        tried.append(Tried(rate, [one[0] for one in found], [one[1] for one in found]))
        print(f"{strategy}, turns of {turns}, lr {rate:g}: {tried[-1].seconds}", file=sys.stderr, flush=True)
    return min(tried, key=lambda one: statistics.median(one.seconds))


def row(case: str, strategy: str, tried: Tried, first: float) -> dict[str, Any]:
    seconds = statistics.median(tried.seconds)
    return {
        "slow": case,
        "strategy": strategy,
        "lr": tried.rate,
        "seconds": finite(seconds),
        "spread": [finite(min(tried.seconds)), finite(max(tried.seconds))],
        "times_as_fast_as_all_reduce": first / seconds,
        "samples_per_second": statistics.median(tried.samples),
    }


def finite(seconds: float) -> float | None:
    """JSON has no infinity."""
    return None if seconds == inf else seconds


def shown(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.3f}"


def show(rows: list[dict[str, Any]]) -> None:
    print(
        f"{'slow':10}{'strategy':17}{'lr':>8}{'seconds':>9}{'low':>8}{'high':>8}{'to all-reduce':>15}"
        f"{'samples/s':>11}"
    )
    for one in rows:
        low, high = one["spread"]
        print(
            f"{one['slow']:10}{one['strategy']:17}{one['lr']:>8g}{shown(one['seconds']):>9}"
            f"{shown(low):>8}{shown(high):>8}"
            f"{one['times_as_fast_as_all_reduce']:>15.2f}{one['samples_per_second']:>11,.0f}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=15, help="after which a run has not reached the target")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for case, turns in CASES.items():
        tried = {strategy: try_out(strategy, turns, options) for strategy in STRATEGIES}
        first = statistics.median(tried["all-reduce"].seconds)
        rows += [row(case, strategy, one, first) for strategy, one in tried.items()]
    if options.json:
        echo = {"workers": WORKERS, "batch_size": BATCH, "target": TARGET, "cluster": CLUSTER, "lr": RATES}
        print(json.dumps({"schema": 1, **echo, "seeds": options.seeds, "rows": rows}, indent=2))
    else:
        print(
            f"digits, cnn, {WORKERS} workers of batch {BATCH}, the last four 4 times as slow, {options.seeds} seeds; "
            f"virtual seconds to an accuracy of {TARGET:g}, at the best learning rate of {RATES}"
        )
        print(CLUSTER)
        show(rows)
    return 0 if all(one["seconds"] is not None for one in rows) else 3


if __name__ == "__main__":
    sys.exit(main())
