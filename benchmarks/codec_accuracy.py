"""What codecs cost in accuracy: Fashion-MNIST, ``cnn``, 4 workers, 5 epochs, several seeds, with and without memory.

Every run is ``paceline simulate``: gradients, messages and error memories are those of a live run, to the last bit, and
only time is simulated. Prints a table of accuracies and bytes; ``--svg`` draws accuracy against bytes sent.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from paceline.reports.line_chart import Mark, Panel, line_chart
from paceline.reports.svg import Axis, LinearAxis
from paceline.units import show_bytes

WITHIN = {
    "half": 0.5,
    "int8": 0.5,
    "top-k:ratio=0.01": 1.0,
    "sign": 1.0,
    "powersgd:rank=2": 1.0,
}
"""Codec to the most points of accuracy that it may lose against identity."""
WITHOUT = {"sign:memory=none": "sign", "top-k:ratio=0.01,memory=none": "top-k:ratio=0.01"}
"""Without memory, to the same with it: these must be visibly worse."""
OTHERS = ("int8:bits=4", "top-k:ratio=0.01+half", "random-k:ratio=0.1", "dgc:ratio=0.01,warmup=400")
VISIBLY = 0.5
"""Points of accuracy."""
OPTIMIZER = "sgd:lr=0.1,momentum=0"
"""Without momentum, which error feedback does not go well with, and which dgc brings itself.

The rate falls to 0 along a cosine: at a constant one the last steps move the accuracy by two points.
"""
EPOCHS, WORKERS, BATCH = 5, 4, 32


def train(case: tuple[str, int, int]) -> tuple[float, float]:
    """Test accuracy in percent, and bytes that a worker sent in a step."""
    codec, seed, epochs = case
    words = ["--data", "fashion-mnist", "--model", "cnn", "--optimizer", OPTIMIZER, "--codec", codec]
    words += [
        "--schedule",
        f"cosine:epochs={epochs}",
        "--workers",
        str(WORKERS),
        "--batch-size",
        str(BATCH),
        "--epochs",
        str(epochs),
    ]
    words += ["--seed", str(seed), "--evaluate-every", f"{epochs} epochs", "--json"]
    command = [sys.executable, "-m", "paceline", "simulate", *words]
    out = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    run = json.loads(out.stdout)["summary"]
    print(f"seed {seed}: {codec:32}{100 * run['final']['accuracy']:8.2f} %", file=sys.stderr)
    totals = run["totals"][0]
    return 100 * run["final"]["accuracy"], totals["step_sent"] / totals["steps"]


def measure(codecs: Sequence[str], seeds: int, epochs: int) -> list[dict[str, Any]]:
    cases = [(codec, seed, epochs) for codec in codecs for seed in range(1, seeds + 1)]
    with ThreadPoolExecutor(2) as two:
        found = dict(zip(cases, two.map(train, cases), strict=True))
    rows = []
    for codec in codecs:
        runs = [found[codec, seed, epochs] for seed in range(1, seeds + 1)]
        accuracies = [accuracy for accuracy, _ in runs]
        rows.append(
            {
                "codec": codec,
                "accuracy": statistics.fmean(accuracies),
                "low": min(accuracies),
                "high": max(accuracies),
                "sent": runs[0][1],
            }
        )
    return rows


def judge(rows: Sequence[dict[str, Any]]) -> bool:
    """Fill in what each row loses and whether it may."""
    means = {row["codec"]: row["accuracy"] for row in rows}
    for row in rows:
        row["lost"] = means["identity"] - row["accuracy"]
        row["most"] = WITHIN.get(row["codec"])
        row["met"] = row["most"] is None or row["lost"] <= row["most"]
        with_memory = means.get(WITHOUT.get(row["codec"], ""))
        if with_memory is not None:
            row["lost_memory"] = with_memory - row["accuracy"]
            row["met"] = row["lost_memory"] >= VISIBLY
    return all(row["met"] for row in rows)


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    print("| codec | sent a step, kB | accuracy, % | lowest .. highest | points lost | at most |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        most = "-" if row["most"] is None else f"{row['most']:g}"
        if "lost_memory" in row:
            most = f"{row['lost_memory']:.2f} worse than with memory"
        print(
            f"| {row['codec']} | {row['sent'] / 1e3:.2f} | {row['accuracy']:.2f} | {row['low']:.2f} .. "
            f"{row['high']:.2f} | {row['lost']:+.2f} | {most}{'' if row['met'] else ' MISSED'} |"
        )


def picture(rows: Sequence[Mapping[str, Any]]) -> str:
    """Accuracy against bytes, on a logarithmic axis; a line from the lowest to the highest seed."""
    sent = [row["sent"] for row in rows]
    marks = [
        Mark(
            name=row["codec"],
            point=(row["sent"], row["accuracy"]),
            low=row["low"],
            high=row["high"],
            colour=1 if "memory=none" in row["codec"] else 0,
        )
        for row in rows
    ]
    panel = Panel(
        label="sent by a worker in a step",
        across=Axis(10 ** math.floor(math.log10(min(sent))), 10 ** math.ceil(math.log10(max(sent)))),
        up=LinearAxis(
            math.floor(min(row["low"] for row in rows)) - 1, math.ceil(max(row["high"] for row in rows)) + 1
        ),
        across_tick=show_bytes,
        up_tick=lambda percents: f"{percents:g} %",
        marks=tuple(marks),
    )
    subtitle = "a line from the lowest to the highest seed; orange: without error memory"
    return line_chart(
        "Fashion-MNIST, cnn, 4 workers, 5 epochs: accuracy against bytes sent", subtitle, [panel]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--codec", action="append", help="besides identity; may be repeated; all by default")
    parser.add_argument("--svg", type=Path, help="draw accuracy against bytes sent into this file")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    codecs = ["identity", *(options.codec or (*WITHIN, *WITHOUT, *OTHERS))]
    rows = measure(codecs, options.seeds, options.epochs)
    met = judge(rows)
    if options.svg is not None:
        options.svg.write_text(picture(rows))
    if options.json:
        settings = {"seeds": options.seeds, "epochs": options.epochs, "workers": WORKERS, "batch": BATCH}
        print(json.dumps({"schema": 1, **settings, "rows": rows, "met": met}, indent=2))
    else:
        show(rows)
    return 0 if met else 3


if __name__ == "__main__":
    sys.exit(main())
