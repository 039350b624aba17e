"""Time to an accuracy with 1, 2, 4 and 8 learners, and with as many as ``auto`` takes.

Fashion-MNIST, ``cnn``, batch 4 a learner, one worker with one thread: every run is ``paceline train --strategy
sma:learners=K`` until an evaluation reaches the target. Evaluations come after as many samples whatever K is. Seconds
are the run's own up to the target, without those that evaluations and checkpoints took; what ``auto`` measures before
the first step is shown beside them. The runs of a seed follow each other, so that all see the same machine. The figure:
``auto`` is at most 10 % slower than the best.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

BATCH = 4
MOST = 1.1
"""Times the best, for auto."""
OPTIMIZER = "sgd:lr=0.02,momentum=0,weight_decay=0"
"""Plain SGD, as in the papers: the momentum is that of the central model. With a rate of 0.05, batches of 4 end low."""


def paceline(*words: str) -> dict[str, Any]:
    """The JSON document of a run in a folder that is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "paceline", *words, "--json", "--runs", folder]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    if done.returncode not in (0, 3):
        raise SystemExit(f"exit code {done.returncode}: {' '.join(command)}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def count_of(document: dict[str, Any]) -> int:
    """Of learners: a step takes so many batches."""
    found = re.search(r"x (\d+) learners", document["run"]["step"])
    return int(found[1]) if found else 1


def train(learners: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One run; ``seconds`` is None where it has not reached the target."""
    words = ["train", "--data", "fashion-mnist", "--model", "cnn", "--optimizer", options.optimizer]
    words += ["--workers", "1", "--threads", "1", "--batch-size", str(BATCH), "--checkpoint-every", "never"]
    words += ["--strategy", f"sma:learners={learners}", "--seed", str(seed)]
    count = int(learners) if learners != "auto" else None
    if count is None:  # a first run says how many it takes, so that it is evaluated as often as the others
        count = count_of(paceline(*words, "--iterations", "1", "--evaluate-every", "never"))
    words += ["--evaluate-every", f"{options.samples // (BATCH * count)} steps"]
    words += ["--target-accuracy", str(options.target), "--epochs", str(options.epochs)]
    begun = time.perf_counter()
    document = paceline(*words)
    whole = time.perf_counter() - begun
    summary = document["summary"]
    total = summary["totals"][0]["seconds"]
    trained = summary["seconds"] - total["evaluate"] - total["checkpoint"]
    found = {
        "learners": learners,
        "seed": seed,
        "taken": count_of(document),
        "seconds": trained if summary["target_seconds"] is not None else None,
        "before": whole - summary["seconds"],
        "accuracy": summary["final"]["accuracy"],
        "samples": summary["samples"],
        "rate": summary["samples"] / trained,
        "disturbed": bool(summary["notes"]),
    }
    reached = f"{found['seconds']:8.1f} s" if found["seconds"] else f"   missed ({found['accuracy']:.4f})"
    print(
        f"seed {seed}: learners={learners} ({found['taken']}){'':4}{reached}{found['rate']:9,.0f} samples/s",
        file=sys.stderr,
    )
    return found


def summarized(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of all seeds; a run that missed the target makes it unknown."""
    seconds = [run["seconds"] for run in runs]
    return {
        "learners": runs[0]["learners"],
        "taken": sorted({run["taken"] for run in runs}),
        "seconds": None if None in seconds else statistics.median(seconds),
        "low": min(filter(None, seconds), default=None),
        "high": max(filter(None, seconds), default=None),
        "samples": statistics.median(run["samples"] for run in runs),
        "rate": statistics.median(run["rate"] for run in runs),
        "before": statistics.median(run["before"] for run in runs),
    }


def show(rows: Sequence[dict[str, Any]], target: float) -> None:
    print(
        f"| learners | seconds to {100 * target:g} % | lowest .. highest | samples | samples/s | before the run, s |"
    )
    print("|---|---|---|---|---|---|")
    for row in rows:
        name = row["learners"]
        if name == "auto":
            name = f"auto ({', '.join(map(str, row['taken']))})"
        seconds = "missed" if row["seconds"] is None else f"{row['seconds']:.1f}"
        spread = "-" if row["low"] is None else f"{row['low']:.1f} .. {row['high']:.1f}"
        print(
            f"| {name} | {seconds} | {spread} | {row['samples']:,.0f} | {row['rate']:,.0f} | {row['before']:.1f} |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--learners", default="1,2,4,8,auto", help="which to try")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--target", type=float, default=0.88)
    parser.add_argument("--epochs", type=int, default=20, help="after which a run has missed the target")
    parser.add_argument("--samples", type=int, default=8192, help="between two evaluations")
    parser.add_argument("--optimizer", default=OPTIMIZER)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    counts = options.learners.split(",")
    runs = [train(count, seed, options) for seed in range(1, options.seeds + 1) for count in counts]
    rows = [summarized([run for run in runs if run["learners"] == count]) for count in counts]
    known = {row["learners"]: row["seconds"] for row in rows if row["seconds"] is not None}
    fixed = [seconds for count, seconds in known.items() if count != "auto"]
    times = known["auto"] / min(fixed) if "auto" in known and fixed else None
    met = "auto" not in counts or (times is not None and times <= MOST)
    if options.json:
        document = {"optimizer": options.optimizer, "target": options.target, "rows": rows, "runs": runs}
        print(json.dumps(document | {"auto_of_best": times, "met": met}))
    else:
        show(rows, options.target)
        if times is not None:
            print(f"auto takes {times:.2f} times the best; at most {MOST}{'' if met else '  MISSED'}")
    return 0 if met else 3


if __name__ == "__main__":
    sys.exit(main())
