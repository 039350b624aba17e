"""The peak memory of real workers and servers beside what is predicted for them. Linux only; no clock matters.

Each cell is predicted first. Then ``paceline train`` runs it on this machine until its memory has stopped growing, and
the high-water mark of resident memory (VmHWM) of every worker is read, and of every server. Pages of other ranks that
a process maps (RssShmem beyond its own vectors) are theirs and left out. Evaluations and checkpoints are off.
"""

import argparse
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.jobs.spec import JobSpec
from paceline.studies.predict import predict
from paceline.studies.predict.prediction import Memory
from paceline.studies.predict.request import PredictRequest

MEDIAN, WORST = 5.0, 15.0
"""Per cent that the median error of a worker's peak and the worst may be."""
QUIET, LONGEST = 15.0, 150.0
"""Seconds without growth after which a peak is taken to be reached, and that a cell may take."""

JOB = """
import torch
from paceline.jobs.data import TensorData
from paceline.jobs.job import Job
from paceline.jobs.build import traceable_of

def build():
    subject = traceable_of({model!r}, shape={shape!r}, classes={classes!r}, optimizer={optimizer!r})
    data = TensorData(*subject.batch({samples}))
    return Job(name="cell", model=subject.model, loss=subject.loss, train=data, test=data, optimizer=subject.optimizer)
"""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One job, and how its workers agree."""

    model: str
    batch: int
    shape: tuple[int, ...] | None = None
    classes: int | None = 10
    optimizer: str = "sgd"
    strategy: str = "all-reduce"
    workers: int = 1
    servers: int = 0
    backend: str = "shm"

    def __str__(self) -> str:
        size = "" if self.shape is None else f" {'x'.join(map(str, self.shape))}"
        through = f", {self.servers} servers" if self.servers else f", {self.backend}" * (self.workers > 1)
        agree = f", {self.strategy} {self.workers}{through}" if self.workers > 1 else ""
        return f"{self.model}{size}, batch {self.batch}, {self.optimizer}{agree}"


SGD = "sgd:momentum=0"
GPT = "gpt:layers=4,heads=4,width=256,context=128,vocabulary=8000"
CELLS = (
    Cell(model="mlp:hidden=2048,layers=3", shape=(1, 28, 28), batch=64, optimizer=SGD),
    Cell(model="mlp:hidden=2048,layers=3", shape=(1, 28, 28), batch=64),
    Cell(model="mlp:hidden=2048,layers=3", shape=(1, 28, 28), batch=1024, optimizer="adam"),
    Cell(model="mlp:hidden=2048,layers=3", shape=(1, 28, 28), batch=4096, optimizer="adam"),
    Cell(model="cnn", shape=(1, 28, 28), batch=1024),
    Cell(model="cnn:first=32,second=64,hidden=512", shape=(3, 32, 32), batch=2048, optimizer="adam"),
    Cell(model="resnet18", shape=(3, 32, 32), batch=16, optimizer=SGD),
    Cell(model="resnet18", shape=(3, 32, 32), batch=64),
    Cell(model="resnet18", shape=(3, 64, 64), batch=64, optimizer="adam"),
    Cell(model="resnet50", shape=(3, 64, 64), batch=16),
    Cell(model="resnet50", shape=(3, 64, 64), batch=48, optimizer="adamw"),
    Cell(model="vgg16", shape=(3, 64, 64), batch=8, optimizer=SGD),
    Cell(model="vgg16", shape=(3, 64, 64), batch=64),
    Cell(model="alexnet", shape=(3, 128, 128), batch=64),
    Cell(model="googlenet", shape=(3, 96, 96), batch=32),
    Cell(model=GPT, batch=4, classes=None, optimizer="adamw"),
    Cell(model=GPT, batch=32, classes=None, optimizer="adamw"),
    Cell(model="mlp:hidden=2048,layers=3", shape=(1, 28, 28), batch=64, workers=2),
    Cell(model="mlp:hidden=2048,layers=3", shape=(1, 28, 28), batch=64, workers=2, backend="gloo"),
    Cell(model="resnet18", shape=(3, 32, 32), batch=32, workers=2, backend="gloo"),
    Cell(
        model="resnet18",
        shape=(3, 32, 32),
        batch=32,
        workers=2,
        strategy="local-sgd:period=4",
        backend="gloo",
    ),
    Cell(
        model="mlp:hidden=2048,layers=3",
        shape=(1, 28, 28),
        batch=64,
        workers=2,
        strategy="ps",
        servers=1,
    ),
    Cell(
        model="mlp:hidden=2048,layers=3",
        shape=(1, 28, 28),
        batch=64,
        workers=2,
        strategy="ps",
        servers=2,
        optimizer="adam",
    ),
    Cell(model="resnet18", shape=(3, 32, 32), batch=32, workers=2, strategy="ssp:staleness=2", servers=1),
)


@dataclass(frozen=True)
class Peak:
    """Bytes of the largest worker and of the largest server."""

    worker: float
    server: float


def main() -> None:
    """Print a table; exit 3 where the errors are larger than they may be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for cell in (one for one in CELLS if options.only in str(one)):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(_row(cell, Path(folder)))
        sys.stdout.write(f"{rows[-1]['line']}\n")
        sys.stdout.flush()
    errors = [abs(row["error"]) for row in rows] + [
        abs(row["server_error"]) for row in rows if row["server_error"] is not None
    ]
    above = [abs(row["above"]) for row in rows]
    sys.stdout.write(
        f"median error {statistics.median(errors):.1f} %, worst {max(errors):.1f} %; "
        f"without the process itself, median {statistics.median(above):.1f} %, worst {max(above):.1f} %\n"
    )
    if options.out:
        options.out.write_text(json.dumps(rows, indent=2))
    sys.exit(0 if statistics.median(errors) <= MEDIAN and max(errors) <= WORST else 3)


def _row(cell: Cell, folder: Path) -> dict[str, Any]:
    samples = cell.batch * cell.workers
    job = folder / "job.py"
    text = {"model": cell.model, "shape": cell.shape, "classes": cell.classes, "optimizer": cell.optimizer}
    job.write_text(JOB.format(samples=samples, **text))
    memory, sample = _predicted(cell, job)
    measured = _measured(cell, job, folder, memory.parameters + memory.gradients)
    data = samples * sample
    total = memory.total + data
    error = _off(total, measured.worker)
    above = _off(total - memory.base, measured.worker - memory.base)
    cells = [str(cell), f"{total / 1e6:,.0f}", f"{measured.worker / 1e6:,.0f}", f"{error:+.1f} %"]
    server_error = None
    if memory.server is not None:
        server = memory.server + data
        server_error = _off(server, measured.server)
        cells += [f"{server / 1e6:,.0f}", f"{measured.server / 1e6:,.0f}", f"{server_error:+.1f} %"]
    line = f"| {' | '.join(cells)} |"
    return {"line": line, "error": error, "above": above, "server_error": server_error}


def _off(predicted: float, measured: float) -> float:
    return 100 * (predicted / measured - 1)


def _predicted(cell: Cell, job: Path) -> tuple[Memory, float]:
    """And the bytes of a sample, of which the data holds one for each of all workers' steps."""
    words = PredictRequest(
        job=JobSpec(path=f"{job}:build"),
        device="epyc-7763",
        per_host=1 if cell.backend == "gloo" else cell.workers + 1,
        workers=(cell.workers,),
        batch_size=cell.batch,
        strategies=(cell.strategy,),
        servers=cell.servers or 1,
    )
    memory = predict(words).series[0].rows[0].memory
    assert memory is not None
    return memory, _sample_bytes(job)


def _sample_bytes(job: Path) -> float:
    scope: dict[str, Any] = {}
    exec(job.read_text(), scope)
    data = scope["build"]().train
    return float(data.inputs.nbytes + data.targets.nbytes) / len(data)


def _measured(cell: Cell, job: Path, folder: Path, own: float) -> Peak:
    command = [
        sys.executable,
        "-m",
        "paceline",
        "train",
        "--job",
        f"{job}:build",
        "--workers",
        str(cell.workers),
    ]
    command += ["--batch-size", str(cell.batch), "--strategy", cell.strategy, "--iterations", "1000000"]
    command += ["--evaluate-every", "never", "--checkpoint-every", "never", "--runs", str(folder / "runs")]
    command += ["--servers", str(cell.servers)] if cell.servers else []
    command += ["--backend", cell.backend] if cell.workers > 1 and not cell.servers else []
    with (folder / "out").open("w") as out:
        run = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        return _watch(run, folder / "runs", own, cell)
    finally:
        run.send_signal(signal.SIGINT)
        try:
            run.wait(30)
        except subprocess.TimeoutExpired:
            run.kill()
        shutil.rmtree(folder / "runs", ignore_errors=True)


def _watch(run: subprocess.Popen[bytes], runs: Path, own: float, cell: Cell) -> Peak:
    """Read the marks until they have not grown for a while."""
    begun = grown = time.monotonic()
    peak = Peak(0.0, 0.0)
    while time.monotonic() - begun < LONGEST:
        time.sleep(0.2)
        if run.poll() is not None:
            raise RuntimeError((runs.parent / "out").read_text())
        workers = [_held(pid, own) for pid in _workers(runs)]
        servers = [_held(pid, 0.0) for pid in _servers(run.pid)] if cell.servers else [0.0]
        if len(workers) < cell.workers or not _trains(runs):
            grown = time.monotonic()
            continue
        now = Peak(max(workers), max(servers, default=0.0))
        if now.worker > 1.002 * peak.worker or now.server > 1.002 * peak.server:
            peak, grown = now, time.monotonic()
        if time.monotonic() - grown > QUIET:
            return now
    raise RuntimeError(f"{cell}: still growing after {LONGEST} s")


def _workers(runs: Path) -> list[int]:
    found = list(runs.glob("*/env.json"))
    return [worker["pid"] for worker in json.loads(found[0].read_text())["workers"]] if found else []


def _trains(runs: Path) -> bool:
    """Whether the run has been training for some seconds."""
    return any(path.read_bytes().count(b"\n") > 2 for path in runs.glob("*/system.jsonl"))


def _servers(launcher: int) -> Iterator[int]:
    """Processes of the run that write a server's log."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            links = [str(one.readlink()) for one in (process / "fd").iterdir()]
        except OSError:
            continue
        if any("/events/server-" in link for link in links) and _is_below(int(process.name), launcher):
            yield int(process.name)


def _is_below(pid: int, ancestor: int) -> bool:
    while pid > 1 and pid != ancestor:
        pid = int(_status(pid).get("PPid", 0))
    return pid == ancestor


def _status(pid: int) -> dict[str, float]:
    """Numbers of /proc/PID/status; sizes in bytes."""
    try:
        lines = Path("/proc", str(pid), "status").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in lines)
    words = {key: value.split() for key, value in pairs}
    return {
        key: float(value[0]) * (1024 if value[1:] == ["kB"] else 1)
        for key, value in words.items()
        if value and value[0].isdigit()
    }


def _held(pid: int, own: float) -> float:
    """The high-water mark, without the pages of others: those shared beyond a process's own vectors."""
    status = _status(pid)
    return status.get("VmHWM", 0.0) - max(0.0, status.get("RssShmem", 0.0) - own)


if __name__ == "__main__":
    main()
