"""How many worker-steps a second virtual time does without gradients, and what 10,000 workers take.

Each figure is measured in a process of its own, so that memory is that of one run; the process's own start is not
part of the time.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

from paceline.clusters.description import read_cluster
from paceline.codecs.context import Layout
from paceline.costs.stated import stated_costs
from paceline.jobs.spec import JobSpec
from paceline.runtimes.prepare import prepare_job
from paceline.runtimes.settings import Cadence, Settings
from paceline.runtimes.virtual.shape import JobShape
from paceline.runtimes.virtual.simulate import simulate
from paceline.runtimes.virtual.simulation import Simulation
from paceline.strategies import build_strategy

CASES = (
    ("all-reduce", 64, 5000),
    ("local-sgd:period=16", 64, 5000),
    ("all-reduce", 1000, 200),
    ("all-reduce", 10_000, 20),
)
RATE, MEMORY = 150_000, 2e9
SHAPE = {"resnet18-like": (64 * 27, *(512 * 512 * 9 // 4 for _ in range(18)), 5130)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", nargs=3, metavar=("STRATEGY", "WORKERS", "STEPS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        strategy, workers, steps = options.one
        print(json.dumps(measure(strategy, int(workers), int(steps))))
        return
    rows = [figures(strategy, workers, steps, options.repeats) for strategy, workers, steps in CASES]
    if options.json:
        print(json.dumps({"schema": 1, "repeats": options.repeats, "limits": [RATE, MEMORY], "cases": rows}))
        return
    show(rows, options.repeats)


def measure(strategy: str, workers: int, steps: int) -> dict[str, float]:
    """One run: worker-steps a second, of the whole simulation with its set-up, and the memory of the process."""
    ((name, parameters),) = SHAPE.items()
    shape = JobShape(
        name=name, layout=Layout.of_vectors(*parameters), train_samples=3200 * workers, test_samples=1
    )
    cluster = read_cluster(
        f"hosts={workers},bandwidth=10 Gbit/s,latency=50 us,forward=4 ms,backward=8 ms,apply=1 ms"
    )
    settings = Settings(
        job=JobSpec(),
        strategy=strategy,
        batch_sizes=(32,) * workers,
        iterations=steps,
        evaluate=Cadence(0),
        checkpoint=Cadence(0),
    )
    costs = stated_costs(cluster, settings.batch_sizes, {})
    begun, busy = time.perf_counter(), time.process_time()
    prepared = prepare_job(settings, shape, build_strategy(strategy))
    simulate(Simulation(prepared, cluster, costs, gradients=False))
    seconds, busy = time.perf_counter() - begun, time.process_time() - busy
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "rate": workers * steps / seconds,
        "cpu_rate": workers * steps / busy,
        "seconds": seconds,
        "memory": memory,
    }


def figures(strategy: str, workers: int, steps: int, repeats: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", strategy, str(workers), str(steps)]
    runs = [
        json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(repeats)
    ]
    rates = [run["rate"] for run in runs]
    return {
        "strategy": strategy,
        "workers": workers,
        "steps": steps,
        "rate": statistics.median(rates),
        "low": min(rates),
        "high": max(rates),
        "cpu_rate": statistics.median(run["cpu_rate"] for run in runs),
        "seconds": statistics.median(run["seconds"] for run in runs),
        "memory": max(run["memory"] for run in runs),
    }


def show(rows: list[dict[str, Any]], repeats: int) -> None:
    print(
        f"11 M parameters in 3 buckets, one worker a host, 10 Gbit/s; {repeats} repeats: median, low, high.\n"
        f"Limits: {RATE:,} worker-steps/s at 64 workers with all-reduce, 2 GB at 10,000 workers"
    )
    print(
        f"{'strategy':<22}{'workers':>8}{'steps':>7}{'worker-steps/s':>16}{'low':>10}{'high':>10}"
        f"{'a CPU s':>10}{'wall s':>8}{'MB':>6}"
    )
    for row in rows:
        print(
            f"{row['strategy']:<22}{row['workers']:>8,}{row['steps']:>7,}{row['rate']:>16,.0f}{row['low']:>10,.0f}"
            f"{row['high']:>10,.0f}{row['cpu_rate']:>10,.0f}{row['seconds']:>8.2f}{row['memory'] / 1e6:>6.0f}"
        )


if __name__ == "__main__":
    main()
