"""The step of models that this machine has never run, predicted from its calibration. One thread, CPU.

First the machine is calibrated with random networks, none of which is any of these models, or a profile of before is
read. From it all cells are predicted, and the predictions are written down with the time. Only then are the cells
measured: plain training steps as the live runtime does them, in several rounds over all cells, since a shared machine
is not equally fast at all times; a cell's time is the median over all rounds. The models are those that ship, and
networks of other kinds (recurrent, with group norms, transposed convolutions, wide depthwise kernels; --held-out for
these alone). --calibrate-only writes the profile and ends, for --profile later.

Beside it: a data sheet of the nearest CPU alone, and Paleo's model with the measured peak and bandwidth and one
percentage of them for all cells, the one that is best in hindsight, after the measurement. Exit code 3 if the median
error is above its limit, or if Paleo's is not at least twice as large.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import exp, log
from pathlib import Path
from typing import NamedTuple

import torch

from _held_out import HELD_OUT
from paceline.clusters.catalogue import DeviceSheet, find_device
from paceline.clusters.profile import read_profile, write_profile
from paceline.costs.device import step_cost
from paceline.costs.fitted import FittedDevice, read_fitted
from paceline.costs.paleo import Paleo, paleo_step
from paceline.costs.roofline import Roofline
from paceline.costs.trace.trace import Trace, trace
from paceline.jobs.build import traceable_of
from paceline.jobs.job import Job, Traceable
from paceline.reports.calibrate import render_device
from paceline.reports.progress import Screen
from paceline.studies.calibrate.device import USUAL_SECONDS, calibrate_device
from paceline.studies.calibrate.measure import TrainingStep
from paceline.studies.predict.interval import NORMAL

MEDIAN, TWICE = 20.0, 2.0
"""Per cent that the median error may be; how many times as far off Paleo must be."""
SHEET = "epyc-7763"
SMALL, LARGE = (3, 32, 32), (3, 224, 224)
MODELS: Mapping[str, tuple[str, tuple[int, ...] | None, int | None, tuple[int, ...]]] = {
    "cnn 8x8": ("cnn", (1, 8, 8), 10, (16, 64, 256)),
    "cnn 28x28": ("cnn", (1, 28, 28), 10, (16, 64, 256)),
    "mlp": ("mlp", (1, 28, 28), 10, (16, 64, 256)),
    "mlp, wide": ("mlp:hidden=1024,layers=3", (1, 28, 28), 10, (16, 64, 256)),
    "resnet18": ("resnet18", SMALL, 10, (4, 8, 24)),
    "resnet50": ("resnet50", SMALL, 10, (2, 4, 8)),
    "vgg16": ("vgg16", SMALL, 10, (4, 8, 24)),
    "alexnet": ("alexnet", LARGE, 1000, (2, 4, 8)),
    "alexnet-v2": ("alexnet-v2", LARGE, 1000, (2, 4, 8)),
    "nin": ("nin", LARGE, 1000, (2, 4, 8)),
    "googlenet": ("googlenet", LARGE, 1000, (1, 2, 4)),
    "inception-v3": ("inception-v3", (3, 299, 299), 1000, (1, 2, 3)),
    "gpt, tiny": ("gpt:layers=4,width=128,heads=4,context=64,vocabulary=100", None, None, (2, 8, 32)),
    "gpt": ("gpt:layers=4,width=256,heads=4,context=128,vocabulary=8000", None, None, (2, 4, 8)),
}
"""By a short name, each family of models that ships: its spec, the shape of a sample, classes and batches."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A model at a batch, and what was said of its step before it ran, in seconds."""

    model: str
    batch: int
    calibrated: float
    spread: float
    """Of the calibrated prediction: the standard deviation of the logarithm of (measured / predicted)."""
    catalogue: float
    at_peak: float
    """Paleo's forward and backward at all of the peak; its percentage divides it."""
    apply: float
    """Paleo's own, at the peak whatever the percentage."""
    made: float
    """When, in seconds since the epoch."""
    measured: float = 0.0

    @property
    def inside(self) -> bool:
        """Whether the measured step lies in the 80 % interval."""
        return abs(log(self.measured / self.calibrated)) <= NORMAL * self.spread

    def paleo(self, part: float) -> float:
        """Paleo's step at a part of the peak."""
        return self.at_peak / part + self.apply


class Work(NamedTuple):
    """A cell to be measured."""

    subject: Traceable | Job
    batch: int


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", type=Path, help="take this one instead of calibrating")
    parser.add_argument("--seconds", type=float, default=USUAL_SECONDS, help="to calibrate for")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--cell-seconds", type=float, default=0.5, help="to measure a cell for, in each round"
    )
    parser.add_argument("--out", type=Path, default=Path("predicted-calibrated.json"))
    parser.add_argument("--models", help="only these, such as cnn,mlp")
    parser.add_argument("--held-out", action="store_true", help="only networks of kinds that do not ship")
    parser.add_argument("--calibrate-only", action="store_true", help="write the profile and end")
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = calibrated(options.profile, options.seconds)
    if options.calibrate_only:
        return 0
    chosen = options.models.split(",") if options.models else None
    works = {
        (name, batch): Work(traceable_of(spec, shape=shape, classes=classes), batch)
        for name, (spec, shape, classes, batches) in MODELS.items()
        for batch in batches
        if not options.held_out and (chosen is None or spec.partition(":")[0] in chosen)
    }
    if chosen is None:
        works |= {
            (name, batch): Work(one.subject, batch) for name, one in HELD_OUT.items() for batch in one.batches
        }
    cells = [predict(name, batch, work, device) for (name, batch), work in works.items()]
    options.out.write_text(json.dumps({"cells": [asdict(cell) for cell in cells]}, indent=1))
    print(f"{len(cells)} predictions are in {options.out}; now they are measured", file=sys.stderr)
    seconds = measure(works, options.rounds, options.cell_seconds)
    cells = [replace(cell, measured=seconds[cell.model, cell.batch]) for cell in cells]
    options.out.write_text(json.dumps({"cells": [asdict(cell) for cell in cells]}, indent=1))
    return report(cells)


def calibrated(profile: Path | None, seconds: float) -> FittedDevice:
    """The device of a profile, or of a calibration now, which is kept beside the predictions."""
    if profile is not None:
        return read_fitted(read_profile(profile, torch.__version__).device, str(profile))
    screen = Screen(sys.stderr)
    made, found = calibrate_device(seconds, show=screen.count_down, note=screen.note)
    screen.close()
    print("\n".join([*render_device(found)]))
    write_profile(made, Path("predicted-calibrated-profile.json"))
    return read_fitted(made.device, "the profile")


def predict(name: str, batch: int, work: Work, device: FittedDevice) -> Cell:
    traced = trace(work.subject, batch)
    sheet = find_device(SHEET)
    at_peak, apply = paleo_parts(traced, device)
    cost = step_cost(traced, device)
    return Cell(
        model=name,
        batch=batch,
        calibrated=cost.step.compute,
        spread=cost.spread,
        catalogue=step_cost(traced, Roofline(sheet=sheet, threads=1)).step.compute,
        at_peak=at_peak,
        apply=apply,
        made=time.time(),
    )


def paleo_parts(traced: Trace, device: FittedDevice) -> tuple[float, float]:
    """Paleo's model of this machine, with the peak and the bandwidth that were measured."""
    sheet = DeviceSheet(
        name="here",
        title="this machine",
        kind="cpu",
        flops=device.peak,
        bandwidth=device.limits.bandwidth,
        memory=0,
        source="measured",
        date="now",
    )
    step = paleo_step(Paleo(device=sheet, bandwidth=1e9), traced)
    return step.forward + step.backward, step.apply


def measure(works: dict[tuple[str, int], Work], rounds: int, seconds: float) -> dict[tuple[str, int], float]:
    times: dict[tuple[str, int], list[float]] = {key: [] for key in works}
    for turn in range(rounds):
        for key, work in works.items():
            times[key] += run(work, seconds)
        print(f"round {turn + 1} of {rounds} done", file=sys.stderr)
    return {key: statistics.median(found) for key, found in times.items()}


def run(work: Work, seconds: float) -> list[float]:
    """Steps of one cell after a warm-up, at least two."""
    step = TrainingStep(work.subject, work.batch)
    begin = time.perf_counter()
    step.run()
    if time.perf_counter() - begin < seconds / 4:
        step.run()
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < 2 or (time.perf_counter() - begin < seconds and len(times) < 300):
        times.append(step.run().total)
    return times


def best_part(cells: Sequence[Cell]) -> float:
    """The percentage of the peak by which Paleo's median error is smallest, in hindsight."""
    parts = [exp(log(0.005) + place * (log(1.0) - log(0.005)) / 2000) for place in range(2001)]
    return min(parts, key=lambda part: middle(off(cell.paleo(part), cell) for cell in cells))


def off(predicted: float, cell: Cell) -> float:
    return 100 * abs(predicted / cell.measured - 1)


def middle(errors: Iterable[float]) -> float:
    return statistics.median(errors)


def report(cells: Sequence[Cell]) -> int:
    part = best_part(cells)
    print(f"{'model':18} {'batch':>5} {'measured':>11} {'calibrated':>11} {'error':>7}", end=" ")
    print(f"{'data sheet':>11} {'error':>7} {'Paleo':>11} {'error':>7}   (ms a step)")
    for cell in cells:
        shown = f"{cell.model:18} {cell.batch:5} {1e3 * cell.measured:11.2f}"
        for said in (cell.calibrated, cell.catalogue, cell.paleo(part)):
            shown += f" {1e3 * said:11.2f} {100 * (said / cell.measured - 1):+6.0f} %"
        print(shown)
    errors = {
        "calibrated": [off(cell.calibrated, cell) for cell in cells],
        "data sheet": [off(cell.catalogue, cell) for cell in cells],
        "Paleo": [off(cell.paleo(part), cell) for cell in cells],
    }
    for name, found in errors.items():
        nine = sorted(found)[-(-9 * len(found) // 10) - 1]
        print(
            f"{name:10}  median error {middle(found):5.1f} %, 90th percentile {nine:5.1f} %, worst {max(found):.1f} %"
        )
    inside = sum(cell.inside for cell in cells)
    print(f"{inside} of {len(cells)} cells lie inside their 80 % interval")
    for name in dict.fromkeys(cell.model for cell in cells):
        mine = [cell for cell in cells if cell.model == name]
        print(f"  {name:18} median error {middle(off(cell.calibrated, cell) for cell in mine):5.1f} %")
    print(
        f"Paleo's percentage of the peak is {100 * part:.1f} %, the best of all for these cells, in hindsight"
    )
    ours, paleos = middle(errors["calibrated"]), middle(errors["Paleo"])
    met = ours < MEDIAN and paleos >= TWICE * ours
    verdict = "met" if met else "MISSED"
    print(
        f"{verdict}: median {ours:.1f} % (limit {MEDIAN:.0f} %), Paleo {paleos / ours:.1f} times as far off"
    )
    return 0 if met else 3


if __name__ == "__main__":
    sys.exit(main())
