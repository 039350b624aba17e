"""How well 'paceline bench scaling' predicts speed-ups: 2 workers against 1, 4 batches, 2 models, on a quiet machine.

The machine is calibrated first ('paceline calibrate machine'), unless --profile names a profile of it. Then each model
is swept: a prediction of 2 workers rests on the profile and on one run of one worker, and is stored before the first
run of 2 workers. Points are hundredths of a speed-up: 1.50 predicted and 1.55 measured differ by 5. Exit code 3
where the limit is missed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

LIMIT = 5.0
"""Points, of the median difference between predicted and measured speed-up."""
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
    words = ["--data", DATA, "--model", model, "--workers", "1,2", "--batch-size", BATCHES]
    words += ["--seconds", str(options.seconds), "--repeats", str(options.repeats), "--threads", "1"]
    words += ["--profile", str(profile), "--out", str(home / model.partition(":")[0])]
    found = ask("bench", "scaling", *words)
    first = min(row["plan"]["made"] for row in found["rows"] if row["cell"]["workers"] == 2)
    print(f"{model}: swept; first prediction of 2 workers at {first}", file=sys.stderr)
    return found


def compared(document: dict[str, Any]) -> list[dict[str, Any]]:
    rows = [row for row in document["rows"] if row["cell"]["workers"] > 1]
    if any(row["error"] is None for row in rows):
        sys.exit(f"not predicted: {next(row['plan']['basis'] for row in rows if row['error'] is None)}")
    return rows


def text(found: dict[str, dict[str, Any]]) -> list[str]:
    """Rows of a Markdown table."""
    lines = [
        "| model | batch | step ms, 1 worker | 2 workers (low to high) | speed-up predicted | measured | points "
        "| contention | communication: spans | Tn - T1/n |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for model, document in found.items():
        alone = {
            row["cell"]["batch"]: row["seconds"]["median"]
            for row in document["rows"]
            if row["cell"]["workers"] == 1
        }
        for row in compared(document):
            seconds, batch = row["seconds"], row["cell"]["batch"]
            spread = f"{1e3 * seconds['low']:.2f} to {1e3 * seconds['high']:.2f}"
            cells = [
                model,
                batch,
                f"{1e3 * alone[batch]:.2f}",
                f"{1e3 * seconds['median']:.2f} ({spread})",
                f"{row['plan']['speed_up']:.2f}",
                f"{row['speed_up']:.2f}",
                f"{100 * row['error']:+.1f}",
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
    parser.add_argument("--seconds", type=float, default=4.0, help="of training in each run, about")
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
    print("\n".join(text(found)))
    print(
        f"\nspeed-up: median difference {median(errors):.1f} points over {len(rows)} cells, at most "
        f"{max(errors):.1f} (limit of the median {LIMIT:g})\n"
        f"runs during which other processes computed: {disturbed}"
    )
    return 3 if median(errors) > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
