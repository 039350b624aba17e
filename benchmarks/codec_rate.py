"""How fast codecs encode and decode on one core, in GB/s of gradient, beside a copy of the same vector.

All run in one process, in turns; of the rounds the median counts. ``add`` is what a worker does with each message that
it receives: decode, and add to a sum. Ends with exit code 3 where a codec is slower than it must be.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from paceline.codecs import build_codec
from paceline.codecs.base import Codec
from paceline.codecs.context import Context, Layout
from paceline.codecs.messages import Message
from paceline.codecs.state import CodecState

LAYOUT = Layout(("weight", "bias"), ((512, 4608), (140_704,)))
"""10 MB of float32, most of them a matrix."""
LEAST = {"half": 1.0, "int8": 1.0, "sign": 1.0, "top-k:ratio=0.01": 0.25}
"""GB/s of gradient, to encode and to decode."""
OTHERS = (
    *("half:format=fp16", "int8:bits=4", "int8:bits=3", "int8:bits=2", "top-k:ratio=0.01+half"),
    *("dgc:ratio=0.001", "threshold:bound=2.5", "random-k:ratio=0.01", "powersgd:rank=4"),
)
REPEATS = 5


class CodecRun:
    """One codec on one vector, from round to round."""

    def __init__(self, spec: str, vector: Tensor) -> None:
        self.codec: Codec = build_codec(spec)
        self.vector, self.out = vector, torch.zeros_like(vector)
        self.context: Context = CodecState(self.codec, LAYOUT, {}, workers=4).context(0, len(vector), 0)
        self.message: Message = ()

    def encode(self) -> None:
        self.context = replace(self.context, round=self.context.round + 1)
        self.message = self.codec.encode(self.vector, self.context)

    def decode(self) -> None:
        self.codec.decode(self.message, self.context)

    def add(self) -> None:
        self.codec.add(self.message, self.out, self.context)

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.message)


def seconds(work: Callable[[], object]) -> float:
    """The middle of a few calls."""
    times = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def measure(specs: list[str], rounds: int) -> tuple[float, list[dict[str, Any]]]:
    """The rate of a copy, and a row for each codec."""
    torch.set_num_threads(1)
    vector = torch.randn(LAYOUT.elements, generator=torch.Generator().manual_seed(1))
    copy = torch.empty_like(vector)
    runs = {spec: CodecRun(spec, vector) for spec in specs}
    works: dict[tuple[str, str], Callable[[], object]] = {("", "copy"): lambda: copy.copy_(vector)}
    for spec, run in runs.items():
        works |= {(spec, "encode"): run.encode, (spec, "decode"): run.decode, (spec, "add"): run.add}
    for work in works.values():
        work()
    found: dict[tuple[str, str], list[float]] = {key: [] for key in works}
    for _ in range(rounds):
        for key, work in works.items():
            found[key].append(seconds(work))
    rows = []
    for spec, run in runs.items():
        row: dict[str, Any] = {"codec": spec, "bytes": run.bytes, "least": LEAST.get(spec)}
        for kind in ("encode", "decode", "add"):
            times = found[spec, kind]
            row[kind] = rate(statistics.median(times))
            row[f"{kind}_spread"] = [rate(max(times)), rate(min(times))]
            ratios = [mine / copied for mine, copied in zip(times, found["", "copy"], strict=True)]
            row[f"{kind}_copies"] = statistics.median(ratios)
        row["met"] = row["least"] is None or min(row["encode"], row["decode"]) >= row["least"]
        rows.append(row)
    return rate(statistics.median(found["", "copy"])), rows


def rate(taken: float) -> float:
    return 4e-9 * LAYOUT.elements / taken


def show(copy: float, rows: list[dict[str, Any]]) -> None:
    print(f"a copy: {copy:.1f} GB/s; GB/s of gradient, lowest and highest, and how many copies that takes")
    print(f"{'codec':23}{'bytes':>10}  {'encode':>24}{'decode':>24}{'add':>24}{'least':>7}")
    for row in rows:
        parts = []
        for kind in ("encode", "decode", "add"):
            low, high = row[f"{kind}_spread"]
            parts.append(f"{row[kind]:>7.2f} {f'{low:.2f}-{high:.2f}':>12}{row[f'{kind}_copies']:>5.1f}")
        least = f"{row['least']:>7g}  {'met' if row['met'] else 'MISSED'}" if row["least"] else ""
        print(f"{row['codec']:23}{row['bytes']:>10,}{''.join(parts)}{least}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("codecs", nargs="*", help="specs; by default those with a figure, and others")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    copy, rows = measure(options.codecs or [*LEAST, *OTHERS], options.rounds)
    if options.json:
        settings = {"rounds": options.rounds, "repeats": REPEATS, "threads": 1, "elements": LAYOUT.elements}
        print(json.dumps({"schema": 1, **settings, "copy": copy, "rows": rows}, indent=2))
    else:
        print(f"{4 * LAYOUT.elements:,} bytes of float32, 1 thread, {options.rounds} rounds in turns")
        show(copy, rows)
    return 0 if all(row["met"] for row in rows) else 3


if __name__ == "__main__":
    sys.exit(main())
