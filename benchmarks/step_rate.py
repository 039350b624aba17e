"""Steps a second, against torch's DistributedDataParallel over Gloo and against workers that never talk.

All sides run in the same two processes, one thread each, in turns whose order changes, on the same model, data, batch
size and optimizer. Ours is the whole worker with its records; DDP's is the loop of torch's own tutorial, with a
DistributedSampler and a DataLoader; apart is our worker twice at the same time, each as if it were the only one.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from _ports import free_ports
from paceline.jobs.batches import batch_loss
from paceline.jobs.build import build_job
from paceline.jobs.spec import JobSpec
from paceline.records.summary import Observer
from paceline.runtimes.live.heartbeat import Heartbeat
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.request import LiveOptions, ProcessTask
from paceline.runtimes.live.worker.comm import join_group
from paceline.runtimes.live.worker.start import run_worker
from paceline.runtimes.settings import Cadence, Settings

CASES: dict[str, dict[str, Any]] = {
    "cnn": {
        "data": "synthetic:shape=1x28x28,train=16000",
        "batch": 16,
        "steps": 250,
        "rounds": 14,
        "least": 1.7,
        "least_of_apart": 0.85,
    },
    "resnet18": {
        "data": "synthetic:shape=3x32x32,train=2000",
        "batch": 8,
        "steps": 14,
        "rounds": 8,
        "least": 1.0,
        "least_of_apart": 0.85,
    },
}
WARM_UP = 0.2
"""The part of each round that is not timed."""

KEPT: list[object] = []
"""DDP's models: taking one apart joins Gloo's thread while it holds Python's lock, which can stick."""


class Stamps(Observer):
    """Reads the clock after every step."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def stepped(self, progress: int, samples: int, loss: float, seconds: float) -> None:  # noqa: ARG002
        """Keep the time."""
        self.times.append(time.perf_counter())


def rate(times: list[float]) -> float:
    """Steps a second after the warm-up."""
    first = max(1, int(len(times) * WARM_UP))
    return (len(times) - 1 - first) / (times[-1] - times[first])


def ours(spec: JobSpec, case: dict[str, Any], place: ProcessInfo) -> float:
    settings = Settings(
        job=spec,
        batch_sizes=(case["batch"],) * place.workers,
        iterations=case["steps"],
        evaluate=Cadence(0),
        checkpoint=Cadence(0),
    )
    stamps = Stamps()
    # All workers of a host keep their records in one folder; a worker alone has one of its own.
    runs = Path(tempfile.gettempdir(), f"paceline-step-rate-{place.port or os.getpid()}")
    heartbeat = Heartbeat(place)
    run_worker(
        ProcessTask(
            settings=settings,
            options=LiveOptions(threads=1),
            info=place,
            runs=runs,
            heartbeat=heartbeat,
            stop_requested=lambda: False,
        ),
        stamps,
    )
    if place.rank == 0:  # which leaves last
        shutil.rmtree(runs)
    return rate(stamps.times) if place.rank == 0 else 0.0


def apart(spec: JobSpec, case: dict[str, Any], place: ProcessInfo) -> float:
    """Both processes compute at the same time and send nothing."""
    group = join_group(place, LiveOptions(backend="gloo"))
    group.exchange("both are about to begin")
    group.close()
    return ours(spec, case, ProcessInfo())


def ddp(spec: JobSpec, case: dict[str, Any], place: ProcessInfo) -> float:
    torch.manual_seed(1)
    job = build_job(spec)
    data = TensorDataset(*job.train.take(torch.arange(len(job.train))))
    group = join_group(place, LiveOptions(backend="gloo"))
    model = DistributedDataParallel(job.model())
    optimizer = job.optimizer(model.parameters())
    sampler: DistributedSampler[Any] = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=case["batch"], sampler=sampler, drop_last=True)
    times: list[float] = []
    epoch = 0
    while len(times) < case["steps"]:
        sampler.set_epoch(epoch)
        epoch += 1
        for batch in loader:
            optimizer.zero_grad()
            loss = batch_loss(job, model, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            loss.item()
            times.append(time.perf_counter())
            if len(times) == case["steps"]:
                break
    group.exchange("a worker that leaves while another still sums would take its connection away")
    group.close()
    KEPT.append(model)
    return rate(times)


def work(name: str, rank: int, workers: int, ports: list[int]) -> None:
    """One process: all rounds of a case, both sides in turn; rank 0 prints the rates."""
    torch.set_num_threads(1)
    case = CASES[name]
    spec = JobSpec(data=case["data"], model=name, optimizer="sgd:lr=0.01,momentum=0.9")
    sides = [ours, ddp, apart]
    for turn in range(len(ports) // len(sides)):
        found = {}
        # Who begins changes every round, so that a machine that warms up or gets busy favours nobody.
        sides = sides[1:] + sides[:1] if turn % 2 else sides[::-1]
        for side, port in zip(sides, ports[turn * len(sides) :], strict=False):
            place = ProcessInfo(rank=rank, workers=workers, local_rank=rank, local_workers=workers, port=port)
            found[side.__name__] = side(spec, case, place)
        if rank == 0:
            print(json.dumps([found["ours"], found["ddp"], found["apart"]]), flush=True)


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Start the processes of a case and gather what rank 0 found."""
    ports = ",".join(map(str, free_ports(3 * rounds)))
    command = [sys.executable, __file__, "--work", name, "--ports", ports]
    with subprocess.Popen([*command, "--rank", "1"]) as other:
        found = subprocess.run([*command, "--rank", "0"], stdout=subprocess.PIPE, text=True, check=True)
        assert other.wait() == 0
    rates = [json.loads(line) for line in found.stdout.splitlines()]
    ratios = [mine / theirs for mine, theirs, _ in rates]
    parts = [mine / alone for mine, _, alone in rates]
    case = CASES[name]
    return {
        "model": name,
        **case,
        "rounds": rounds,
        "workers": 2,
        "threads": 1,
        "torch": torch.__version__,
        "paceline_steps_per_second": statistics.median(mine for mine, _, _ in rates),
        "ddp_steps_per_second": statistics.median(theirs for _, theirs, _ in rates),
        "apart_steps_per_second": statistics.median(alone for _, _, alone in rates),
        "ratio": statistics.median(ratios),
        "ratio_spread": [min(ratios), max(ratios)],
        "of_apart": statistics.median(parts),
        "of_apart_spread": [min(parts), max(parts)],
        "met": statistics.median(ratios) >= case["least"]
        and statistics.median(parts) >= case["least_of_apart"],
    }


def show(result: dict[str, Any]) -> None:
    low, high = result["ratio_spread"]
    least, most = result["of_apart_spread"]
    print(
        f"{result['model']}, batch {result['batch']}, {result['rounds']} rounds, steps/s: "
        f"paceline {result['paceline_steps_per_second']:.2f}, ddp {result['ddp_steps_per_second']:.2f}, "
        f"apart {result['apart_steps_per_second']:.2f}\n"
        f"  paceline / ddp    {result['ratio']:.3f} ({low:.3f} .. {high:.3f}), at least {result['least']}\n"
        f"  paceline / apart  {result['of_apart']:.3f} ({least:.3f} .. {most:.3f}), "
        f"at least {result['least_of_apart']}: {'met' if result['met'] else 'MISSED'}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", action="append", choices=list(CASES), help="may be repeated; all by default"
    )
    parser.add_argument("--rounds", type=int, help="rounds of each side")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--ports", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work, arguments.rank, 2, [int(port) for port in arguments.ports.split(",")])
        os._exit(0)
    results = [measure(name, arguments.rounds or CASES[name]["rounds"]) for name in arguments.model or CASES]
    if arguments.json:
        print(json.dumps({"schema": 1, "results": results}, indent=2))
    else:
        for result in results:
            show(result)
    return 0 if all(result["met"] for result in results) else 3


if __name__ == "__main__":
    sys.exit(main())
