"""Whether a prediction calls it right that a codec pays: codec x model x link, predicted, then measured. Needs root.

As in ``predict_profiled.py`` this machine's links are calibrated and each job trains for some seconds on one worker.
From that alone the step of two workers is predicted with identity and with each codec, and written down; only then are
they measured, one after the other. The gain is the step with identity over the step with the codec; where it is above 1
the codec pays. Every cell counts, also those whose measured gain is within the noise of 1.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from _shaped import run_apart, run_here
from paceline.clusters.cluster import Device
from paceline.clusters.profile import Profile
from paceline.costs.recorded import usual_pace
from paceline.jobs.build import traceable_of_job
from paceline.records.folder import RunFolder
from paceline.runtimes.config import read_run
from paceline.studies.predict import PredictRequest
from paceline.studies.predict.compute import BatchTraces, NominalDevice, by_run
from paceline.studies.predict.deployment import Deployment
from paceline.studies.predict.model import PacelineModel
from predict_profiled import Cell, find_profile, job_trace, layout_of, mean_of, train_alone, words

JOBS = ("cnn", "mlp", "resnet18")
LINKS = ("shm", "loopback", "1gbit", "100mbit")
CODECS = ("half", "int8", "sign", "top-k:ratio=0.01", "powersgd:rank=4")
SECONDS = 5.0
"""Of training in each run, about."""
LEAST_STEPS, MOST_STEPS = 8, 1000
WANTED = 0.95
NOISE = 0.03
"""Measured gains this near to 1 differ in sign from one run to the next."""


def predict(cell: Cell, alone: Sequence[Path], profile: Profile) -> dict[str, float]:
    """Seconds of a step with identity and with each codec."""
    traced = job_trace(alone[0])
    traces = BatchTraces(lambda samples: traced)  # noqa: ARG005
    model = PacelineModel(
        request=PredictRequest(times=alone[-1], strategies=(cell.strategy,)),
        subject=traceable_of_job(read_run(RunFolder(alone[-1])).settings.job),
        profile=profile,
        sheet=None,
        compute=mean_of([by_run(RunFolder(folder), NominalDevice(), traces) for folder in alone]),
        deployment=Deployment(layout=layout_of(cell, profile), most=16, words="as measured", spread=0.0),
        device=Device(name="here"),
    )
    plain = model.setup(cell.strategy, cell.workers)
    return {
        codec: model.step(replace(plain, coding=model.coding_by(codec))).seconds
        for codec in ("identity", *CODECS)
    }


def measure(cell: Cell, codec: str, expected: float, runs: Path) -> float:
    steps = max(LEAST_STEPS, min(MOST_STEPS, int(SECONDS / expected))) + 2
    asked = [*words(cell.job, cell.strategy, steps), "--codec", codec]
    if cell.network:
        folder = run_apart(asked, cell.workers, runs, cell.where, served=False)
    else:
        folder = run_here(asked, cell.workers, runs, "gloo" if cell.where == "loopback" else "shm")
    return usual_pace(RunFolder(folder), 1 if cell.network or cell.job == "resnet18" else 8)


def compare(cells: Sequence[Cell], runs: Path, kept: Path | None) -> Iterator[dict[str, Any]]:
    profile = find_profile(cells, kept)
    alone = {
        job: [train_alone(job, runs) for _ in range(3)] for job in dict.fromkeys(one.job for one in cells)
    }
    for cell in cells:
        expected = predict(cell, alone[cell.job], profile)
        with (runs / "predictions.jsonl").open("a") as file:
            file.write(json.dumps({"cell": str(cell), "seconds": expected}) + "\n")
        # Identity before and after: this machine is slower for a while now and then.
        before = measure(cell, "identity", expected["identity"], runs)
        coded = {codec: measure(cell, codec, expected[codec], runs) for codec in CODECS}
        plain = statistics.fmean((before, measure(cell, "identity", expected["identity"], runs)))
        for codec, seconds in coded.items():
            row: dict[str, Any] = {
                "cell": str(cell),
                "codec": codec,
                "predicted": expected["identity"] / expected[codec],
                "measured": plain / seconds,
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
    parser.add_argument(
        "--profile", type=Path, help="the machine's profile: read, or measured and kept there"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    every = [Cell(job, "all-reduce", 2, link) for job in JOBS for link in LINKS]
    cells = [cell for cell in every if all(word in str(cell) for word in options.only.split())]
    with tempfile.TemporaryDirectory() as runs:
        rows = list(compare(cells, Path(runs), options.profile))
    found = judge(rows)
    if options.json:
        print(json.dumps({"schema": 1, "rows": rows, **found}, indent=2))
    else:
        show(rows, found)
    return 0 if found["met"] else 3


if __name__ == "__main__":
    sys.exit(main())
