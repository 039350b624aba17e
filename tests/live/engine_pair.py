"""One of two workers that go through all scenarios of the engine's tests: ``engine_pair.py RANK OUT PORTS``."""

import os
import re
import shutil
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from paceline.collectives import SCHEDULES
from paceline.jobs.build import build_job
from paceline.jobs.sharding import Shards
from paceline.jobs.spec import JobSpec
from paceline.records.events import MetricsRow
from paceline.records.files import write_json
from paceline.records.folder import RunFolder
from paceline.records.summary import Observer, Started, Summary
from paceline.records.tensors import write_tensors
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.request import LiveOptions, ProcessTask
from paceline.runtimes.live.worker.comm import join_group
from paceline.runtimes.live.worker.guard import leave
from paceline.runtimes.live.worker.start import run_worker
from paceline.runtimes.settings import Cadence, Settings

STEPS_10 = Cadence(10, "steps")


def settings(path: str, **changes: Any) -> Settings:
    base = Settings(
        job=JobSpec(path=f"engine_jobs:{path}"),
        batch_sizes=(8, 8),
        iterations=30,
        evaluate=STEPS_10,
        checkpoint=STEPS_10,
    )
    return replace(base, **changes)


SETTINGS = {
    "cnn": settings("", job=JobSpec(optimizer="sgd:lr=0.05,momentum=0.9"), batch_sizes=(16, 16)),
    "norm": settings("batch_norm", buffers="rank0"),
    "leftover": settings("leftover", batch_sizes=(16, 16), iterations=9),
    "uneven": settings("wide", batch_sizes=(24, 8), iterations=12),
    "slowed": settings("wide", iterations=12, slow={1: 4.0}),
    "partial": settings("partial", strategy="all-reduce:bucket=1000,first_bucket=100", iterations=5),
    "period": settings("dropout", strategy="local-sgd:period=7"),
    "seconds": settings("dropout", strategy="local-sgd:period=0.01s"),
    "stopped": settings("dropout", evaluate=Cadence(6, "steps"), checkpoint=Cadence(7, "steps")),
    "baton": settings(
        "dropout",
        iterations=1_000_000,
        evaluate=Cadence(0),
        checkpoint=Cadence(0),
    ),
    "killed": settings("dropout", strategy="local-sgd:period=5", checkpoint=Cadence(7, "steps")),
}


def by_schedule(name: str) -> Settings:
    """The CNN with sums by a schedule, some of them behind backward."""
    return replace(SETTINGS["cnn"], collective=name, strategy="all-reduce:bucket=20000,first_bucket=4000")


class Pulse(Observer):
    """Counts steps, keeps what was noted, and can fail at a step."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.step, self.fail_at, self.notes = 0, fail_at, []
        self.acknowledged = 0

    def beat(self, step: int) -> None:
        self.step = step
        if step == self.fail_at:
            raise OSError(f"scripted failure at step {step}")

    def enter(self, phase: str) -> None:
        pass

    def show(self, run: Path) -> None:
        self.run = run
        self.sent_before = bytes_sent()

    def started(self, run: Started) -> None:
        """What was measured before is no part of the training."""
        self.sent_before, self.began = bytes_sent(), run

    def noted(self, sentence: str) -> None:
        self.notes.append(sentence)

    def evaluated(self, row: MetricsRow) -> None:
        """Count now: when the run has ended, the other worker may have closed its connections already."""
        self.acknowledged = sum(now - self.sent_before.get(each, 0) for each, now in bytes_sent().items())


class Reader(Pulse):
    """Counts the lines that a worker has written when it takes its second step."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank, self.lines = rank, 0

    def beat(self, step: int) -> None:
        super().beat(step)
        if step == 2:
            self.lines = RunFolder(self.run).events(self.rank).read_text().count("\n")


def bytes_sent() -> dict[int, int]:
    """Bytes that each TCP socket of this process has delivered, as the kernel counts them (tcpi_bytes_acked)."""
    found = {}
    for path in [path for path in Path("/proc/self/fd").iterdir() if path.is_socket()]:
        with suppress(OSError), socket.socket(fileno=os.dup(int(path.name))) as each:
            info = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
            found[os.fstat(each.fileno()).st_ino] = struct.unpack_from("<Q", info, 120)[0]
    return found


class Process:
    def __init__(self, rank: int, out: Path, ports: list[int], workers: int = 2) -> None:
        self.rank, self.out, self.ports, self.workers = rank, out, iter(ports), workers
        self.models: list[DistributedDataParallel] = []
        """Kept: DDP waits for Gloo's thread when it is taken apart, while that may wait for Python."""

    def place(self) -> ProcessInfo:
        return ProcessInfo(
            rank=self.rank,
            workers=self.workers,
            local_rank=self.rank,
            local_workers=self.workers,
            port=next(self.ports),
        )

    def run(
        self,
        name: str,
        *,
        settings: Settings | None = None,
        pulse: Pulse | None = None,
        stop: Callable[[], bool] = lambda: False,
        resume: RunFolder | None = None,
        backend: str | None = None,
    ) -> tuple[Summary, Pulse]:
        pulse = pulse or Pulse()
        summary = run_worker(
            ProcessTask(
                settings=settings or SETTINGS[name],
                options=LiveOptions(backend=backend),
                info=self.place(),
                runs=self.out / name,
                heartbeat=pulse,
                stop_requested=stop,
                resume=resume,
            ),
            pulse,
        )
        return summary, pulse

    def note(self, scenario: str, **facts: Any) -> None:
        write_json(self.out / f"{scenario}-{self.rank}.json", facts)

    def ddp(self, name: str) -> None:
        """Train the same with torch's DDP, fed with our order."""
        chosen = SETTINGS[name]
        job = build_job(chosen.job)
        shards = Shards(samples=len(job.train), batch_sizes=chosen.batch_sizes, seed=chosen.seed)
        group = join_group(self.place(), LiveOptions(backend="gloo"))
        torch.manual_seed(chosen.seed)
        model = DistributedDataParallel(job.model())  # which makes buffers rank 0's before each forward
        self.models.append(model)
        optimizer = job.optimizer(model.parameters())
        for step in range(chosen.iterations or 0):
            inputs, targets = job.train.take(shards.indices(self.rank, step))
            optimizer.zero_grad()
            job.loss(model(inputs), targets).backward()
            optimizer.step()
        if self.rank == 0:
            write_tensors(self.out / f"{name}-ddp.safetensors", dict(model.module.state_dict()))
        group.exchange("a worker that leaves while another still sums would take its connection away")
        group.close()

    def left_alone(self, name: str) -> None:
        """Rank 0 raises between two steps; rank 1 must notice in the middle of a schedule."""
        try:
            self.run(
                f"left-{name}", settings=by_schedule(name), pulse=Pulse(fail_at=5 if self.rank == 0 else None)
            )
        except (OSError, RuntimeError) as error:
            self.note(f"left-{name}", error=str(error))

    def stopped(self) -> None:
        """Rank 1 is asked to stop at step 8; its last checkpoint is damaged before the run goes on."""
        self.run("stopped-not", settings=SETTINGS["stopped"])
        pulse = Pulse()
        summary, _ = self.run("stopped", pulse=pulse, stop=lambda: self.rank == 1 and pulse.step >= 8)
        folder = RunFolder(pulse.run)
        if self.rank == 1:
            path = folder.checkpoint(9, 1)
            path.write_bytes(path.read_bytes()[:-7])
        again, after = self.run("stopped", resume=folder)
        self.note("stopped", ending=summary.ending, at=summary.steps, notes=after.notes, again=again.ending)

    def baton(self) -> None:
        """Rank 1 is asked to stop where no reduction carries its vote; both go on for 20 steps more."""
        pulse = Reader(self.rank)
        endless = replace(SETTINGS["baton"], strategy=f"{write_baton(self.out)}:period=1000")
        summary, _ = self.run(
            "baton", settings=endless, pulse=pulse, stop=lambda: self.rank == 1 and pulse.step >= 50
        )
        longer = replace(endless, iterations=summary.steps + 20)
        self.run("baton", settings=longer, resume=RunFolder(pulse.run))
        self.run("baton-not", settings=longer)
        self.note("baton", ending=summary.ending, at=summary.steps, lines=pulse.lines)

    def killed(self) -> None:
        """Rank 0 raises in the middle of a round; rank 1 must notice, and both go on from step 14."""
        self.run("killed-not", settings=SETTINGS["killed"])
        pulse = Pulse(fail_at=17 if self.rank == 0 else None)
        try:
            self.run("killed", pulse=pulse)
        except (OSError, RuntimeError) as error:
            first = str(error)
        folder = RunFolder(pulse.run)
        lines = folder.events(self.rank).read_text().count("\n")
        shutil.copy(folder.events(self.rank), self.out / f"killed-events-{self.rank}.jsonl")
        self.run("killed", resume=folder)
        self.note("killed", error=first, lines=lines)


def main(rank: int, out: Path, ports: list[int]) -> None:
    torch.set_num_threads(1)
    process = Process(rank, out, ports)
    for name in ("cnn", "norm", "leftover", "uneven", "slowed", "partial", "period", "seconds"):
        summary, pulse = process.run(name)
        process.note(name, **summary.to_json(), acknowledged=pulse.acknowledged)
    for name in ("cnn", "uneven", "partial"):
        summary, pulse = process.run(f"{name}-gloo", settings=SETTINGS[name], backend="gloo")
        process.note(f"{name}-gloo", **summary.to_json(), acknowledged=pulse.acknowledged)
    for name in SCHEDULES:
        summary, pulse = process.run(f"cnn-{name}", settings=by_schedule(name))
        process.note(f"cnn-{name}", **summary.to_json(), acknowledged=pulse.acknowledged)
    process.left_alone("ring")
    process.ddp("cnn")
    process.ddp("norm")
    process.stopped()
    process.baton()
    process.killed()
    leave(0)


def write_baton(folder: Path) -> str:
    """Write the strategy that the page on adding one shows, which never reduces, and return its import path."""
    text = (Path(__file__).parents[2] / "docs" / "add-a-strategy.md").read_text()
    (source,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "class Baton" in block]
    draft = folder / f"baton-{os.getpid()}"
    draft.write_text(source)
    draft.replace(folder / "baton.py")
    return f"{folder / 'baton.py'}:Baton"


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), [int(port) for port in sys.argv[3].split(",")])
