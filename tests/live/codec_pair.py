"""One of two workers that train with every codec: ``codec_pair.py RANK OUT PORTS``."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from engine_pair import Process, Pulse, settings

from paceline import AllReduce, Apply, Gradient, Program, Strategy, SyncPoint, Worker
from paceline.records.folder import RunFolder
from paceline.runtimes.live.worker import run
from paceline.runtimes.live.worker.guard import leave
from paceline.runtimes.live.worker.probe import NotMeasured
from paceline.runtimes.settings import Cadence, Settings

BUCKETS = "all-reduce:bucket=400,first_bucket=100"
"""Two of the small model's parameters travel behind backward, and two after it."""
GRADIENTS = {
    "half": "half:memory=error",
    "int8": "int8",
    "sign": "sign",
    "top-k": "top-k:ratio=0.1",
    "random-k": "random-k:ratio=0.2",
    "threshold": "threshold:bound=0.02",
    "dgc": "dgc:ratio=0.1,warmup=8,clip=1",
    "powersgd": "powersgd:rank=2",
}
DIFFERENCES = {
    "local-half": "half:memory=error",
    "local-top-k": "top-k:ratio=0.1",
    "local-int8": "int8:memory=error",
    "local-sign": "sign",
    "local-random-k": "random-k:ratio=0.2",
    "local-powersgd": "powersgd:rank=2",
}


LATE = {
    "late": "identity",
    "late-top-k": "top-k:ratio=0.1",
    "late-int8": "int8:memory=error",
}
"""Outer gradients in fragments, which are encoded and sent while the workers train on."""
STRATEGIES = {
    "local": "local-sgd:period=4",
    "late": "local-sgd:period=4,overlap=2,fragments=2,outer=nesterov",
    "post": "post-local:switch=5,period=3",
}


def training(name: str, codec: str) -> Settings:
    return settings(
        "plain",
        strategy=STRATEGIES.get(name.partition("-")[0], BUCKETS),
        codec=codec,
        batch_sizes=(12, 4),
        evaluate=Cadence(6, "steps"),
        checkpoint=Cadence(6, "steps"),
        iterations=12,
    )


LEFTOVER = settings("leftover", codec="top-k:ratio=0.1", batch_sizes=(16, 16), iterations=9)
SETTINGS = {name: training(name, codec) for name, codec in {**GRADIENTS, **DIFFERENCES, **LATE}.items()} | {
    "post-sign": training("post-sign", "sign"),
    "identity": training("identity", "identity"),
    "local-threshold": training("local-threshold", "threshold:bound=0.002"),
    "everything": training("everything", "top-k:ratio=1"),
    **{
        f"own-{op}": replace(
            training("own", "top-k:ratio=1"), strategy=f"{Path(__file__)}:OwnReduction:op={op}"
        )
        for op in ("mean", "sum", "none")
    },
    "leftover": LEFTOVER,
    "leftover-before": replace(LEFTOVER, iterations=8),
    "wide": settings("wide", codec="int8", iterations=4, slow={1: 4.0}),
    "wide-top-k": settings("wide", codec="top-k:ratio=0.2", iterations=4),
    "seconds": settings(
        "plain",
        strategy="local-sgd:period=0.01s",
        codec="random-k:ratio=0.2",
        slow={1: 3.0},
        iterations=40,
        checkpoint=Cadence(1000),
    ),
}


RESUMED = ("int8", "top-k", "random-k", "dgc", "powersgd", "local-int8", "local-sign", "late-top-k")
REBUCKETED = ("dgc", "powersgd")
OVER_GLOO = ("half", "int8", "threshold", "powersgd", "local-sign", "late-int8")


@dataclass(frozen=True, kw_only=True)
class OwnReduction(Strategy):
    """Averages gradients after backward, or adds them up, or leaves them as they are."""

    op: str = "mean"
    replicated = True
    sync_point = SyncPoint.EVERY_STEP

    def worker(self, me: Worker) -> Program:
        while True:
            yield Gradient()
            if self.op == "mean":
                yield AllReduce(me.grad, weight=me.samples)
            elif self.op == "sum":
                me.grad.mul_(me.samples / 16)
                yield AllReduce(me.grad, op="sum")
            else:
                me.grad.zero_()
            yield Apply()

    def central(self, me: Worker) -> Program:
        yield from ()
        return me.params


class CodecProcess(Process):
    def resumed(self, name: str) -> None:
        """Stopped after half of the steps; some go on after the last of these, with other buckets."""
        chosen = SETTINGS[name]
        _, pulse = self.run(f"{name}-resumed", settings=replace(chosen, iterations=6))
        self.run(f"{name}-resumed", settings=chosen, resume=RunFolder(pulse.run))
        if name in REBUCKETED:
            longer = replace(chosen, strategy="all-reduce", iterations=18)
            self.run(f"{name}-resumed", settings=longer, resume=RunFolder(pulse.run))

    def left(self, backend: str) -> None:
        """Rank 0 raises between two steps; rank 1 must notice in the thread that reduces its buckets, or averages."""
        for name in ("int8", "late-int8"):
            fails = Pulse(fail_at=5 if self.rank == 0 else None)
            try:
                self.run(f"left-{name}-{backend}", settings=SETTINGS[name], pulse=fails, backend=backend)
            except (OSError, RuntimeError) as error:
                self.note(f"left-{name}-{backend}", error=str(error), step=fails.step)


def not_measured(*_: object) -> None:
    raise NotMeasured("the tests of the probe do so")


def main(rank: int, out: Path, ports: list[int]) -> None:
    torch.set_num_threads(1)
    run.measure = not_measured  # which takes longer than these runs
    process = CodecProcess(rank, out, ports)
    for name, chosen in SETTINGS.items():
        backend = "gloo" if name.startswith("wide") else None
        summary, pulse = process.run(name, settings=chosen, backend=backend)
        process.note(name, **summary.to_json(), acknowledged=pulse.acknowledged, told=pulse.notes)
    for name in RESUMED:
        process.resumed(name)
    for name in OVER_GLOO:
        process.run(f"{name}-gloo", settings=SETTINGS[name], backend="gloo")
    for backend in ("shm", "gloo"):
        process.left(backend)
    leave(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), [int(port) for port in sys.argv[3].split(",")])
