"""What unlike clients cost in accuracy, and what helps: Fashion-MNIST, ``cnn``, 8 workers, 100 clients, several seeds.

Every run is ``paceline simulate`` with true gradients on as many samples as every other. Clients have mixes of labels
that are drawn from a Dirichlet distribution: alike (alpha 100) or unlike (alpha 0.1). In long rounds, of 5 local epochs
with momentum, clients drift apart, against which FedProx pulls them back. In short ones, of 2 local epochs of plain
SGD, each round's average is that of the few clients that were drawn, which server momentum (FedAvgM) smooths out.

The accuracy of a run is the mean over its last evaluations, for it goes up and down with the clients that were drawn.
Exit code 3 where unlike clients do not cost accuracy, or where FedProx or server momentum does not give some of it
back, on average over the seeds.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

CLIENTS, SAMPLE, WORKERS, BATCH = 100, 8, 8, 32
EPOCHS, LAST = 8, 4
"""Epochs of the whole data, and the evaluations at the end, one an epoch, that count."""
ALIKE, UNLIKE = "alpha=100", "alpha=0.1"
COSTS = 1.0
"""Points of accuracy that unlike clients must lose at least, for the rest to mean anything."""


@dataclass(frozen=True)
class Rounds:
    """A way to train clients, and what helps against its weakness."""

    name: str
    local: int
    optimizer: str
    remedy: str

    @property
    def cases(self) -> tuple[str, ...]:
        return ALIKE, UNLIKE, f"{UNLIKE},{self.remedy}"


KINDS = (
    Rounds("long", 5, "sgd:lr=0.02,momentum=0.9,weight_decay=0", "proximal=0.1"),
    Rounds("short", 2, "sgd:lr=0.05,momentum=0,weight_decay=0", "momentum=0.7"),
)


def train(kind: Rounds, case: str, seed: int, epochs: int) -> list[float]:
    """Test accuracy after each epoch, in percent."""
    spec = f"fedavg:clients={CLIENTS},sample={SAMPLE},epochs={kind.local},{case}"
    words = ["--data", "fashion-mnist", "--model", "cnn", "--optimizer", kind.optimizer, "--strategy", spec]
    words += ["--workers", str(WORKERS), "--batch-size", str(BATCH), "--epochs", str(epochs)]
    with tempfile.TemporaryDirectory() as folder:
        words += ["--seed", str(seed), "--checkpoint-every", "never", "--runs", folder, "--json"]
        command = [sys.executable, "-m", "paceline", "simulate", *words]
        out = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    found = [100 * row["accuracy"] for row in json.loads(out.stdout)["rows"]]
    shown = " ".join(f"{one:6.2f}" for one in found)
    print(f"seed {seed}: {kind.name:6}{case:24}{shown}", file=sys.stderr)
    return found


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    cases = [(kind, case) for kind in KINDS for case in kind.cases if options.only in f"{kind.name} {case}"]
    grid = [(kind, case, seed, options.epochs) for seed in seeds for kind, case in cases]
    with ThreadPoolExecutor(options.processes) as pool:
        runs = list(pool.map(lambda one: train(*one), grid))
    rows = []
    for kind, case in cases:
        found = [run for one, run in zip(grid, runs, strict=True) if one[:2] == (kind, case)]
        means = [statistics.fmean(run[-LAST:]) for run in found]
        row = {"rounds": kind.name, "case": case, "local": kind.local, "optimizer": kind.optimizer}
        row |= {"accuracy": statistics.fmean(means), "low": min(means), "high": max(means)}
        rows.append({**row, "evaluations": found})
    return rows


def judge(rows: Sequence[dict[str, Any]]) -> bool:
    """Fill in what each row is above unlike clients in the same rounds, and whether that is enough."""
    plain = {row["rounds"]: row["accuracy"] for row in rows if row["case"] == UNLIKE}
    for row in rows:
        row["above"] = row["accuracy"] - plain[row["rounds"]] if row["rounds"] in plain else None
        least = {ALIKE: COSTS, UNLIKE: None}.get(row["case"], 0.0)
        row["met"] = row["above"] is None or least is None or row["above"] > least
    return all(row["met"] for row in rows)


def show(rows: Sequence[dict[str, Any]]) -> None:
    print("| rounds | clients | accuracy, % | lowest .. highest | points above alpha=0.1 |")
    print("|---|---|---|---|---|")
    for row in rows:
        above = "-" if row["above"] is None else f"{row['above']:+.2f}{'' if row['met'] else ' MISSED'}"
        spread = f"{row['low']:.2f} .. {row['high']:.2f}"
        print(f"| {row['rounds']} | {row['case']} | {row['accuracy']:.2f} | {spread} | {above} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--only", default="", help="runs whose name has this in it, such as 'long alpha=0.1'")
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
