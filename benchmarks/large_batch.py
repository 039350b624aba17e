"""Large batches that still learn, in the shape of Goyal et al. (2017): Fashion-MNIST, ``cnn``, equal epochs, 3 seeds.

Three questions. How large may the batch be with linear scaling and gradual warm-up: error over batch sizes, which is
flat and then has an elbow. At the largest batch that still learns: gradual warm-up against none, constant warm-up, the
square-root rule and the unscaled rate. And whether gamma 0 in each block's last batch norm helps ResNet-18 there, on
the digits, whose images of 8x8 make it affordable.

Every run is ``paceline simulate`` with one worker, whose mini-batches are accumulated: one core tries a batch of
8,192, and takes the steps that 32 workers of batch 256 would take (tests/conformance). ``--out`` writes the tables and
the picture.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from paceline.reports.line_chart import Curve, Mark, Panel, line_chart
from paceline.reports.svg import Axis, LinearAxis

REFERENCE = 16
"""The batch that the learning rate was chosen for: lower than its best, so that 64 times the rate can still be trained
with. Without batch norm a network of this kind takes no more."""
MINI_BATCH = 256
"""The most that is computed at once; larger batches are accumulated."""
BATCHES = (16, 64, 256, 512, 1024, 2048, 4096, 8192)
LARGEST = 1024
"""The largest batch that still learns: 64 times the reference, as 8,192 is 32 times theirs."""
FLAT = {256: 1.5, LARGEST: 3.5}
"""Points of error that batches up to these may lose against REFERENCE."""
ELBOW = 10.0
"""Points that the largest batch of all loses at least: beyond the elbow."""


@dataclass(frozen=True)
class Case:
    """One way to train; everything else is the same for all."""

    name: str
    batch: int
    rule: str = "linear"
    warmup: float = 2.0
    kind: str = "gradual"
    data: str = "fashion-mnist"
    model: str = "cnn"
    lr: float = 0.0025
    epochs: int = 8
    mini_batch: int = MINI_BATCH
    reference: int = REFERENCE

    def words(self, seed: int) -> list[str]:
        mini = min(self.batch, self.mini_batch)
        warm = f",warmup={self.warmup:g},warmup_kind={self.kind}" if self.warmup else ""
        scaled = (
            [] if self.rule == "none" else ["--scale-lr", self.rule, "--reference-batch", str(self.reference)]
        )
        return [
            *("--data", self.data, "--model", self.model, "--workers", "1", "--batch-size", str(mini)),
            *("--accumulate", str(self.batch // mini), "--epochs", str(self.epochs), *scaled),
            *(
                "--optimizer",
                f"sgd:lr={self.lr:g},momentum=0.9,nesterov=true,weight_decay=0.0001,decay=weights",
            ),
            *("--schedule", f"cosine:epochs={self.epochs}{warm}", "--seed", str(seed), "--json"),
            *("--evaluate-every", f"{self.epochs} epochs", "--checkpoint-every", "never"),
        ]


SIZES = tuple(Case(f"batch {batch:,}", batch) for batch in BATCHES)
AT = Case("gradual warm-up", LARGEST)
WAYS = (
    AT,
    replace(AT, name="no warm-up", warmup=0.0),
    replace(AT, name="constant warm-up", kind="constant"),
    replace(AT, name="square-root rule", rule="sqrt"),
    replace(AT, name="unscaled rate", rule="none", warmup=0.0),
)
RESNET = Case(
    "gamma 0",
    256,
    data="digits",
    model="resnet18:zero_gamma=true",
    lr=0.025,
    epochs=8,
    warmup=1.0,
    reference=32,
    mini_batch=64,
)
GAMMAS = (RESNET, replace(RESNET, name="gamma 1", model="resnet18"))
LOW_RATE = tuple(replace(case, name=f"{case.name}, a quarter of the rate", lr=0.00625) for case in GAMMAS)
"""Shown and not judged: where the rate is low, gamma 0 only costs a slower start."""


def train(case: Case, seed: int, folder: Path) -> dict[str, float]:
    """Test error in percent, and the gradient noise scale at the end, where it was measured."""
    command = [sys.executable, "-m", "paceline", "simulate", *case.words(seed), "--runs", str(folder)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    out = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    error, scale = 90.0, math.nan  # ten classes: a run that diverges has learned nothing
    if out.returncode == 0:
        final = json.loads(out.stdout)["summary"]["final"]
        error, scale = 100 * (1 - final["accuracy"]), final.get("noise_scale", math.nan)
    elif "not finite" not in out.stderr and "is nan" not in out.stderr and "is inf" not in out.stderr:
        raise SystemExit(f"{' '.join(command)}\n{out.stderr}")
    print(f"seed {seed}: {case.name:20}{error:8.2f} %", file=sys.stderr)
    return {"error": error, "noise_scale": scale}


def measure(cases: Sequence[Case], seeds: int, jobs: int) -> list[dict[str, Any]]:
    """A row a case: the mean over seeds, the lowest and the highest."""
    pairs = [(case, seed) for case in cases for seed in range(1, seeds + 1)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        found = dict(
            zip(pairs, pool.map(lambda pair: train(pair[0], pair[1], Path(folder)), pairs), strict=True)
        )
    rows = []
    for case in cases:
        errors = [found[case, seed]["error"] for seed in range(1, seeds + 1)]
        scales = [found[case, seed]["noise_scale"] for seed in range(1, seeds + 1)]
        known = [scale for scale in scales if not math.isnan(scale)]
        rows.append(
            {
                **asdict(case),
                "error": statistics.fmean(errors),
                "low": min(errors),
                "high": max(errors),
                "noise_scale": statistics.median(known) if known else None,
            }
        )
    return rows


def judge(found: Mapping[str, Sequence[dict[str, Any]]]) -> list[str]:
    """What was missed, in sentences."""
    missed = []
    if sizes := found.get("sizes"):
        base = sizes[0]["error"]
        for row in sizes:
            most = next((points for batch, points in FLAT.items() if row["batch"] <= batch), math.inf)
            if row["error"] > base + most:
                missed.append(f"{row['name']} loses {row['error'] - base:.2f} points, more than {most:g}")
        if sizes[-1]["error"] < base + ELBOW:
            missed.append(f"{sizes[-1]['name']} loses less than {ELBOW:g} points: there is no elbow")
    for rows in (found.get("ways", []), found.get("gammas", [])[: len(GAMMAS)]):
        missed += [
            f"{rows[0]['name']} is not better than {row['name']}"
            for row in rows[1:]
            if row["error"] <= rows[0]["error"]
        ]
    return missed


def tables(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    parts = []
    if sizes := found.get("sizes"):
        parts += [
            "| batch | learning rate | test error, % | lowest to highest |",
            "|---|---|---|---|",
        ]
        for row in sizes:
            rate = row["lr"] * row["batch"] / row["reference"]
            parts.append(f"| {row['batch']:,} | {rate:g} | {_errors(row)} |")
    for name in ("ways", "gammas"):
        if rows := found.get(name):
            what = f"{rows[0]['model']} on {rows[0]['data']}, batch {rows[0]['batch']:,}"
            parts += ["", f"| {what} | test error, % | lowest to highest |", "|---|---|---|"]
            parts += [f"| {row['name']} | {_errors(row)} |" for row in rows]
    return "\n".join(parts).lstrip() + "\n"


def _errors(row: Mapping[str, Any]) -> str:
    return f"{row['error']:.2f} | {row['low']:.2f} to {row['high']:.2f}"


def picture(sizes: Sequence[Mapping[str, Any]], ways: Sequence[Mapping[str, Any]]) -> str:
    """Error over batch sizes, and the other ways to train at the largest that still learns."""
    rows = [*sizes, *ways]
    curve = Curve(
        name="linear scaling, gradual warm-up",
        points=tuple((row["batch"], row["error"]) for row in sizes),
        band=tuple((row["low"], row["high"]) for row in sizes),
    )
    panel = Panel(
        label="samples in a batch",
        across=Axis(sizes[0]["batch"], sizes[-1]["batch"]),
        up=LinearAxis(0, 8 * math.ceil(max(row["high"] for row in rows) / 8)),
        across_tick=lambda batch: f"{batch:,.0f}",
        up_tick=lambda percents: f"{percents:g} %",
        ticks=tuple(row["batch"] for row in sizes),
        curves=(curve,),
        marks=tuple(_mark(row) for row in ways[1:]),
    )
    title = f"Fashion-MNIST, cnn, {sizes[0]['epochs']} epochs: test error against the batch"
    return line_chart(title, "mean of the seeds, and from the lowest to the highest", [panel])


def _mark(row: Mapping[str, Any]) -> Mark:
    return Mark(
        name=row["name"], point=(row["batch"], row["error"]), low=row["low"], high=row["high"], colour=1
    )


def report(found: Mapping[str, Sequence[Mapping[str, Any]]], seeds: int) -> str:
    return (
        "# Large batches\n\nWritten by `benchmarks/large_batch.py --out docs/results`; means of "
        f"{seeds} seeds.\nHow to read it: [large batches](../large-batches.md).\n\n{tables(found)}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("sizes", "ways", "gammas"), action="append", help="by default all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, help="train for this many, to try it out")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, each on one core")
    parser.add_argument("--out", type=Path, help="write large-batch.md and large-batch.svg into this folder")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    asked = {"sizes": SIZES, "ways": WAYS, "gammas": (*GAMMAS, *LOW_RATE)}
    found = {}
    for name in options.only or asked:
        cases = asked[name]
        if options.epochs:
            cases = tuple(replace(case, epochs=options.epochs) for case in cases)
        found[name] = measure(cases, options.seeds, options.jobs)
    missed = judge(found)
    if options.out is not None:
        (options.out / "large-batch.md").write_text(report(found, options.seeds))
        if "sizes" in found and "ways" in found:
            (options.out / "large-batch.svg").write_text(picture(found["sizes"], found["ways"]))
    if options.json:
        print(json.dumps({"schema": 1, "seeds": options.seeds, **found, "missed": missed}, indent=2))
    else:
        print(tables(found))
        print("\n".join(f"MISSED: {sentence}" for sentence in missed))
    return 3 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
