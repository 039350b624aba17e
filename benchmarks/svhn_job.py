"""The SVHN-shaped job: the lean ``cnn``, 14,500 iterations of batch 16 on 3 workers, as one command.

Prints the command, the validation table over the run and how long it took. Where SVHN's files are not there, the data
are synthetic images of the same shape and number, and the output says so: then the time is that of the job, and the
accuracies are not SVHN's.
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.jobs.datasets import find_files

ITERATIONS, WORKERS, BATCH = 14_500, 3, 16
SYNTHETIC = "synthetic:shape=3x32x32,classes=10,train=73257,test=26032,noise=8"
"""With so much noise that there is something to learn for more than a few iterations."""
OPTIMIZER = "sgd:lr=0.01,momentum=0.9"
EVALUATIONS = 10


def data_words(folder: str | None) -> tuple[list[str], str]:
    """The options that name the data, and what they are in words."""
    try:
        files = find_files("svhn", folder)
    except UsageError as missing:
        if folder is not None:
            raise SystemExit(str(missing)) from missing
        return ["--data", SYNTHETIC], "synthetic images of SVHN's shape and number; SVHN's files are not here"
    return ["--data", "svhn", "--data-dir", str(files[0].parent)], f"SVHN from {files[0].parent}"


def command_of(options: argparse.Namespace, data: list[str]) -> list[str]:
    every = max(1, options.iterations // EVALUATIONS)
    words = [*data, "--model", "cnn", "--workers", str(WORKERS), "--batch-size", str(BATCH)]
    words += [
        "-i",
        str(options.iterations),
        "--evaluate-every",
        f"{every} steps",
        "--seed",
        str(options.seed),
    ]
    return ["paceline", "train", *words, "--optimizer", options.optimizer]


def train(command: list[str]) -> tuple[dict[str, Any], float]:
    """The run's document, and the seconds of the whole command."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        words = [sys.executable, "-m", *command, "--json"]
        done = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, check=True, text=True)
        took = time.perf_counter() - begun
    found: dict[str, Any] = json.loads(done.stdout)
    return found, took


def show(rows: list[dict[str, Any]]) -> None:
    print("| iteration | epoch | train loss | validation loss | accuracy, % | seconds |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['step']:,} | {row['epoch']:.2f} | {row['train_loss']:.4f} | {row['test_loss']:.4f} | "
            f"{100 * row['accuracy']:.2f} | {row['seconds']:.1f} |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", help="the folder with train_32x32.mat and test_32x32.mat")
    parser.add_argument("--iterations", type=int, default=ITERATIONS)
    parser.add_argument("--optimizer", default=OPTIMIZER)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    data, words = data_words(options.data_dir and str(Path(options.data_dir).resolve()))
    command = command_of(options, data)
    run, took = train(command)
    rows, seconds = run["rows"], run["summary"]["seconds"]
    if options.json:
        echo = {"command": command, "data": words, "rows": rows, "training_s": seconds, "whole_s": took}
        print(json.dumps({"schema": 1, **echo}, indent=2))
        return 0
    print(f"{shlex.join(command)}\n\ndata: {words}\n")
    show(rows)
    each = 1e3 * seconds / options.iterations
    print(f"\ntrained for {seconds:.1f} s, {each:.2f} ms an iteration; the whole command took {took:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
