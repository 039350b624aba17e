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
from html import escape
from pathlib import Path
from typing import Any

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
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 460, 70, 60, 40, 60


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
    logs = [math.log10(row["sent"]) for row in rows]
    first, last = math.floor(min(logs)), math.ceil(max(logs))
    floor: int = math.floor(min(row["low"] for row in rows)) - 1
    ceiling: int = math.ceil(max(row["high"] for row in rows)) + 1

    def x(sent: float) -> float:
        return LEFT + (math.log10(sent) - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y(accuracy: float) -> float:
        return TOP + (ceiling - accuracy) / (ceiling - floor) * (HEIGHT - TOP - BOTTOM)

    body = [_text(LEFT, 28, "Fashion-MNIST, cnn, 4 workers, 5 epochs: accuracy against bytes sent", "title")]
    for power in range(first, last + 1):
        body.append(_line(x(10**power), TOP, x(10**power), HEIGHT - BOTTOM, "grid"))
        body.append(_text(x(10**power), HEIGHT - BOTTOM + 20, _size(10**power), "middle"))
    for tick in range(floor, ceiling + 1, max(1, (ceiling - floor) // 8)):
        body.append(_line(LEFT, y(tick), WIDTH - RIGHT, y(tick), "grid"))
        body.append(_text(LEFT - 8, y(tick) + 4, f"{tick} %", "end"))
    body.append(_text((LEFT + WIDTH) / 2, HEIGHT - 14, "sent by a worker in a step", "middle"))
    taken: list[tuple[float, float, float]] = []
    for row in rows:
        kind = "none" if "memory=none" in row["codec"] else "kept"
        across = x(row["sent"])
        body.append(_line(across, y(row["low"]), across, y(row["high"]), kind))
        body.append(f'<circle class="{kind}" cx="{across:.1f}" cy="{y(row["accuracy"]):.1f}" r="4"/>')
        top = _free_place(across, y(row["accuracy"]), row["codec"], taken)
        body.append(_line(across, y(row["accuracy"]), across + 6, top - 4, "grid"))
        body.append(_text(across + 7, top, row["codec"], "label"))
    lines = "\n".join(body)
    light = "svg{background:#fff}text{fill:#1f2937}.grid{stroke:#e5e7eb}"
    dark = "svg{background:#0f172a}text{fill:#e5e7eb}.grid{stroke:#334155}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" font-family="system-ui, sans-serif" font-size="12"><style>{light}'
        ".title{font-size:16px;font-weight:600}.middle{text-anchor:middle}.end{text-anchor:end}"
        ".kept{stroke:#0b62a4;fill:#0b62a4}.none{stroke:#c2410c;fill:#c2410c}"
        f"@media (prefers-color-scheme: dark){{{dark}}}</style>\n{lines}\n</svg>\n"
    )


def _free_place(x: float, y: float, words: str, taken: list[tuple[float, float, float]]) -> float:
    """Where a label stands on none of the others: just above its point, or a line or more below it."""
    width = 7 * len(words) + 10
    for top in (y - 6, *(y + 18 + 15 * line for line in range(20))):
        if all(abs(top - other) >= 14 or x >= end or x + width <= start for other, start, end in taken):
            break
    taken.append((top, x, x + width))
    return top


def _size(size: float) -> str:
    return f"{size / 1e3:g} kB" if size >= 1e3 else f"{size:g} B"


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


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
