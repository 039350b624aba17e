"""What simulating with true gradients costs beside the gradients themselves.

The simulation trains many workers in one process, with all-reduce. The bare side is the loop that nobody can do
without: the same mini-batches drawn, forward and backward on one plain model, no optimizer, no averaging. Both run in
turns in this process, on one thread.
"""

import argparse
import json
import statistics
import time

import torch

from paceline.clusters.description import read_cluster
from paceline.costs.stated import stated_costs
from paceline.jobs.batches import batch_loss
from paceline.jobs.build import build_job
from paceline.jobs.job import Job
from paceline.jobs.sharding import Shards
from paceline.jobs.spec import JobSpec
from paceline.runtimes.prepare import prepare_job
from paceline.runtimes.settings import Cadence, Settings
from paceline.runtimes.virtual.simulate import simulate
from paceline.runtimes.virtual.simulation import Simulation
from paceline.strategies import build_strategy

LIMIT = 1.3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--strategy", default="all-reduce")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--evaluate", default="never", help="as --evaluate-every; the limit is for 'never'")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings = Settings(
        job=JobSpec(model=options.model),
        strategy=options.strategy,
        batch_sizes=(options.batch_size,) * options.workers,
        iterations=options.steps,
        evaluate=Cadence.parse(options.evaluate, "--evaluate"),
        checkpoint=Cadence(0),
    )
    job = build_job(settings.job)
    bare_times, simulated_times = [], []
    bare(job, settings), simulated(job, settings)
    for _ in range(options.repeats):
        bare_times.append(bare(job, settings))
        simulated_times.append(simulated(job, settings))
    show(options, bare_times, simulated_times)


def bare(job: Job, settings: Settings) -> float:
    """Seconds for the gradients alone."""
    shards = Shards(len(job.train), settings.batch_sizes, settings.seed)
    model = job.model()
    begun = time.perf_counter()
    for step in range(settings.iterations or 0):
        for worker in range(settings.workers):
            if shards.size(worker, step):
                model.zero_grad()
                batch = job.train.take(shards.indices(worker, step))
                batch_loss(job, model, batch).backward()  # type: ignore[no-untyped-call]
    return time.perf_counter() - begun


def simulated(job: Job, settings: Settings) -> float:
    """Seconds for the whole simulation."""
    cluster = read_cluster(f"hosts={settings.workers},forward=0.7 ms,backward=1.1 ms,apply=50 us")
    costs = stated_costs(cluster, settings.batch_sizes, {})
    begun = time.perf_counter()
    prepared = prepare_job(settings, job, build_strategy(settings.strategy))
    simulate(Simulation(prepared, cluster, costs))
    return time.perf_counter() - begun


def show(options: argparse.Namespace, bare_times: list[float], simulated_times: list[float]) -> None:
    ratios = [one / other for one, other in zip(simulated_times, bare_times, strict=True)]
    rows = {"bare s": bare_times, "simulated s": simulated_times, "ratio": ratios}
    table = {
        name: {"median": statistics.median(values), "low": min(values), "high": max(values)}
        for name, values in rows.items()
    }
    if options.json:
        print(json.dumps({"schema": 1, "settings": vars(options), "limit": LIMIT, "figures": table}))
        return
    print(
        f"digits, {options.model}, {options.workers} workers x batch {options.batch_size}, {options.strategy}, "
        f"{options.steps} steps, evaluate {options.evaluate}; {options.repeats} repeats in turns; limit {LIMIT}"
    )
    print(f"{'':<14}{'median':>10}{'low':>10}{'high':>10}")
    for name, row in table.items():
        print(f"{name:<14}{row['median']:>10.3f}{row['low']:>10.3f}{row['high']:>10.3f}")


if __name__ == "__main__":
    main()
