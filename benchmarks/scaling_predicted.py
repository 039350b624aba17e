"""How well 'paceline bench scaling' predicts speed-ups: 2 workers against 1, 4 batches, 2 models, on a quiet machine.

The machine is calibrated first ('paceline calibrate machine'), unless --profile names a profile of it. Then each model
is swept: a prediction of 2 workers rests on the profile and on one run of one worker, and is stored before the first
run of 2 workers. Each run of 2 workers follows one of one worker, and the measured speed-up is the median of their
ratios. Where something else computed during a run, that pair is measured again. Points are hundredths of a speed-up:
1.50 predicted and 1.55 measured differ by 5. Exit code 3 where the limit is missed.

The noise floor is how far two repeats of the same cell differ, and what is left of that in a median of all repeats.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from itertools import combinations
from math import sqrt
from pathlib import Path
from statistics import median
from typing import Any

from paceline.studies.scaling.folder import RepeatResult, SweepFolder
from paceline.studies.scaling.study import SweepCell, SweepRun

LIMIT = 5.0
"""Points, of the median difference between predicted and measured speed-up."""
TRIES = 3
"""How often a pair of runs is measured at most while something else computes."""
MODELS = ("cnn", "mlp:hidden=512")
DATA = "synthetic:shape=1x28x28,train=8192,test=64"
BATCHES = "16,32,64,128"
PACELINE = (sys.executable, "-m", "paceline")


def ask(*words: str) -> dict[str, Any]:
    done = subprocess.run([*PACELINE, *words, "--json"], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"'paceline {' '.join(words)}' ended with {done.returncode}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def sweep(model: str, profile: Path, home: Path, options: argparse.Namespace) -> dict[str, Any]:
    folder = home / model.partition(":")[0]
    words = ["--data", DATA, "--model", model, "--workers", "1,2", "--batch-size", BATCHES]
    words += ["--seconds", str(options.seconds), "--repeats", str(options.repeats), "--threads", "1"]
    words += ["--profile", str(profile), "--out", str(folder)]
    for attempt in range(1, TRIES + 1):
        found = ask("bench", "scaling", *words)
        if attempt < TRIES and not forget_disturbed(SweepFolder(folder)):
            break
    found["ratios"] = ratios(SweepFolder(folder))
    first = min(row["plan"]["made"] for row in found["rows"] if row["cell"]["workers"] == 2)
    print(f"{model}: swept {attempt} times; first prediction of 2 workers at {first}", file=sys.stderr)
    return found


def pairs(folder: SweepFolder) -> dict[SweepRun, tuple[RepeatResult, RepeatResult]]:
    """Each run of 2 workers, and the one of one worker before it."""
    sweep = folder.read()
    done = folder.done(sweep, sweep.runs)
    several = {run: one for run, one in done.items() if run.cell.workers > 1}
    return {run: (done[SweepRun(sweep.base(run.cell), run.repeat)], one) for run, one in several.items()}


def forget_disturbed(folder: SweepFolder) -> int:
    """Remove the results of pairs during which something else computed, so that they are measured again."""
    sweep, forgotten = folder.read(), 0
    for pair in pairs(folder).values():
        if any(one.disturbed for one in pair):
            forgotten += 1
            for one in pair:
                folder.cell(sweep, one.cell).unlink()
    return forgotten


def ratios(folder: SweepFolder) -> list[list[float]]:
    """Speed-ups by repeat, of each cell."""
    found: dict[SweepCell, list[float]] = {}
    for run, (alone, several) in pairs(folder).items():
        if not (alone.disturbed or several.disturbed):
            found.setdefault(run.cell, []).append(several.rate / alone.rate)
    return list(found.values())


def compared(document: dict[str, Any]) -> list[dict[str, Any]]:
    rows = [row for row in document["rows"] if row["cell"]["workers"] > 1]
    if any(row["error"] is None for row in rows):
        sys.exit(f"not predicted: {next(row['plan']['basis'] for row in rows if row['error'] is None)}")
    return rows


def text(found: dict[str, dict[str, Any]]) -> list[str]:
    """Rows of a Markdown table."""
    lines = [
        "| model | batch | step ms, 1 worker | 2 workers (low to high) | speed-up predicted | measured (low to high) "
        "| points | repeats | contention | communication: spans | Tn - T1/n |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for model, document in found.items():
        alone = {
            row["cell"]["batch"]: row["seconds"]["median"]
            for row in document["rows"]
            if row["cell"]["workers"] == 1
        }
        for row in compared(document):
            seconds, batch, ups = row["seconds"], row["cell"]["batch"], row["speed_ups"]
            spread = f"{1e3 * seconds['low']:.2f} to {1e3 * seconds['high']:.2f}"
            cells = [
                model,
                batch,
                f"{1e3 * alone[batch]:.2f}",
                f"{1e3 * seconds['median']:.2f} ({spread})",
                f"{row['plan']['speed_up']:.2f}",
                f"{ups['median']:.2f} ({ups['low']:.2f} to {ups['high']:.2f})",
                f"{100 * row['error']:+.1f}",
                row["repeats"],
                f"{row['contention']:.2f}x",
                f"{1e3 * row['by_spans']['communicate']:.0f} ms",
                f"{1e3 * row['by_difference']['communicate']:.0f} ms",
            ]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", type=Path, help="of this machine (default: one is made)")
    parser.add_argument("--calibrate", type=float, default=60.0, help="seconds to measure computing for it")
    parser.add_argument("--seconds", type=float, default=4.5, help="of training in each run, about")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each cell")
    parser.add_argument(
        "--out",
        type=Path,
        help="keep the sweeps and the profile here; a second time only what is missing is measured",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paceline-") as name:
        home = options.out or Path(name)
        home.mkdir(exist_ok=True)
        profile = options.profile or home / "profile.json"
        if options.profile is None:
            ask("calibrate", "machine", "--seconds", str(options.calibrate), "--out", str(profile))
        found = {model: sweep(model, profile, home, options) for model in MODELS}
    return report(found)


def report(found: dict[str, dict[str, Any]]) -> int:
    rows = [row for document in found.values() for row in compared(document)]
    errors = [100 * abs(row["error"]) for row in rows]
    disturbed = sum(len(document["disturbed"]) for document in found.values())
    apart = [
        100 * abs(one - two)
        for document in found.values()
        for cell in document["ratios"]
        for one, two in combinations(cell, 2)
    ]
    repeats = median(len(cell) for document in found.values() for cell in document["ratios"])
    print("\n".join(text(found)))
    if apart:
        # Of normal values: two differ by 0.954 standard deviations in the median, a median of n by 1.25 / sqrt(n).
        left = 0.674 * 1.25 * median(apart) / 0.954 / sqrt(repeats)
        print(
            f"\nnoise floor: two repeats of a cell differ by {median(apart):.1f} points in the median (at most "
            f"{max(apart):.1f}), so half of the medians of {repeats:g} repeats are off by more than {left:.1f}"
        )
    print(
        f"\nspeed-up: median difference {median(errors):.1f} points over {len(rows)} cells, at most "
        f"{max(errors):.1f} (limit of the median {LIMIT:g})\n"
        f"runs during which other processes computed: {disturbed}"
    )
    return 3 if median(errors) > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
