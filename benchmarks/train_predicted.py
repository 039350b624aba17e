"""How well 'paceline train' predicts itself: each run's prediction against its own typical step.

Needs the profile of this machine ('paceline calibrate machine') and a quiet machine. All cells have their turns, in
several rounds: mlp and cnn, batches of several sizes, 1 and 2 workers. A prediction is in the run folder before the
first step, and what is measured is the typical step, as in the closing table. A cell's error is that of its prediction
against the median of its measurements. Exit code 3 where the median error of all cells is above the limit.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from paceline.clusters.profile import MAKE, machine_profile
from paceline.units import show_seconds

LIMIT = 20.0
"""Per cent, of the median error of all cells."""
MODELS = ("mlp", "cnn")
BATCHES, WORKERS = (16, 64, 256), (1, 2)
SECONDS = 3.0
"""Of training in a run, about; by its prediction."""
FEWEST, MOST = 30, 5000
DATA = "synthetic:shape=1x8x8,train=100000"


class Cell(NamedTuple):
    model: str
    batch: int
    workers: int

    def __str__(self) -> str:
        return f"{self.model:<5} batch {self.batch:>4} x {self.workers}"


def train(cell: Cell, steps: int, runs: str) -> dict[str, Any]:
    words = [
        "--data",
        DATA,
        "--model",
        cell.model,
        "--batch-size",
        str(cell.batch),
        "--iterations",
        str(steps),
    ]
    words += ["--workers", str(cell.workers), "--threads", "1", "--runs", runs, "--json"]
    words += ["--evaluate-every", "never", "--checkpoint-every", "never"]
    command = [sys.executable, "-m", "paceline", "train", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{cell} could not be trained: {done.stderr.strip()}")
    document: dict[str, Any] = json.loads(done.stdout)
    if not (document["prediction"] or {}).get("row"):
        sys.exit(f"{cell} was not predicted; see what 'paceline train' says with the same options")
    return document


def step_of(document: dict[str, Any]) -> float:
    """The mean over workers of the typical step, as the closing table has it."""
    parts = ("data", "forward", "backward", "communicate", "wait", "apply", "other")
    steps = [sum(one["typical"][part] for part in parts) for one in document["summary"]["totals"]]
    return statistics.fmean(steps)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each cell")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of training in each of them, about")
    options = parser.parse_args()
    if not machine_profile(1).exists():
        sys.exit(f"there is no profile of this machine: {MAKE}")
    cells = [Cell(*cell) for cell in product(MODELS, BATCHES, WORKERS)]
    predicted: dict[Cell, float] = {}
    measured: dict[Cell, list[float]] = {cell: [] for cell in cells}
    with tempfile.TemporaryDirectory(prefix="paceline-") as runs:
        for cell in cells:
            predicted[cell] = float(train(cell, FEWEST, str(Path(runs)))["prediction"]["row"]["step"])
        for number in range(options.rounds):
            for cell in cells:
                steps = max(FEWEST, min(MOST, round(options.seconds / predicted[cell])))
                measured[cell].append(step_of(train(cell, steps, runs)))
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
    return report(predicted, measured)


def report(predicted: dict[Cell, float], measured: dict[Cell, list[float]]) -> int:
    print(f"{'':<20}{'predicted':>11}{'measured':>11}{'lowest':>11}{'highest':>11}{'ratio':>8}")
    errors = []
    for cell, step in predicted.items():
        found = measured[cell]
        ratio = step / statistics.median(found)
        errors.append(100 * abs(ratio - 1))
        shown = (step, statistics.median(found), min(found), max(found))
        print(f"{cell!s:<20}" + "".join(f"{show_seconds(one):>11}" for one in shown) + f"{ratio:>8.2f}")
    middle = statistics.median(errors)
    print(f"median error {middle:.1f} %, largest {max(errors):.1f} % (limit of the median {LIMIT:.0f} %)")
    return 3 if middle > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
