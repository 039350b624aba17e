"""Two live workers of which one is slow: how fast the strategies with servers are, and what they learn.

In the first case rank 1 computes four times as long in every step. Then no bound on staleness can help for long: once
the fast worker is as far ahead as it may be, it goes at the slow one's pace, and so stale-synchronous training is as
fast as synchronous training. It helps where slowness comes and goes. So in the second case the workers are slow in
turns, four steps each, and what the one loses the other wins back within the bound.

Samples a second are of training alone: what evaluation took is left out. Accuracy is after the same number of samples
for all, with the same optimizer and rate, which falls to 0 at the end: else a single look would tell mostly noise.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

WORKERS, BATCH, SLOW = 2, 32, 4
STALENESS = 4
SSP, ASYNC = f"ssp:staleness={STALENESS}", "async"
STRATEGIES = ("all-reduce", "ps", SSP, ASYNC)
STEPS = 938
"""Steps of an epoch."""
NEAR = 0.015
"""How far an accuracy may be below all-reduce's."""


class Case(NamedTuple):
    """One way of being uneven."""

    name: str
    slow: tuple[str, ...]
    least: dict[str, float]
    """Strategy to how many times the rate of ps it must have."""


CASES = (
    Case("rank 1 slow", ("--slow", f"1={SLOW}"), {ASYNC: 1.5}),
    Case(
        "slow in turns",
        ("--slow", f"0={SLOW}", "--slow", f"1={SLOW}", "--slow-turns", "4"),
        {SSP: 1.5, ASYNC: 1.5},
    ),
)


def train(case: Case, strategy: str, seed: int, options: argparse.Namespace) -> tuple[float, float]:
    """Samples a second of training, and the accuracy at the end."""
    command = [sys.executable, "-m", "paceline", "train", "--json", "--workers", str(WORKERS)]
    command += ["--strategy", strategy, "--batch-size", str(BATCH), "--seed", str(seed)]
    command += ["--iterations", str(options.iterations), "--evaluate-every", f"{options.iterations} steps"]
    command += ["--checkpoint-every", "never"]
    command += ["--data", "fashion-mnist", "--model", "cnn", *case.slow]
    command += ["--optimizer", f"sgd:lr={options.lr:g},momentum={options.momentum:g}"]
    command += ["--schedule", f"cosine:epochs={options.iterations / STEPS:g}"]
    with tempfile.TemporaryDirectory() as runs:
        found = subprocess.run([*command, "--runs", runs], stdout=subprocess.PIPE, check=True)
    summary = json.loads(found.stdout)["summary"]
    apart = ("evaluate", "checkpoint")
    took = [
        sum(seconds for part, seconds in one["seconds"].items() if part not in apart)
        for one in summary["totals"]
    ]
    return summary["samples"] / max(took), summary["final"]["accuracy"]


def measure(case: Case, options: argparse.Namespace) -> list[dict[str, Any]]:
    found: dict[str, list[tuple[float, float]]] = {strategy: [] for strategy in STRATEGIES}
    for seed in range(1, options.rounds + 1):
        for strategy in STRATEGIES[:: 1 if seed % 2 else -1]:
            found[strategy].append(train(case, strategy, seed, options))
            print(f"{case.name}, {strategy}: {found[strategy][-1]}", file=sys.stderr, flush=True)
    return [row(case, strategy, found) for strategy in STRATEGIES]


def row(case: Case, strategy: str, found: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    rates, accuracies = zip(*found[strategy], strict=True)
    ratios = against(found, strategy, "ps", lambda own, other: own[0] / other[0])
    apart = against(found, strategy, "all-reduce", lambda own, other: own[1] - other[1])
    ratio, least = statistics.median(ratios), case.least.get(strategy)
    return {
        "case": case.name,
        "strategy": strategy,
        "samples_per_second": statistics.median(rates),
        "ratio": ratio,
        "ratio_spread": [min(ratios), max(ratios)],
        "least": least,
        "accuracy": statistics.median(accuracies),
        "above_all_reduce": statistics.median(apart),
        "met": (least is None or ratio >= least) and statistics.median(apart) >= -NEAR,
    }


Run = tuple[float, float]


def against(
    found: dict[str, list[Run]], strategy: str, other: str, compare: Callable[[Run, Run], float]
) -> list[float]:
    return [compare(own, their) for own, their in zip(found[strategy], found[other], strict=True)]


def show(rows: list[dict[str, Any]]) -> None:
    print(
        f"{'case':15}{'strategy':30}{'samples/s':>10}{'to ps':>7}{'low':>6}{'high':>6}{'least':>7}"
        f"{'accuracy':>10}{'to all-reduce':>15}"
    )
    for one in rows:
        low, high = one["ratio_spread"]
        least = f"{one['least']:g}" if one["least"] else ""
        print(
            f"{one['case']:15}{one['strategy']:30}{one['samples_per_second']:>10,.0f}{one['ratio']:>7.2f}"
            f"{low:>6.2f}{high:>6.2f}{least:>7}{one['accuracy']:>10.4f}"
            f"{one['above_all_reduce']:>+15.4f}  {'' if one['met'] else 'MISSED'}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="one seed each")
    parser.add_argument("--iterations", type=int, default=938, help=f"steps per worker; {STEPS} are an epoch")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [one for case in CASES for one in measure(case, options)]
    if options.json:
        echo = {name: getattr(options, name) for name in ("rounds", "iterations", "lr", "momentum")}
        print(
            json.dumps({"schema": 1, "workers": WORKERS, "batch_size": BATCH, **echo, "rows": rows}, indent=2)
        )
    else:
        print(
            f"cnn on Fashion-MNIST, {WORKERS} workers of batch {BATCH}, 1 server, {options.iterations} steps, "
            f"{SLOW} times as slow, {options.rounds} seeds in turns; accuracy may be {NEAR:g} below all-reduce's"
        )
        show(rows)
    return 0 if all(one["met"] for one in rows) else 3


if __name__ == "__main__":
    sys.exit(main())
