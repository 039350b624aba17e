"""Steps a second of an unchanged DistributedDataParallel script over Gloo, and of its two-line version.

Both sides are scripts of their own, two fresh processes each, one thread a process, as torchrun would start them; they
differ in the lines that `docs/your-script.md` names. Ours is recorded as every run is. They take turns whose order
changes. Exit code 1 where the limit is missed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from _ports import free_ports

MODEL, BATCH, SHAPE = "cnn", 16, "1x28x28"
LEAST = 1.5
WARM_UP = 0.2
"""The part of each run that is not timed."""

BEFORE = """
import json, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
import paceline
from paceline.jobs.build import build_job
from paceline.jobs.spec import JobSpec

name, shape, batch, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
torch.manual_seed(1)
torch.set_num_threads(1)
job = build_job(JobSpec(data=f"synthetic:shape={shape},train=4000", model=name))
dataset = TensorDataset(*job.train.take(torch.arange(4000)))
model, criterion = job.model(), torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
"""
BY_HAND = """
dist.init_process_group("gloo")
model = DistributedDataParallel(model)
loader = DataLoader(dataset, batch, sampler=DistributedSampler(dataset, shuffle=True), drop_last=True)
"""
OURS = """
worker = paceline.distribute(model, optimizer)
loader = worker.shard(DataLoader(dataset, batch, shuffle=True, drop_last=True))
"""
AFTER = """
times = []
while len(times) < steps:
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter())
        if len(times) == steps:
            break
print(json.dumps(times[int(steps * {warm_up}) :]), flush=True)
dist.barrier()
"""
SIDES = {"ddp": BEFORE + BY_HAND, "distribute": BEFORE + OURS}
NOT_TOLD = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


def run(side: str, home: Path, steps: int) -> float:
    """Steps a second of one run."""
    script = home / f"{side}.py"
    script.write_text(SIDES[side] + AFTER.format(warm_up=WARM_UP))
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    common["MASTER_PORT"] = str(free_ports(1)[0])
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_TOLD}
    command = [sys.executable, str(script), MODEL, SHAPE, str(BATCH), str(steps)]
    with tempfile.TemporaryFile("w+") as said:
        ranks = [
            subprocess.Popen(
                command,
                cwd=home,
                env={**inherited, **common, "RANK": rank, "LOCAL_RANK": rank},
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
            for rank in "01"
        ]
        out = [one.communicate()[0] for one in ranks]
        said.seek(0)
        assert all(one.returncode == 0 for one in ranks), said.read()
    times: list[float] = json.loads(next(line for line in out[0].splitlines() if line.startswith("[")))
    return (len(times) - 1) / (times[-1] - times[0])


def measure(rounds: int, steps: int) -> dict[str, Any]:
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="loop-rate-") as home:
        for turn in range(rounds + 1):
            for side in SIDES if turn % 2 else reversed(SIDES):
                rates[side].append(run(side, Path(home), steps))
    rates = {side: found[1:] for side, found in rates.items()}  # in the first round the disk's cache is cold
    ratios = [mine / theirs for mine, theirs in zip(rates["distribute"], rates["ddp"], strict=True)]
    return {
        "model": MODEL,
        "input": SHAPE,
        "batch": BATCH,
        "workers": 2,
        "threads": 1,
        "steps": steps,
        "rounds": rounds,
        "torch": torch.__version__,
        "steps_per_second": {side: statistics.median(found) for side, found in rates.items()},
        "spread": {side: [min(found), max(found)] for side, found in rates.items()},
        "ratio": statistics.median(ratios),
        "ratio_spread": [min(ratios), max(ratios)],
        "least": LEAST,
        "met": statistics.median(ratios) >= LEAST,
    }


def show(found: dict[str, Any]) -> None:
    low, high = found["ratio_spread"]
    print(
        f"{MODEL} on {SHAPE}, batch {BATCH}, 2 workers of one thread, "
        f"{found['rounds']} rounds of {found['steps']} steps"
    )
    for side, rate in found["steps_per_second"].items():
        least, most = found["spread"][side]
        print(f"  {side:<12}{rate:8.1f} steps/s ({least:.1f} .. {most:.1f})")
    print(
        f"  distribute / ddp {found['ratio']:.2f} ({low:.2f} .. {high:.2f}), at least {LEAST}: "
        f"{'met' if found['met'] else 'MISSED'}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=400, help="of each run")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.rounds, options.steps)
    if options.json:
        print(json.dumps({"schema": 1, "result": found}, indent=2))
    else:
        show(found)
    return 0 if found["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
