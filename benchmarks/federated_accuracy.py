"""What uneven clients cost in accuracy, and what helps: Fashion-MNIST, ``cnn``, 8 workers, 100 clients, several seeds.

Every run is ``paceline simulate`` with true gradients on as many samples as every other. Clients have mixes of labels
that are drawn from a Dirichlet distribution: alike (alpha 100) or unlike (alpha 0.1). Which clients are drawn moves the
model from round to round, so that a run's accuracy is the mean over its last evaluations. Exit code 3 where unlike
clients do not cost accuracy, or where FedProx or server momentum does not give some of it back, on average over seeds.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

CLIENTS, SAMPLE, WORKERS, BATCH, LOCAL = 100, 8, 8, 32, 5
EPOCHS, LAST = 8, 4
"""Epochs of the whole data, and the evaluations at the end, one an epoch, that count."""
OPTIMIZER = "sgd:lr=0.05,momentum=0,weight_decay=0"
ALIKE, UNLIKE = "alpha=100", "alpha=0.1"
PROXIMAL, MOMENTUM = "alpha=0.1,proximal=0.1", "alpha=0.1,momentum=0.7"
CASES = (ALIKE, UNLIKE, PROXIMAL, MOMENTUM)
LEAST = {ALIKE: 1.0, PROXIMAL: 0.0, MOMENTUM: 0.0}
"""Points of accuracy by which a case must be above that of unlike clients."""


def train(case: tuple[str, int, argparse.Namespace]) -> list[float]:
    """Test accuracy after each epoch, in percent."""
    settings, seed, options = case
    spec = f"fedavg:clients={CLIENTS},sample={SAMPLE},epochs={options.local},{settings}"
    words = [
        "--data",
        "fashion-mnist",
        "--model",
        "cnn",
        "--optimizer",
        options.optimizer,
        "--strategy",
        spec,
    ]
    words += ["--workers", str(WORKERS), "--batch-size", str(BATCH), "--epochs", str(options.epochs)]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "paceline", "simulate", *words, "--seed", str(seed)]
        out = subprocess.run(
            [*command, "--runs", folder, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        )
    found = [100 * row["accuracy"] for row in json.loads(out.stdout)["rows"]]
    print(f"seed {seed}: {settings:28}{' '.join(f'{one:6.2f}' for one in found)}", file=sys.stderr)
    return found


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    cases = options.case or CASES
    grid = [(case, seed, options) for seed in range(1, options.seeds + 1) for case in cases]
    with ThreadPoolExecutor(options.processes) as pool:
        runs = list(pool.map(train, grid))
    rows = []
    for case in cases:
        found = [run for (name, _, _), run in zip(grid, runs, strict=True) if name == case]
        means = [statistics.fmean(run[-LAST:]) for run in found]
        row = {"case": case, "accuracy": statistics.fmean(means), "low": min(means), "high": max(means)}
        rows.append({**row, "evaluations": found})
    return rows


def judge(rows: Sequence[dict[str, Any]]) -> bool:
    """Fill in what each row is above unlike clients, and whether that is enough."""
    plain = next((row["accuracy"] for row in rows if row["case"] == UNLIKE), None)
    for row in rows:
        row["above"] = None if plain is None else row["accuracy"] - plain
        row["least"] = LEAST.get(row["case"])
        row["met"] = row["least"] is None or plain is None or row["above"] > row["least"]
    return all(row["met"] for row in rows)


def show(rows: Sequence[dict[str, Any]]) -> None:
    print("| clients | accuracy, % | lowest .. highest | points above alpha=0.1 |")
    print("|---|---|---|---|")
    for row in rows:
        above = "-" if row["above"] is None else f"{row['above']:+.2f}{'' if row['met'] else ' MISSED'}"
        print(f"| {row['case']} | {row['accuracy']:.2f} | {row['low']:.2f} .. {row['high']:.2f} | {above} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--local", type=int, default=LOCAL, help="local epochs of a client in a round")
    parser.add_argument("--optimizer", default=OPTIMIZER)
    parser.add_argument(
        "--case", action="append", help="settings of the strategy; may be repeated; all by default"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = measure(options)
    met = judge(rows)
    if options.json:
        print(json.dumps({"schema": 1, "settings": vars(options), "rows": rows, "met": met}, indent=2))
    else:
        show(rows)
    return 0 if met else 3


if __name__ == "__main__":
    sys.exit(main())
