"""The step of 2 and 3 workers, predicted from a few steps of one worker and this machine's profile. Needs root.

First the machine is calibrated with two and three workers: contention, shared memory, the loopback, messages
to a server, and each shaped link; none of it knows the jobs. Then all cells have their turns, in several rounds: a job
trains for some seconds on one worker; a few of its cells are predicted from the last such runs and the profile, each
prediction is written down with the time, and only then the cell is measured. A cell's error is that of the median of
its predictions against the median of its measurements: this machine is slower by a fourth when its neighbours work.

Beside it, Paleo's model: operations over the machine's peak times one percentage, which is the best for all these cells
together in hindsight, and its own formula for the exchange over the link's nominal bandwidth.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from _machine import calibrate, in_namespaces
from _score import compare_parts, parts_table
from _shaped import run_apart, run_here
from paceline.clusters.catalogue import DeviceSheet
from paceline.clusters.cluster import Device
from paceline.clusters.profile import Profile, read_profile, write_profile
from paceline.costs.paleo import Paleo, paleo_step
from paceline.costs.recorded import usual_pace
from paceline.costs.trace.trace import Trace, trace
from paceline.jobs.build import traceable_of_job
from paceline.records.folder import RunFolder
from paceline.records.spans import StepBreakdown
from paceline.runtimes.config import read_run
from paceline.studies.predict.compute import BatchTraces, ComputeTimes, NominalDevice, by_run
from paceline.studies.predict.deployment import ClusterLayout, Deployment, one_machine
from paceline.studies.predict.model import PacelineModel
from paceline.studies.predict.prediction import PredictedStep
from paceline.studies.predict.request import PredictRequest

MEDIAN, MOST, TWICE = 7.0, 15.0, 2.0
"""Limits in per cent of the median error and its 90th percentile; how many times as far off Paleo must be."""
JOBS = {
    "cnn": "--data synthetic:shape=1x8x8,train=76800 --model cnn --batch-size 128",
    "mlp": "--data synthetic:shape=1x8x8,train=76800 --model mlp:hidden=960,layers=2 --batch-size 64",
    "resnet18": "--data synthetic --model resnet18 --batch-size 8",
}
STEPS = {"cnn": 1500, "mlp": 600, "resnet18": 15}
"""Of a job on one worker: some seconds."""
CELLS = """
cnn all-reduce 2 shm; mlp all-reduce 3 shm; cnn local-sgd:period=8 2 shm; cnn ps 2 shm; mlp ps 3 shm; mlp ssp 2 shm
cnn all-reduce 2 loopback; cnn all-reduce 3 loopback; mlp all-reduce 2 loopback; mlp all-reduce 3 loopback
cnn local-sgd:period=8 3 loopback; mlp local-sgd:period=8 2 loopback; resnet18 all-reduce 2 loopback
cnn all-reduce 2 1gbit; cnn local-sgd:period=8 3 1gbit; mlp all-reduce 2 1gbit; mlp all-reduce 3 1gbit
mlp local-sgd:period=8 2 1gbit; mlp ps 2 1gbit; mlp ps 3 1gbit; resnet18 all-reduce 2 1gbit
mlp all-reduce 2 100mbit; mlp all-reduce 3 100mbit; mlp local-sgd:period=8 3 100mbit; mlp ps 2 100mbit
mlp ssp 2 1gbit
"""
QUICK = ("cnn all-reduce 2 shm", "mlp all-reduce 2 1gbit", "mlp ps 3 shm")
SECONDS = 6.0
"""Of training in each run, about: this machine is slower for a second or two now and then."""
ROUNDS = 3
"""Over all cells: each is predicted and measured as often."""
FEW = 3
"""Cells that follow a run on one worker."""
LAST = 6
"""Runs on one worker that a prediction rests on."""
NOMINAL = {"1gbit": 1e9 / 8, "100mbit": 1e8 / 8, "loopback": 4e9, "shm": 20e9}
"""Bytes a second that a data sheet would say, for Paleo."""
ONE_CORE = DeviceSheet(
    name="core",
    title="one core",
    kind="cpu",
    flops=2.45e9 * 32,
    bandwidth=25e9,
    memory=0,
    source="2.45 GHz, two fused multiply-adds of 8 numbers a cycle; one channel of DDR4-3200",
    date="2026-11",
)


@dataclass(frozen=True)
class Cell:
    """What is trained, how, by how many workers, and what they talk through."""

    job: str
    strategy: str
    workers: int
    where: str

    @classmethod
    def parse(cls, text: str) -> "Cell":
        """Read the four words."""
        job, strategy, workers, where = text.split()
        return cls(job, strategy, int(workers), where)

    def __str__(self) -> str:
        return f"{self.job} {self.strategy} {self.workers} {self.where}"

    @property
    def served(self) -> bool:
        """Whether a server keeps the parameters."""
        return self.strategy in ("ps", "ssp")

    @property
    def together(self) -> int:
        """Steps over which a mean is taken: those of a period, and a few where steps take turns."""
        if self.strategy == "ssp" or "period" in self.strategy:
            return 8
        return 1 if self.network or self.job == "resnet18" else 8

    @property
    def network(self) -> bool:
        """Whether each worker is in a namespace of its own."""
        return self.where in ("1gbit", "100mbit")


def words(job: str, strategy: str, steps: int) -> list[str]:
    stated = JOBS[job].split()
    stated += ["--strategy", strategy, "--iterations", str(steps)]
    return [*stated, "--evaluate-every", "never", "--checkpoint-every", "never"]


def job_trace(folder: Path) -> Trace:
    settings = read_run(RunFolder(folder)).settings
    return trace(traceable_of_job(settings.job), settings.batch_sizes[0])


def predict(cell: Cell, alone: Sequence[Path], traced: Trace, profile: Profile) -> PredictedStep:
    """As 'paceline predict' does it from the times of one such run, here from the mean of the last few."""
    traces = BatchTraces(lambda samples: traced)  # noqa: ARG005
    compute = mean_of([by_run(RunFolder(folder), NominalDevice(), traces) for folder in alone])
    model = PacelineModel(
        request=PredictRequest(times=alone[-1], strategies=(cell.strategy,)),
        subject=traceable_of_job(read_run(RunFolder(alone[-1])).settings.job),
        profile=profile,
        sheet=None,
        compute=compute,
        deployment=Deployment(layout=layout_of(cell, profile), most=16, words="as measured", spread=0.0),
        device=Device(name="here"),
    )
    return model.step(model.setup(cell.strategy, cell.workers))


def mean_of(sources: Sequence[ComputeTimes]) -> ComputeTimes:
    """One whose times and jitter are the means of theirs."""
    steps = [one.typical for one in sources if one.typical is not None]

    def mean(part: str) -> float:
        return statistics.fmean(getattr(one.step, part) for one in steps)

    step = StepBreakdown(**{part: mean(part) for part in ("data", "forward", "backward", "apply")})
    return replace(
        sources[0],
        typical=steps[0]._replace(step=step),
        jitter=statistics.fmean(one.jitter for one in sources),
    )


def layout_of(cell: Cell, profile: Profile) -> ClusterLayout:
    """The machine, or namespaces of it."""
    if cell.network:
        return in_namespaces(profile, cell.where)
    return partial(one_machine, profile, "gloo" if cell.where == "loopback" else "shm")


def train_alone(job: str, runs: Path) -> Path:
    """A few steps of the job on one worker."""
    return run_here(words(job, "all-reduce", STEPS[job]), 1, runs)


def measure(cell: Cell, step: float, runs: Path) -> Path:
    """Train for a few seconds, if the step takes as long as was predicted."""
    least = max(12, 5 * cell.together)
    steps = max(least, min(1500, int(SECONDS / step))) // cell.together * cell.together + 2
    asked = words(cell.job, cell.strategy, steps)
    if cell.network:
        return run_apart(asked, cell.workers, runs, cell.where, cell.served)
    return run_here(asked, cell.workers, runs, "gloo" if cell.where == "loopback" else "shm")


def paleo_seconds(cell: Cell, traced: Trace, share: float) -> float:
    """Paleo's step; for a server its one-to-all, for a ring what two trees would take at least, its butterfly."""
    model = Paleo(device=ONE_CORE, bandwidth=NOMINAL[cell.where], compute=share)
    step = paleo_step(model, traced, cell.workers, "one-to-all" if cell.served else "butterfly")
    return step.compute + step.communicate / (8 if "period=8" in cell.strategy else 1)


def best_paleo(rows: Sequence[dict[str, Any]], traces: dict[str, Trace]) -> float:
    """The percentage of peak with the least median error over all cells."""

    def median_error(share: float) -> float:
        errors = [
            abs(paleo_seconds(row["cell"], traces[row["cell"].job], share) / row["measured"] - 1)
            for row in rows
        ]
        return float(statistics.median(errors))

    return min((percent / 100 for percent in range(1, 101)), key=median_error)


def find_profile(cells: Sequence[Cell], kept: Path | None) -> Profile:
    """As it was kept, or measured now."""
    if kept is not None and kept.exists():
        return read_profile(kept)
    profile = calibrate(
        counts={cell.workers for cell in cells},
        served={cell.workers for cell in cells if cell.served and not cell.network},
        networks={(cell.where, cell.workers) for cell in cells if cell.network},
    )
    if kept is not None:
        write_profile(profile, kept)
    return profile


def compare(cells: Sequence[Cell], runs: Path, options: argparse.Namespace) -> dict[str, Any]:
    profile = find_profile(cells, options.profile)
    turns: dict[Cell, list[Turn]] = {cell: [] for cell in cells}
    alone: dict[str, list[Path]] = {cell.job: [] for cell in cells}
    for job in [*alone] * (LAST // 2):
        alone[job].append(train_alone(job, runs))
    traces = {job: job_trace(folders[0]) for job, folders in alone.items()}
    for few in [*in_turns(cells)] * options.rounds:
        job = few[0].job
        alone[job].append(train_alone(job, runs))
        for cell in few:
            step = predict(cell, alone[job][-LAST:], traces[job], profile)
            turns[cell].append(take_turn(cell, step, runs, options.parts))
    rows = [score(cell, found) for cell, found in turns.items()]
    share = best_paleo(rows, traces)
    for row in rows:
        seconds = paleo_seconds(row["cell"], traces[row["cell"].job], share)
        row["paleo_error"] = 100 * (seconds / row["measured"] - 1)
    return judge(rows) | {"paleo_percent": 100 * share, "profile": asdict(profile)}


def in_turns(cells: Sequence[Cell]) -> Iterator[Sequence[Cell]]:
    """A few cells of one job at a time."""
    for job in JOBS:
        mine = [cell for cell in cells if cell.job == job]
        yield from (mine[at : at + FEW] for at in range(0, len(mine), FEW))


@dataclass(frozen=True)
class Turn:
    """One prediction of a cell's step and the measurement that followed, in seconds."""

    made: float
    """When it was predicted, in seconds since the epoch."""
    predicted: float
    measured: float


def take_turn(cell: Cell, predicted: PredictedStep, runs: Path, parts: bool) -> Turn:
    """Write the prediction down, then measure."""
    made = time.time()
    with (runs / "predictions.jsonl").open("a") as file:
        file.write(json.dumps({"cell": str(cell), "made": made, "step": asdict(predicted)}) + "\n")
    folder = measure(cell, predicted.seconds, runs)
    measured = usual_pace(RunFolder(folder), cell.together)
    error = 100 * (predicted.seconds / measured - 1)
    print(
        f"{cell!s:36}{1e3 * predicted.seconds:10.2f}{1e3 * measured:10.2f} ms{error:+8.1f} %", file=sys.stderr
    )
    if parts:
        print(f"\n{cell}\n{parts_table(compare_parts(predicted.breakdown, RunFolder(folder)))}")
    return Turn(made, predicted.seconds, measured)


def score(cell: Cell, turns: Sequence[Turn]) -> dict[str, Any]:
    """The medians of all turns, and how far apart their measurements are."""
    predicted, measured = (
        statistics.median(getattr(turn, side) for turn in turns) for side in ("predicted", "measured")
    )
    times = [turn.measured for turn in turns]
    return {
        "cell": cell,
        "predicted": predicted,
        "measured": measured,
        "error": 100 * (predicted / measured - 1),
        "spread": 100 * (max(times) / min(times) - 1),
        "turns": [asdict(turn) for turn in turns],
    }


def judge(rows: list[dict[str, Any]]) -> dict[str, Any]:
    errors, others = ([abs(row[key]) for row in rows] for key in ("error", "paleo_error"))
    tenths = sorted(errors)[max(0, -(-9 * len(errors) // 10) - 1)]
    median, paleo = statistics.median(errors), statistics.median(others)
    return {
        "median": median,
        "nine_tenths": tenths,
        "paleo_median": paleo,
        "met": median < MEDIAN and tenths < MOST and paleo >= TWICE * median,
        "rows": [{**row, "cell": str(row["cell"])} for row in rows],
    }


def show(found: dict[str, Any]) -> None:
    print(
        f"{'job, strategy, workers, where':36}{'predicted ms':>13}{'measured ms':>13}"
        f"{'spread':>9}{'error':>10}{'Paleo':>10}"
    )
    for row in found["rows"]:
        far = "  FAR" if abs(row["error"]) > MOST else ""
        print(
            f"{row['cell']:36}{1e3 * row['predicted']:>13.2f}{1e3 * row['measured']:>13.2f}"
            f"{row['spread']:>7.0f} %{row['error']:>+8.1f} %{row['paleo_error']:>+8.0f} %{far}"
        )
    print(
        f"\nmedian error {found['median']:.1f} % (under {MEDIAN:g}), 90th percentile {found['nine_tenths']:.1f} % "
        f"(under {MOST:g}); Paleo's with its best percentage of peak, {found['paleo_percent']:.0f} %: "
        f"{found['paleo_median']:.1f} %; met: {found['met']}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", action="append", help="cells that contain these words, such as 'mlp all-reduce'"
    )
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("--parts", action="store_true", help="compare the parts of each step as well")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="over all cells")
    parser.add_argument("--runs", type=Path, help="where runs are kept (default: nowhere)")
    parser.add_argument(
        "--profile", type=Path, help="the machine's profile: read, or measured and kept there"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if os.geteuid() != 0 or not shutil.which("tc") or not shutil.which("ip"):
        print("needs root, ip and tc: not measured", file=sys.stderr)
        return 0
    # A terminal that goes away must not leave namespaces behind.
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.default_int_handler)
    asked = QUICK if options.quick else options.only or [""]
    texts = [text.strip() for line in CELLS.strip().splitlines() for text in line.split(";")]
    cells = [Cell.parse(text) for text in texts if any(piece in text for piece in asked)]
    with tempfile.TemporaryDirectory() as folder:
        runs = options.runs or Path(folder)
        runs.mkdir(parents=True, exist_ok=True)
        found = compare(cells, runs, options)
    if options.json:
        print(json.dumps({"schema": 1, **found}, indent=2))
    else:
        show(found)
    return 0 if found["met"] else 3


if __name__ == "__main__":
    sys.exit(main())
