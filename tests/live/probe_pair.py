"""One of two workers that train with and without a measurement before: ``probe_pair.py RANK OUT PORTS``."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from engine_pair import Process, Pulse, settings

from paceline.records.files import to_document
from paceline.records.folder import RunFolder
from paceline.runtimes.live.worker import run
from paceline.runtimes.live.worker.guard import leave
from paceline.runtimes.live.worker.probe import NotMeasured, measure
from paceline.runtimes.settings import Cadence

SHORT = {"evaluate": Cadence(3, "steps"), "checkpoint": Cadence(3, "steps"), "iterations": 6}
SETTINGS = {
    "gradients": settings("restless", codec="powersgd:rank=1,memory=error", **SHORT),
    "differences": settings("restless", codec="random-k:ratio=0.2", strategy="local-sgd:period=3", **SHORT),
    "slowed": settings("wide", codec="int8", slow={1: 20.0}, iterations=4, checkpoint=Cadence(0)),
    "uncopied": settings("uncopied", codec="int8", **SHORT),
}


def not_measured(*_: object) -> None:
    raise NotMeasured("it is not wanted")


class ProbedProcess(Process):
    def measuring(self, how: Callable[..., object], name: str, **options: object) -> Pulse:
        run.measure = how
        return self.run(name, **options)[1]

    def resumed(self, how: Callable[..., object], name: str, out: str) -> None:
        """Measured where the run begins, and again where it goes on."""
        chosen = SETTINGS[name]
        pulse = self.measuring(how, out, settings=replace(chosen, iterations=3))
        self.measuring(how, out, settings=chosen, resume=RunFolder(pulse.run))


def main(rank: int, out: Path, ports: list[int]) -> None:
    torch.set_num_threads(1)
    process = ProbedProcess(rank, out, ports)
    for name in ("gradients", "differences"):
        process.resumed(measure, name, f"{name}-measured")
        process.resumed(not_measured, name, f"{name}-not")
    for name, backend in (("slowed", "gloo"), ("uncopied", None)):
        pulse = process.measuring(measure, name, settings=SETTINGS[name], backend=backend)
        if rank == 0:
            process.note(name, probe=to_document(pulse.began.probe), told=pulse.notes)
    leave(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), [int(port) for port in sys.argv[3].split(",")])
