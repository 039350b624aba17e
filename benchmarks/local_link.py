"""Overlapped local SGD on a slow link, against no network at all and against DistributedDataParallel. Needs root.

Two workers, each in a network namespace of its own behind a cable that tc shapes; ResNet-18 on 32x32, batch 8, one
thread a worker. Three sides have their turns in several rounds, whose order changes: ``local-sgd:period=16`` with an
overlap and int8; the same two workers at the same time, with a period that is longer than the run, so that they
exchange nothing in it; and DDP, the loop of torch's own tutorial on the same model, batch and optimizer. What is
compared is the rate: ours is steps over the time from the end of the first round to the end of the last step, as the
records have it, exchanges and all; DDP's is that of its median step.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from _shaped import run_apart
from codec_link import BATCH, JOB, theirs
from paceline.records.events import read_events
from paceline.records.folder import RunFolder
from paceline.records.summary import read_summary

PERIOD = 16
ALONE, DDP = "no network", "ddp"
OF_ALONE, OF_DDP = 0.9, 8.0
"""The least parts of the rate with no network at all, and of DDP's."""


def specs(overlap: int, steps: int) -> dict[str, tuple[str, str]]:
    """Each side of ours: its strategy and codec."""
    return {
        "overlapped int8": (f"local-sgd:period={PERIOD},overlap={overlap}", "int8"),
        ALONE: (f"local-sgd:period={steps + 1}", "identity"),
    }


def ours(strategy: str, codec: str, steps: int, rate: str, runs: Path) -> dict[str, float]:
    """The mean step after the first round, in seconds, how much of a transfer was hidden, and the bytes sent."""
    words = ["--data", JOB.data, "--model", JOB.model, "--optimizer", JOB.optimizer]
    words += ["--batch-size", str(BATCH), "--strategy", strategy, "--codec", codec]
    words += ["--iterations", str(steps), "--evaluate-every", "never", "--checkpoint-every", "never"]
    folder = RunFolder(run_apart(words, 2, runs, rate, served=False))
    records = [record for record in read_events(folder.events(0)) if record.is_step][PERIOD:]
    whole = sum(span.length for record in records for span in record.spans)
    exposed = sum(
        span.length for one in records for span in one.spans if span.kind in ("communicate", "wait")
    )
    hidden = sum(span.length for record in records for span in record.hidden)
    return {
        "seconds": whole / len(records),
        "exposed": exposed / len(records),
        "hidden": hidden / len(records),
        "sent": read_summary(folder).totals[0].sent / steps,
    }


def measure(overlap: int, steps: int, rate: str, rounds: int) -> dict[str, Any]:
    sides = specs(overlap, steps)
    found: dict[str, list[dict[str, float]]] = {side: [] for side in (*sides, DDP)}
    with tempfile.TemporaryDirectory() as runs:
        for turn in range(rounds):
            for side in found if turn % 2 == 0 else reversed(found):
                if side == DDP:
                    found[side].append({"seconds": theirs(DDP, rate)})
                else:
                    found[side].append(ours(*sides[side], steps, rate, Path(runs)))
                seconds = 1e3 * found[side][-1]["seconds"]
                print(f"round {turn + 1}: {side:18}{seconds:10.1f} ms", file=sys.stderr)
    return judge(found)


def judge(found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Ratios of two sides in the same round; the median and the range over the rounds."""
    (best, *_) = found
    rows = []
    for side, least in ((ALONE, OF_ALONE), (DDP, OF_DDP)):
        ratios = [
            other["seconds"] / one["seconds"] for one, other in zip(found[best], found[side], strict=True)
        ]
        median = statistics.median(ratios)
        rows.append(
            {"against": side, "ratio": median, "range": [min(ratios), max(ratios)], "least": least}
            | {"met": median >= least}
        )
    means = {
        side: {key: statistics.median(one[key] for one in turns) for key in turns[0]}
        for side, turns in found.items()
    }
    return {"side": best, "sides": means, "rows": rows, "met": all(row["met"] for row in rows)}


def show(found: dict[str, Any], rate: str, rounds: int) -> None:
    print(f"ResNet-18 on 32x32, batch {BATCH}, 2 workers, link of {rate}, {rounds} rounds")
    print(f"{'side':18}{'step ms':>10}{'exposed ms':>12}{'hidden ms':>11}{'sent kB a step':>16}")
    for side, means in found["sides"].items():
        cells = [1e3 * means[key] if key in means else None for key in ("seconds", "exposed", "hidden")]
        cells.append(means["sent"] / 1e3 if "sent" in means else None)
        shown = ["-" if cell is None else f"{cell:.1f}" for cell in cells]
        print(f"{side:18}{shown[0]:>10}{shown[1]:>12}{shown[2]:>11}{shown[3]:>16}")
    for row in found["rows"]:
        low, high = row["range"]
        print(
            f"{found['side']} runs at {row['ratio']:.2f} ({low:.2f} .. {high:.2f}) of the rate of {row['against']}, "
            f"at least {row['least']:g}{'' if row['met'] else '  MISSED'}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", default="100mbit", help="of the cable, as tc writes it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--overlap", type=int, default=PERIOD)
    parser.add_argument("--steps", type=int, default=6 * PERIOD, help="of each run of ours")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.overlap, options.steps, options.rate, options.rounds)
    if options.json:
        print(json.dumps({"schema": 1, "rate": options.rate, "rounds": options.rounds, **found}, indent=2))
    else:
        show(found, options.rate, options.rounds)
    return 0 if found["met"] else 3


if __name__ == "__main__":
    sys.exit(main())
