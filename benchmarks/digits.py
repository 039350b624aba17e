"""How long `paceline train` needs on the default job: to 97 % on the digits' test set, and from start to end."""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

TARGET = 0.97


def train(seed: int) -> dict[str, Any]:
    """One run, from an empty folder, with the time that the whole command took."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        command = [sys.executable, "-m", "paceline", "train", "--seed", str(seed), "--json"]
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        whole = time.perf_counter() - begun
    rows = json.loads(done.stdout)["rows"]
    reached = [row["seconds"] for row in rows if row["accuracy"] >= TARGET]
    if not reached:
        raise SystemExit(f"seed {seed} never reached {TARGET:.0%}")
    # Whatever is not training (starting Python and torch, loading data) passes before the first step or after the last.
    start = whole - rows[-1]["seconds"]
    return {
        "seed": seed,
        "reached_s": start + reached[0],
        "training_s": reached[0],
        "whole_s": whole,
        "best": max(row["accuracy"] for row in rows),
        "last": rows[-1]["accuracy"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="one seed each, from 1")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [train(seed) for seed in range(1, options.repeats + 1)]
    median = {key: statistics.median(row[key] for row in rows) for key in rows[0] if key != "seed"}
    if options.json:
        print(json.dumps({"schema": 1, "target": TARGET, "runs": rows, "median": median}))
        return
    print(
        f"paceline train (digits, cnn, 2 workers x batch 32, 30 epochs), {options.repeats} seeds; limit: 97 % in 60 s"
    )
    print(f"{'seed':>6}{'97 % after s':>14}{'of it training':>16}{'whole s':>10}{'best':>8}{'last':>8}")
    for row in [*rows, {"seed": "median", **median}]:
        print(
            f"{row['seed']:>6}{row['reached_s']:>14.1f}{row['training_s']:>16.1f}{row['whole_s']:>10.1f}"
            f"{row['best']:>8.4f}{row['last']:>8.4f}"
        )


if __name__ == "__main__":
    main()
