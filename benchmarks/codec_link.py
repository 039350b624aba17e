"""Codecs on a slow link, against identity and against DistributedDataParallel with its own hooks. Needs root.

Two workers, each in a network namespace of its own behind a cable that tc shapes; ResNet-18 on 32x32, batch 8, one
thread a worker. All sides have their turns in several rounds, whose order changes. Ours is ``paceline train`` with its
records, whose usual step is taken; DDP's is the loop of torch's own tutorial on the same model, batch and optimizer,
with torch's fp16 and PowerSGD hooks, whose median step is taken. What is compared is the rate: 1 over the step.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from _shaped import run_apart, spread
from paceline.costs.recorded import usual_pace
from paceline.jobs.batches import batch_loss
from paceline.jobs.build import build_job
from paceline.jobs.spec import JobSpec
from paceline.records.folder import RunFolder
from paceline.records.summary import read_summary

JOB = JobSpec(
    data="synthetic:shape=3x32x32,train=2000", model="resnet18", optimizer="sgd:lr=0.01,momentum=0.9"
)
BATCH = 8
LEAST = {"half": 1.8, "int8": 3.0, "top-k:ratio=0.01": 8.0, "powersgd:rank=4": 8.0}
"""Codec to the least gain over identity."""
PEERS = {"half": "ddp fp16", "powersgd:rank=4": "ddp powersgd"}
"""What DDP does that a codec must not be slower than."""
WARM_UP = 3
STEPS = {"identity": 8, "half": 10, "int8": 12, "ddp": 8, "ddp fp16": 10}
USUAL_STEPS = 20
"""Of each side in a round, warm-up included; fewer where a step takes seconds."""


def ours(codec: str, rate: str, runs: Path) -> tuple[float, float]:
    """Seconds of a usual step, and bytes that a worker sends in one."""
    words = ["--data", JOB.data, "--model", JOB.model, "--optimizer", JOB.optimizer]
    words += ["--batch-size", str(BATCH), "--codec", codec]
    words += ["--iterations", str(STEPS.get(codec, USUAL_STEPS))]
    words += ["--evaluate-every", "never", "--checkpoint-every", "never"]
    folder = RunFolder(run_apart(words, 2, runs, rate, served=False))
    totals = read_summary(folder).totals[0]
    return usual_pace(folder, 1), totals.step_sent / totals.steps


def theirs(side: str, rate: str) -> float:
    said = spread([sys.executable, __file__, "--ddp", side], 2, rate)
    return float(next(text for text in said if text.strip()))


def train_ddp(side: str) -> None:
    """One worker, as ``spread`` starts it; rank 0 prints the median step in seconds."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    job = build_job(JOB)
    inputs = job.train.take(torch.arange(STEPS.get(side, USUAL_STEPS) * BATCH))
    dist.init_process_group("gloo")
    model = DistributedDataParallel(job.model())
    if side == "ddp fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif side == "ddp powersgd":
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=4, start_powerSGD_iter=2, min_compression_rate=1
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = job.optimizer(model.parameters())
    times = [time.perf_counter()]
    for start in range(0, len(inputs[0]), BATCH):
        optimizer.zero_grad()
        loss = batch_loss(job, model, tuple(one[start : start + BATCH] for one in inputs))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loss.item()
        times.append(time.perf_counter())
    steps = [later - earlier for earlier, later in zip(times[WARM_UP:], times[WARM_UP + 1 :], strict=False)]
    if dist.get_rank() == 0:
        print(statistics.median(steps), flush=True)
    dist.barrier()
    os._exit(0)


def measure(sides: Sequence[str], rate: str, rounds: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    sent: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as runs:
        for turn in range(rounds):
            for side in sides if turn % 2 == 0 else reversed(sides):
                if side.startswith("ddp"):
                    seconds[side].append(theirs(side, rate))
                else:
                    step, sent[side] = ours(side, rate, Path(runs))
                    seconds[side].append(step)
                print(f"round {turn + 1}: {side:18}{1e3 * seconds[side][-1]:10.1f} ms", file=sys.stderr)
    return judge(seconds, sent)


def judge(seconds: dict[str, list[float]], sent: dict[str, float]) -> dict[str, Any]:
    """Ratios of two sides in the same round; the median and the range over the rounds."""

    def ratios(slow: str, fast: str) -> list[float]:
        return [one / other for one, other in zip(seconds[slow], seconds[fast], strict=True)]

    rows = []
    for side, times in seconds.items():
        gain = ratios("identity", side)
        row: dict[str, Any] = {
            "side": side,
            "milliseconds": 1e3 * statistics.median(times),
            "sent": sent.get(side),
            "gain": statistics.median(gain),
            "gain_range": [min(gain), max(gain)],
            "least": LEAST.get(side),
        }
        row["met"] = row["least"] is None or row["gain"] >= row["least"]
        peer = PEERS.get(side)
        if peer in seconds:
            against = ratios(peer, side)
            row |= {"peer": peer, "against_peer": statistics.median(against)}
            row |= {"peer_range": [min(against), max(against)]}
            row["met"] = row["met"] and row["against_peer"] >= 1
        rows.append(row)
    return {"rows": rows, "met": all(row["met"] for row in rows)}


def show(found: dict[str, Any], rate: str, rounds: int) -> None:
    print(f"ResNet-18 on 32x32, batch {BATCH}, 2 workers, link of {rate}, {rounds} rounds")
    print(
        f"{'side':18}{'step ms':>10}{'sent MB':>10}{'gain':>8}{'range':>15}{'at least':>10}  against DDP's own"
    )
    for row in found["rows"]:
        low, high = row["gain_range"]
        sent = f"{row['sent'] / 1e6:.2f}" if row["sent"] else "-"
        least = f"{row['least']:g}" if row["least"] else "-"
        against = ""
        if "peer" in row:
            under, over = row["peer_range"]
            against = f"{row['against_peer']:.2f} x {row['peer']} ({under:.2f} .. {over:.2f})"
        print(
            f"{row['side']:18}{row['milliseconds']:10.1f}{sent:>10}{row['gain']:8.2f}"
            f"{f'{low:.2f} .. {high:.2f}':>15}{least:>10}  {against}{'' if row['met'] else '  MISSED'}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", default="100mbit", help="of the cable, as tc writes it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", action="append", help="may be repeated; all by default")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--ddp", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ddp:
        train_ddp(options.ddp)
    sides = options.side or ["identity", *LEAST, "ddp", *PEERS.values()]
    found = measure(sides if "identity" in sides else ["identity", *sides], options.rate, options.rounds)
    if options.json:
        print(json.dumps({"schema": 1, "rate": options.rate, "rounds": options.rounds, **found}, indent=2))
    else:
        show(found, options.rate, options.rounds)
    return 0 if found["met"] else 3


if __name__ == "__main__":
    sys.exit(main())
