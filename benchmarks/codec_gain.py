"""Whether a prediction calls it right that a codec pays: codec x model x link, predicted, then measured. Needs root.

Every run is ``paceline train --codec``, which measures for about a second and writes down, before the first step, how
long a step will be with the codec and without one. The run itself then says how long it was with the codec, and runs
with ``identity`` before and after say it without. The gain is the step with identity over the step with the codec;
where it is above 1 the codec pays. Every cell counts, also those whose measured gain is within the noise of 1.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from _shaped import run_apart, run_here
from paceline.costs.recorded import usual_pace
from paceline.records.files import read_json
from paceline.records.folder import RunFolder
from predict_profiled import Cell, words

JOBS = ("cnn", "mlp", "resnet18")
LINKS = ("shm", "loopback", "1gbit", "100mbit")
CODECS = ("half", "int8", "sign", "top-k:ratio=0.01", "powersgd:rank=4")
STEPS = {
    "cnn": {"shm": 600, "loopback": 600, "1gbit": 400, "100mbit": 250},
    "mlp": {"shm": 300, "loopback": 300, "1gbit": 80, "100mbit": 16},
    "resnet18": {"shm": 15, "loopback": 15, "1gbit": 12, "100mbit": 8},
}
"""Of a run: some seconds."""
WANTED = 0.95
NOISE = 0.03
"""Measured gains this near to 1 differ in sign from one run to the next."""


def train(cell: Cell, codec: str, runs: Path) -> RunFolder:
    asked = [*words(cell.job, cell.strategy, STEPS[cell.job][cell.where]), "--codec", codec]
    if cell.network:
        return RunFolder(run_apart(asked, cell.workers, runs, cell.where, served=False))
    return RunFolder(run_here(asked, cell.workers, runs, "gloo" if cell.where == "loopback" else "shm"))


def measured_step(cell: Cell, folder: RunFolder) -> float:
    return usual_pace(folder, 1 if cell.network or cell.job == "resnet18" else 8)


def predicted_gain(folder: RunFolder) -> float:
    plain, coded = read_json(folder.prediction)["codec"]["comparison"]["steps"]
    return float(plain["step"] / coded["step"])


def compare(cells: Sequence[Cell], runs: Path) -> Iterator[dict[str, Any]]:
    for cell in cells:
        # Identity before and after: this machine is slower for a while now and then.
        before = measured_step(cell, train(cell, "identity", runs))
        coded = {codec: train(cell, codec, runs) for codec in CODECS}
        plain = statistics.fmean((before, measured_step(cell, train(cell, "identity", runs))))
        for codec, folder in coded.items():
            row: dict[str, Any] = {
                "cell": str(cell),
                "codec": codec,
                "predicted": predicted_gain(folder),
                "measured": plain / measured_step(cell, folder),
                "identity_ms": 1e3 * plain,
            }
            row["right"] = (row["predicted"] > 1) == (row["measured"] > 1)
            print(
                f"{row['cell']:28}{codec:20}{row['predicted']:8.2f}{row['measured']:8.2f}"
                f"{'' if row['right'] else '  WRONG'}",
                file=sys.stderr,
            )
            yield row


def judge(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    wrong = [row for row in rows if not row["right"]]
    right = 1 - len(wrong) / len(rows)
    return {
        "cells": len(rows),
        "right": right,
        "wrong": wrong,
        "wrong_within_noise": sum(abs(row["measured"] - 1) <= NOISE for row in wrong),
        "met": right >= WANTED,
    }


def show(rows: Sequence[dict[str, Any]], found: dict[str, Any]) -> None:
    print("| model and link | identity ms | " + " | ".join(CODECS) + " |")
    print("|---|---|" + "---|" * len(CODECS))
    for cell in dict.fromkeys(row["cell"] for row in rows):
        mine = {row["codec"]: row for row in rows if row["cell"] == cell}
        cells = [
            f"{mine[codec]['predicted']:.2f} / {mine[codec]['measured']:.2f}"
            f"{'' if mine[codec]['right'] else ' wrong'}"
            for codec in CODECS
        ]
        print(f"| {cell} | {mine[CODECS[0]]['identity_ms']:.2f} | " + " | ".join(cells) + " |")
    print(
        f"\npredicted / measured gain; the sign is right in {found['right']:.1%} of {found['cells']} cells "
        f"(at least {WANTED:.0%}: {'met' if found['met'] else 'MISSED'}); of the wrong ones "
        f"{found['wrong_within_noise']} were measured within {NOISE:.0%} of 1"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cells that contain these words, such as 'mlp'")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    every = [Cell(job, "all-reduce", 2, link) for job in JOBS for link in LINKS]
    cells = [cell for cell in every if all(word in str(cell) for word in options.only.split())]
    with tempfile.TemporaryDirectory() as runs:
        rows = list(compare(cells, Path(runs)))
    found = judge(rows)
    if options.json:
        print(json.dumps({"schema": 1, "rows": rows, **found}, indent=2))
    else:
        show(rows, found)
    return 0 if found["met"] else 3


if __name__ == "__main__":
    sys.exit(main())
